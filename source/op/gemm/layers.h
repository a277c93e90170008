// Forward and backward through the layers of a net, for a block of atoms, an atom a lane; for one instruction
// set. All passes of a net, in inference and in training, use these.
//
// The first layer's features are never stored as a whole: a descriptor makes them a group at a time. It
// defines the groups by a `Source`, whose each(work) calls work(group, before, weights): `group.features` of
// them after `before` others, and their rows of the first layer's weights in the descriptor's layout.
#pragma once

#include "common/activation_lanes.h"
#include "gemm/bf16.h"
#include "gemm/few.h"
#include "gemm/net.h"
#include "gemm/product.h"

namespace mdops::MDOPS_ISA {

template <class T>
struct Net {
  const NetShape& shape;
  const DenseLayer<T>* layers;    // the last one is the output layer
  const Bf16Net* bf16 = nullptr;  // matrices for products by bfloat16 units, if requested
  uint16_t* split = nullptr;      // memory for their right factor
  int64_t few = 0;                // lanes that have an atom, if only few do (gemm/few.h); 0: all lanes

  static int64_t few_of(int64_t atoms) { return atoms <= kMostFew<T> ? atoms : 0; }
  int last() const { return shape.layers - 1; }
  int64_t neurons(int n) const { return shape.neurons[n]; }
};

// Elements of the memory for right factors: of hidden layers, and of groups of up to `features`.
inline int64_t bf16_split_size(const NetShape& net, int64_t features, int64_t lanes, int parts) {
  int64_t depth = features > kBf16AtOnce ? features : kBf16AtOnce;
  if (net.extra > depth) depth = net.extra;
  for (int n = 0; n < net.layers; ++n)
    if (net.neurons[n] > depth) depth = net.neurons[n];
  return bf16_size(lanes, depth, parts);
}

inline Bf16Panels bf16_panels(const Panels<float>& of) {
  return {of.base, of.rows, of.cols, of.first, Panels<float>::kWide};
}

// The first `depth` rows of panels as a right factor, split once for all products by bfloat16 units with it,
// until the next one replaces it.
template <class T>
struct Right {
  Panels<T> panels;
  int64_t depth;

  Right(const Net<T>& net, const Panels<T>& panels_, int64_t depth_) : panels(panels_), depth(depth_) {
    if constexpr (sizeof(T) == 4)
      if (net.bf16) net.bf16->units->split(bf16_panels(panels), depth, net.bf16->parts, net.split);
  }
};

template <class T, class A>
inline void multiply(const Net<T>& net, int64_t rows, int64_t depth, const A& a, const Panels<T>& b,
                     const Panels<T>& c, bool accumulate) {
  if (net.few) return gemm_few(net.few, rows, depth, a, b, c, accumulate);
  gemm(rows, depth, a, b, c, accumulate);
}

// C (+)= A B for a matrix of the net: A as the instruction set reads it from the weights, or `tiles`, packed
// for bfloat16 units. Returns what follows the tiles.
template <class T, class A>
inline const uint16_t* product(const Net<T>& net, const uint16_t* tiles, int64_t rows, const A& a,
                               const Right<T>& b, const Panels<T>& c, bool accumulate) {
  if constexpr (sizeof(T) == 4) {
    if (net.bf16) {
      const Bf16Piece whole{tiles, net.split, b.depth};
      net.bf16->units->multiply(&whole, 1, net.bf16->parts, rows, bf16_panels(c), accumulate);
      return tiles + bf16_size(rows, b.depth, net.bf16->parts);
    }
  }
  multiply(net, rows, b.depth, a, b.panels, c, accumulate);
  return tiles;
}

// The first layer's product, from its features a group at a time; with bfloat16 units, as many groups
// together as fit into memory.
template <class T>
class FirstProduct {
 public:
  FirstProduct(const Net<T>& net, const Panels<T>& out)
      : net_(net), out_(out), tiles_(net.bf16 ? net.bf16->groups_up : nullptr) {}

  // Adds the next group, in panels, with its weights.
  void add(const auto& weights, const Panels<T>& features) {
    if constexpr (sizeof(T) == 4) {
      if (net_.bf16) {
        uint16_t* const to = place(features.rows);
        net_.bf16->units->split(bf16_panels(features), features.rows, net_.bf16->parts, to);
        return;
      }
    }
    multiply(net_, out_.rows, features.rows, weights, features, out_, begun_);
    begun_ = true;
  }
  // Adds the next `features` of rows of numbers, a row a lane; for bfloat16 units.
  void add_rows(const T* rows, int64_t stride, int64_t count, int64_t features) {
    if constexpr (sizeof(T) == 4) {
      uint16_t* const to = place(features);
      net_.bf16->units->split_rows(rows, stride, count, features, out_.cols, net_.bf16->parts, to);
    }
  }
  void finish() {
    if constexpr (sizeof(T) == 4) {
      if (count_ == 0) return;
      net_.bf16->units->multiply(pieces_, count_, net_.bf16->parts, net_.neurons(0), bf16_panels(out_),
                                 begun_);
      begun_ = true, count_ = 0, used_ = 0;
    }
  }

 private:
  // The place of a group's part of the right factor.
  uint16_t* place(int64_t features) {
    const int parts = net_.bf16->parts;
    const int64_t size = bf16_size(out_.cols, features, parts);
    if (count_ == kMostPieces || used_ + size > bf16_size(out_.cols, net_.bf16->units->at_once, parts))
      finish();
    pieces_[count_++] = {tiles_, net_.split + used_, features};
    tiles_ += bf16_size(net_.neurons(0), features, parts);
    used_ += size;
    return net_.split + used_ - size;
  }

