// The ops on rows of neighbours, their arguments checked at entry. A device is OnCpu or OnGpu; the loops are
// overloads on the call that it makes.
#pragma once

#include <tuple>

#include "neighbor_rows/inputs.h"

namespace mdops {

template <class Device>
struct NeighborRowsOps {
  static std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> neighbor_rows(
      const Tensor& displacements, const Tensor& counts, const Tensor& types, const Tensor& pair_mask,
      const Tensor& zeroed, double cutoff) {
    const auto op = Device::make("neighbor_rows", "displacements", displacements);
    const RowListInputs in(op, displacements, counts, types, pair_mask, zeroed, cutoff);
    const int64_t atoms = in.list.atoms, slots_size = atoms * in.list.width;
    Tensor offsets = empty(op, {atoms + 1}, ScalarType::Int);
    Tensor slots = empty(op, {slots_size}, ScalarType::Int);
    Tensor taken = empty(op, {atoms}, ScalarType::Int), within = empty(op, {atoms}, ScalarType::Int);
    Tensor nearest = empty(op, {atoms}, in.list.dtype);
    dispatch_float(op, in.list.dtype, [&](auto zero) {
      using T = decltype(zero);
      const RowListResults<T> out{offsets.mutable_data_ptr<int32_t>(), slots.mutable_data_ptr<int32_t>(),
                                  taken.mutable_data_ptr<int32_t>(), within.mutable_data_ptr<int32_t>(),
                                  nearest.mutable_data_ptr<T>()};
      run_row_list(op, in.args<T>(), out);
    });
    return {offsets, slots, taken, within, nearest};
  }

  static std::tuple<Tensor, Tensor, Tensor, Tensor> spline_rows(
      const Tensor& displacements, const Tensor& slots, const Tensor& counts, const Tensor& types,
      const Tensor& mean, const Tensor& std, const Tensor& table, double cutoff, double cutoff_smooth,
      double protection, double s_max, double grading, int64_t rows, bool gated) {
    const auto op = Device::make("spline_rows", "displacements", displacements);
    const SplineRowsInputs in(op, displacements, slots, counts, types, mean, std, table, cutoff,
                              cutoff_smooth, protection, s_max, grading, rows, gated);
    SplineRowsTensors out(op, in);
    dispatch_float(op, in.list.dtype, [&](auto zero) {
      using T = decltype(zero);
      run_spline_rows(op, in.args<T>(), out.results<T>());
    });
    return {out.environment, out.switches, out.directions, out.g};
  }

  static Tensor spline_rows_backward(const Tensor& grad_environment, const Tensor& grad_switch,
                                     const Tensor& grad_directions, const Tensor& grad_g,
                                     const Tensor& displacements, const Tensor& slots, const Tensor& counts,
                                     const Tensor& types, const Tensor& mean, const Tensor& std,
                                     const Tensor& table, double cutoff, double cutoff_smooth,
                                     double protection, double s_max, double grading, int64_t rows,
                                     bool gated) {
    const auto op = Device::make("spline_rows_backward", "displacements", displacements);
    const SplineRowsInputs in(op, displacements, slots, counts, types, mean, std, table, cutoff,
                              cutoff_smooth, protection, s_max, grading, rows, gated);
    const SplineRowsTensors grad(op, in, grad_environment, grad_switch, grad_directions, grad_g);
    Tensor out = Device::summed(op, {in.list.atoms, in.list.width, 3}, in.list.dtype);
    dispatch_float(op, in.list.dtype, [&](auto zero) {
      using T = decltype(zero);
      run_spline_row_gradients(op, in.args<T>(), grad.gradients<T>(), out.mutable_data_ptr<T>());
    });
    return out;
  }

  static std::tuple<Tensor, Tensor, Tensor, Tensor> environment_rows(
      const Tensor& displacements, const Tensor& slots, const Tensor& counts, const Tensor& types,
      const Tensor& mean, const Tensor& std, double cutoff, double cutoff_smooth, double protection,
      int64_t rows) {
    const auto op = Device::make("environment_rows", "displacements", displacements);
    const EnvironmentRowsInputs in(op, displacements, slots, counts, types, mean, std, cutoff, cutoff_smooth,
                                   protection, rows);
    EnvironmentRowsTensors out(op, in);
    Tensor of_pair = empty(op, {in.rows, 2}, ScalarType::Int);
    dispatch_float(op, in.list.dtype, [&](auto zero) {
      using T = decltype(zero);
      run_environment_rows(op, in.args<T>(), out.results<T>(), of_pair.mutable_data_ptr<int32_t>());
    });
    return {out.environment, out.switches, out.directions, of_pair};
  }

