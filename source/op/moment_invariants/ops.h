// The ops on invariants of moments.
#pragma once

#include "common/bind.h"
#include "common/pair_checks.h"
#include "moment_invariants/moment_invariants.h"

namespace mdops {

struct TermInputs {
  Tensor index, factor, offsets;

  // Of numbers before `limit`.
  TermInputs(const Op& op, const std::string& name, const Tensor& index_, const Tensor& factor_,
             const Tensor& offsets_, ScalarType dtype, int64_t rows)
      : index(input(op, (name + "_index").c_str(), index_, ScalarType::Int, {kAny, kFactors})),
        factor(input(op, (name + "_factor").c_str(), factor_, dtype, {index.size(0)})),
        offsets(input(op, (name + "_offsets").c_str(), offsets_, ScalarType::Int, {rows})) {
    if (rows < 0 && offsets.size(0) < 1)
      fail(op, "argument `", name, "_offsets` is empty, expected one number more than there are rows");
    check_offsets(op, offsets, index.size(0), (name + "_index").c_str());
  }

  // On the CPU; GPUs answer with NaN.
  void check(const Op& op, const std::string& name, int64_t limit) const {
    if (op.on_cpu()) check_range(op, (name + "_index").c_str(), index, -1, limit);
  }

  template <class T>
  TermArgs<T> args() const {
    return {data_of(index), static_cast<const T*>(factor.const_data_ptr()), data_of(offsets),
            offsets.size(0) - 1, index.size(0)};
  }
};

struct InvariantInputs {
  static constexpr const char* kFirst = "scalars";
  using Given = Listed<Times<10, const Tensor&>, Times<2, int64_t>>;

  Tensor scalars, others, types, behind;
  ScalarType dtype = scalars.scalar_type();
  int64_t mixed, made;
  TermInputs forth, back;

  InvariantInputs(const Op& op, const Tensor& scalars_, const Tensor& others_, const Tensor& types_,
                  const Tensor& behind_, const Tensor& forth_index, const Tensor& forth_factor,
                  const Tensor& forth_offsets, const Tensor& back_index, const Tensor& back_factor,
                  const Tensor& back_offsets, int64_t mixed_, int64_t made_)
      : scalars(float_input(op, "scalars", scalars_, {kAny, kAny})),
        others(input(op, "others", others_, scalars.scalar_type(), {scalars.size(0), kAny})),
        types(input(op, "types", types_, ScalarType::Int, {scalars.size(0)})),
        behind(input(op, "behind", behind_, scalars.scalar_type(), {kAny, kAny})),
        mixed(mixed_),
        made(made_),
        forth(op, "forth", forth_index, forth_factor, forth_offsets, dtype, kAny),
        back(op, "back", back_index, back_factor, back_offsets, dtype,
             checked(op) + scalars.size(1) + others.size(1) + 1) {
    const auto args = this->args<float>();
    if (args.all_backward() > 4096)
      fail(op, "it has ", args.all_backward(), " numbers of an atom, expected up to 4096");
    forth.check(op, "forth", args.known());
    back.check(op, "back", args.all_backward());
    if (op.on_cpu()) check_range(op, "types", types, -1, behind.size(0));
  }

  template <class T>
  InvariantArgs<T> args() const {
    const auto data = [](const Tensor& t) { return static_cast<const T*>(t.const_data_ptr()); };
    InvariantArgs<T> a{};
    a.scalars = data(scalars), a.others = data(others), a.types = data_of(types), a.behind = data(behind);
    a.forth = forth.args<T>(), a.back = back.args<T>(), a.atoms = scalars.size(0);
    a.channels = scalars.size(1) - 2, a.components = others.size(1), a.extra = behind.size(1);
    a.mixed = mixed, a.made = made, a.ntypes = static_cast<int>(behind.size(0));
    return a;
  }

 private:
  int64_t checked(const Op& op) const {
    if (scalars.size(1) < 2)
      fail(op, "argument `scalars` has ", scalars.size(1), " columns, expected at least 2");
    if (mixed < 0 || made < 0 || mixed > forth.offsets.size(0) - 1 - made)
      fail(op, "arguments `mixed` and `made` are ", mixed, " and ", made,
           ", expected 0 to the rows of `forth_offsets` together");
    return mixed + made;
  }
};

template <class Device>
struct InvariantOps {
  using Call = typename Device::Call;

  static Tensor moment_invariants(const Call& op, const InvariantInputs& in) {
    Tensor out = empty(op, {in.scalars.size(0), in.args<float>().width()}, in.dtype);
    dispatch_float(op, in.dtype, [&]<class T>(T) { run_invariants<T>(op, in.args<T>(), data_of(out)); });
    return out;
  }

  static Outputs<2> moment_invariants_backward(const Call& op, const InvariantInputs& in,
                                               const Tensor& grad_) {
    const Tensor grad = input(op, "grad", grad_, in.dtype, {in.scalars.size(0), in.args<float>().width()});
    Tensor by_scalars = empty(op, {in.scalars.size(0), in.scalars.size(1)}, in.dtype),
           by_others = empty(op, {in.others.size(0), in.others.size(1)}, in.dtype);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      run_invariant_gradients<T>(op, in.args<T>(), data_of(grad), data_of(by_scalars), data_of(by_others));
    });
    return {by_scalars, by_others};
  }

  MDOPS_IMPLEMENT(InvariantOps, moment_invariants, moment_invariants_backward)
};

}  // namespace mdops
