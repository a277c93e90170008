// Attention among the edges of one atom, in the nearest caches: the queries of all heads in lanes, the keys
// in turn. For one instruction set.
#pragma once

#include <algorithm>
#include <limits>

#include "common/exp_lanes.h"
#include "common/panel_rows.h"
#include "edge_attention/edge_attention.h"
#include "gemm/product.h"

namespace mdops::MDOPS_ISA {

// C (+)= A^T B, A (depth, C's rows) in panels.
template <class T>
inline void transposed_product(const Panels<T>& a, int64_t rows, int64_t depth, const Panels<T>& b,
                               const Panels<T>& c, bool accumulate) {
  for (int64_t first = 0; first < rows; first += Panels<T>::kWide) {
    const int64_t width = a.width(first);
    gemm(std::min(width, rows - first), depth, ByDepth<T>{a.panel(first), width}, b, c.from(first),
         accumulate);
  }
}

// The edges of an atom: numbers x, their changes u (or null), and the vector and weight of each.
template <class T>
struct AtomEdges {
  int64_t n, heads, keys, values;
  const T *x, *r, *w;
  const T *along_x, *along_r, *along_w;
  T absent, shift;

  int64_t queries() const { return n * heads; }
};

template <class T, bool gated>
class AtomAttention {
  using V = Vector<T>;
  using Pair = EdgePair<V>;
  static constexpr int kSums = 4;  // by the three numbers of r, and by w

 public:
  // Room for the queries of n edges; only expand and fold depend on their order.
  AtomAttention(const AtomEdges<T>& edges, bool back, Arena& arena)
      : edges_(edges), changes_(edges.along_x != nullptr) {
    const int64_t lanes = padded<T>(edges.queries()), values = padded<T>(edges.values), n = edges.n;
    const auto some = [&](bool wanted, int64_t rows, int64_t cols) {
      return wanted ? take_panels<T>(arena, rows, cols) : Panels<T>{};
    };
    // Rows are transposed by whole vectors.
    q_ = some(true, padded<T>(edges.keys), lanes), dq_ = some(changes_, padded<T>(edges.keys), lanes);
    g_ = some(back, values, lanes);
    x_ = some(true, n, values), u_ = some(changes_, n, values);
    of_queries_ = some(true, edges.queries(), values), by_x_ = some(back, n, values);
    s_ = some(true, n, lanes), t_ = some(back, n, lanes);
    ds_ = some(changes_, n, lanes), dt_ = some(changes_, n, lanes);
    p_ = arena.take<V>(n), c_ = arena.take<V>(n), dc_ = changes_ ? arena.take<V>(n) : nullptr;
    of_key_ = back ? arena.take<V>(kSums * n) : nullptr;
    for (int k = 0; k < kSums; ++k) {
      own_[k] = arena.take<T>(lanes), change_[k] = changes_ ? arena.take<T>(lanes) : nullptr;
      by_own_[k] = back ? arena.take<T>(lanes) : nullptr;
    }
  }

  // Copies the vectors and weights of edges to their queries: `heads_first` if the queries of a head are
  // adjacent, not those of an edge.
  void expand(bool heads_first) const {
    for (int k = 0; k < kSums; ++k) {
      lay(k < 3 ? edges_.r + k : edges_.w, k < 3 ? 3 : 1, heads_first, own_[k]);
      if (changes_) lay(k < 3 ? edges_.along_r + k : edges_.along_w, k < 3 ? 3 : 1, heads_first, change_[k]);
    }
  }

  void forward(const T* q, T* out) const {
    logits(q);
    s_.each([&](auto place) __attribute__((always_inline)) {
      const V most = tops(place);
      V sum{};
      for (int64_t l = 0; l < edges_.n; ++l) {
        const V e = exp_of<T>(p_[l] - most);
        sum += e;
        store(place.in(s_, l), e * (c_[l] * (at(own_[3], place) * edges_.w[l])));
      }
      const V inverse = inverse_of(sum, most);
      for (int64_t l = 0; l < edges_.n; ++l) store(place.in(s_, l), vector_at(place.in(s_, l)) * inverse);
    });
    sums_of_keys(out, edges_.values, s_, numbers(edges_.x, x_));
  }

