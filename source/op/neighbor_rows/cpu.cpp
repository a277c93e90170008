#include <algorithm>
#include <tuple>

#include "common/parallel.h"
#include "neighbor_rows/inputs.h"
#include "neighbor_rows/listing.h"

namespace mdops {

namespace {

constexpr int64_t kAtomGrain = 16, kRowGrain = 512;  // a piece of work, at least

template <class T>
void list_rows(const RowListArgs<T>& args, const RowListResults<T>& out) {
  const int64_t atoms = args.list.atoms;
  parallel(atoms, kAtomGrain, [&](int64_t begin, int64_t end) { count_rows(args, begin, end, out); });
  sum_offsets(atoms, out);
  parallel(atoms, kAtomGrain, [&](int64_t begin, int64_t end) { fill_slots(args, begin, end, out); });
  std::fill(out.slots + out.offsets[atoms], out.slots + atoms * args.list.width, -1);
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> neighbor_rows(const Tensor& displacements,
                                                                 const Tensor& counts, const Tensor& types,
                                                                 const Tensor& pair_mask,
                                                                 const Tensor& zeroed, double cutoff) {
  const Op op("neighbor_rows");
  const RowListInputs in(op, displacements, counts, types, pair_mask, zeroed, cutoff);
  Tensor offsets = empty({in.list.atoms + 1}, ScalarType::Int);
  Tensor slots = empty({in.list.atoms * in.list.width}, ScalarType::Int);
  Tensor taken = empty({in.list.atoms}, ScalarType::Int), within = empty({in.list.atoms}, ScalarType::Int);
  Tensor nearest = empty({in.list.atoms}, in.list.dtype);
  dispatch_float(op, in.list.dtype, [&](auto zero) {
    using T = decltype(zero);
    list_rows(in.args<T>(),
              RowListResults<T>{offsets.mutable_data_ptr<int32_t>(), slots.mutable_data_ptr<int32_t>(),
                                taken.mutable_data_ptr<int32_t>(), within.mutable_data_ptr<int32_t>(),
                                nearest.mutable_data_ptr<T>()});
  });
  return {offsets, slots, taken, within, nearest};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> spline_rows_op(const Tensor& displacements, const Tensor& slots,
                                                          const Tensor& counts, const Tensor& types,
                                                          const Tensor& mean, const Tensor& std,
                                                          const Tensor& table, double cutoff,
                                                          double cutoff_smooth, double protection,
                                                          double s_max, int64_t rows, bool gated) {
  const Op op("spline_rows");
  const SplineRowsInputs in(op, displacements, slots, counts, types, mean, std, table, cutoff, cutoff_smooth,
                            protection, s_max, rows, gated);
  SplineRowsTensors out(op, in);
  dispatch_float(op, in.list.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto args = in.args<T>();
    const auto results = out.results<T>();
    parallel(in.rows, kRowGrain,
             [&](int64_t begin, int64_t end) { MDOPS_RUN(spline_rows, args, begin, end, results); });
  });
  return {out.environment, out.switches, out.directions, out.g};
}

Tensor spline_rows_backward(const Tensor& grad_environment, const Tensor& grad_switch,
                            const Tensor& grad_directions, const Tensor& grad_g, const Tensor& displacements,
                            const Tensor& slots, const Tensor& counts, const Tensor& types,
                            const Tensor& mean, const Tensor& std, const Tensor& table, double cutoff,
                            double cutoff_smooth, double protection, double s_max, int64_t rows, bool gated) {
  const Op op("spline_rows_backward");
  const SplineRowsInputs in(op, displacements, slots, counts, types, mean, std, table, cutoff, cutoff_smooth,
                            protection, s_max, rows, gated);
  const SplineRowsTensors grad(op, in, grad_environment, grad_switch, grad_directions, grad_g);
  Tensor out = zeros({in.list.atoms, in.list.width, 3}, in.list.dtype);
  dispatch_float(op, in.list.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto args = in.args<T>();
    const auto gradients = grad.gradients<T>();
    parallel(in.rows, kRowGrain, [&](int64_t begin, int64_t end) {
      MDOPS_RUN(spline_row_gradients, args, begin, end, gradients, out.mutable_data_ptr<T>());
    });
  });
  return out;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> environment_rows(const Tensor& displacements, const Tensor& slots,
                                                            const Tensor& counts, const Tensor& types,
                                                            const Tensor& mean, const Tensor& std,
                                                            double cutoff, double cutoff_smooth,
                                                            double protection, int64_t rows) {
  const Op op("environment_rows");
  const EnvironmentRowsInputs in(op, displacements, slots, counts, types, mean, std, cutoff, cutoff_smooth,
                                 protection, rows);
  EnvironmentRowsTensors out(op, in);
  Tensor of_pair = empty({in.rows, 2}, ScalarType::Int);
  dispatch_float(op, in.list.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto args = in.args<T>();
    const auto results = out.results<T>();
    int32_t* const kinds = of_pair.mutable_data_ptr<int32_t>();
    parallel(in.rows, kRowGrain, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) environment_row(args, n, results, kinds);
    });
  });
  return {out.environment, out.switches, out.directions, of_pair};
}

