// One atom's edges at a time, with all of a layer's work on them in the nearest caches.
#include <cmath>

#include "common/activation_lanes.h"
#include "common/some_lanes.h"
#include "edge_attention/cpu_atom.h"
#include "edge_layer/edge_layer.h"
#include "rowwise/add_norm.h"

namespace mdops::MDOPS_ISA {

namespace {

// The weights in panels, for a backward pass also transposed.
template <class T>
struct PackedLayer {
  int64_t width, lanes;
  Panels<T> own, own_back;
  T *queries, *queries_back,
      *values;             // one head after another; the values are transposed in a backward pass
  T *own_bias, *out_bias;  // (lanes,)
  int64_t bytes;

  PackedLayer(const EdgeLayerArgs<T>& args, void* memory) : width(args.width), lanes(padded<T>(args.width)) {
    Arena arena{static_cast<char*>(memory)};
    const int64_t all = args.heads * width * lanes;
    own = take_panels<T>(arena, width, lanes), own_back = take_panels<T>(arena, args.grad ? width : 0, lanes);
    queries = arena.take<T>(all), queries_back = arena.take<T>(args.grad ? all : 0);
    values = arena.take<T>(all);
    own_bias = arena.take<T>(lanes), out_bias = arena.take<T>(lanes);
    bytes = arena.used;
  }
  Panels<T> of_head(T* weights, int64_t h) const { return {weights + h * width * lanes, width, lanes}; }
};

template <class T, bool gated>
class LayerOfAtom {
  using V = Vector<T>;

 public:
  LayerOfAtom(const EdgeLayerArgs<T>& args, int64_t first, int64_t n, T absent, const void* packed,
              void* scratch)
      : args_(args),
        first_(first),
        n_(n),
        weights_(args, const_cast<void*>(packed)),
        arena_{static_cast<char*>(scratch)},
        z_(take_panels<T>(arena_, n, weights_.lanes)),
        sum_(take_panels<T>(arena_, n, weights_.lanes)),
        room_(take_panels<T>(arena_, args.heads ? n : 0, weights_.lanes)),
        normed_(arena_.take<T>(args.heads ? n * args.width : 0)),
        by_normed_(arena_.take<T>(args.heads ? n * args.width : 0)),
        queries_(arena_.take<T>(n * args.heads * args.width)),
        sums_(arena_.take<T>(n * args.heads * args.width)),
        by_queries_(arena_.take<T>(args.grad ? n * args.heads * args.width : 0)),
        by_e_(arena_.take<T>(args.grad && args.heads ? n * args.width : 0)),
        attention_(edges(absent), args.grad != nullptr, arena_) {}

  int64_t bytes() const { return arena_.used; }

  void forward() const {
    make_own();
    if (args_.heads) {
      make_queries();
      attention_.forward(queries_, sums_);
      join(sums_, weights_.values, weights_.out_bias);
      panels_to_rows(sum_, n_, args_.width, of_edges(args_.saved));
      norm([](int64_t, const NormRow<T>&) {});
    }
    each_number([](T y, T) { return y; });
    const T *const e = of_edges(args_.e), keep = args_.keep;
    T* const out = of_edges(args_.out);
    each_row([&](auto place, auto lanes, int64_t j) {
      const int64_t c = place.lane(), at = j * args_.width + c;
      V sum = keep * lanes.load(e + at) + lanes.load(args_.own_factor + c) * vector_at(place.in(z_, j));
      if (args_.heads)
        sum += lanes.load(args_.out_factor + c) *
               (lanes.load(args_.norm + c) * lanes.load(normed_ + at) + lanes.load(args_.norm_bias + c));
      lanes.store(out + at, sum);
    });
  }