  // For G: the gradients by q, x, r and w.
  void backward(const T* q, const T* g, T* by_q, T* by_x) const {
    logits(q);
    lanes_of(g, edges_.values, g_), gemm(edges_.n, edges_.values, rows_of(edges_.x), g_, t_, false);
    clear_keys();
    s_.each([&](auto place) __attribute__((always_inline)) {
      const V most = tops(place), w = at(own_[3], place), shift = V{} + edges_.shift;
      V sum{}, weighed{};
      for (int64_t l = 0; l < edges_.n; ++l) {
        const V e = exp_of<T>(p_[l] - most);
        p_[l] = e;
        sum += e, weighed += e * (c_[l] * (w * edges_.w[l])) * vector_at(place.in(t_, l));
      }
      const V inverse = inverse_of(sum, most), delta = inverse * weighed;
      Sums own = at_once(own_, place), by{};
      for (int64_t l = 0; l < edges_.n; ++l) {
        const Pair pair{vector_at(place.in(s_, l)), c_[l], w * edges_.w[l]};
        const auto found =
            edge_pair_gradients(pair, p_[l] * inverse, vector_at(place.in(t_, l)), delta, shift, gated);
        put(place, l, found, s_, t_);
        add(found, l, edges_.r, edges_.w, own, by);
      }
      put_sums(place, by);
    });
    sums_of_keys(by_q, edges_.keys, s_, numbers(edges_.x, x_));
    by_numbers(by_x, [&](const Panels<T>& to) {
      add_by_x(q, edges_.keys, s_, to, false);
      add_by_x(g, edges_.values, t_, to, true);
    });
  }

  // Along directions: the gradients by G, q, x, r and w.
  void second(const T* q, const T* dq, const T* g, T* by_g, T* by_q, T* by_x) const {
    logits(q);
    const int64_t n = edges_.n;
    lanes_of(dq, edges_.keys, dq_), lanes_of(g, edges_.values, g_);
    gemm(n, edges_.keys, rows_of(edges_.x), dq_, ds_, false);
    gemm(n, edges_.keys, rows_of(edges_.along_x), q_, ds_, true);
    gemm(n, edges_.values, rows_of(edges_.x), g_, t_, false);
    gemm(n, edges_.values, rows_of(edges_.along_x), g_, dt_, false);
    clear_keys();
    s_.each([&](auto place) __attribute__((always_inline)) {
      const V most = tops(place), w = at(own_[3], place), dw = at(change_[3], place);
      const V shift = V{} + edges_.shift;
      const Sums own = at_once(own_, place), along = at_once(change_, place);
      V sum{}, weighed{}, changed{}, weighed_change{};
      const auto pair_at = [&](int64_t l) __attribute__((always_inline)) {
        return Pair{vector_at(place.in(s_, l)), c_[l], w * edges_.w[l]};
      };
      const auto change_at = [&](int64_t l) __attribute__((always_inline)) {
        return EdgePairChange<V>{vector_at(place.in(ds_, l)), dc_[l],
                                 dw * edges_.w[l] + w * edges_.along_w[l], vector_at(place.in(dt_, l))};
      };
      for (int64_t l = 0; l < n; ++l) {
        const T* const r = edges_.r + 3 * l;
        const T* const dr = edges_.along_r + 3 * l;
        dc_[l] = along.of[0] * r[0] + along.of[1] * r[1] + along.of[2] * r[2] + own.of[0] * dr[0] +
                 own.of[1] * dr[1] + own.of[2] * dr[2];
        const V e = exp_of<T>(p_[l] - most), t = vector_at(place.in(t_, l));
        p_[l] = e;
        const Pair pair = pair_at(l);
        const auto change = change_at(l);
        const V dz = change.logit(pair, shift, gated), m = pair.c * pair.a;
        sum += e, weighed += e * m * t, changed += e * dz;
        weighed_change += e * (change.factor(pair) * t + m * change.t + dz * m * t);
      }
      const V inverse = inverse_of(sum, most), delta = inverse * weighed, mean = inverse * changed;
      const V delta_change = inverse * weighed_change - mean * delta;
      Sums by{};
      for (int64_t l = 0; l < n; ++l) {
        const Pair pair = pair_at(l);
        const auto change = change_at(l);
        const V p = p_[l] * inverse, dp = p * (change.logit(pair, shift, gated) - mean);
        const auto found = edge_pair_seconds(pair, change, p, dp, vector_at(place.in(t_, l)), delta,
                                             delta_change, shift, gated);
        put(place, l, found.first, s_, t_), put(place, l, found.second, ds_, dt_);
        add(found.second, l, edges_.r, edges_.w, own, by);
        add(found.first, l, edges_.along_r, edges_.along_w, along, by);
      }
      put_sums(place, by);
    });
    const Panels<T> x = numbers(edges_.x, x_), u = numbers(edges_.along_x, u_);
    sums_of_keys(by_g, edges_.values, dt_, x, &t_, &u);
    sums_of_keys(by_q, edges_.keys, ds_, x, &s_, &u);
    by_numbers(by_x, [&](const Panels<T>& to) {
      add_by_x(q, edges_.keys, ds_, to, false);
      add_by_x(dq, edges_.keys, s_, to, true);
      add_by_x(g, edges_.values, dt_, to, true);
    });
  }