  static constexpr int kMostPieces = kBf16AtOnce / kBf16Depth;

  const Net<T>& net_;
  const Panels<T> out_;
  const uint16_t* tiles_;
  Bf16Piece pieces_[kMostPieces];
  int count_ = 0;
  int64_t used_ = 0;
  bool begun_ = false;
};

// Layer n after the first: from inputs to products, and the backward pass.
template <class T>
inline void product_up(const Net<T>& net, int n, const Panels<T>& from, const Panels<T>& to) {
  product(net, net.bf16 ? net.bf16->up[n] : nullptr, net.neurons(n),
          ByDepth<T>{net.layers[n].weight, net.neurons(n)}, Right<T>(net, from, net.neurons(n - 1)), to,
          false);
}
template <class T>
inline void product_down(const Net<T>& net, int n, const Panels<T>& from, const Panels<T>& to,
                         bool accumulate) {
  product(net, net.bf16 ? net.bf16->down[n] : nullptr, net.neurons(n - 1),
          ByRow<T>{net.layers[n].weight, net.neurons(n)}, Right<T>(net, from, net.neurons(n)), to,
          accumulate);
}

// The product of the first layer's weights with the features, which form(group, out) makes a group at a time
// in `work`, and with the further inputs.
template <class T, class Source, class Form>
inline void first_product(const Net<T>& net, const Source& source, const Form& form, T* work,
                          const Panels<T>& out) {
  FirstProduct<T> first(net, out);
  source.each([&](const auto& group, int64_t, const T* weights) {
    const Panels<T> features{work, group.features, out.cols};
    form(group, features);
    first.add(ByDepth<T>{weights, net.neurons(0)}, features);
  });
  first.finish();
}

template <class T>
inline void add_extra(const Net<T>& net, const Panels<T>& extra, const Panels<T>& out) {
  const int64_t cols = net.neurons(0);
  if (net.shape.extra)
    product(net, net.bf16 ? net.bf16->extra_up : nullptr, cols,
            ByDepth<T>{net.layers[0].weight + net.shape.features * cols, cols},
            Right<T>(net, extra, net.shape.extra), out, true);
}

// The features' gradient from that of the first product, a group at a time: to(group, before) says where, and
// use(group, before, gradient) is called with it.
template <class T, class Source, class To, class Use>
inline void first_backward(const Net<T>& net, const Source& source, const Panels<T>& grad, const To& to,
                           const Use& use) {
  const uint16_t* tiles = net.bf16 ? net.bf16->groups_down : nullptr;
  const Right<T> right(net, grad, net.neurons(0));
  source.each([&](const auto& group, int64_t before, const T* weights) {
    const Panels<T> features = to(group, before);
    tiles = product(net, tiles, group.features, ByRow<T>{weights, net.neurons(0)}, right, features, false);
    use(group, before, features);
  });
}

// Adds a residual layer's input to its output, twice if the output is twice as wide.
template <class T>
inline void add_input(const NetShape& net, int n, const Panels<T>& input, const Panels<T>& out) {
  if (!net.adds_input(n)) return;
  for (int64_t row = 0; row < net.neurons[n]; ++row)
    out.each([&](auto place) {
      T* to = place.in(out, row);
      store(to, vector_at(to) + vector_at(place.in(input, row % net.neurons[n - 1])));
    });
}

// The residual's part of the gradient by a layer's input. Returns whether there is one.
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

// Forward through the layers, of values or tangents, after the first product: activate(n) turns product[n]
// into output[n], without the residual.
template <class T, class Activate>
inline void layers_up(const Net<T>& net, const Panels<T>* product, const Panels<T>* output,
                      const Activate& activate) {
  for (int n = 0; n < net.shape.layers; ++n) {
    if (n) product_up(net, n, output[n - 1], product[n]);
    activate(n);
    if (n) add_input(net.shape, n, output[n - 1], output[n]);
  }
}

// Backward through the layers from the gradient of the last one's output: delta(n) turns grad[n], that of a
// layer's output, into that of its product, and returns it; it ends at the first layer's.
template <class T, class Delta>
inline void layers_down(const Net<T>& net, const Panels<T>* grad, const Delta& delta) {
  for (int n = net.last(); n > 0; --n) {
    const Panels<T> own = delta(n);
    const bool add = input_gradient(net.shape, n, grad[n], grad[n - 1]);
    product_down(net, n, own, grad[n - 1], add);
  }
  delta(0);
}

// The activations f and slopes f' of a layer's products: use(row, place, timestep) returns a function for
// each vector of lanes, take(k, f, slope) for each number k of it.
template <class T, class Use>
inline void activate_layer(const Net<T>& net, int n, const Panels<T>& product, const Use& use) {
  const T threshold = static_cast<T>(net.shape.threshold[n]);
  with_activation(net.shape.activation[n], [&]<Activation kind>() {
    for (int64_t row = 0; row < net.neurons(n); ++row) {
      const T bias = net.layers[n].bias[row], timestep = net.layers[n].timestep[row];
      product.each([&](auto place) {
        const T* z = place.in(product, row);
        const auto take = use(row, place, timestep);
        activate_vector<kind>([&](int k) { return z[k] + bias; }, threshold, take);
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

// The same with a scale for each lane.
template <class T>
inline void output_gradient(const Net<T>& net, const T* scales, const Panels<T>& grad) {
  for (int64_t row = 0; row < net.neurons(net.last()); ++row) {
    const T weight = net.layers[net.shape.layers].weight[row];
    grad.each([&](auto place) { store(place.in(grad, row), weight * vector_at(scales + place.lane())); });
  }
}

}  // namespace mdops::MDOPS_ISA
