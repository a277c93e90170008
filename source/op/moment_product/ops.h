// The ops on moments times tables.
#pragma once

#include "common/bind.h"
#include "moment_product/moment_product.h"

namespace mdops {

template <class Device, class T>
struct MomentProductOps {
  static Tensor moment_product(Checked<Device>& in, Input moments, Input tables, Input rows, Input kinds) {
    MomentProductArgs<T> a{};
    in.take(a.in, "moments", moments, {kinds.dim() ? kinds.size(0) : 0, kAny, kAny});
    take_tables(in, a, "moments", moments.size(2), tables, rows, kinds, false);
    Tensor out = in.sums(a.out, {a.rows, a.columns, a.width});
    run_moment_product(in.op, a);
    return out;
  }

  static Tensor moment_product_backward(Checked<Device>& in, Input grad, Input tables, Input rows,
                                        Input kinds) {
    MomentProductArgs<T> a{};
    in.take(a.in, "grad", grad, {rows.dim() ? rows.size(0) : 0, kAny, kAny});
    take_tables(in, a, "grad", grad.size(1), tables, rows, kinds, true);
    Tensor out = in.sums(a.out, {a.atoms, a.width, a.columns});
    run_moment_gradients(in.op, a);
    return out;
  }

  MDOPS_IMPLEMENT_FLOATS(MomentProductOps, moment_product, moment_product_backward)

 private:
  static void take_tables(Checked<Device>& in, MomentProductArgs<T>& a, const char* name, int64_t columns,
                          Input tables, Input rows, Input kinds, bool back) {
    in.place(a.table, "tables", tables, {kAny, kAny, kAny});
    const int64_t count = tables.size(0), basis = tables.size(1), width = tables.size(2);
    constexpr int64_t kMost = 1 << 24;  // numbers of an atom: what kernels count
    for (const int64_t size : {basis, width, columns, count, basis * columns, width * columns})
      if (size > kMost || basis > kMost || width > kMost || columns > kMost)
        fail(in.op, "argument `tables` or `", name, "` has too many numbers for an atom");
    in.take_range(a.kinds, "kinds", kinds, {kAny}, -1, count);
    a.atoms = kinds.size(0);
    in.take_range(a.row_atom, "rows", rows, {kAny}, 0, a.atoms);
    a.rows = rows.size(0);
    if (a.rows > 0 && count == 0) fail(in.op, "argument `tables` has no table for the rows");
    a.columns = static_cast<int>(columns), a.tables = static_cast<int>(count);
    a.depth = static_cast<int>(back ? width : basis), a.width = static_cast<int>(back ? basis : width);
    if (in.op.on_cpu()) check_rows(in.op, a);
  }

  // Each row belongs to an atom with a kind, and all rows to different atoms.
  static void check_rows(const Op& op, const MomentProductArgs<T>& a) {
    std::vector<bool> seen(a.atoms);
    for (int64_t r = 0; r < a.rows; ++r) {
      const int32_t atom = a.row_atom[r];
      if (a.kinds[atom] < 0) fail(op, "argument `rows` holds an atom without a kind");
      if (seen[atom])
        fail(op, "argument `rows` holds atom ", atom, " more than once, expected every atom once at most");
      seen[atom] = true;
    }
  }
};

}  // namespace mdops