  // After a backward pass: the gradients by r and w. Each edge is a query, and a key of the others.
  void fold(bool heads_first, T* by_r, T* by_w) const {
    const int64_t n = edges_.n, heads = edges_.heads;
    for (int64_t j = 0; j < n; ++j)
      for (int k = 0; k < kSums; ++k) {
        T sum = sum_lanes<T>(of_key_[kSums * j + k]);
        for (int64_t h = 0; h < heads; ++h) sum += by_own_[k][heads_first ? h * n + j : j * heads + h];
        (k < 3 ? by_r[3 * j + k] : by_w[j]) = sum;
      }
  }

 private:
  struct Sums {
    V of[kSums];
  };

  void lay(const T* from, int64_t stride, bool heads_first, T* to) const {
    const int64_t n = edges_.n, heads = edges_.heads, queries = edges_.queries();
    for (int64_t j = 0; j < n; ++j)
      for (int64_t h = 0; h < heads; ++h) to[heads_first ? h * n + j : j * heads + h] = from[j * stride];
    std::fill(to + queries, to + padded<T>(queries), T(0));
  }

  ByRow<T> rows_of(const T* x) const { return {x, edges_.values}; }
  void lanes_of(const T* rows, int64_t width, const Panels<T>& to) const {
    rows_to_lanes(rows, width, edges_.queries(), width, to);
  }
  // Rows in panels of V numbers: in place, or in `room`.
  Panels<T> in_panels(const T* from, int64_t rows, int64_t width, const Panels<T>& room) const {
    if (width == edges_.values && are_panels<T>(width)) return {const_cast<T*>(from), rows, width};
    rows_to_panels(from, rows, width, room);
    return room;
  }
  Panels<T> numbers(const T* x, const Panels<T>& room) const {
    return in_panels(x, edges_.n, edges_.values, room);
  }

  void logits(const T* q) const {
    lanes_of(q, edges_.keys, q_);
    gemm(edges_.n, edges_.keys, rows_of(edges_.x), q_, s_, false);
  }