  void backward() const {
    make_own();
    each_number([](T, T slope) { return slope; });
    const T *const g = of_edges(args_.grad), keep = args_.keep;
    each_row([&](auto place, auto lanes, int64_t j) {
      const int64_t c = place.lane();
      T* const z = place.in(z_, j);
      store(z, vector_at(z) * lanes.load(args_.own_factor + c) * lanes.load(g + j * args_.width + c));
    });
    gemm(n_, args_.width, InLanes<T>{z_}, weights_.own_back, sum_, false);
    if (args_.heads) backward_of_heads(g);
    T* const out = of_edges(args_.out);
    each_row([&](auto place, auto lanes, int64_t j) {
      const int64_t at = j * args_.width + place.lane();
      V sum = keep * lanes.load(g + at) + vector_at(place.in(sum_, j));
      if (args_.heads) sum += lanes.load(by_e_ + at);
      lanes.store(out + at, sum);
    });
  }

 private:
  AtomEdges<T> edges(T absent) const {
    return {.n = n_,
            .heads = args_.heads,
            .keys = args_.width,
            .values = args_.width,
            .x = of_edges(args_.e),
            .r = args_.r + 3 * first_,
            .w = args_.w + first_,
            .along_x = nullptr,
            .along_r = nullptr,
            .along_w = nullptr,
            .absent = absent,
            .shift = args_.shift};
  }
  template <class U>
  U* of_edges(U* rows) const {
    return rows + first_ * args_.width;
  }
  T* of_head(T* rows, int64_t h) const { return rows + h * n_ * args_.width; }

  // Calls work(place, lanes, j) for every vector of every row.
  void each_row(const auto& work) const {
    z_.each([&](auto place) {
      with_lanes<T>(std::min<int64_t>(kLanes<T>, args_.width - place.lane()), [&](auto lanes) {
        for (int64_t j = 0; j < n_; ++j) work(place, lanes, j);
      });
    });
  }
  // Applies f to all numbers, or its slopes: `take` gets both.
  void each_number(const auto& take) const {
    activate_numbers(z_.base, n_ * weights_.lanes, args_.activation, args_.threshold, take);
  }

  // z = e A + a
  void make_own() const {
    gemm_from(n_, args_.width, ByRow<T>{of_edges(args_.e), args_.width}, weights_.own, z_,
              [&](int64_t, int64_t c, const T*) { return vector_at(weights_.own_bias + c); });
  }
  // q, one head after another.
  void make_queries() const {
    for (int64_t h = 0; h < args_.heads; ++h)
      put_head(queries_, h, [&](const Panels<T>& to) {
        gemm(n_, args_.width, ByRow<T>{of_edges(args_.e), args_.width}, weights_.of_head(weights_.queries, h),
             to, false);
      });
    attention_.expand(true);
  }
  // Calls make(panels) for the rows of a head.
  void put_head(T* rows, int64_t h, const auto& make) const {
    T* const to = of_head(rows, h);
    if (are_panels<T>(args_.width)) return make(Panels<T>{to, n_, args_.width});
    make(room_);
    panels_to_rows(room_, n_, args_.width, to);
  }
  // sum = bias + the heads' rows times their weights.
  void join(const T* rows, T* weights, const T* bias) const {
    for (int64_t h = 0; h < args_.heads; ++h)
      gemm_from(n_, args_.width, ByRow<T>{rows + h * n_ * args_.width, args_.width},
                weights_.of_head(weights, h), sum_, [&](int64_t, int64_t c, const T* at) {
                  return h > 0 ? vector_at(at) : bias ? vector_at(bias + c) : V{};
                });
  }

  // Norms the saved rows to mean 0 and variance 1; calls then(j, row) for each.
  void norm(const auto& then) const {
    const int64_t width = args_.width;
    for (int64_t j = 0; j < n_; ++j) {
      const T* const x = of_edges(args_.saved) + j * width;
      T* const to = normed_ + j * width;
      NormRow<T> row{};
      row.mean = sum_of(x, width) / width;
      MDOPS_INDEPENDENT
      for (int64_t c = 0; c < width; ++c) to[c] = x[c] - row.mean;
      row.r = T(1) / std::sqrt(dot(to, to, width) / width + args_.eps);
      MDOPS_INDEPENDENT
      for (int64_t c = 0; c < width; ++c) to[c] *= row.r;
      then(j, row);
    }
  }

