// An atom's edges at a time: keys in lanes, one head after the other, all of it in the nearest caches.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "common/exp_lanes.h"
#include "edge_attention/edge_attention.h"
#include "gemm/product.h"

namespace mdops {
namespace MDOPS_ISA {

namespace {

// Rows of numbers in panels, zeros in the lanes that are left.
template <class T>
void rows_to_panels(const T* from, int64_t stride, int64_t rows, int64_t count, const Panels<T>& to) {
  to.each([&](auto place) {
    const int64_t left = std::clamp<int64_t>(count - place.lane(), 0, kLanes<T>);
    for (int64_t r = 0; r < rows; ++r) {
      Vector<T> v{};
      if (left == kLanes<T>)
        v = vector_at(from + r * stride + place.lane());
      else
        std::memcpy(&v, from + r * stride + place.lane(), left * sizeof(T));
      store(place.in(to, r), v);
    }
  });
}

// The first `count` numbers of rows in panels.
template <class T>
void panels_to_rows(const Panels<T>& from, int64_t rows, int64_t count, T* to, int64_t stride) {
  from.each([&](auto place) {
    const int64_t left = std::clamp<int64_t>(count - place.lane(), 0, kLanes<T>);
    for (int64_t r = 0; r < rows; ++r)
      if (left == kLanes<T>)
        store(to + r * stride + place.lane(), vector_at(place.in(from, r)));
      else
        std::memcpy(to + r * stride + place.lane(), place.in(from, r), left * sizeof(T));
  });
}

// C += A^T B, A (depth, C's rows) in panels.
template <class T>
void add_transposed(const Panels<T>& a, int64_t rows, int64_t depth, const Panels<T>& b, const Panels<T>& c) {
  for (int64_t first = 0; first < rows; first += Panels<T>::kWide) {
    const int64_t width = a.width(first);
    gemm(std::min(width, rows - first), depth, ByDepth<T>{a.panel(first), width}, b, c.from(first), true);
  }
}

// An atom's memory: arrays of edges in lanes, edges by edges, and edges by numbers.
template <class T>
struct AtomMemory {
  Arena arena;
  Panels<T> keys, along_keys;                  // x, u_x, (V, n)
  Panels<T> rows, along_rows;                  // x, u_x, (n, V)
  Panels<T> head, made, by_x;                  // of a head, (n, V)
  Panels<T> s, t, ds, dt, p;                   // of a head, (n, n)
  Panels<T> c, dc, by_c, by_dc, by_a, by_da;   // of all heads, (n, n)
  T *r[3], *along_r[3], *w, *along_w, *there;  // (n,)
  T *by_r[3], *by_w;

  AtomMemory(const EdgeAttentionArgs<T>& args, int64_t n, void* memory) : arena{static_cast<char*>(memory)} {
    const bool back = args.grad, second = args.along_q;
    const int64_t lanes = padded<T>(n), values = padded<T>(args.values);
    const auto some = [&](bool wanted, int64_t rows_, int64_t cols) {
      return wanted ? take_panels<T>(arena, rows_, cols) : Panels<T>{};
    };
    // Rows are transposed by whole vectors.
    keys = some(true, values, lanes), along_keys = some(second, values, lanes);
    rows = some(true, n, values), along_rows = some(second, n, values);
    head = some(back, n, values), made = some(true, n, values), by_x = some(back, n, values);
    s = some(true, n, lanes), t = some(back, n, lanes), p = some(true, n, lanes);
    ds = some(second, n, lanes), dt = some(second, n, lanes);
    c = some(true, n, lanes), dc = some(second, n, lanes);
    by_c = some(back, n, lanes), by_dc = some(second, n, lanes);
    by_a = some(back, n, lanes), by_da = some(second, n, lanes);
    for (int k = 0; k < 3; ++k) {
      r[k] = arena.take<T>(lanes);
      along_r[k] = second ? arena.take<T>(lanes) : nullptr;
      by_r[k] = back ? arena.take<T>(lanes) : nullptr;
    }
    w = arena.take<T>(lanes), along_w = arena.take<T>(lanes), there = arena.take<T>(lanes);
    by_w = arena.take<T>(lanes);
  }
};

template <class T>
class AtomPasses {
  using V = Vector<T>;
  using Pair = EdgePair<V>;

 public:
  AtomPasses(const EdgeAttentionArgs<T>& args, int64_t atom, void* scratch)
      : args_(args),
        first_(args.offsets[atom]),
        n_(args.offsets[atom + 1] - first_),
        absent_(args.absent[atom]),
        m_(args, n_, scratch) {}