Tensor environment_rows_backward(const Tensor& grad_environment, const Tensor& grad_switch,
                                 const Tensor& grad_directions, const Tensor& displacements,
                                 const Tensor& slots, const Tensor& counts, const Tensor& types,
                                 const Tensor& mean, const Tensor& std, double cutoff, double cutoff_smooth,
                                 double protection, int64_t rows) {
  const Op op("environment_rows_backward");
  const EnvironmentRowsInputs in(op, displacements, slots, counts, types, mean, std, cutoff, cutoff_smooth,
                                 protection, rows);
  const EnvironmentRowsTensors grad(op, in, grad_environment, grad_switch, grad_directions);
  Tensor out = zeros({in.list.atoms, in.list.width, 3}, in.list.dtype);
  dispatch_float(op, in.list.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto args = in.args<T>();
    const auto gradients = grad.gradients<T>();
    T* const to = out.mutable_data_ptr<T>();
    parallel(in.rows, kRowGrain, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) environment_row_gradient(args, n, gradients, to);
    });
  });
  return out;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> environment_rows_backward_backward(
    const Tensor& direction, const Tensor& grad_environment, const Tensor& grad_switch,
    const Tensor& grad_directions, const Tensor& displacements, const Tensor& slots, const Tensor& counts,
    const Tensor& types, const Tensor& mean, const Tensor& std, double cutoff, double cutoff_smooth,
    double protection, int64_t rows) {
  const Op op("environment_rows_backward_backward");
  const EnvironmentRowsInputs in(op, displacements, slots, counts, types, mean, std, cutoff, cutoff_smooth,
                                 protection, rows);
  const EnvironmentRowsTensors grad(op, in, grad_environment, grad_switch, grad_directions);
  const Tensor u = input(op, "direction", direction, in.list.dtype, {in.list.atoms, in.list.width, 3});
  EnvironmentRowsTensors out(op, in);
  Tensor by_d = zeros({in.list.atoms, in.list.width, 3}, in.list.dtype);
  dispatch_float(op, in.list.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto args = in.args<T>();
    const auto gradients = grad.gradients<T>();
    const auto results = out.results<T>();
    const T* const v = u.const_data_ptr<T>();
    T* const to = by_d.mutable_data_ptr<T>();
    parallel(in.rows, kRowGrain, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) environment_row_second(args, n, v, gradients, results, to);
    });
  });
  return {out.environment, out.switches, out.directions, by_d};
}

Tensor harmonic_rows(const Tensor& displacements, const Tensor& slots, const Tensor& counts,
                     const Tensor& types, const Tensor& mean, const Tensor& std, double cutoff,
                     double cutoff_smooth, double protection, int64_t rows, int64_t degree) {
  const Op op("harmonic_rows");
  const HarmonicRowsInputs in(op, displacements, slots, counts, types, mean, std, cutoff, cutoff_smooth,
                              protection, rows, degree);
  Tensor out = empty({in.rows, in.components}, in.list.dtype);
  dispatch_float(op, in.list.dtype, [&](auto zero) {
    using T = decltype(zero);
    T* const to = out.mutable_data_ptr<T>();
    const auto args = in.args<T>();
    parallel(in.rows, kRowGrain, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) harmonic_row(args, in.degree, n, to + in.components * n);
    });
  });
  return out;
}

Tensor harmonic_rows_backward(const Tensor& grad_, const Tensor& displacements, const Tensor& slots,
                              const Tensor& counts, const Tensor& types, const Tensor& mean,
                              const Tensor& std, double cutoff, double cutoff_smooth, double protection,
                              int64_t rows, int64_t degree) {
  const Op op("harmonic_rows_backward");
  const HarmonicRowsInputs in(op, displacements, slots, counts, types, mean, std, cutoff, cutoff_smooth,
                              protection, rows, degree);
  const Tensor grad = in.grad(op, grad_);
  Tensor out = zeros({in.list.atoms, in.list.width, 3}, in.list.dtype);
  dispatch_float(op, in.list.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* const by = grad.const_data_ptr<T>();
    T* const to = out.mutable_data_ptr<T>();
    const auto args = in.args<T>();
    parallel(in.rows, kRowGrain, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) harmonic_row_gradient(args, in.degree, n, by, to);
    });
  });
  return out;
}

