// The four passes of a net of tanh over a block of atoms, for one instruction set: forward, backward,
// tangent, and the adjoint of the tangent (training.md, "A step").
#pragma once

#include "gemm/layers.h"
#include "gemm/training_block.h"

namespace mdops::MDOPS_ISA {

// One array of all blocks, `rows` numbers an atom.
template <class T>
struct BlockArray {
  T* base;
  int64_t rows;

  T* at(const LaneBlock& block) const { return base + block.lane * rows; }
  Panels<T> of(const LaneBlock& block) const { return {at(block), rows, block.lanes}; }
  // The same with the block's atoms as rows: a right factor of products over atoms.
  Panels<T> across(const LaneBlock& block) const { return {at(block), block.lanes, rows}; }
};

// Allocates the arrays of `lanes` lanes.
template <class T>
struct BlockArena {
  Arena arena;
  int64_t lanes;

  BlockArray<T> take(int64_t rows) { return {arena.take<T>(rows * lanes), rows}; }
  int64_t size() const { return arena.used / static_cast<int64_t>(sizeof(T)); }
};

// Results of a net's passes: the forward passes' arrays are saved, those of the tangents and the adjoint last
// for the backward pass.
template <class T>
struct NetArrays {
  BlockArray<T> extra;                  // further inputs
  BlockArray<T> h[kMaxLayers];          // tanh(x W + b)
  BlockArray<T> y[kMaxLayers];          // the layer's output
  BlockArray<T> grad_y[kMaxLayers];     // of the energy
  BlockArray<T> delta[kMaxLayers];      // the energy's gradient by x W, across
  BlockArray<T> dy[kMaxLayers];         // tangents of the layers' outputs
  BlockArray<T> adjoint_z[kMaxLayers];  // the loss' gradient by x W, across

  NetArrays(const NetShape& net, BlockArena<T>& saved, BlockArena<T>& work) {
    extra = saved.take(net.extra);
    for (int n = 0; n < net.layers; ++n) {
      const int64_t rows = net.neurons[n];
      h[n] = saved.take(rows), y[n] = saved.take(rows);
      grad_y[n] = saved.take(rows), delta[n] = saved.take(padded<T>(rows));
      dy[n] = work.take(rows), adjoint_z[n] = work.take(padded<T>(rows));
    }
  }
};

// Scratch memory of a block's passes.
template <class T>
struct NetMemory {
  T* work;            // a group of features
  T* z;               // a layer before its transposition
  T* dh[kMaxLayers];  // the tangents of h
  T* grad[2];         // the loss' gradient by y, of one layer and the one before it
  T* u;               // [atom]: the loss' gradient by the energies

  // For groups of at most `features`, and blocks of at most `lanes`.
  NetMemory(const NetShape& net, int64_t features, int64_t lanes, Arena& arena) {
    int64_t widest = 0;
    for (int n = 0; n < net.layers; ++n)
      if (padded<T>(net.neurons[n]) > widest) widest = padded<T>(net.neurons[n]);
    work = arena.take<T>(features * lanes);
    z = arena.take<T>(widest * lanes);
    for (int n = 0; n < net.layers; ++n) dh[n] = arena.take<T>(widest * lanes);
    for (T*& piece : grad) piece = arena.take<T>(widest * lanes);
    u = arena.take<T>(lanes);
  }
};

// The panels of all layers.
template <class T>
struct LayerPanels {
  Panels<T> of[kMaxLayers];

  LayerPanels(const NetShape& net, const auto& panel) : of{} {
    for (int n = 0; n < net.layers; ++n) of[n] = panel(n);
  }
  const Panels<T>& operator[](int n) const { return of[n]; }
};

// A block with its net; the energies are scale * output.
template <class T>
struct NetPasses {
  const Net<T> net;
  const NetArrays<T>& arrays;
  const NetMemory<T>& memory;
  const LaneBlock& block;
  T scale;
  LayerPanels<T> h = of_all(arrays.h), y = of_all(arrays.y), grad_y = of_all(arrays.grad_y);

  NetPasses(const Net<T>& net_, const NetArrays<T>& arrays_, const NetMemory<T>& memory_,
            const LaneBlock& block_, T scale_)
      : net(net_), arrays(arrays_), memory(memory_), block(block_), scale(scale_) {}

  LayerPanels<T> of_all(const BlockArray<T>* array) const {
    return {net.shape, [&](int n) { return array[n].of(block); }};
  }
  Panels<T> layer(T* piece, int n) const { return {piece, net.neurons(n), block.lanes}; }
  Panels<T> z(int n) const { return {memory.z, padded<T>(net.neurons(n)), block.lanes}; }

  // Transposes a layer's z for products over atoms, and returns it.
  Panels<T> across(int n, const BlockArray<T>& to) const {
    clear_from(z(n), net.neurons(n));
    transpose(z(n), to.across(block));
    return z(n);
  }

  // Calls work(row, place) for every vector of a layer's lanes.
  void each_vector(int n, const auto& work) const {
    for (int64_t row = 0; row < net.neurons(n); ++row) h[n].each([&](auto place) { work(row, place); });
  }

