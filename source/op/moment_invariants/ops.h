// The ops on invariants of moments.
#pragma once

#include "common/bind.h"
#include "moment_invariants/moment_invariants.h"

namespace mdops {

template <class Device, class T>
struct InvariantOps {
  static InvariantArgs<T> arguments(Checked<Device>& in, Input scalars, Input others, Input types,
                                    Input behind, Input forth_index, Input forth_factor, Input forth_offsets,
                                    Input back_index, Input back_factor, Input back_offsets, int64_t mixed,
                                    int64_t made) {
    InvariantArgs<T> a{};
    in.take(a.scalars, "scalars", scalars, {kAny, kAny});
    a.atoms = scalars.size(0), a.channels = scalars.size(1) - 2;
    in.take(a.others, "others", others, {a.atoms, kAny});
    in.take(a.behind, "behind", behind, {kAny, kAny});
    a.components = others.size(1), a.extra = behind.size(1), a.ntypes = static_cast<int>(behind.size(0));
    in.take_range(a.types, "types", types, {a.atoms}, -1, behind.size(0));
    a.forth = terms(in, "forth", forth_index, forth_factor, forth_offsets, kAny);
    if (a.channels < 0)
      fail(in.op, "argument `scalars` has ", scalars.size(1), " columns, expected at least 2");
    if (mixed < 0 || made < 0 || mixed > a.forth.rows - made)
      fail(in.op, "arguments `mixed` and `made` are ", mixed, " and ", made,
           ", expected 0 to the rows of `forth_offsets` together");
    a.mixed = mixed, a.made = made;
    a.back = terms(in, "back", back_index, back_factor, back_offsets,
                   mixed + made + scalars.size(1) + others.size(1) + 1);
    if (a.all_backward() > 4096)
      fail(in.op, "it has ", a.all_backward(), " numbers of an atom, expected up to 4096");
    // On the CPU; GPUs answer with NaN.
    check_range(in.op, "forth_index", a.forth.index, a.forth.terms * kFactors, -1, a.known());
    check_range(in.op, "back_index", a.back.index, a.back.terms * kFactors, -1, a.all_backward());
    return a;
  }

  static Tensor moment_invariants(Checked<Device>& in, InvariantArgs<T>& a) {
    T* to;
    Tensor out = in.result(to, {a.atoms, a.width()});
    run_invariants(in.op, a, to);
    return out;
  }

  static Outputs<2> moment_invariants_backward(Checked<Device>& in, InvariantArgs<T>& a, Input grad) {
    const T* of_features;
    in.take(of_features, "grad", grad, {a.atoms, a.width()});
    T *scalars, *others;
    Tensor by_scalars = in.result(scalars, {a.atoms, a.channels + 2});
    Tensor by_others = in.result(others, {a.atoms, a.components});
    run_invariant_gradients(in.op, a, of_features, scalars, others);
    return {by_scalars, by_others};
  }

  MDOPS_IMPLEMENT_FLOATS(InvariantOps, moment_invariants, moment_invariants_backward)

 private:
  static TermArgs<T> terms(Checked<Device>& in, const std::string& name, Input index, Input factor,
                           Input offsets, int64_t rows) {
    TermArgs<T> a{};
    in.take(a.index, (name + "_index").c_str(), index, {kAny, kFactors});
    a.terms = index.size(0);
    in.take(a.factor, (name + "_factor").c_str(), factor, {a.terms});
    in.take(a.offsets, (name + "_offsets").c_str(), offsets, {rows});
    a.rows = offsets.size(0) - 1;
    if (a.rows < 0)
      fail(in.op, "argument `", name, "_offsets` is empty, expected one number more than there are rows");
    check_offsets(in.op, a.offsets, a.rows, a.terms, (name + "_index").c_str());
    return a;
  }
};

}  // namespace mdops
