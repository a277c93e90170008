// The ops on rows of neighbours.
#pragma once

#include "common/bind.h"
#include "neighbor_rows/inputs.h"

namespace mdops {

template <class Device, class T>
struct RowListOps {
  static Outputs<5> neighbor_rows(Checked<Device>& in, PairTensors pairs, Input pair_mask, Input zeroed,
                                  double cutoff) {
    const auto a = take_row_list<T>(in, pairs, pair_mask, zeroed, cutoff);
    const int64_t atoms = a.list.atoms;
    RowListResults<T> out;
    Tensor offsets = in.result(out.offsets, {atoms + 1});
    Tensor slots = in.result(out.slots, {atoms * a.list.width});
    Tensor taken = in.result(out.taken, {atoms}), within = in.result(out.within, {atoms});
    Tensor nearest = in.result(out.nearest, {atoms});
    run_row_list(in.op, a, out);
    return {offsets, slots, taken, within, nearest};
  }

  MDOPS_IMPLEMENT_FLOATS(RowListOps, neighbor_rows)
};

template <class Device, class T>
struct SplineRowsOps {
  static SplineRowsArgs<T> arguments(Checked<Device>& in, RowTensors of, Input table, CutoffNumbers cutoff,
                                     double s_max, double grading, int64_t rows, bool gated) {
    SplineRowsArgs<T> a{take_environment_rows<T>(in, of, cutoff, rows)};
    in.take(a.table, "table", table, {a.list.ntypes, a.list.ntypes + gated, kAny, kAny});
    a.functions = static_cast<int>(table.size(1)), a.channels = table.size(3), a.gated = gated;
    check_knots(in.op, s_max, grading);
    const int64_t intervals = table.size(2) - kSplineSupport + 1;
    if (intervals < 1 || a.channels < 1)
      fail(in.op, "argument `table` has ", table.size(2), " functions of ", a.channels,
           " numbers, expected at least 6 of 1");
    a.grid = spline_grid<T>(intervals, s_max, grading);
    return a;
  }

  static Outputs<4> spline_rows(Checked<Device>& in, SplineRowsArgs<T>& a) {
    SplineRows<T> out;
    const auto [environment, switches, directions] = row_results(in, a.rows, out);
    Tensor g = in.result(out.g, {a.rows, a.channels});
    run_spline_rows(in.op, a, out);
    return {environment, switches, directions, g};
  }

  static Tensor spline_rows_backward(Checked<Device>& in, SplineRowsArgs<T>& a, Input grad_environment,
                                     Input grad_switch, Input grad_directions, Input grad_g) {
    SplineRows<T, const T*> grad;
    take_row_gradients(in, a.rows, grad, grad_environment, grad_switch, grad_directions);
    in.take(grad.g, "grad_g", grad_g, {a.rows, a.channels});
    T* by_d;
    Tensor out = in.sums(by_d, {a.list.atoms, a.list.width, 3});
    run_spline_row_gradients(in.op, a, grad, by_d);
    return out;
  }

  MDOPS_IMPLEMENT_FLOATS(SplineRowsOps, spline_rows, spline_rows_backward)
};

template <class Device, class T>
struct EnvironmentRowsOps {
  static EnvironmentRowsArgs<T> arguments(Checked<Device>& in, RowTensors of, CutoffNumbers cutoff,
                                          int64_t rows) {
    return take_environment_rows<T>(in, of, cutoff, rows);
  }

  static Outputs<4> environment_rows(Checked<Device>& in, EnvironmentRowsArgs<T>& a) {
    EnvironmentRows<T> out;
    const auto [environment, switches, directions] = row_results(in, a.rows, out);
    int32_t* types;
    Tensor of_pair = in.result(types, {a.rows, 2});
    run_environment_rows(in.op, a, out, types);
    return {environment, switches, directions, of_pair};
  }

  static Tensor environment_rows_backward(Checked<Device>& in, EnvironmentRowsArgs<T>& a,
                                          Input grad_environment, Input grad_switch, Input grad_directions) {
    EnvironmentRows<T, const T*> grad;
    take_row_gradients(in, a.rows, grad, grad_environment, grad_switch, grad_directions);
    T* by_d;
    Tensor out = in.sums(by_d, {a.list.atoms, a.list.width, 3});
    run_environment_row_gradients(in.op, a, grad, by_d);
    return out;
  }

  static Outputs<4> environment_rows_backward_backward(Checked<Device>& in, EnvironmentRowsArgs<T>& a,
                                                       Input direction, Input grad_environment,
                                                       Input grad_switch, Input grad_directions) {
    EnvironmentRows<T, const T*> grad;
    take_row_gradients(in, a.rows, grad, grad_environment, grad_switch, grad_directions);
    const T* u;
    in.take(u, "direction", direction, {a.list.atoms, a.list.width, 3});
    EnvironmentRows<T> out;
    const auto [environment, switches, directions] = row_results(in, a.rows, out);
    T* of_pairs;
    Tensor by_d = in.sums(of_pairs, {a.list.atoms, a.list.width, 3});
    run_environment_row_seconds(in.op, a, u, grad, out, of_pairs);
    return {environment, switches, directions, by_d};
  }