  static Tensor environment_rows_backward(const Tensor& grad_environment, const Tensor& grad_switch,
                                          const Tensor& grad_directions, const Tensor& displacements,
                                          const Tensor& slots, const Tensor& counts, const Tensor& types,
                                          const Tensor& mean, const Tensor& std, double cutoff,
                                          double cutoff_smooth, double protection, int64_t rows) {
    const auto op = Device::make("environment_rows_backward", "displacements", displacements);
    const EnvironmentRowsInputs in(op, displacements, slots, counts, types, mean, std, cutoff, cutoff_smooth,
                                   protection, rows);
    const EnvironmentRowsTensors grad(op, in, grad_environment, grad_switch, grad_directions);
    Tensor out = Device::summed(op, {in.list.atoms, in.list.width, 3}, in.list.dtype);
    dispatch_float(op, in.list.dtype, [&](auto zero) {
      using T = decltype(zero);
      run_environment_row_gradients(op, in.args<T>(), grad.gradients<T>(), out.mutable_data_ptr<T>());
    });
    return out;
  }

  static std::tuple<Tensor, Tensor, Tensor, Tensor> environment_rows_backward_backward(
      const Tensor& direction, const Tensor& grad_environment, const Tensor& grad_switch,
      const Tensor& grad_directions, const Tensor& displacements, const Tensor& slots, const Tensor& counts,
      const Tensor& types, const Tensor& mean, const Tensor& std, double cutoff, double cutoff_smooth,
      double protection, int64_t rows) {
    const auto op = Device::make("environment_rows_backward_backward", "displacements", displacements);
    const EnvironmentRowsInputs in(op, displacements, slots, counts, types, mean, std, cutoff, cutoff_smooth,
                                   protection, rows);
    const EnvironmentRowsTensors grad(op, in, grad_environment, grad_switch, grad_directions);
    const Tensor u = input(op, "direction", direction, in.list.dtype, {in.list.atoms, in.list.width, 3});
    EnvironmentRowsTensors out(op, in);
    Tensor by_d = Device::summed(op, {in.list.atoms, in.list.width, 3}, in.list.dtype);
    dispatch_float(op, in.list.dtype, [&](auto zero) {
      using T = decltype(zero);
      run_environment_row_seconds(op, in.args<T>(), u.const_data_ptr<T>(), grad.gradients<T>(),
                                  out.results<T>(), by_d.mutable_data_ptr<T>());
    });
    return {out.environment, out.switches, out.directions, by_d};
  }

  static Tensor harmonic_rows(const Tensor& displacements, const Tensor& slots, const Tensor& counts,
                              const Tensor& types, const Tensor& mean, const Tensor& std, double cutoff,
                              double cutoff_smooth, double protection, int64_t rows, int64_t degree) {
    const auto op = Device::make("harmonic_rows", "displacements", displacements);
    const HarmonicRowsInputs in(op, displacements, slots, counts, types, mean, std, cutoff, cutoff_smooth,
                                protection, rows, degree);
    Tensor out = empty(op, {in.rows, in.components}, in.list.dtype);
    dispatch_float(op, in.list.dtype, [&](auto zero) {
      using T = decltype(zero);
      T* const to = out.mutable_data_ptr<T>();
      run_harmonic_rows(op, in.args<T>(), in.degree, to);
    });
    return out;
  }

  static Tensor harmonic_rows_backward(const Tensor& grad_, const Tensor& displacements, const Tensor& slots,
                                       const Tensor& counts, const Tensor& types, const Tensor& mean,
                                       const Tensor& std, double cutoff, double cutoff_smooth,
                                       double protection, int64_t rows, int64_t degree) {
    const auto op = Device::make("harmonic_rows_backward", "displacements", displacements);
    const HarmonicRowsInputs in(op, displacements, slots, counts, types, mean, std, cutoff, cutoff_smooth,
                                protection, rows, degree);
    const Tensor grad = in.grad(op, grad_);
    Tensor out = Device::summed(op, {in.list.atoms, in.list.width, 3}, in.list.dtype);
    dispatch_float(op, in.list.dtype, [&](auto zero) {
      using T = decltype(zero);
      const T* const by = grad.const_data_ptr<T>();
      T* const to = out.mutable_data_ptr<T>();
      run_harmonic_row_gradients(op, in.args<T>(), in.degree, by, to);
    });
    return out;
  }