  // Writes z of each key to p, and c to c; returns the largest z.
  MDOPS_INLINE V tops(auto place) const {
    const Sums own = at_once(own_, place);
    V most = V{} + (edges_.absent != T(0) ? T(0) : -std::numeric_limits<T>::max() / 4);
    for (int64_t l = 0; l < edges_.n; ++l) {
      const T* const r = edges_.r + 3 * l;
      c_[l] = own.of[0] * r[0] + own.of[1] * r[1] + own.of[2] * r[2];
      const V z = Pair{vector_at(place.in(s_, l)), c_[l], own.of[3] * edges_.w[l]}.logit(edges_.shift, gated);
      most = larger<T>(most, z);
      p_[l] = z;
    }
    return most;
  }
  MDOPS_INLINE V inverse_of(const V& sum, const V& most) const {
    if (edges_.absent == T(0)) return T(1) / sum;
    return T(1) / (sum + edges_.absent * exp_of<T>(-most));
  }

  static MDOPS_INLINE V at(const T* lanes, auto place) { return vector_at(lanes + place.lane()); }
  static MDOPS_INLINE Sums at_once(T* const* lanes, auto place) {
    return {at(lanes[0], place), at(lanes[1], place), at(lanes[2], place), at(lanes[3], place)};
  }

  MDOPS_INLINE void put(auto place, int64_t l, const EdgePairGradients<V>& by, const Panels<T>& to_s,
                        const Panels<T>& to_share) const {
    store(place.in(to_s, l), by.s), store(place.in(to_share, l), by.share);
  }
  // Adds to the sums of the queries in `own`, and to those of key l.
  MDOPS_INLINE void add(const EdgePairGradients<V>& found, int64_t l, const T* r, const T* w, const Sums& own,
                        Sums& by) const {
    for (int k = 0; k < 3; ++k) {
      by.of[k] += found.c * r[3 * l + k];
      of_key_[kSums * l + k] += found.c * own.of[k];
    }
    by.of[3] += found.a * w[l];
    of_key_[kSums * l + 3] += found.a * own.of[3];
  }
  MDOPS_INLINE void put_sums(auto place, const Sums& by) const {
    for (int k = 0; k < kSums; ++k) store(by_own_[k] + place.lane(), by.of[k]);
  }
  void clear_keys() const { std::fill_n(of_key_, kSums * edges_.n, V{}); }

  // Writes to the rows of queries, `width` of the V numbers: sums over keys of weights times x, and of others
  // times u.
  void sums_of_keys(T* to, int64_t width, const Panels<T>& weights, const Panels<T>& x,
                    const Panels<T>* others = nullptr, const Panels<T>* u = nullptr) const {
    const int64_t queries = edges_.queries();
    const bool direct = width == edges_.values && are_panels<T>(width);
    const Panels<T> made = direct ? Panels<T>{to, queries, width} : of_queries_;
    transposed_product(weights, queries, edges_.n, x, made, false);
    if (others) transposed_product(*others, queries, edges_.n, *u, made, true);
    if (!direct) panels_to_rows(made, queries, width, to);
  }

  // Calls make(panels) for the gradients by x.
  void by_numbers(T* to, const auto& make) const {
    if (are_panels<T>(edges_.values)) return make(Panels<T>{to, edges_.n, edges_.values});
    make(by_x_);
    panels_to_rows(by_x_, edges_.n, edges_.values, to);
  }
  // by_x_l (+)= sum over queries of weights_l rows, with rows of q or G, or their directions.
  void add_by_x(const T* of, int64_t width, const Panels<T>& weights, const Panels<T>& to,
                bool accumulate) const {
    const Panels<T> rows = in_panels(of, edges_.queries(), width, of_queries_);
    gemm(edges_.n, edges_.queries(), InLanes<T>{weights}, rows, to, accumulate);
  }

  const AtomEdges<T> edges_;
  const bool changes_;
  Panels<T> q_, dq_, g_;                             // (K, n H), G (V, n H)
  Panels<T> x_, u_, of_queries_, by_x_;              // (n, V), (n H, V), if rows have another layout
  Panels<T> s_, t_, ds_, dt_;                        // (n, n H)
  V *p_, *c_, *dc_, *of_key_;                        // (n,), (n, 4)
  T *own_[kSums], *change_[kSums], *by_own_[kSums];  // (n H,)
};

}  // namespace mdops::MDOPS_ISA
