// The ops on splines of lengths. A device has `run_edge_splines`.
#pragma once

#include <cmath>

#include "common/bind.h"
#include "edge_splines/edge_splines.h"

namespace mdops {

template <class Device, class T>
struct EdgeSplineOps {
  static EdgeSplineArgs<T> arguments(Checked<Device>& in, Input lengths, Input kinds, Input table,
                                     double cutoff) {
    EdgeSplineArgs<T> a{};
    in.take(a.lengths, "lengths", lengths, {kAny, 1});
    a.edges = lengths.size(0);
    in.place(a.table, "table", table, {kAny, kAny, kAny});
    a.kinds = table.size(0), a.functions = table.size(2);
    in.take_range(a.of_edges, "kinds", kinds, {a.edges}, -1, a.kinds);
    if (table.size(1) < kSplineSupport)
      fail(in.op, "argument `table` has ", table.size(1), " splines, expected 6 or more");
    if (!(cutoff > 0) || !std::isfinite(cutoff))
      fail(in.op, "argument `cutoff` is ", cutoff, " A, expected a finite one above 0");
    const int intervals = static_cast<int>(table.size(1) - 5);
    a.grid = {static_cast<T>(intervals / cutoff), intervals};
    return a;
  }

  static Tensor edge_splines(Checked<Device>& in, EdgeSplineArgs<T>& a) {
    Tensor y = in.result(a.out, {a.edges, a.functions});
    run_edge_splines(in.op, a);
    return y;
  }

  static Tensor edge_splines_backward(Checked<Device>& in, EdgeSplineArgs<T>& a, Input grad) {
    in.give(a.grad, "grad", grad, {a.edges, a.functions});
    Tensor by_lengths = in.result(a.out, {a.edges, 1});
    run_edge_splines(in.op, a);
    return by_lengths;
  }

  MDOPS_IMPLEMENT_FLOATS(EdgeSplineOps, edge_splines, edge_splines_backward)
};

}  // namespace mdops