  // Adds the gradients through the heads to sum and by_e.
  void backward_of_heads(const T* g) const {
    const int64_t width = args_.width;
    norm([&](int64_t j, NormRow<T> row) {
      const T *const n = normed_ + j * width, *const by = g + j * width;
      T* const to = by_normed_ + j * width;
      MDOPS_INDEPENDENT
      for (int64_t c = 0; c < width; ++c) to[c] = by[c] * args_.out_factor[c] * args_.norm[c];
      row.a = {sum_of(to, width) / width, dot(to, n, width) / width};
      MDOPS_INDEPENDENT
      for (int64_t c = 0; c < width; ++c) to[c] = row.by_h(to[c], n[c]);
    });
    make_queries();
    for (int64_t h = 0; h < args_.heads; ++h)
      put_head(sums_, h, [&](const Panels<T>& to) {
        gemm(n_, width, ByRow<T>{by_normed_, width}, weights_.of_head(weights_.values, h), to, false);
      });
    attention_.backward(queries_, sums_, by_queries_, by_e_);
    for (int64_t h = 0; h < args_.heads; ++h)
      gemm(n_, width, ByRow<T>{of_head(by_queries_, h), width}, weights_.of_head(weights_.queries_back, h),
           sum_, true);
    attention_.fold(true, args_.by_r + 3 * first_, args_.by_w + first_);
  }

  const EdgeLayerArgs<T>& args_;
  const int64_t first_, n_;
  const PackedLayer<T> weights_;
  Arena arena_;
  const Panels<T> z_, sum_, room_;                                    // (n, C)
  T *const normed_, *const by_normed_;                                // (n, C)
  T *const queries_, *const sums_, *const by_queries_, *const by_e_;  // (H, n, C), the last (n, C)
  const AtomAttention<T, gated> attention_;
};

template <class T, bool gated>
void run_atom(const EdgeLayerArgs<T>& args, int64_t atom, const void* packed, void* scratch) {
  const int64_t first = args.offsets[atom], n = args.offsets[atom + 1] - first;
  if (n == 0) return;
  const LayerOfAtom<T, gated> of(args, first, n, args.absent[atom], packed, scratch);
  args.grad ? of.backward() : of.forward();
}

}  // namespace

template <class T>
PackedSizes edge_layer_sizes(const EdgeLayerArgs<T>& args, int64_t n) {
  return {PackedLayer<T>(args, nullptr).bytes,
          LayerOfAtom<T, true>(args, 0, n, T(0), nullptr, nullptr).bytes()};
}

template <class T>
void edge_layer_pack(const EdgeLayerArgs<T>& args, void* memory) {
  const PackedLayer<T> to(args, memory);
  const int64_t width = args.width;
  const auto straight = [&](const T* from, const Panels<T>& panels) {
    rows_to_panels(from, width, width, panels);
  };
  const auto turned = [&](const T* from, const Panels<T>& panels) {
    rows_to_lanes(from, width, width, width, panels);
  };
  const auto bias = [&](const T* from, T* lanes) {
    std::fill(std::copy_n(from, width, lanes), lanes + to.lanes, T(0));
  };
  straight(args.own, to.own), bias(args.own_bias, to.own_bias);
  if (args.grad) turned(args.own, to.own_back);
  if (args.heads) bias(args.out_bias, to.out_bias);
  for (int64_t h = 0; h < args.heads; ++h) {
    const T *queries = args.queries + h * width * width, *values = args.values + h * width * width;
    straight(queries, to.of_head(to.queries, h));
    if (args.grad)
      turned(queries, to.of_head(to.queries_back, h)), turned(values, to.of_head(to.values, h));
    else
      straight(values, to.of_head(to.values, h));
  }
}

template <class T>
void edge_layer_atoms(const EdgeLayerArgs<T>& args, int64_t from, int64_t to, const void* packed,
                      void* scratch) {
  for (int64_t i = from; i < to; ++i)
    args.gated ? run_atom<T, true>(args, i, packed, scratch) : run_atom<T, false>(args, i, packed, scratch);
}

MDOPS_INSTANTIATE(edge_layer_sizes, edge_layer_pack, edge_layer_atoms)

}  // namespace mdops::MDOPS_ISA
