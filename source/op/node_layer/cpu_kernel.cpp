// Blocks of nodes, with all of a layer's work in the L1 and L2 caches.
#include "common/activation_lanes.h"
#include "common/lane_sums.h"
#include "common/panel_rows.h"
#include "common/some_lanes.h"
#include "gemm/product.h"
#include "node_layer/node_layer.h"

namespace mdops::MDOPS_ISA {

namespace {

constexpr int64_t kBlock = 4 * kRows, kParts = 3;  // parts: rows of a sum times vectors
constexpr int kTogether = 4;                       // columns of D(T)

// The weights in panels: not transposed forward, transposed backward.
template <class T>
struct PackedNodes {
  Panels<T> own, every;
  T *own_bias, *bias;
  int64_t bytes;

  PackedNodes(const NodeLayerArgs<T>& args, void* memory) {
    Arena arena{static_cast<char*>(memory)};
    const int64_t width = args.width, lanes = padded<T>(width), own_rows = args.own ? width : 0;
    own = take_panels<T>(arena, own_rows, lanes);
    every = args.grad ? take_panels<T>(arena, width, padded<T>(args.inputs))
                      : take_panels<T>(arena, args.inputs, lanes);
    own_bias = arena.take<T>(lanes), bias = arena.take<T>(lanes);
    bytes = arena.used;
  }
};

template <class T>
class LayerOfNodes {
  using V = Vector<T>;

 public:
  LayerOfNodes(const NodeLayerArgs<T>& args, const void* packed, void* scratch)
      : args_(args), weights_(args, const_cast<void*>(packed)) {
    Arena arena{static_cast<char*>(scratch)};
    const int64_t lanes = padded<T>(args.width);
    z_ = take_panels<T>(arena, kBlock, lanes), z_own_ = take_panels<T>(arena, args.own ? kBlock : 0, lanes);
    inputs_ = arena.take<T>(kBlock * args.inputs);
    by_inputs_ = take_panels<T>(arena, args.grad ? kBlock : 0, padded<T>(args.inputs));
    by_own_ = take_panels<T>(arena, args.grad && args.own ? kBlock : 0, lanes);
    bytes = arena.used;
  }
  int64_t bytes;

  void run(int64_t from, int64_t to) const {
    for (int64_t first = from; first < to; first += kBlock) {
      const int64_t count = std::min(kBlock, to - first);
      args_.grad ? backward(first, count) : forward(first, count);
    }
  }

 private:
  static Panels<T> some(const Panels<T>& of, int64_t rows) { return {of.base, rows, of.cols}; }
  const T* nodes(int64_t row) const { return args_.n + row * args_.width; }
  // Whether V is given, with v or without.
  bool has_vectors() const { return args_.sums > 1; }
  const T* vectors(const T* v, int64_t row) const { return v + (row * args_.sums + 1) * args_.width; }

  void forward(int64_t first, int64_t count) const {
    const Panels<T> z = some(z_, count), z_own = some(z_own_, count);
    for (int64_t r = 0; r < count; ++r) {
      T* to = inputs_ + r * args_.inputs;
      if (args_.takes_nodes) to = std::copy_n(nodes(first + r), args_.width, to);
      if (args_.e) to = symmetric(args_.e + (first + r) * kParts * args_.edge_width, args_.edge_width, to);
      if (has_vectors()) symmetric(vectors(args_.v, first + r), args_.width, to);
    }
    product(count, inputs_, args_.inputs, weights_.every, weights_.bias, z);
    panels_to_rows(z, count, args_.width, args_.z + first * args_.width);
    values(z);
    if (args_.own) {
      product(count, nodes(first), args_.width, weights_.own, weights_.own_bias, z_own);
      panels_to_rows(z_own, count, args_.width, args_.z_own + first * args_.width);
      values(z_own);
    }
    each_row(count, [&](auto place, auto lanes, int64_t r) {
      const int64_t c = place.lane(), at = (first + r) * args_.width + c;
      V sum =
          args_.keep * lanes.load(args_.n + at) + lanes.load(args_.factor + c) * vector_at(place.in(z, r));
      if (args_.own) sum += lanes.load(args_.own_factor + c) * vector_at(place.in(z_own, r));
      if (args_.sum_factor)
        sum += lanes.load(args_.sum_factor + c) *
               lanes.load(args_.v + (first + r) * args_.sums * args_.width + c);
      lanes.store(args_.out + at, sum);
    });
  }

  void backward(int64_t first, int64_t count) const {
    const Panels<T> z = some(z_, count), z_own = some(z_own_, count);
    const Panels<T> by_inputs = some(by_inputs_, count), by_own = some(by_own_, count);
    by_z(args_.z, args_.factor, first, count, z);
    gemm(count, args_.width, InLanes<T>{z}, weights_.every, by_inputs, false);
    panels_to_rows(by_inputs, count, args_.inputs, inputs_);
    if (args_.own) {
      by_z(args_.z_own, args_.own_factor, first, count, z_own);
      gemm(count, args_.width, InLanes<T>{z_own}, weights_.own, by_own, false);
    }
    each_row(count, [&](auto place, auto lanes, int64_t r) {
      const int64_t c = place.lane(), at = (first + r) * args_.width + c;
      const V g = lanes.load(args_.grad + at);
      V sum = args_.keep * g;
      if (args_.takes_nodes) sum += lanes.load(inputs_ + r * args_.inputs + c);
      if (args_.own) sum += vector_at(place.in(by_own, r));
      lanes.store(args_.out + at, sum);
      if (args_.sums)
        lanes.store(args_.by_v + (first + r) * args_.sums * args_.width + c,
                    args_.sum_factor ? lanes.load(args_.sum_factor + c) * g : V{});
    });
    for (int64_t r = 0; r < count; ++r) {
      const T* by = inputs_ + r * args_.inputs + (args_.takes_nodes ? args_.width : 0);
      const int64_t at = (first + r) * kParts * args_.edge_width;
      if (args_.e) by_symmetric(args_.e + at, args_.edge_width, by, args_.by_e + at);
      if (args_.e) by += args_.axis * args_.edge_width;
      if (has_vectors())
        by_symmetric(vectors(args_.v, first + r), args_.width, by,
                     const_cast<T*>(vectors(args_.by_v, first + r)));
    }
  }

