// The ops on splines of lengths. A device has `run_edge_splines`.
#pragma once

#include <cmath>

#include "common/bind.h"
#include "common/given.h"
#include "common/pair_checks.h"
#include "edge_splines/edge_splines.h"

namespace mdops {

struct EdgeSplineInputs {
  static constexpr const char* kFirst = "lengths";
  using Given = Listed<Times<3, const Tensor&>, double>;

  Tensor lengths, kinds, table;
  ScalarType dtype = lengths.scalar_type();
  double cutoff;
  int64_t edges = lengths.size(0), functions;

  EdgeSplineInputs(const Op& op, const Tensor& lengths_, const Tensor& kinds_, const Tensor& table_,
                   double cutoff_)
      : lengths(float_input(op, "lengths", lengths_, {kAny, 1})),
        kinds(input(op, "kinds", kinds_, ScalarType::Int, {lengths.size(0)})),
        table(input(op, "table", table_, lengths.scalar_type(), {kAny, kAny, kAny})),
        cutoff(cutoff_),
        functions(table.size(2)) {
    if (table.size(1) < kSplineSupport)
      fail(op, "argument `table` has ", table.size(1), " splines, expected 6 or more");
    if (!(cutoff > 0) || !std::isfinite(cutoff))
      fail(op, "argument `cutoff` is ", cutoff, " A, expected a finite one above 0");
    check_range(op, "kinds", kinds, -1, table.size(0));
  }

  template <class T>
  EdgeSplineArgs<T> args(const Tensor* grad, Tensor& out) const {
    const int intervals = static_cast<int>(table.size(1) - 5);
    EdgeSplineArgs<T> a{};
    a.edges = edges, a.functions = functions, a.kinds = table.size(0);
    a.grid = {static_cast<T>(intervals / cutoff), intervals}, a.lengths = data_of(lengths);
    a.of_edges = data_of(kinds), a.table = data_of(table), a.grad = grad ? given<T>(*grad) : nullptr;
    a.out = data_of(out);
    return a;
  }
};

template <class Device>
struct EdgeSplineOps {
  using Call = typename Device::Call;

  static Tensor edge_splines(const Call& op, EdgeSplineInputs& in) {
    in.table = Device::placed(in.table);
    Tensor y = empty(op, {in.edges, in.functions}, in.dtype);
    dispatch_float(op, in.dtype, [&]<class T>(T) { run_edge_splines(op, in.args<T>(nullptr, y)); });
    return y;
  }

  static Tensor edge_splines_backward(const Call& op, EdgeSplineInputs& in, const Tensor& grad_) {
    in.table = Device::placed(in.table);
    const Tensor grad = Device::placed(input(op, "grad", grad_, in.dtype, {in.edges, in.functions}));
    Tensor by_lengths = empty(op, {in.edges, 1}, in.dtype);
    dispatch_float(op, in.dtype, [&]<class T>(T) { run_edge_splines(op, in.args<T>(&grad, by_lengths)); });
    return by_lengths;
  }

  MDOPS_IMPLEMENT(EdgeSplineOps, edge_splines, edge_splines_backward)
};

}  // namespace mdops