  // out = timestep * in, for a layer.
  void times_timestep(int n, const Panels<T>& in, const Panels<T>& out) const {
    each_vector(n, [&](int64_t row, auto place) {
      store(place.in(out, row), net.layers[n].timestep[row] * vector_at(place.in(in, row)));
    });
  }
};

template <class T, class Source, class Form>
inline void net_pass_forward(const NetPasses<T>& p, const Source& source, const Form& form) {
  first_product(p.net, source, form, p.memory.work, p.h[0]);
  add_extra(p.net, p.arrays.extra.of(p.block), p.h[0]);
  layers_up(p.net, p.h.of, p.y.of, [&](int n) {
    p.each_vector(n, [&](int64_t row, auto place) {
      T* v = place.in(p.h[n], row);
      const T bias = p.net.layers[n].bias[row];
      MDOPS_INDEPENDENT
      for (int k = 0; k < kLanes<T>; ++k) v[k] = tanh_fast(v[k] + bias);
    });
    p.times_timestep(n, p.h[n], p.y[n]);
  });
}

// The gradients of the energies by the layers, and by the features: to(group, before) says where those go,
// and use(group, before, gradient) is called with them.
template <class T, class Source, class To, class Use>
inline void net_pass_backward(const NetPasses<T>& p, const Source& source, const To& to, const Use& use) {
  output_gradient(p.net, p.scale, p.grad_y[p.net.last()]);
  layers_down(p.net, p.grad_y.of, [&](int n) {
    p.each_vector(n, [&](int64_t row, auto place) {
      const Vector<T> v = vector_at(place.in(p.h[n], row));
      store(place.in(p.z(n), row),
            vector_at(place.in(p.grad_y[n], row)) * p.net.layers[n].timestep[row] * (T(1) - v * v));
    });
    return p.across(n, p.arrays.delta[n]);
  });
  first_backward(p.net, source, p.z(0), to, use);
}

// The layers' tangents along those of the features, which form(group, out) makes.
template <class T, class Source, class Form>
inline void net_pass_tangent(const NetPasses<T>& p, const Source& source, const Form& form) {
  const LayerPanels<T> dy = p.of_all(p.arrays.dy),
                       dh(p.net.shape, [&](int n) { return p.layer(p.memory.dh[n], n); });
  first_product(p.net, source, form, p.memory.work, dh[0]);
  layers_up(p.net, dh.of, dy.of, [&](int n) {
    p.each_vector(n, [&](int64_t row, auto place) {
      const Vector<T> v = vector_at(place.in(p.h[n], row));
      T* to = place.in(dh[n], row);
      store(to, vector_at(to) * (T(1) - v * v));
    });
    p.times_timestep(n, dh[n], dy[n]);
  });
}

// The gradients of the loss by one layer's product, tanh'' z' = -2 h h', into p.z(n), and by its bias and
// timestep.
template <class T>
inline void adjoint_layer(const NetPasses<T>& p, int n, const Panels<T>& grad, T* grad_bias,
                          T* grad_timestep) {
  const Panels<T> h = p.h[n], dh = p.layer(p.memory.dh[n], n), grad_y = p.grad_y[n], z = p.z(n);
  for (int64_t row = 0; row < p.net.neurons(n); ++row) {
    Vector<T> bias{}, steps{};
    h.each([&](auto place) {
      const auto in = [&](const Panels<T>& panels) { return vector_at(place.in(panels, row)); };
      const Vector<T> value = in(h), change = in(dh), g = in(grad), given = in(grad_y);
      const Vector<T> sum = (T(1) - value * value) * g - T(2) * value * change * given;
      const Vector<T> scaled = p.net.layers[n].timestep[row] * sum;
      store(place.in(z, row), scaled);
      bias += scaled;
      steps += g * value + given * change;
    });
    grad_bias[row] += sum_lanes<T>(bias);
    grad_timestep[row] += sum_lanes<T>(steps);
  }
}

// The gradients of the loss by the last layer's output, and by the output layer's weights.
template <class T>
inline void adjoint_output(const NetPasses<T>& p, const Panels<T>& grad, T* grad_weight, T* grad_bias) {
  const Panels<T> y = p.y[p.net.last()], dy = p.arrays.dy[p.net.last()].of(p.block);
  const Panels<T> u{p.memory.u, 1, p.block.lanes};
  for (int64_t row = 0; row < p.net.neurons(p.net.last()); ++row) {
    const T weight = p.net.layers[p.net.shape.layers].weight[row];
    Vector<T> sum{};
    y.each([&](auto place) {
      const Vector<T> given = vector_at(place.in(u, 0));
      store(place.in(grad, row), p.scale * given * weight);
      sum += given * vector_at(place.in(y, row)) + vector_at(place.in(dy, row));
    });
    grad_weight[row] += p.scale * sum_lanes<T>(sum);
  }
  u.each([&](auto place) { *grad_bias += p.scale * sum_lanes<T>(vector_at(place.in(u, 0))); });
}

// The gradients of the loss: by the layers' products, by the features (use(group, before, gradient)), and by
// the biases, timesteps and output layer, which are added to `vectors`. memory.u is zero in lanes without
// atoms.
// lanes that are no atoms.
template <class T, class Source, class Use>
inline void net_pass_adjoint(const NetPasses<T>& p, const Source& source, const NetVectors& at, T* vectors,
                             const Use& use) {
  const int last = p.net.last();
  const LayerPanels<T> grad(p.net.shape, [&](int n) { return p.layer(p.memory.grad[(last - n) % 2], n); });
  adjoint_output(p, grad[last], vectors + at.out_weight, vectors + at.out_bias);
  layers_down(p.net, grad.of, [&](int n) {
    adjoint_layer(p, n, grad[n], vectors + at.bias[n], vectors + at.timestep[n]);
    return p.across(n, p.arrays.adjoint_z[n]);
  });
  const auto to = [&](const auto& group, int64_t) {
    return Panels<T>{p.memory.work, group.features, p.block.lanes};
  };
  first_backward(p.net, source, p.z(0), to, use);
}

}  // namespace mdops::MDOPS_ISA