std::tuple<Tensor, Tensor> harmonic_rows_backward_backward(const Tensor& direction, const Tensor& grad_,
                                                           const Tensor& displacements, const Tensor& slots,
                                                           const Tensor& counts, const Tensor& types,
                                                           const Tensor& mean, const Tensor& std,
                                                           double cutoff, double cutoff_smooth,
                                                           double protection, int64_t rows, int64_t degree) {
  const Op op("harmonic_rows_backward_backward");
  const HarmonicRowsInputs in(op, displacements, slots, counts, types, mean, std, cutoff, cutoff_smooth,
                              protection, rows, degree);
  const Tensor grad = in.grad(op, grad_);
  const Tensor u = input(op, "direction", direction, in.list.dtype, {in.list.atoms, in.list.width, 3});
  Tensor out = empty({in.rows, in.components}, in.list.dtype);
  Tensor by_d = zeros({in.list.atoms, in.list.width, 3}, in.list.dtype);
  dispatch_float(op, in.list.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T *const v = u.const_data_ptr<T>(), *const by = grad.const_data_ptr<T>();
    T *const rows_of = out.mutable_data_ptr<T>(), *const to = by_d.mutable_data_ptr<T>();
    const auto args = in.args<T>();
    parallel(in.rows, kRowGrain, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) harmonic_row_second(args, in.degree, n, v, by, rows_of, to);
    });
  });
  return {out, by_d};
}

Tensor row_moments_op(const Tensor& environment, const Tensor& g, const Tensor& offsets, bool leaves_rest) {
  const Op op("row_moments");
  const RowMomentInputs in(op, environment, g, offsets, leaves_rest);
  Tensor out = empty({in.atoms, in.components, in.channels}, in.dtype);
  dispatch_float(op, in.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto args = in.args<T>();
    parallel(in.atoms, kAtomGrain, [&](int64_t begin, int64_t end) {
      MDOPS_RUN(row_moments, args, begin, end, out.mutable_data_ptr<T>());
    });
  });
  return out;
}

std::tuple<Tensor, Tensor> row_moments_backward(const Tensor& grad_, const Tensor& environment,
                                                const Tensor& g, const Tensor& offsets, bool leaves_rest) {
  const Op op("row_moments_backward");
  const RowMomentInputs in(op, environment, g, offsets, leaves_rest);
  const Tensor grad = in.grad(op, grad_);
  Tensor by_environment = empty({in.rows, in.components}, in.dtype),
         by_g = empty({in.rows, in.channels}, in.dtype);
  dispatch_float(op, in.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto args = in.args<T>();
    T *const environment_grad = by_environment.mutable_data_ptr<T>(), *const g_grad =
                                                                          by_g.mutable_data_ptr<T>();
    parallel(in.atoms, kAtomGrain, [&](int64_t begin, int64_t end) {
      MDOPS_RUN(row_moment_gradients, args, grad.const_data_ptr<T>(), begin, end, environment_grad, g_grad);
    });
    const int64_t last = args.offsets[in.atoms];  // rows behind it are of no atom
    std::fill(environment_grad + last * in.components, environment_grad + in.rows * in.components, T(0));
    std::fill(g_grad + last * in.channels, g_grad + in.rows * in.channels, T(0));
  });
  return {by_environment, by_g};
}

}  // namespace

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CPU, m) {
  m.impl("neighbor_rows", TORCH_BOX(&mdops::neighbor_rows));
  m.impl("spline_rows", TORCH_BOX(&mdops::spline_rows_op));
  m.impl("spline_rows_backward", TORCH_BOX(&mdops::spline_rows_backward));
  m.impl("environment_rows", TORCH_BOX(&mdops::environment_rows));
  m.impl("environment_rows_backward", TORCH_BOX(&mdops::environment_rows_backward));
  m.impl("environment_rows_backward_backward", TORCH_BOX(&mdops::environment_rows_backward_backward));
  m.impl("harmonic_rows", TORCH_BOX(&mdops::harmonic_rows));
  m.impl("harmonic_rows_backward", TORCH_BOX(&mdops::harmonic_rows_backward));
  m.impl("harmonic_rows_backward_backward", TORCH_BOX(&mdops::harmonic_rows_backward_backward));
  m.impl("row_moments", TORCH_BOX(&mdops::row_moments_op));
  m.impl("row_moments_backward", TORCH_BOX(&mdops::row_moments_backward));
}
