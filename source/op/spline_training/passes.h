// The four passes of a block through the descriptor and the fitting net, for one instruction set: forward,
// backward, tangent, and the adjoint of the tangent (docs/training.md, "A step").
#pragma once

#include "spline_training/rows.h"

namespace mdops {
namespace MDOPS_ISA {

// A block's rows with its net, and memory that a pass uses for itself.
template <class T>
struct Passes {
  const FittingShape& net;
  const PackedNet<T>& at;
  const T* packed;
  TrainingRows<T> r;
  int64_t rows;
  T scale;  // of the type's energies
  T* work;  // [row][work_stride]: a group of D
  int64_t work_stride;
  T* dh[kMaxLayers];  // [row][layer stride]: the tangents of h
  T* grad[2];         // [row][layer stride]: the loss' gradient by y, of one layer and the one before it
  T* adjoint_t;       // [row][4][t_width]: the loss' gradient by T

  int64_t stride() const { return r.layer_stride(); }
  int last() const { return net.layers - 1; }
  bool adds_input(int n) const { return n > 0 && net.residual[n]; }
};

// y = timestep * h + the layer's input, or its tangent.
template <class T>
inline void layer_output(const Passes<T>& p, int n, int64_t row, const T* h, const RowArray<T>* outputs) {
  const int64_t cols = p.net.neurons[n], before = n ? p.net.neurons[n - 1] : 0;
  const T* timestep = p.packed + p.at.timestep[n];
  T* y = outputs[n].at(row);
#pragma GCC ivdep
  for (int64_t c = 0; c < cols; ++c) y[c] = timestep[c] * h[c];
  if (!p.adds_input(n)) return;
  const T* input = outputs[n - 1].at(row);
  for (int64_t half = 0; half < cols; half += before)
#pragma GCC ivdep
    for (int64_t c = 0; c < before; ++c) y[half + c] += input[c];
}

// What a layer's input gets directly from the gradient of its output. Returns whether there is such a part.
template <class T>
inline bool residual_gradient(const Passes<T>& p, int n, const T* grad_y, T* grad_x) {
  if (!p.adds_input(n)) return false;
  const int64_t cols = p.net.neurons[n], before = p.net.neurons[n - 1];
  for (int64_t row = 0; row < p.rows; ++row) {
    const T* from = grad_y + row * p.stride();
    T* to = grad_x + row * p.stride();
#pragma GCC ivdep
    for (int64_t c = 0; c < before; ++c) to[c] = from[c] + (cols > before ? from[before + c] : T(0));
  }
  return true;
}

template <class T>
inline void pass_forward(const Passes<T>& p) {
  const auto form = [&](int64_t row, int first, T* out) {
    form_group<T>(p.net, p.r.t.at(row), p.r.t_width, first, out);
  };
  first_product(p.net, p.at, p.packed, p.rows, form, p.work, p.work_stride, p.r.h[0].base, p.stride());
  if (p.net.extra)
    gemm<T>(p.rows, p.net.extra, p.net.neurons[0], p.r.extra.base, p.r.extra.width, p.packed + p.at.extra,
            p.r.h[0].base, p.stride(), true);
  for (int n = 0; n < p.net.layers; ++n) {
    if (n)
      gemm<T>(p.rows, p.net.neurons[n - 1], p.net.neurons[n], p.r.y[n - 1].base, p.stride(),
              p.packed + p.at.weight[n], p.r.h[n].base, p.stride(), false);
    const T* bias = p.packed + p.at.bias[n];
    for (int64_t row = 0; row < p.rows; ++row) {
      T* h = p.r.h[n].at(row);
#pragma GCC ivdep
      for (int64_t c = 0; c < p.net.neurons[n]; ++c) h[c] = tanh_fast(h[c] + bias[c]);
      layer_output(p, n, row, h, p.r.y);
    }
  }
}

// The net's output, without the energy's scale and shift.
template <class T>
inline double pass_output(const Passes<T>& p, int64_t row) {
  double sum = p.packed[p.at.out_bias];
  for (int64_t c = 0; c < p.net.neurons[p.last()]; ++c)
    sum += static_cast<double>(p.r.y[p.last()].at(row)[c]) * p.packed[p.at.out_weight + c];
  return sum;
}

// The gradients of the energies: by the layers, D and T.
template <class T>
inline void pass_backward(const Passes<T>& p) {
  for (int n = p.last(); n >= 0; --n) {
    const int64_t cols = p.net.neurons[n];
    const T *timestep = p.packed + p.at.timestep[n], *out = p.packed + p.at.out_weight;
    for (int64_t row = 0; row < p.rows; ++row) {
      T *grad = p.r.grad_y[n].at(row), *delta = p.r.delta[n].at(row);
      const T* h = p.r.h[n].at(row);
      if (n == p.last())
        for (int64_t c = 0; c < cols; ++c) grad[c] = p.scale * out[c];
#pragma GCC ivdep
      for (int64_t c = 0; c < cols; ++c) delta[c] = grad[c] * timestep[c] * (T(1) - h[c] * h[c]);
    }
    if (n == 0) continue;
    const bool add = residual_gradient(p, n, p.r.grad_y[n].base, p.r.grad_y[n - 1].base);
    gemm<T>(p.rows, cols, p.net.neurons[n - 1], p.r.delta[n].base, p.stride(), p.packed + p.at.weight_back[n],
            p.r.grad_y[n - 1].base, p.stride(), add);
  }
  T* grad_d = p.r.grad_d.base;
  for (int64_t k = 0; k < p.rows * p.r.grad_t.width; ++k) p.r.grad_t.base[k] = 0;
  for (int first = 0, g = 0; first < p.net.axis; first += kGroup, ++g) {
    gemm<T>(p.rows, p.net.neurons[0], group_features(p.net, first), p.r.delta[0].base, p.stride(),
            p.packed + p.at.group_back[g], grad_d, p.r.grad_d.width, false);
    for (int64_t row = 0; row < p.rows; ++row)
      unform_group<T>(p.net, p.r.t.at(row), p.r.t_width, first, grad_d + row * p.r.grad_d.width,
                      p.r.grad_t.at(row));
    grad_d += group_features(p.net, first);
  }
}

// The tangents of the layers along that of T.
template <class T>
inline void pass_tangent(const Passes<T>& p) {
  const auto form = [&](int64_t row, int first, T* out) {
    form_group_tangent<T>(p.net, p.r.t.at(row), p.r.dt.at(row), p.r.t_width, first, out);
  };
  first_product(p.net, p.at, p.packed, p.rows, form, p.work, p.work_stride, p.dh[0], p.stride());
  for (int n = 0; n < p.net.layers; ++n) {
    if (n)
      gemm<T>(p.rows, p.net.neurons[n - 1], p.net.neurons[n], p.r.dy[n - 1].base, p.stride(),
              p.packed + p.at.weight[n], p.dh[n], p.stride(), false);
    for (int64_t row = 0; row < p.rows; ++row) {
      T* dh = p.dh[n] + row * p.stride();
      const T* h = p.r.h[n].at(row);
#pragma GCC ivdep
      for (int64_t c = 0; c < p.net.neurons[n]; ++c) dh[c] *= T(1) - h[c] * h[c];
      layer_output(p, n, row, dh, p.r.dy);
    }
  }
}

// The gradients of the loss by one layer's product, tanh'' z' = -2 h h', and by its bias and timestep.
template <class T>
inline void adjoint_layer(const Passes<T>& p, int n, const T* grad, T* grad_bias, T* grad_timestep) {
  const T* timestep = p.packed + p.at.timestep[n];
  for (int64_t row = 0; row < p.rows; ++row) {
    const T *g = grad + row * p.stride(), *h = p.r.h[n].at(row), *dh = p.dh[n] + row * p.stride();
    const T* grad_y = p.r.grad_y[n].at(row);
    T* z = p.r.adjoint_z[n].at(row);
#pragma GCC ivdep
    for (int64_t c = 0; c < p.net.neurons[n]; ++c) {
      z[c] = timestep[c] * ((T(1) - h[c] * h[c]) * g[c] - T(2) * h[c] * dh[c] * grad_y[c]);
      grad_bias[c] += z[c];
      grad_timestep[c] += g[c] * h[c] + grad_y[c] * dh[c];
    }
  }
}

// The gradients of the loss: by the layers' products, T, and the biases, timesteps and output layer in `net`,
// which are added to what is there. u (rows): the loss' gradient by the energies, zero in rows that are no
// atoms.
template <class T>
inline void pass_adjoint(const Passes<T>& p, const T* u, const PlainNet& plain, T* net) {
  const int64_t width = p.net.neurons[p.last()];
  T *grad = p.grad[0], *before = p.grad[1];
  for (int64_t row = 0; row < p.rows; ++row) {
    const T weight = p.scale * u[row], *y = p.r.y[p.last()].at(row), *dy = p.r.dy[p.last()].at(row);
    const T* out = p.packed + p.at.out_weight;
    T *to = grad + row * p.stride(), *grad_out = net + plain.out_weight;
#pragma GCC ivdep
    for (int64_t c = 0; c < width; ++c) {
      to[c] = weight * out[c];
      grad_out[c] += weight * y[c] + p.scale * dy[c];
    }
    net[plain.out_bias] += weight;
  }
  for (int n = p.last(); n >= 0; --n) {
    adjoint_layer(p, n, grad, net + plain.bias[n], net + plain.timestep[n]);
    if (n == 0) break;
    const bool add = residual_gradient(p, n, grad, before);
    gemm<T>(p.rows, p.net.neurons[n], p.net.neurons[n - 1], p.r.adjoint_z[n].base, p.stride(),
            p.packed + p.at.weight_back[n], before, p.stride(), add);
    T* other = grad;
    grad = before, before = other;
  }
  const T* grad_d = p.r.grad_d.base;
  for (int64_t k = 0; k < p.rows * p.r.t.width; ++k) p.adjoint_t[k] = 0;
  for (int first = 0, g = 0; first < p.net.axis; first += kGroup, ++g) {
    gemm<T>(p.rows, p.net.neurons[0], group_features(p.net, first), p.r.adjoint_z[0].base, p.stride(),
            p.packed + p.at.group_back[g], p.work, p.work_stride, false);
    for (int64_t row = 0; row < p.rows; ++row) {
      T* to = p.adjoint_t + row * p.r.t.width;
      unform_group<T>(p.net, p.r.t.at(row), p.r.t_width, first, p.work + row * p.work_stride, to);
      unform_group<T>(p.net, p.r.dt.at(row), p.r.t_width, first, grad_d + row * p.r.grad_d.width, to);
    }
    grad_d += group_features(p.net, first);
  }
}

}  // namespace MDOPS_ISA
}  // namespace mdops