  void run() {
    if (n_ == 0) return;
    read();
    for (int64_t h = 0; h < args_.heads; ++h)
      if (args_.along_q)
        second(h);
      else if (args_.grad)
        backward(h);
      else
        forward(h);
    if (!args_.grad) return;
    panels_to_rows(m_.by_x, n_, args_.values, args_.by_x + first_ * args_.values, args_.values);
    directions();
  }

 private:
  void read() {
    const int64_t lanes = padded<T>(n_), width = args_.values;
    const T *x = args_.x + first_ * width, *u = args_.along_x ? args_.along_x + first_ * width : nullptr;
    rows_to_lanes(x, width, n_, width, m_.keys);
    rows_to_panels(x, width, n_, width, m_.rows);
    if (u)
      rows_to_lanes(u, width, n_, width, m_.along_keys), rows_to_panels(u, width, n_, width, m_.along_rows);
    const auto lane = [&](const T* from, int64_t stride, T* to) {
      for (int64_t l = 0; l < lanes; ++l) to[l] = l < n_ ? from[l * stride] : T(0);
    };
    for (int k = 0; k < 3; ++k) {
      lane(args_.r + 3 * first_ + k, 3, m_.r[k]);
      if (u) lane(args_.along_r + 3 * first_ + k, 3, m_.along_r[k]);
    }
    lane(args_.w + first_, 1, m_.w);
    if (u) lane(args_.along_w + first_, 1, m_.along_w);
    for (int64_t l = 0; l < lanes; ++l) m_.there[l] = l < n_ ? T(0) : -std::numeric_limits<T>::max() / 4;
    m_.c.each([&](auto place) {
      const int64_t l = place.lane();
      for (int64_t j = 0; j < n_; ++j) {
        V sum{}, change{};
        for (int k = 0; k < 3; ++k) {
          sum += m_.r[k][j] * at(m_.r[k], l);
          if (u) change += m_.along_r[k][j] * at(m_.r[k], l) + m_.r[k][j] * at(m_.along_r[k], l);
        }
        store(place.in(m_.c, j), sum);
        if (u) store(place.in(m_.dc, j), change);
      }
    });
    if (!args_.grad) return;
    for (const Panels<T>* sums : {&m_.by_c, &m_.by_dc, &m_.by_a, &m_.by_da, &m_.by_x})
      if (sums->base) clear_from(*sums, 0);
  }

  // What is multiplied with keys: rows of q, G, or their directions.
  ByRow<T> of_keys(const T* q, int64_t h) const {
    return {q + (first_ * args_.heads + h) * args_.keys, args_.heads * args_.keys};
  }
  ByRow<T> of_values(const T* g, int64_t h) const {
    return {g + (first_ * args_.heads + h) * args_.values, args_.heads * args_.values};
  }

  template <class Place>
  inline __attribute__((always_inline)) Pair pair(Place place, int64_t j) const {
    return {vector_at(place.in(m_.s, j)), vector_at(place.in(m_.c, j)), m_.w[j] * at(m_.w, place.lane())};
  }
  template <class Place>
  inline __attribute__((always_inline)) EdgePairChange<V> change(Place place, int64_t j) const {
    const int64_t l = place.lane();
    return {vector_at(place.in(m_.ds, j)), vector_at(place.in(m_.dc, j)),
            m_.along_w[j] * at(m_.w, l) + m_.w[j] * at(m_.along_w, l), vector_at(place.in(m_.dt, j))};
  }
  template <class Place>
  inline __attribute__((always_inline)) V logit(Place place, int64_t j, const Pair& of) const {
    return of.logit(args_.shift, args_.gated) + at(m_.there, place.lane());
  }

  // Puts the logits of a query where its shares will be; the largest of them.
  inline __attribute__((always_inline)) T top(int64_t j) const {
    V most = V{} + (absent_ != T(0) ? T(0) : -std::numeric_limits<T>::max() / 4);
    m_.s.each([&](auto place) {
      const V z = logit(place, j, pair(place, j));
      store(place.in(m_.p, j), z);
      most = larger<T>(most, z);
    });
    return largest_lane<T>(most);
  }
  // Puts exp(z - top) there, and returns it.
  template <class Place>
  inline __attribute__((always_inline)) V raise(Place place, int64_t j, T top) const {
    const V e = exp_of<T>(vector_at(place.in(m_.p, j)) - top);
    store(place.in(m_.p, j), e);
    return e;
  }
  T sum_of_absent(T top) const { return absent_ != T(0) ? absent_ * std::exp(-top) : T(0); }

