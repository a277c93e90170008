// The four passes of a block through the descriptor and the fitting net, for one instruction set: forward,
// backward, tangent, and the adjoint of the tangent (docs/training.md, "A step").
#pragma once

#include "spline_training/arrays.h"

namespace mdops {
namespace MDOPS_ISA {

// Memory that the passes of a block use for themselves.
template <class T>
struct PassMemory {
  T* work;                // a group of D
  T* z;                   // a layer before what it leaves is put across
  T* dh[kMaxLayers];      // the tangents of h
  T* grad[2];             // the loss' gradient by y, of one layer and the one before it
  T *rows, *t_lanes, *u;  // [atom][4][t_width]; as many lanes; [atom]: the loss' gradient by the energies

  PassMemory(const FittingShape& net, Arena& arena) {
    int64_t widest = 0;
    for (int n = 0; n < net.layers; ++n)
      if (padded<T>(net.neurons[n]) > widest) widest = padded<T>(net.neurons[n]);
    work = arena.take<T>(most_features(net, kGroup) * kBlock);
    z = arena.take<T>(widest * kBlock);
    for (int n = 0; n < net.layers; ++n) dh[n] = arena.take<T>(widest * kBlock);
    for (T*& piece : grad) piece = arena.take<T>(widest * kBlock);
    rows = arena.take<T>(4 * t_width<T>(net) * kBlock);
    t_lanes = arena.take<T>(4 * t_width<T>(net) * kBlock);
    u = arena.take<T>(kBlock);
  }
};

// A block with its net.
template <class T>
struct Passes {
  const FittingShape& net;
  const NetWeights<T>& weights;
  const TrainingArrays<T>& r;
  const TrainingBlock& block;
  const PassMemory<T>& memory;
  T scale;  // of the type's energies

  Panels<T> of(const BlockArray<T>& array) const { return array.of(block); }
  Panels<T> layer(T* piece, int n) const { return {piece, net.neurons[n], block.lanes}; }
  Panels<T> t_lanes() const { return {memory.t_lanes, r.t.rows, block.lanes}; }
  Panels<T> z(int n) const { return {memory.z, padded<T>(net.neurons[n]), block.lanes}; }
  int last() const { return net.layers - 1; }

