// The ops on rows of neighbours.
#pragma once

#include "common/bind.h"
#include "neighbor_rows/inputs.h"

namespace mdops {

template <class Device>
struct NeighborRowsOps {
  using Call = typename Device::Call;

  static Outputs<5> neighbor_rows(const Call& op, const RowListInputs& in) {
    const int64_t atoms = in.list.atoms, slots_size = atoms * in.list.width;
    Tensor offsets = empty(op, {atoms + 1}, ScalarType::Int);
    Tensor slots = empty(op, {slots_size}, ScalarType::Int);
    Tensor taken = empty(op, {atoms}, ScalarType::Int), within = empty(op, {atoms}, ScalarType::Int);
    Tensor nearest = empty(op, {atoms}, in.list.dtype);
    dispatch_float(op, in.list.dtype, [&]<class T>(T) {
      const RowListResults<T> out{data_of(offsets), data_of(slots), data_of(taken), data_of(within),
                                  data_of(nearest)};
      run_row_list(op, in.args<T>(), out);
    });
    return {offsets, slots, taken, within, nearest};
  }

  static Outputs<4> spline_rows(const Call& op, const SplineRowsInputs& in) {
    SplineRowsTensors out(op, in);
    dispatch_float(op, in.list.dtype,
                   [&]<class T>(T) { run_spline_rows(op, in.args<T>(), out.results<T>()); });
    return {out.environment, out.switches, out.directions, out.g};
  }

  static Tensor spline_rows_backward(const Call& op, const SplineRowsInputs& in,
                                     const Tensor& grad_environment, const Tensor& grad_switch,
                                     const Tensor& grad_directions, const Tensor& grad_g) {
    const SplineRowsTensors grad(op, in, grad_environment, grad_switch, grad_directions, grad_g);
    Tensor out = Device::summed(op, {in.list.atoms, in.list.width, 3}, in.list.dtype);
    dispatch_float(op, in.list.dtype, [&]<class T>(T) {
      run_spline_row_gradients<T>(op, in.args<T>(), grad.gradients<T>(), data_of(out));
    });
    return out;
  }

  static Outputs<4> environment_rows(const Call& op, const EnvironmentRowsInputs& in) {
    EnvironmentRowsTensors out(op, in);
    Tensor of_pair = empty(op, {in.rows, 2}, ScalarType::Int);
    dispatch_float(op, in.list.dtype, [&]<class T>(T) {
      run_environment_rows<T>(op, in.args<T>(), out.results<T>(), data_of(of_pair));
    });
    return {out.environment, out.switches, out.directions, of_pair};
  }

  static Tensor environment_rows_backward(const Call& op, const EnvironmentRowsInputs& in,
                                          const Tensor& grad_environment, const Tensor& grad_switch,
                                          const Tensor& grad_directions) {
    const EnvironmentRowsTensors grad(op, in, grad_environment, grad_switch, grad_directions);
    Tensor out = Device::summed(op, {in.list.atoms, in.list.width, 3}, in.list.dtype);
    dispatch_float(op, in.list.dtype, [&]<class T>(T) {
      run_environment_row_gradients<T>(op, in.args<T>(), grad.gradients<T>(), data_of(out));
    });
    return out;
  }

  static Outputs<4> environment_rows_backward_backward(const Call& op, const EnvironmentRowsInputs& in,
                                                       const Tensor& direction,
                                                       const Tensor& grad_environment,
                                                       const Tensor& grad_switch,
                                                       const Tensor& grad_directions) {
    const EnvironmentRowsTensors grad(op, in, grad_environment, grad_switch, grad_directions);
    const Tensor u = input(op, "direction", direction, in.list.dtype, {in.list.atoms, in.list.width, 3});
    EnvironmentRowsTensors out(op, in);
    Tensor by_d = Device::summed(op, {in.list.atoms, in.list.width, 3}, in.list.dtype);
    dispatch_float(op, in.list.dtype, [&]<class T>(T) {
      run_environment_row_seconds<T>(op, in.args<T>(), data_of(u), grad.gradients<T>(), out.results<T>(),
                                     data_of(by_d));
    });
    return {out.environment, out.switches, out.directions, by_d};
  }

  static Tensor harmonic_rows(const Call& op, const HarmonicRowsInputs& in) {
    Tensor out = empty(op, {in.rows, in.components}, in.list.dtype);
    dispatch_float(op, in.list.dtype,
                   [&]<class T>(T) { run_harmonic_rows<T>(op, in.args<T>(), in.degree, data_of(out)); });
    return out;
  }

  static Tensor harmonic_rows_backward(const Call& op, const HarmonicRowsInputs& in, const Tensor& grad_) {
    const Tensor grad = in.grad(op, grad_);
    Tensor out = Device::summed(op, {in.list.atoms, in.list.width, 3}, in.list.dtype);
    dispatch_float(op, in.list.dtype, [&]<class T>(T) {
      run_harmonic_row_gradients<T>(op, in.args<T>(), in.degree, data_of(grad), data_of(out));
    });
    return out;
  }

  static Outputs<2> harmonic_rows_backward_backward(const Call& op, const HarmonicRowsInputs& in,
                                                    const Tensor& direction, const Tensor& grad_) {
    const Tensor grad = in.grad(op, grad_);
    const Tensor u = input(op, "direction", direction, in.list.dtype, {in.list.atoms, in.list.width, 3});
    Tensor out = empty(op, {in.rows, in.components}, in.list.dtype);
    Tensor by_d = Device::summed(op, {in.list.atoms, in.list.width, 3}, in.list.dtype);
    dispatch_float(op, in.list.dtype, [&]<class T>(T) {
      run_harmonic_row_seconds<T>(op, in.args<T>(), in.degree, data_of(u), data_of(grad), data_of(out),
                                  data_of(by_d));
    });
    return {out, by_d};
  }

  static Tensor row_moments(const Call& op, const RowMomentInputs& in) {
    Tensor out = empty(op, {in.atoms, in.components, in.channels}, in.dtype);
    dispatch_float(op, in.dtype, [&]<class T>(T) { run_row_moments<T>(op, in.args<T>(), data_of(out)); });
    return out;
  }

  static Outputs<2> row_moments_backward(const Call& op, const RowMomentInputs& in, const Tensor& grad_) {
    const Tensor grad = in.grad(op, grad_);
    Tensor by_environment = empty(op, {in.rows, in.components}, in.dtype),
           by_g = empty(op, {in.rows, in.channels}, in.dtype);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      run_row_moment_gradients<T>(op, in.args<T>(), data_of(grad), data_of(by_environment), data_of(by_g));
    });
    return {by_environment, by_g};
  }

  MDOPS_IMPLEMENT(NeighborRowsOps, neighbor_rows, spline_rows, spline_rows_backward, environment_rows,
                  environment_rows_backward, environment_rows_backward_backward, harmonic_rows,
                  harmonic_rows_backward, harmonic_rows_backward_backward, row_moments, row_moments_backward)
};

}  // namespace mdops