  MDOPS_IMPLEMENT_FLOATS(EnvironmentRowsOps, environment_rows, environment_rows_backward,
                         environment_rows_backward_backward)
};

// Rows with harmonics to a degree.
template <class Device, class T>
struct HarmonicRowsOps {
  struct Given : EnvironmentRowsArgs<T> {
    int degree;

    int components() const { return components_to(degree); }
  };

  static Given arguments(Checked<Device>& in, RowTensors of, CutoffNumbers cutoff, int64_t rows,
                         int64_t degree) {
    if (degree < 2 || degree > kMostDegrees)
      fail(in.op, "argument `degree` is ", degree, ", expected 2 to ", kMostDegrees);
    return {take_environment_rows<T>(in, of, cutoff, rows), static_cast<int>(degree)};
  }

  static Tensor harmonic_rows(Checked<Device>& in, Given& a) {
    T* to;
    Tensor out = in.result(to, {a.rows, a.components()});
    run_harmonic_rows(in.op, a, a.degree, to);
    return out;
  }

  static Tensor harmonic_rows_backward(Checked<Device>& in, Given& a, Input grad) {
    const T* of_rows;
    in.take(of_rows, "grad", grad, {a.rows, a.components()});
    T* by_d;
    Tensor out = in.sums(by_d, {a.list.atoms, a.list.width, 3});
    run_harmonic_row_gradients(in.op, a, a.degree, of_rows, by_d);
    return out;
  }

  static Outputs<2> harmonic_rows_backward_backward(Checked<Device>& in, Given& a, Input direction,
                                                    Input grad) {
    const T *of_rows, *u;
    in.take(of_rows, "grad", grad, {a.rows, a.components()});
    in.take(u, "direction", direction, {a.list.atoms, a.list.width, 3});
    T *rows, *of_pairs;
    Tensor out = in.result(rows, {a.rows, a.components()});
    Tensor by_d = in.sums(of_pairs, {a.list.atoms, a.list.width, 3});
    run_harmonic_row_seconds(in.op, a, a.degree, u, of_rows, rows, of_pairs);
    return {out, by_d};
  }

  MDOPS_IMPLEMENT_FLOATS(HarmonicRowsOps, harmonic_rows, harmonic_rows_backward,
                         harmonic_rows_backward_backward)
};

template <class Device, class T>
struct RowMomentOps {
  static RowMomentArgs<T> arguments(Checked<Device>& in, Input environment, Input g, Input offsets,
                                    bool leaves_rest, const Optional& index, const Optional& order,
                                    const Optional& node_offsets) {
    RowMomentArgs<T> a{};
    in.take(a.environment, "environment", environment, {kAny, kAny});
    a.rows = environment.size(0), a.components = static_cast<int>(environment.size(1));
    if (environment.size(1) > kMostComponents)
      fail(in.op, "argument `environment` has ", environment.size(1), " columns, expected up to ",
           kMostComponents);
    in.take(a.g, "g", g, {index ? kAny : a.rows, kAny});
    a.channels = g.size(1), a.nodes = g.size(0), a.leaves_rest = leaves_rest;
    if (index.has_value() != node_offsets.has_value())
      fail(in.op, "arguments `index` and `node_offsets` are given together or not at all");
    if (index) {
      const RowIndex of(in, NodeIndex{*index, order, *node_offsets}, a.rows,
                        {"index", "order", "node_offsets"});
      check_nodes(in.op, "g", g, of);
      a.index = of.index;
    }
    in.take(a.offsets, "offsets", offsets, {kAny});
    a.atoms = offsets.size(0) - 1;
    check_offsets(in.op, a.offsets, a.atoms, a.rows, "g", true);
    return a;
  }

  static Tensor row_moments(Checked<Device>& in, RowMomentArgs<T>& a) {
    T* moments;
    Tensor out = in.result(moments, {a.atoms, a.components, a.channels});
    run_row_moments(in.op, a, moments);
    return out;
  }

  static Outputs<2> row_moments_backward(Checked<Device>& in, RowMomentArgs<T>& a, Input grad) {
    const T* of_moments;
    in.take(of_moments, "grad", grad, {a.atoms, a.components, a.channels});
    T *environment, *g;
    Tensor by_environment = in.result(environment, {a.rows, a.components});
    Tensor by_g = in.result(g, {a.rows, a.channels});
    run_row_moment_gradients(in.op, a, of_moments, environment, g);
    return {by_environment, by_g};
  }

  MDOPS_IMPLEMENT_FLOATS(RowMomentOps, row_moments, row_moments_backward)
};

}  // namespace mdops