  // Puts a layer's z where products over atoms find it.
  void across(int n, const BlockArray<T>& to) const {
    clear_from(z(n), net.neurons[n]);
    transpose(z(n), to.across(block));
  }
};

// Calls work(row, place) for every vector of a layer's lanes.
template <class T, class Work>
inline void each_vector(const Passes<T>& p, int n, const Work& work) {
  const Panels<T> shape = p.of(p.r.h[n]);
  for (int64_t row = 0; row < shape.rows; ++row) shape.each([&](auto place) { work(row, place); });
}

// y = timestep * h + the layer's input, or its tangent.
template <class T>
inline void layer_output(const Passes<T>& p, int n, const Panels<T>& h, const BlockArray<T>* outputs) {
  const Panels<T> y = p.of(outputs[n]);
  each_vector(p, n, [&](int64_t row, auto place) {
    vector_at(place.in(y, row)) = p.weights.layer[n].timestep[row] * vector_at(place.in(h, row));
  });
  if (n) add_input(p.net, n, p.of(outputs[n - 1]), y);
}

template <class T>
inline void pass_forward(const Passes<T>& p) {
  const Panels<T> t = p.of(p.r.t);
  const auto form = [&](const Group& group, const Panels<T>& out) { form_group(p.net, t, group, out); };
  first_product(p.net, p.weights, form, p.memory.work, p.of(p.r.h[0]));
  for (int n = 0; n < p.net.layers; ++n) {
    const Panels<T> h = p.of(p.r.h[n]);
    layer_product(p.net, p.weights, n, p.of(n ? p.r.y[n - 1] : p.r.extra), h);
    each_vector(p, n, [&](int64_t row, auto place) {
      T* v = place.in(h, row);
      const T bias = p.weights.layer[n].bias[row];
      MDOPS_INDEPENDENT
      for (int k = 0; k < kLanes<T>; ++k) v[k] = tanh_fast(v[k] + bias);
    });
    layer_output(p, n, h, p.r.y);
  }
}

// The gradients of the energies: by the layers, D and T (in t_lanes).
template <class T>
inline void pass_backward(const Passes<T>& p) {
  output_gradient(p.net, p.weights, p.scale, p.of(p.r.grad_y[p.last()]));
  for (int n = p.last(); n >= 0; --n) {
    const Panels<T> grad = p.of(p.r.grad_y[n]), h = p.of(p.r.h[n]), delta = p.z(n);
    each_vector(p, n, [&](int64_t row, auto place) {
      const Vector<T> v = vector_at(place.in(h, row));
      vector_at(place.in(delta, row)) =
          vector_at(place.in(grad, row)) * p.weights.layer[n].timestep[row] * (T(1) - v * v);
    });
    p.across(n, p.r.delta[n]);
    if (n == 0) break;
    const Panels<T> before = p.of(p.r.grad_y[n - 1]);
    const bool add = input_gradient(p.net, n, grad, before);
    layer_backward(p.net, p.weights, n, delta, before, add);
  }
  const Panels<T> t = p.of(p.r.t), grad_d = p.of(p.r.grad_d), grad_t = p.t_lanes();
  clear_from(grad_t, 0);
  const auto to = [&](const Group&, int64_t before) { return grad_d.from(before); };
  first_backward(p.net, p.weights, p.z(0), to, [&](const Group& group, int64_t, const Panels<T>& grad) {
    unform_group(p.net, t, group, grad, grad_t);
  });
}

// The tangents of the layers along that of T.
template <class T>
inline void pass_tangent(const Passes<T>& p) {
  const Panels<T> t = p.of(p.r.t), dt = p.of(p.r.dt);
  const auto form = [&](const Group& group, const Panels<T>& out) { form_tangent(p.net, t, dt, group, out); };
  first_product(p.net, p.weights, form, p.memory.work, p.layer(p.memory.dh[0], 0));
  for (int n = 0; n < p.net.layers; ++n) {
    const Panels<T> h = p.of(p.r.h[n]), dh = p.layer(p.memory.dh[n], n);
    if (n) layer_product(p.net, p.weights, n, p.of(p.r.dy[n - 1]), dh);
    each_vector(p, n, [&](int64_t row, auto place) {
      const Vector<T> v = vector_at(place.in(h, row));
      vector_at(place.in(dh, row)) *= T(1) - v * v;
    });
    layer_output(p, n, dh, p.r.dy);
  }
}

// The gradients of the loss by one layer's product, tanh'' z' = -2 h h', into p.z(n), and by its bias and
// timestep.
template <class T>
inline void adjoint_layer(const Passes<T>& p, int n, const Panels<T>& grad, T* grad_bias, T* grad_timestep) {
  const Panels<T> h = p.of(p.r.h[n]), dh = p.layer(p.memory.dh[n], n), grad_y = p.of(p.r.grad_y[n]),
                  z = p.z(n);
  for (int64_t row = 0; row < p.net.neurons[n]; ++row) {
    Vector<T> bias{}, steps{};
    h.each([&](auto place) {
      const auto in = [&](const Panels<T>& panels) { return vector_at(place.in(panels, row)); };
      const Vector<T> value = in(h), change = in(dh), g = in(grad), given = in(grad_y);
      const Vector<T> sum = (T(1) - value * value) * g - T(2) * value * change * given;
      const Vector<T> scaled = p.weights.layer[n].timestep[row] * sum;
      vector_at(place.in(z, row)) = scaled;
      bias += scaled;
      steps += g * value + given * change;
    });
    grad_bias[row] += sum_lanes<T>(bias);
    grad_timestep[row] += sum_lanes<T>(steps);
  }
}

// The gradients of the loss by the last layer's output, and by the output layer's weights.
template <class T>
inline void adjoint_output(const Passes<T>& p, const Panels<T>& grad, T* grad_weight, T* grad_bias) {
  const Panels<T> y = p.of(p.r.y[p.last()]), dy = p.of(p.r.dy[p.last()]);
  const Panels<T> u{p.memory.u, 1, p.block.lanes};
  for (int64_t row = 0; row < p.net.neurons[p.last()]; ++row) {
    const T weight = p.weights.layer[p.net.layers].weight[row];
    Vector<T> sum{};
    y.each([&](auto place) {
      const Vector<T> given = vector_at(place.in(u, 0));
      vector_at(place.in(grad, row)) = p.scale * given * weight;
      sum += given * vector_at(place.in(y, row)) + vector_at(place.in(dy, row));
    });
    grad_weight[row] += p.scale * sum_lanes<T>(sum);
  }
  u.each([&](auto place) { *grad_bias += p.scale * sum_lanes<T>(vector_at(place.in(u, 0))); });
}

// The gradients of the loss: by the layers' products, by T (in t_lanes), and by the biases, timesteps and
// output layer in `net`, which are added to what is there. memory.u is zero in lanes that are no atoms.
template <class T>
inline void pass_adjoint(const Passes<T>& p, const NetVectors& at, T* net) {
  T *one = p.memory.grad[0], *other = p.memory.grad[1];
  adjoint_output(p, p.layer(one, p.last()), net + at.out_weight, net + at.out_bias);
  for (int n = p.last(); n >= 0; --n) {
    const Panels<T> grad = p.layer(one, n);
    adjoint_layer(p, n, grad, net + at.bias[n], net + at.timestep[n]);
    p.across(n, p.r.adjoint_z[n]);
    if (n == 0) break;
    const Panels<T> before = p.layer(other, n - 1);
    const bool add = input_gradient(p.net, n, grad, before);
    layer_backward(p.net, p.weights, n, p.z(n), before, add);
    std::swap(one, other);
  }
  const Panels<T> t = p.of(p.r.t), dt = p.of(p.r.dt), grad_d = p.of(p.r.grad_d), out = p.t_lanes();
  clear_from(out, 0);
  const auto to = [&](const Group& group, int64_t) {
    return Panels<T>{p.memory.work, group.features, p.block.lanes};
  };
  first_backward(p.net, p.weights, p.z(0), to,
                 [&](const Group& group, int64_t before, const Panels<T>& grad) {
                   unform_group(p.net, t, group, grad, out);
                   unform_group(p.net, dt, group, grad_d.from(before), out);
                 });
}

}  // namespace MDOPS_ISA
}  // namespace mdops
