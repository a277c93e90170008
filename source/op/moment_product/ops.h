// The ops on moments times tables.
#pragma once

#include "common/bind.h"
#include "common/pair_checks.h"
#include "moment_product/moment_product.h"

namespace mdops {

struct MomentProductInputs {
  static constexpr int64_t kMost = 1 << 24;  // numbers of an atom: what kernels count

  Tensor in, tables, rows, kinds;  // in: moments (N, P, C), or the gradient (R, C, M)
  ScalarType dtype = in.scalar_type();
  int64_t atoms, count = rows.size(0), basis = tables.size(1), width = tables.size(2), columns;
  bool back;

  MomentProductInputs(const Op& op, const char* name, const Tensor& in_, const Tensor& tables_,
                      const Tensor& rows_, const Tensor& kinds_, bool back_)
      : in(float_input(op, name, in_, {kAny, kAny, kAny})),
        tables(input(op, "tables", tables_, in.scalar_type(), {kAny, kAny, kAny})),
        rows(input(op, "rows", rows_, ScalarType::Int, {kAny})),
        kinds(input(op, "kinds", kinds_, ScalarType::Int, {kAny})),
        atoms(kinds.size(0)),
        columns(in.size(back_ ? 1 : 2)),
        back(back_) {
    if (back)
      in = input(op, name, in, dtype, {count, kAny, width});
    else
      in = input(op, name, in, dtype, {atoms, basis, kAny});
    for (const int64_t size : {basis, width, columns, tables.size(0), basis * columns, width * columns})
      if (size > kMost || basis > kMost || width > kMost || columns > kMost)
        fail(op, "argument `tables` or `", name, "` has too many numbers for an atom");
    if (count > 0 && tables.size(0) == 0) fail(op, "argument `tables` has no table for the rows");
    check_range(op, "rows", rows, 0, atoms);
    check_range(op, "kinds", kinds, -1, tables.size(0));
    if (op.on_cpu()) check_rows(op);
  }

  std::vector<int64_t> shape() const {
    return back ? std::vector<int64_t>{atoms, basis, columns} : std::vector<int64_t>{count, columns, width};
  }

  template <class T>
  MomentProductArgs<T> args(Tensor& out) const {
    MomentProductArgs<T> a{};
    a.rows = count, a.atoms = atoms, a.columns = static_cast<int>(columns);
    a.depth = static_cast<int>(back ? width : basis), a.width = static_cast<int>(back ? basis : width);
    a.tables = static_cast<int>(tables.size(0)), a.row_atom = data_of(rows), a.kinds = data_of(kinds);
    a.in = data_of(in), a.table = data_of(tables), a.out = data_of(out);
    return a;
  }

 private:
  // Each row is of an atom with a kind, and of another one than all other rows.
  void check_rows(const Op& op) const {
    const int32_t *atom = rows.const_data_ptr<int32_t>(), *kind = kinds.const_data_ptr<int32_t>();
    std::vector<bool> seen(atoms);
    for (int64_t r = 0; r < count; ++r) {
      if (kind[atom[r]] < 0) fail(op, "argument `rows` holds an atom without a kind");
      if (seen[atom[r]])
        fail(op, "argument `rows` holds atom ", atom[r], " more than once, expected every atom once at most");
      seen[atom[r]] = true;
    }
  }
};

template <class Device>
struct MomentProductOps {
  static Tensor moment_product(const Tensor& moments, const Tensor& tables, const Tensor& rows,
                               const Tensor& kinds) {
    const auto op = Device::make("moment_product", "moments", moments);
    return product(op, {op, "moments", moments, tables, rows, kinds, false});
  }

  static Tensor moment_product_backward(const Tensor& grad, const Tensor& tables, const Tensor& rows,
                                        const Tensor& kinds) {
    const auto op = Device::make("moment_product_backward", "grad", grad);
    return product(op, {op, "grad", grad, tables, rows, kinds, true});
  }

  MDOPS_IMPLEMENT(MomentProductOps, moment_product, moment_product_backward)

 private:
  static Tensor product(const auto& op, MomentProductInputs in) {
    in.tables = Device::placed(in.tables);
    Tensor out = Device::summed(op, in.shape(), in.dtype);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      in.back ? run_moment_gradients(op, in.args<T>(out)) : run_moment_product(op, in.args<T>(out));
    });
    return out;
  }
};

}  // namespace mdops