  void forward(int64_t h) {
    gemm(n_, args_.keys, of_keys(args_.q, h), m_.keys, m_.s, false);
    for (int64_t j = 0; j < n_; ++j) {
      const T top = this->top(j);
      V sum{};
      m_.s.each([&](auto place) {
        const Pair of = pair(place, j);
        const V e = exp_of<T>(vector_at(place.in(m_.p, j)) - top);
        sum += e;
        store(place.in(m_.s, j), e * (of.c * of.a));
      });
      const T inverse = 1 / (sum_lanes<T>(sum) + sum_of_absent(top));
      m_.s.each([&](auto place) { store(place.in(m_.s, j), vector_at(place.in(m_.s, j)) * inverse); });
    }
    gemm(n_, n_, InLanes<T>{m_.s}, m_.rows, m_.made, false);
    write(m_.made, args_.values, args_.out, h);
  }

  void backward(int64_t h) {
    gemm(n_, args_.keys, of_keys(args_.q, h), m_.keys, m_.s, false);
    gemm(n_, args_.values, of_values(args_.grad, h), m_.keys, m_.t, false);
    for (int64_t j = 0; j < n_; ++j) {
      const T top = this->top(j);
      V sum{}, weighed{};
      m_.s.each([&](auto place) {
        const Pair of = pair(place, j);
        const V e = raise(place, j, top);
        sum += e, weighed += e * (of.c * of.a) * vector_at(place.in(m_.t, j));
      });
      const T inverse = 1 / (sum_lanes<T>(sum) + sum_of_absent(top)), delta = inverse * sum_lanes<T>(weighed);
      m_.s.each([&](auto place) {
        const Pair of = pair(place, j);
        const V p = vector_at(place.in(m_.p, j)) * inverse;
        put(place, j,
            edge_pair_gradients(of, p, vector_at(place.in(m_.t, j)), delta, args_.shift, args_.gated), m_.s,
            m_.t, m_.by_c, m_.by_a);
      });
    }
    gemm(n_, n_, InLanes<T>{m_.s}, m_.rows, m_.made, false);
    write(m_.made, args_.keys, args_.by_q, h);
    add_by_x(args_.q, args_.keys, h, m_.s);
    add_by_x(args_.grad, args_.values, h, m_.t);
  }

  void second(int64_t h) {
    gemm(n_, args_.keys, of_keys(args_.q, h), m_.keys, m_.s, false);
    gemm(n_, args_.keys, of_keys(args_.along_q, h), m_.keys, m_.ds, false);
    gemm(n_, args_.keys, of_keys(args_.q, h), m_.along_keys, m_.ds, true);
    gemm(n_, args_.values, of_values(args_.grad, h), m_.keys, m_.t, false);
    gemm(n_, args_.values, of_values(args_.grad, h), m_.along_keys, m_.dt, false);
    for (int64_t j = 0; j < n_; ++j) {
      const T top = this->top(j);
      V sum{}, weighed{}, changed{}, weighed_change{}, both{};
      m_.s.each([&](auto place) {
        const Pair of = pair(place, j);
        const auto by = change(place, j);
        const V e = raise(place, j, top), t = vector_at(place.in(m_.t, j));
        const V dz = by.logit(of, args_.shift, args_.gated), m = of.c * of.a;
        sum += e, weighed += e * m * t, changed += e * dz;
        weighed_change += e * (by.factor(of) * t + m * by.t), both += e * dz * m * t;
      });
      const T inverse = 1 / (sum_lanes<T>(sum) + sum_of_absent(top)), delta = inverse * sum_lanes<T>(weighed);
      const T mean = inverse * sum_lanes<T>(changed);
      const T delta_change = inverse * sum_lanes<T>(weighed_change + both) - mean * delta;
      m_.s.each([&](auto place) {
        const Pair of = pair(place, j);
        const auto by = change(place, j);
        const V p = vector_at(place.in(m_.p, j)) * inverse;
        const V dp = p * (by.logit(of, args_.shift, args_.gated) - mean);
        const auto found = edge_pair_seconds(of, by, p, dp, vector_at(place.in(m_.t, j)), delta, delta_change,
                                             args_.shift, args_.gated);
        put(place, j, found.first, m_.s, m_.t, m_.by_c, m_.by_a);
        put(place, j, found.second, m_.ds, m_.dt, m_.by_dc, m_.by_da);
      });
    }
    gemm(n_, n_, InLanes<T>{m_.dt}, m_.rows, m_.made, false);
    gemm(n_, n_, InLanes<T>{m_.t}, m_.along_rows, m_.made, true);
    write(m_.made, args_.values, args_.out, h);
    gemm(n_, n_, InLanes<T>{m_.ds}, m_.rows, m_.made, false);
    gemm(n_, n_, InLanes<T>{m_.s}, m_.along_rows, m_.made, true);
    write(m_.made, args_.keys, args_.by_q, h);
    add_by_x(args_.q, args_.keys, h, m_.ds);
    add_by_x(args_.along_q, args_.keys, h, m_.s);
    add_by_x(args_.grad, args_.values, h, m_.dt);
  }