  static std::tuple<Tensor, Tensor> harmonic_rows_backward_backward(
      const Tensor& direction, const Tensor& grad_, const Tensor& displacements, const Tensor& slots,
      const Tensor& counts, const Tensor& types, const Tensor& mean, const Tensor& std, double cutoff,
      double cutoff_smooth, double protection, int64_t rows, int64_t degree) {
    const auto op = Device::make("harmonic_rows_backward_backward", "displacements", displacements);
    const HarmonicRowsInputs in(op, displacements, slots, counts, types, mean, std, cutoff, cutoff_smooth,
                                protection, rows, degree);
    const Tensor grad = in.grad(op, grad_);
    const Tensor u = input(op, "direction", direction, in.list.dtype, {in.list.atoms, in.list.width, 3});
    Tensor out = empty(op, {in.rows, in.components}, in.list.dtype);
    Tensor by_d = Device::summed(op, {in.list.atoms, in.list.width, 3}, in.list.dtype);
    dispatch_float(op, in.list.dtype, [&](auto zero) {
      using T = decltype(zero);
      const T *const v = u.const_data_ptr<T>(), *const by = grad.const_data_ptr<T>();
      T *const rows_of = out.mutable_data_ptr<T>(), *const to = by_d.mutable_data_ptr<T>();
      run_harmonic_row_seconds(op, in.args<T>(), in.degree, v, by, rows_of, to);
    });
    return {out, by_d};
  }

  static Tensor row_moments(const Tensor& environment, const Tensor& g, const Tensor& offsets,
                            bool leaves_rest) {
    const auto op = Device::make("row_moments", "environment", environment);
    const RowMomentInputs in(op, environment, g, offsets, leaves_rest);
    Tensor out = empty(op, {in.atoms, in.components, in.channels}, in.dtype);
    dispatch_float(op, in.dtype, [&](auto zero) {
      using T = decltype(zero);
      run_row_moments(op, in.args<T>(), out.mutable_data_ptr<T>());
    });
    return out;
  }

  static std::tuple<Tensor, Tensor> row_moments_backward(const Tensor& grad_, const Tensor& environment,
                                                         const Tensor& g, const Tensor& offsets,
                                                         bool leaves_rest) {
    const auto op = Device::make("row_moments_backward", "environment", environment);
    const RowMomentInputs in(op, environment, g, offsets, leaves_rest);
    const Tensor grad = in.grad(op, grad_);
    Tensor by_environment = empty(op, {in.rows, in.components}, in.dtype),
           by_g = empty(op, {in.rows, in.channels}, in.dtype);
    dispatch_float(op, in.dtype, [&](auto zero) {
      using T = decltype(zero);
      run_row_moment_gradients(op, in.args<T>(), grad.const_data_ptr<T>(),
                               by_environment.mutable_data_ptr<T>(), by_g.mutable_data_ptr<T>());
    });
    return {by_environment, by_g};
  }

  static void implement(torch::stable::detail::StableLibrary& m) {
    m.impl("neighbor_rows", TORCH_BOX(&NeighborRowsOps::neighbor_rows));
    m.impl("spline_rows", TORCH_BOX(&NeighborRowsOps::spline_rows));
    m.impl("spline_rows_backward", TORCH_BOX(&NeighborRowsOps::spline_rows_backward));
    m.impl("environment_rows", TORCH_BOX(&NeighborRowsOps::environment_rows));
    m.impl("environment_rows_backward", TORCH_BOX(&NeighborRowsOps::environment_rows_backward));
    m.impl("environment_rows_backward_backward",
           TORCH_BOX(&NeighborRowsOps::environment_rows_backward_backward));
    m.impl("harmonic_rows", TORCH_BOX(&NeighborRowsOps::harmonic_rows));
    m.impl("harmonic_rows_backward", TORCH_BOX(&NeighborRowsOps::harmonic_rows_backward));
    m.impl("harmonic_rows_backward_backward", TORCH_BOX(&NeighborRowsOps::harmonic_rows_backward_backward));
    m.impl("row_moments", TORCH_BOX(&NeighborRowsOps::row_moments));
    m.impl("row_moments_backward", TORCH_BOX(&NeighborRowsOps::row_moments_backward));
  }
};

}  // namespace mdops
