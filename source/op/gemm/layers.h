// Up and down the layers of a net, over a block of atoms, an atom a lane; for one instruction set. Every pass
// through a net, in inference and in training, is made of these.
//
// The first layer's features need never be there as a whole: a descriptor makes them a group at a time. It
// says what the groups are by a `Source`, whose each(work) calls work(group, before, weights):
// `group.features` of them after `before` others, and their rows of the first layer's weights as the
// descriptor wants them.
#pragma once

#include "gemm/bf16.h"
#include "gemm/net.h"
#include "gemm/product.h"

namespace mdops {
namespace MDOPS_ISA {

template <class T>
struct Net {
  const NetShape& shape;
  const DenseLayer<T>* layers;    // the last one is the output layer
  const Bf16Net* bf16 = nullptr;  // the matrices for products by bfloat16 units, if those are asked for

  int last() const { return shape.layers - 1; }
  int64_t neurons(int n) const { return shape.neurons[n]; }
};

// C (+)= A B for a matrix of the net, A as the instruction set takes it from the weights, or `tiles`, the
// same packed for bfloat16 units. Returns what follows those.
template <class T, class A>
inline const uint16_t* product(const Net<T>& net, const uint16_t* tiles, int64_t rows, int64_t depth,
                               const A& a, const Panels<T>& b, const Panels<T>& c, bool accumulate) {
  if constexpr (sizeof(T) == 4) {
    if (net.bf16) {
      constexpr int64_t wide = Panels<T>::kWide;
      net.bf16->multiply(tiles, net.bf16->parts, rows, depth, {b.base, b.rows, b.cols, b.first, wide},
                         {c.base, c.rows, c.cols, c.first, wide}, accumulate);
      return tiles + bf16_size(rows, depth, net.bf16->parts);
    }
  }
  gemm(rows, depth, a, b, c, accumulate);
  return tiles;
}

// Layer n, after the first: up from its inputs to its products, and down from their gradient.
template <class T>
inline void product_up(const Net<T>& net, int n, const Panels<T>& from, const Panels<T>& to) {
  product(net, net.bf16 ? net.bf16->up[n] : nullptr, net.neurons(n), net.neurons(n - 1),
          ByDepth<T>{net.layers[n].weight, net.neurons(n)}, from, to, false);
}
template <class T>
inline void product_down(const Net<T>& net, int n, const Panels<T>& from, const Panels<T>& to,
                         bool accumulate) {
  product(net, net.bf16 ? net.bf16->down[n] : nullptr, net.neurons(n - 1), net.neurons(n),
          ByRow<T>{net.layers[n].weight, net.neurons(n)}, from, to, accumulate);
}

// The product of the first layer's weights with the features, which form(group, out) makes a group at a time
// in `work`, and with the further inputs.
template <class T, class Source, class Form>
inline void first_product(const Net<T>& net, const Source& source, const Form& form, T* work,
                          const Panels<T>& out) {
  const uint16_t* tiles = net.bf16 ? net.bf16->groups_up : nullptr;
  source.each([&](const auto& group, int64_t before, const T* weights) {
    const Panels<T> features{work, group.features, out.cols};
    form(group, features);
    tiles = product(net, tiles, net.neurons(0), group.features, ByDepth<T>{weights, net.neurons(0)}, features,
                    out, before > 0);
  });
}

template <class T>
inline void add_extra(const Net<T>& net, const Panels<T>& extra, const Panels<T>& out) {
  const int64_t cols = net.neurons(0);
  if (net.shape.extra)
    product(net, net.bf16 ? net.bf16->extra_up : nullptr, cols, net.shape.extra,
            ByDepth<T>{net.layers[0].weight + net.shape.features * cols, cols}, extra, out, true);
}

// The features' gradient from that of the first product, a group at a time: to(group, before) is where, and
// use(group, before, gradient) is called with it.
template <class T, class Source, class To, class Use>
inline void first_backward(const Net<T>& net, const Source& source, const Panels<T>& grad, const To& to,
                           const Use& use) {
  const uint16_t* tiles = net.bf16 ? net.bf16->groups_down : nullptr;
  source.each([&](const auto& group, int64_t before, const T* weights) {
    const Panels<T> features = to(group, before);
    tiles = product(net, tiles, group.features, net.neurons(0), ByRow<T>{weights, net.neurons(0)}, grad,
                    features, false);
    use(group, before, features);
  });
}

// Adds to `out` what a residual layer adds to its output: its input, twice if the output is twice as wide.
template <class T>
inline void add_input(const NetShape& net, int n, const Panels<T>& input, const Panels<T>& out) {
  if (!net.adds_input(n)) return;
  for (int64_t row = 0; row < net.neurons[n]; ++row)
    out.each([&](auto place) {
      T* to = place.in(out, row);
      store(to, vector_at(to) + vector_at(place.in(input, row % net.neurons[n - 1])));
    });
}

// What a residual layer's input gets directly from the gradient of its output. Returns whether there is such
// a part.
template <class T>
inline bool input_gradient(const NetShape& net, int n, const Panels<T>& grad, const Panels<T>& before) {
  if (!net.adds_input(n)) return false;
  const int64_t width = net.neurons[n - 1];
  const bool twice = net.neurons[n] > width;
  for (int64_t row = 0; row < width; ++row)
    before.each([&](auto place) {
      Vector<T> sum = vector_at(place.in(grad, row));
      if (twice) sum += vector_at(place.in(grad, width + row));
      store(place.in(before, row), sum);
    });
  return true;
}

// Up the layers, of values or of tangents, once the first product is there: activate(n) makes the outputs of
// product[n] in output[n], but for what a residual layer adds.
template <class T, class Activate>
inline void layers_up(const Net<T>& net, const Panels<T>* product, const Panels<T>* output,
                      const Activate& activate) {
  for (int n = 0; n < net.shape.layers; ++n) {
    if (n) product_up(net, n, output[n - 1], product[n]);
    activate(n);
    if (n) add_input(net.shape, n, output[n - 1], output[n]);
  }
}

// Down the layers from the gradient of the last one's output: delta(n) makes of grad[n], that of a layer's
// output, the one of its product, and gives it back; the first layer's is where this ends.
template <class T, class Delta>
inline void layers_down(const Net<T>& net, const Panels<T>* grad, const Delta& delta) {
  for (int n = net.last(); n > 0; --n) {
    const Panels<T> own = delta(n);
    const bool add = input_gradient(net.shape, n, grad[n], grad[n - 1]);
    product_down(net, n, own, grad[n - 1], add);
  }
  delta(0);
}

// The activations f and slopes f' of a layer's products: use(row, place, timestep) gives back what takes them
// for each vector of lanes, take(k, f, slope) for each number k of it.
template <class T, class Use>
inline void activate_layer(const Net<T>& net, int n, const Panels<T>& product, const Use& use) {
  const T threshold = static_cast<T>(net.shape.threshold[n]);
  with_activation(net.shape.activation[n], [&]<Activation kind>() {
    for (int64_t row = 0; row < net.neurons(n); ++row) {
      const T bias = net.layers[n].bias[row], timestep = net.layers[n].timestep[row];
      product.each([&](auto place) {
        const T* z = place.in(product, row);
        const auto take = use(row, place, timestep);
        MDOPS_INDEPENDENT
        for (int k = 0; k < kLanes<T>; ++k) {
          T f, slope;
          activate<kind>(z[k] + bias, threshold, &f, &slope);
          take(k, f, slope);
        }
      });
    }
  });
}

// The net's outputs for all lanes, from those of the last hidden layer.
template <class T>
inline void net_output(const Net<T>& net, const Panels<T>& value, double* out) {
  const DenseLayer<T>& layer = net.layers[net.shape.layers];
  value.each([&](auto place) {
    double* sum = out + place.lane();
    for (int k = 0; k < kLanes<T>; ++k) sum[k] = layer.bias[0];
    for (int64_t row = 0; row < net.neurons(net.last()); ++row) {
      const T* v = place.in(value, row);
      MDOPS_INDEPENDENT
      for (int k = 0; k < kLanes<T>; ++k) sum[k] += static_cast<double>(v[k]) * layer.weight[row];
    }
  });
}

// The gradient of scale * output by the last hidden layer's.
template <class T>
inline void output_gradient(const Net<T>& net, T scale, const Panels<T>& grad) {
  for (int64_t row = 0; row < net.neurons(net.last()); ++row) {
    const Vector<T> out = scale * net.layers[net.shape.layers].weight[row] + Vector<T>{};
    grad.each([&](auto place) { store(place.in(grad, row), out); });
  }
}

// The same where each lane has a scale of its own.
template <class T>
inline void output_gradient(const Net<T>& net, const T* scales, const Panels<T>& grad) {
  for (int64_t row = 0; row < net.neurons(net.last()); ++row) {
    const T weight = net.layers[net.shape.layers].weight[row];
    grad.each([&](auto place) { store(place.in(grad, row), weight * vector_at(scales + place.lane())); });
  }
}

}  // namespace MDOPS_ISA
}  // namespace mdops