  // Writes D(T), a row for each l; returns the next place.
  T* symmetric(const T* t, int64_t width, T* to) const {
    for (int64_t l = 0; l < args_.axis; ++l, to += width) {
      T* __restrict row = to;
      const T x = t[l], y = t[width + l], z = t[2 * width + l];
      for (int64_t k = 0; k < width; ++k) row[k] = x * t[k] + y * t[width + k] + z * t[2 * width + k];
    }
    return to;
  }
  void by_symmetric(const T* t, int64_t width, const T* by, T* to) const {
    for (int a = 0; a < kParts; ++a) {
      int64_t l = 0;
      for (; l + kTogether <= args_.axis; l += kTogether)
        by_columns<kTogether>(t + a * width, width, by, l, to + a * width);
      for (; l < args_.axis; ++l) by_columns<1>(t + a * width, width, by, l, to + a * width);
      if (!args_.axis) std::fill_n(to + a * width, width, T(0));
    }
  }
  // Adds the part of Columns rows of the gradient, from l on, to a row of T.
  template <int Columns>
  static MDOPS_INLINE void by_columns(const T* t, int64_t width, const T* by, int64_t l, T* to) {
    V own[Columns] = {};
    const auto add = [&](auto lanes, int64_t c) __attribute__((always_inline)) {
      const V row = lanes.load(t + c);
      V sum = l ? lanes.load(to + c) : V{};
      for (int n = 0; n < Columns; ++n) {
        const V from = lanes.load(by + (l + n) * width + c);
        sum += t[l + n] * from, own[n] += row * from;
      }
      lanes.store(to + c, sum);
    };
    int64_t c = 0;
    for (; c + kLanes<T> <= width; c += kLanes<T>) add(SomeLanes<T, true>{kLanes<T>}, c);
    if (c < width) add(SomeLanes<T, false>{width - c}, c);
    for (int n = 0; n < Columns; ++n) to[l + n] += sum_in_registers<T>(own[n]);
  }

  static void product(int64_t count, const T* rows, int64_t depth, const Panels<T>& weights, const T* bias,
                      const Panels<T>& to) {
    gemm_from(count, depth, ByRow<T>{rows, depth}, weights, to,
              [&](int64_t, int64_t c, const T*) { return vector_at(bias + c); });
  }
  // f of all numbers, or its slopes.
  void values(const Panels<T>& of) const {
    each_number(of, [](T y, T) { return y; });
  }
  void each_number(const Panels<T>& of, const auto& take) const {
    activate_numbers(of.base, of.rows * of.cols, args_.activation, args_.threshold, take);
  }
  void by_z(const T* z, const T* factor, int64_t first, int64_t count, const Panels<T>& to) const {
    rows_to_panels(z + first * args_.width, count, args_.width, to);
    each_number(to, [](T, T slope) { return slope; });
    each_row(count, [&](auto place, auto lanes, int64_t r) {
      const int64_t c = place.lane();
      T* const at = place.in(to, r);
      store(at,
            vector_at(at) * lanes.load(factor + c) * lanes.load(args_.grad + (first + r) * args_.width + c));
    });
  }

  // Calls work(place, lanes, r) for every vector of the rows.
  void each_row(int64_t count, const auto& work) const {
    z_.each([&](auto place) {
      with_lanes<T>(std::min<int64_t>(kLanes<T>, args_.width - place.lane()), [&](auto lanes) {
        for (int64_t r = 0; r < count; ++r) work(place, lanes, r);
      });
    });
  }

  const NodeLayerArgs<T>& args_;
  const PackedNodes<T> weights_;
  Panels<T> z_, z_own_, by_inputs_, by_own_;
  T* inputs_;
};

}  // namespace

template <class T>
PackedSizes node_layer_sizes(const NodeLayerArgs<T>& args) {
  return {PackedNodes<T>(args, nullptr).bytes, LayerOfNodes<T>(args, nullptr, nullptr).bytes};
}

template <class T>
void node_layer_pack(const NodeLayerArgs<T>& args, void* memory) {
  const PackedNodes<T> to(args, memory);
  const int64_t width = args.width;
  if (args.grad) {
    if (args.own) rows_to_lanes(args.own, width, width, width, to.own);
    rows_to_lanes(args.every, width, args.inputs, width, to.every);
    return;
  }
  const auto bias = [&](const T* from, T* lanes) {
    std::fill(std::copy_n(from, width, lanes), lanes + padded<T>(width), T(0));
  };
  if (args.own) rows_to_panels(args.own, width, width, to.own), bias(args.own_bias, to.own_bias);
  rows_to_panels(args.every, args.inputs, width, to.every), bias(args.bias, to.bias);
}

template <class T>
void node_layer_rows(const NodeLayerArgs<T>& args, int64_t from, int64_t to, const void* packed,
                     void* scratch) {
  LayerOfNodes<T>(args, packed, scratch).run(from, to);
}

MDOPS_INSTANTIATE(node_layer_sizes, node_layer_pack, node_layer_rows)

}  // namespace mdops::MDOPS_ISA