  template <class Place>
  inline __attribute__((always_inline)) void put(Place place, int64_t j, const EdgePairGradients<V>& by,
                                                 const Panels<T>& to_s, const Panels<T>& to_share,
                                                 const Panels<T>& to_c, const Panels<T>& to_a) const {
    store(place.in(to_s, j), by.s);
    store(place.in(to_share, j), by.share);
    add_to(place.in(to_c, j), by.c);
    add_to(place.in(to_a, j), by.a);
  }

  // by_x_l += sum over j of weights_jl rows_j, of a head's rows of q or G, or their directions.
  void add_by_x(const T* rows, int64_t width, int64_t h, const Panels<T>& weights) const {
    rows_to_panels(rows + (first_ * args_.heads + h) * width, args_.heads * width, n_, width, m_.head);
    add_transposed(weights, n_, n_, m_.head, m_.by_x);
  }

  void write(const Panels<T>& from, int64_t width, T* to, int64_t h) const {
    panels_to_rows(from, n_, width, to + (first_ * args_.heads + h) * width, args_.heads * width);
  }

  // The gradients by r and w: each edge is a query, and a key of the others.
  void directions() const {
    const int64_t lanes = padded<T>(n_);
    for (T* sums : {m_.by_r[0], m_.by_r[1], m_.by_r[2], m_.by_w}) std::fill_n(sums, lanes, T(0));
    const bool changes = args_.along_q;
    sum_pairs(changes ? m_.by_dc : m_.by_c, changes ? m_.by_da : m_.by_a, m_.r, m_.w);
    if (changes) sum_pairs(m_.by_c, m_.by_a, m_.along_r, m_.along_w);
    for (int64_t l = 0; l < n_; ++l) {
      for (int k = 0; k < 3; ++k) args_.by_r[3 * (first_ + l) + k] = m_.by_r[k][l];
      args_.by_w[first_ + l] = m_.by_w[l];
    }
  }
  void sum_pairs(const Panels<T>& of_c, const Panels<T>& of_a, T* const* r, const T* w) const {
    for (int64_t j = 0; j < n_; ++j) {
      V sums[4] = {};
      of_c.each([&](auto place) {
        const int64_t l = place.lane();
        const V c = vector_at(place.in(of_c, j)), a = vector_at(place.in(of_a, j));
        for (int k = 0; k < 3; ++k) sums[k] += c * at(r[k], l), add_to(m_.by_r[k] + l, c * r[k][j]);
        sums[3] += a * at(w, l), add_to(m_.by_w + l, a * w[j]);
      });
      for (int k = 0; k < 3; ++k) m_.by_r[k][j] += sum_lanes<T>(sums[k]);
      m_.by_w[j] += sum_lanes<T>(sums[3]);
    }
  }

  static inline __attribute__((always_inline)) V at(const T* lanes, int64_t l) {
    return vector_at(lanes + l);
  }

  const EdgeAttentionArgs<T>& args_;
  const int64_t first_, n_;
  const T absent_;
  const AtomMemory<T> m_;
};

}  // namespace

#define MDOPS_DEFINE(T)                                                                                  \
  int64_t edge_attention_bytes(const EdgeAttentionArgs<T>& args, int64_t n) {                            \
    return AtomMemory<T>(args, n, nullptr).arena.used;                                                   \
  }                                                                                                      \
  void edge_attention_atoms(const EdgeAttentionArgs<T>& args, int64_t from, int64_t to, void* scratch) { \
    for (int64_t i = from; i < to; ++i) AtomPasses<T>(args, i, scratch).run();                           \
  }
MDOPS_DEFINE(float)
MDOPS_DEFINE(double)
#undef MDOPS_DEFINE

}  // namespace MDOPS_ISA
}  // namespace mdops
