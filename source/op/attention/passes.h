// The passes of attention.h over one head of one sequence; for one instruction set.
#pragma once

#include <cmath>
#include <limits>

#include "attention/elements.h"
#include "common/exp_lanes.h"
#include "gemm/product.h"

namespace mdops::MDOPS_ISA {

// Rows of numbers in memory.
template <class T>
struct RowsOf {
  const T* at;
  int64_t stride;

  ByRow<T> factor(int64_t first) const { return ByRow<T>{at, stride}.from(first); }
};

template <class T>
struct AttentionBlock {
  using V = Vector<T>;
  static constexpr int64_t kMostRows = 64 / kRows * kRows, kTileNumbers = 1 << 16;

  const AttentionArgs<T>& args;
  const int64_t n, lanes, tile, head, begin, bias_at;
  Arena arena;

  AttentionBlock(const AttentionArgs<T>& args_, int64_t length, int64_t sequence, int64_t head_,
                 void* scratch)
      : args(args_),
        n(length),
        lanes(padded<T>(length)),
        tile(scratch ? rows_of_tile(length, lanes) : most_rows_of_tile(length)),
        head(head_),
        begin(scratch ? args.offsets[sequence] : 0),
        bias_at(scratch && args.in.bias ? head * args.bias_size + args.bias_begin[sequence] : 0),
        arena{static_cast<char*>(scratch)} {}

  T* numbers(int64_t count) { return arena.take<T>(count); }

  // For any sequence up to this length: scratch memory is sized for the longest, and a shorter one may have
  // larger tiles.
  static int64_t most_rows_of_tile(int64_t n) {
    const int64_t rows = (n + kRows - 1) / kRows * kRows;
    return rows < kMostRows ? rows : kMostRows;
  }

  // Tiles of about the same number of rows, such that one stays in cache.
  static int64_t rows_of_tile(int64_t n, int64_t lanes) {
    int64_t most = lanes ? kTileNumbers / lanes / kRows * kRows : kMostRows;
    most = most < kRows ? kRows : most > kMostRows ? kMostRows : most;
    const int64_t tiles = n ? (n + most - 1) / most : 1, even = (n + tiles - 1) / tiles;
    return (even + kRows - 1) / kRows * kRows;
  }

  // The rows of this head; copied if of 16 bits.
  RowsOf<T> rows(const void* base, int64_t width) {
    if (args.element == Element::same) {
      const T* at = static_cast<const T*>(base);
      return {at ? at + (begin * args.heads + head) * width : nullptr, args.heads * width};
    }
    T* copy = arena.take<T>(n * width);
    if (copy)
      for (int64_t j = 0; j < n; ++j)
        load_numbers(base, place(j) * width, width, args.element, copy + j * width);
    return {copy, width};
  }
  int64_t place(int64_t j) const { return (begin + j) * args.heads + head; }

  // The rows as the right factor of a product, (n, width), and transposed, (width, n).
  Panels<T> packed(const RowsOf<T>& from, int64_t width) {
    const Panels<T> to = take_panels<T>(arena, n, padded<T>(width));
    if (!to.base) return to;
    for (int64_t col = 0; col < to.cols; col += Panels<T>::kWide) {
      const int64_t wide = to.width(col), left = width - col < wide ? width - col : wide;
      for (int64_t j = 0; j < n; ++j) {
        T* p = to.panel(col, j);
        const T* x = from.at + j * from.stride + col;
        for (int64_t c = 0; c < left; ++c) p[c] = x[c];
        for (int64_t c = left; c < wide; ++c) p[c] = 0;
      }
    }
    return to;
  }
  Panels<T> across(const RowsOf<T>& from, int64_t width) {
    const Panels<T> to = take_panels<T>(arena, width, lanes);
    if (to.base) rows_to_lanes(from.at, from.stride, n, width, to);
    return to;
  }

  // `columns` numbers a row of the sequence, (columns, lanes), zero in the other lanes.
  T* in_lanes(const void* base, int64_t columns) {
    if (!base) return nullptr;
    T* to = arena.take<T>(columns * lanes);
    if (!arena.base) return nullptr;
    T row[kMostGate];
    for (int64_t k = 0; k < columns * lanes; ++k) to[k] = 0;
    for (int64_t j = 0; j < n; ++j) {
      load_numbers(base, (begin + j) * columns, columns, args.element, row);
      for (int64_t c = 0; c < columns; ++c) to[c * lanes + j] = row[c];
    }
    return to;
  }

  // 0 in the lanes of keys, -infinity in the others.
  T* edge() {
    T* to = arena.take<T>(lanes);
    if (arena.base)
      for (int64_t l = 0; l < lanes; ++l) to[l] = l < n ? T(0) : -std::numeric_limits<T>::infinity();
    return to;
  }

  // Loads a row of bias, (n, n) for the sequence, into lanes.
  void bias_row(const void* base, int64_t j, T* to) const {
    load_numbers(base, bias_at + j * n, n, args.element, to);
    for (int64_t l = n; l < lanes; ++l) to[l] = 0;
  }

  // Writes a row times a factor to row j of a result.
  void put(const Panels<T>& from, int64_t row, int64_t width, T factor, void* base, int64_t j) const {
    if (args.element == Element::same) {
      scaled_row(from, row, width, factor, static_cast<T*>(base) + place(j) * width);
      return;
    }
    T numbers[kMostAttentionWidth];
    scaled_row(from, row, width, factor, numbers);
    store_numbers(numbers, width, args.element, base, place(j) * width);
  }
  static void scaled_row(const Panels<T>& from, int64_t row, int64_t width, T factor, T* to) {
    for (int64_t col = 0; col < width; col += Panels<T>::kWide) {
      const int64_t left = width - col, wide = from.width(col);
      const T* x = from.panel(col, row);
      for (int64_t c = 0; c < wide && c < left; ++c) to[col + c] = factor * x[c];
    }
  }
  void put_all(const Panels<T>& from, int64_t count, int64_t width, T factor, void* base,
               int64_t first) const {
    for (int64_t r = 0; r < count; ++r) put(from, r, width, factor, base, first + r);
  }

  // to (n, .) += scores^T B, for the tile's rows: `right` begins with the first of them.
  void transposed_product(const Panels<T>& scores, int64_t count, const Panels<T>& right,
                          const Panels<T>& to) const {
    for (int64_t col = 0; col < n; col += Panels<T>::kWide) {
      const int64_t wide = scores.width(col), keys = n - col < wide ? n - col : wide;
      gemm(keys, count, ByDepth<T>{scores.panel(col), wide}, right, to.from(col), true);
    }
  }

  void clear(const Panels<T>& panels) const {
    if (panels.base) clear_from(panels, 0);
  }
};

// The keys' further numbers besides k and v, a key a lane, and their changes along a direction.
template <class T, int kGates>
struct Keys {
  using V = Vector<T>;
  const int64_t lanes;
  const int gates;
  const T shift;
  const T *gate, *w, *gate_change, *w_change;

  static constexpr int kMost = kGates < 0 ? kMostGate : kGates > 0 ? kGates : 1;
  MDOPS_HD int count() const { return kGates >= 0 ? kGates : gates; }

  // The factors of query j and keys from `lane` on.
  MDOPS_HD V a(int64_t j, int64_t lane) const { return w ? w[j] * vector_at(w + lane) : V{} + T(1); }
  MDOPS_HD V c(int64_t j, int64_t lane) const {
    if constexpr (kGates == 0) return V{} + T(1);
    V sum = V{};
    for (int k = 0; k < count(); ++k) sum += gate[k * lanes + j] * vector_at(gate + k * lanes + lane);
    return sum;
  }
  MDOPS_HD V a_change(int64_t j, int64_t lane) const {
    if (!w_change) return V{};
    return w_change[j] * vector_at(w + lane) + w[j] * vector_at(w_change + lane);
  }
  MDOPS_HD V c_change(int64_t j, int64_t lane) const {
    V sum = V{};
    if (kGates == 0 || !gate_change) return sum;
    for (int k = 0; k < count(); ++k)
      sum += gate_change[k * lanes + j] * vector_at(gate + k * lanes + lane) +
             gate[k * lanes + j] * vector_at(gate_change + k * lanes + lane);
    return sum;
  }
};

// Sums for the gradients by gate and switch: of queries in `row`, of keys in `column`.
template <class T, int kGates>
struct KeySums {
  using V = Vector<T>;
  using K = Keys<T, kGates>;
  T *row, *column;  // (gates + 1, lanes), the switch last
  V gate[K::kMost], w;

  MDOPS_HD void start() {
    for (int k = 0; k < K::kMost; ++k) gate[k] = V{};
    w = V{};
  }
  // Adds e and b of attention.h for the rows of gates and switches `g` and `s`.
  MDOPS_HD void add(const K& keys, const T* g, const T* s, int64_t j, int64_t lane, const V& e, const V& b) {
    if constexpr (kGates != 0)
      if (g)
        for (int k = 0; k < keys.count(); ++k) {
          const int64_t at = k * keys.lanes;
          gate[k] += e * vector_at(g + at + lane);
          add_to(column + at + lane, e * g[at + j]);
        }
    if (s) {
      w += b * vector_at(s + lane);
      add_to(column + keys.count() * keys.lanes + lane, b * s[j]);
    }
  }
  MDOPS_HD void finish(const K& keys, int64_t j) {
    if constexpr (kGates != 0)
      for (int k = 0; k < keys.count(); ++k) row[k * keys.lanes + j] = sum_lanes<T>(gate[k]);
    row[keys.count() * keys.lanes + j] = sum_lanes<T>(w);
  }
};

template <class T, int kGates>
struct AttentionPasses : AttentionBlock<T> {
  using Block = AttentionBlock<T>;
  using V = Vector<T>;
  using K = Keys<T, kGates>;
  using Block::arena, Block::args, Block::lanes, Block::n, Block::tile;

  using Block::Block;

  K keys(bool changes) {
    const T* gate = kGates ? this->in_lanes(args.in.gate, args.gates) : nullptr;
    const T* w = this->in_lanes(args.in.switches, 1);
    const T* dgate = kGates && changes ? this->in_lanes(args.direction.gate, args.gates) : nullptr;
    const T* dw = changes ? this->in_lanes(args.direction.switches, 1) : nullptr;
    return {lanes, static_cast<int>(args.gates), args.shift, gate, w, dgate, dw};
  }

  // The logits of query j from the product q_j.k_l: s, then z.
  MDOPS_HD V score(const V& product, const T* bias, int64_t lane) const {
    const V s = args.scale * product;
    return bias ? s + vector_at(bias + lane) : s;
  }
  MDOPS_HD V logit(const K& keys, const V& s, const V& a) const { return keys.w ? (s + keys.shift) * a : s; }

  // Replaces one row of scores by exp(z - top) m; returns their sum without m, and `top`.
  T softmax_row(const K& keys, const Panels<T>& s, int64_t r, int64_t j, const T* bias, const T* edge,
                T least, T* top) const {
    V most = V{} - std::numeric_limits<T>::infinity();
    s.each([&](auto at) __attribute__((always_inline)) {
      T* p = at.in(s, r);
      const int64_t lane = at.lane();
      const V z = logit(keys, score(vector_at(p), bias, lane), keys.a(j, lane)) + vector_at(edge + lane);
      store(p, z);
      most = larger<T>(z, most);
    });
    T highest = least;
    for (int k = 0; k < kLanes<T>; ++k) highest = most[k] > highest ? most[k] : highest;
    if (highest == -std::numeric_limits<T>::infinity()) highest = 0;
    V sum = V{};
    s.each([&](auto at) __attribute__((always_inline)) {
      T* p = at.in(s, r);
      const int64_t lane = at.lane();
      const V e = exp_of<T>(vector_at(p) - highest);
      sum += e;
      store(p, e * keys.c(j, lane) * keys.a(j, lane));
    });
    *top = highest;
    return sum_lanes<T>(sum);
  }

  void forward(const AttentionResults<T>& result, int64_t sequence, int64_t from, int64_t to) {
    const auto q = this->rows(args.in.q, args.width), k = this->rows(args.in.k, args.width);
    const auto v = this->rows(args.in.v, args.value_width);
    const Panels<T> kt = this->across(k, args.width), vp = this->packed(v, args.value_width);
    const K all = keys(false);
    const T* edge = this->edge();
    T* bias = args.in.bias ? this->numbers(lanes) : nullptr;
    const Panels<T> s = take_panels<T>(arena, tile, lanes);
    const Panels<T> o = take_panels<T>(arena, tile, padded<T>(args.value_width));
    if (!arena.base) return;
    const T absent = args.absent ? args.absent[sequence] : T(0);
    const T least = absent > T(0) ? T(0) : -std::numeric_limits<T>::infinity();
    T inverse[Block::kMostRows];
    for (int64_t first = from; first < to; first += tile) {
      const int64_t count = to - first < tile ? to - first : tile;
      gemm(count, args.width, q.factor(first), kt, s, false);
      for (int64_t r = 0; r < count; ++r) {
        const int64_t j = first + r;
        if (bias) this->bias_row(args.in.bias, j, bias);
        T top, sum = softmax_row(all, s, r, j, bias, edge, least, &top);
        if (args.absent) sum += absent * std::exp(-top);
        inverse[r] = sum == T(0) ? T(0) : T(1) / sum;
        result.logsumexp[this->place(j)] = top + std::log(sum);
      }
      gemm(count, n, InLanes<T>{s}, vp, o, false);
      for (int64_t r = 0; r < count; ++r)
        this->put(o, r, args.value_width, inverse[r], result.out, first + r);
    }
  }

  // Adds sums over keys and queries to the gradients by gate and switch, of this head.
  void put_sums(const T* row, const T* column, const AttentionResults<T>& result) const {
    const int64_t at = this->head * args.rows + this->begin, gates = kGates ? args.gates : 0;
    for (int64_t j = 0; j < n; ++j) {
      if (result.gate)
        for (int64_t k = 0; k < gates; ++k)
          result.gate[(at + j) * gates + k] = row[k * lanes + j] + column[k * lanes + j];
      if (result.switches) result.switches[at + j] = row[gates * lanes + j] + column[gates * lanes + j];
    }
  }
  KeySums<T, kGates> key_sums() {
    const int64_t size = ((kGates ? args.gates : 0) + 1) * lanes;
    KeySums<T, kGates> sums{this->numbers(size), this->numbers(size), {}, {}};
    if (arena.base)
      for (int64_t k = 0; k < size; ++k) sums.row[k] = sums.column[k] = 0;
    return sums;
  }

  // ln of the sum over keys; arbitrary if all are masked, as exp(z) is 0.
  T saved_sum(int64_t j) const {
    const T sum = args.logsumexp[this->place(j)];
    return sum == -std::numeric_limits<T>::infinity() ? T(0) : sum;
  }
  T delta(const RowsOf<T>& grad, const RowsOf<T>& out, int64_t j) const {
    T sum[4] = {};
    const T *g = grad.at + j * grad.stride, *o = out.at + j * out.stride;
    int64_t e = 0;
    V whole = V{};
    for (; e + kLanes<T> <= args.value_width; e += kLanes<T>) whole += vector_at(g + e) * vector_at(o + e);
    for (; e < args.value_width; ++e) sum[e % 4] += g[e] * o[e];
    return sum_lanes<T>(whole) + ((sum[0] + sum[1]) + (sum[2] + sum[3]));
  }

  // Replaces a row of G_j.v_l and of scores by x (attention.h) and p m. `weights` are p, if known.
  void backward_row(const K& keys, KeySums<T, kGates>& sums, const Panels<T>& s, const Panels<T>& t,
                    int64_t r, int64_t j, const T* bias, const T* edge, T total, T delta,
                    const T* weights = nullptr) const {
    sums.start();
    s.each([&](auto at) __attribute__((always_inline)) {
      T *sp = at.in(s, r), *tp = at.in(t, r);
      const int64_t lane = at.lane();
      const V score_ = score(vector_at(sp), bias, lane), product = vector_at(tp);
      const V a = keys.a(j, lane), c = keys.c(j, lane), m = c * a;
      const V p = weights ? vector_at(weights + lane)
                          : exp_of<T>(logit(keys, score_, a) + vector_at(edge + lane) - total);
      const V y = p * (m * product - delta);
      store(sp, p * m);
      store(tp, y * a);
      if (kGates || keys.w) {
        const V pt = p * product;
        sums.add(keys, keys.gate, keys.w, j, lane, pt * a, y * (score_ + keys.shift) + pt * c);
      }
    });
    sums.finish(keys, j);
  }

  void backward(const AttentionResults<T>& result) {
    const auto q = this->rows(args.in.q, args.width), k = this->rows(args.in.k, args.width);
    const auto v = this->rows(args.in.v, args.value_width), g = this->rows(args.grad_out, args.value_width);
    const auto out = this->rows(args.out, args.value_width);
    const Panels<T> kt = this->across(k, args.width), vt = this->across(v, args.value_width);
    const Panels<T> qp = this->packed(q, args.width), kp = this->packed(k, args.width);
    const Panels<T> gp = this->packed(g, args.value_width);
    const Panels<T> dk = take_panels<T>(arena, n, padded<T>(args.width));
    const Panels<T> dv = take_panels<T>(arena, n, padded<T>(args.value_width));
    const Panels<T> dq = take_panels<T>(arena, tile, padded<T>(args.width));
    const K all = keys(false);
    KeySums<T, kGates> sums = key_sums();
    const T* edge = this->edge();
    T* bias = args.in.bias ? this->numbers(lanes) : nullptr;
    const Panels<T> s = take_panels<T>(arena, tile, lanes), t = take_panels<T>(arena, tile, lanes);
    if (!arena.base) return;
    this->clear(dk), this->clear(dv);
    for (int64_t first = 0; first < n; first += tile) {
      const int64_t count = n - first < tile ? n - first : tile;
      gemm(count, args.width, q.factor(first), kt, s, false);
      gemm(count, args.value_width, g.factor(first), vt, t, false);
      for (int64_t r = 0; r < count; ++r) {
        const int64_t j = first + r;
        if (bias) this->bias_row(args.in.bias, j, bias);
        backward_row(all, sums, s, t, r, j, bias, edge, saved_sum(j), delta(g, out, j));
        if (bias) put_bias(t, r, j, bias, result);
      }
      this->transposed_product(s, count, gp.from(first), dv);
      this->transposed_product(t, count, qp.from(first), dk);
      gemm(count, n, InLanes<T>{t}, kp, dq, false);
      this->put_all(dq, count, args.width, args.scale, result.q, first);
    }
    this->put_all(dk, n, args.width, args.scale, result.k, 0);
    this->put_all(dv, n, args.value_width, T(1), result.v, 0);
    put_sums(sums.row, sums.column, result);
  }

  void put_bias(const Panels<T>& x, int64_t r, int64_t j, T* buffer,
                const AttentionResults<T>& result) const {
    store_row(x, r, n, buffer);
    store_numbers(buffer, n, args.element, result.bias, this->bias_at + j * n);
  }

  // The four tiles of the last pass: q_j.k_l, its change, G_j.v_l, its change; then p'm + pm', pm, x' and x.
  struct Tiles {
    Panels<T> s, s_change, t, t_change;
  };

  void second_row(const K& keys, KeySums<T, kGates>& sums, KeySums<T, kGates>& moved, const Tiles& tiles,
                  int64_t r, int64_t j, const T* bias, const T* bias_change, const T* edge, T total, T delta,
                  T* weights, T* changes) const {
    const Panels<T>& layout = tiles.s;
    V of_row = V{};
    layout.each([&](auto at) __attribute__((always_inline)) {
      const int64_t lane = at.lane();
      T *sp = at.in(tiles.s, r), *dp = at.in(tiles.s_change, r);
      const V s = score(vector_at(sp), bias, lane), ds = score(vector_at(dp), bias_change, lane);
      const V a = keys.a(j, lane);
      const V p = exp_of<T>(logit(keys, s, a) + vector_at(edge + lane) - total);
      V dz = ds;
      if (keys.w) dz = ds * a + (s + keys.shift) * keys.a_change(j, lane);
      store(sp, s), store(dp, ds), store(weights + lane, p), store(changes + lane, dz);
      of_row += p * dz;
    });
    const T mean = sum_lanes<T>(of_row);
    of_row = V{};
    layout.each([&](auto at) __attribute__((always_inline)) {
      const int64_t lane = at.lane();
      const V p = vector_at(weights + lane), dp = p * (vector_at(changes + lane) - mean);
      const V a = keys.a(j, lane), c = keys.c(j, lane);
      const V m = c * a, dm = keys.c_change(j, lane) * a + c * keys.a_change(j, lane);
      store(changes + lane, dp);
      of_row +=
          (dp * m + p * dm) * vector_at(at.in(tiles.t, r)) + p * m * vector_at(at.in(tiles.t_change, r));
    });
    const T delta_change = sum_lanes<T>(of_row);
    sums.start(), moved.start();
    layout.each([&](auto at) __attribute__((always_inline)) {
      const int64_t lane = at.lane();
      T *sp = at.in(tiles.s, r), *dsp = at.in(tiles.s_change, r);
      T *tp = at.in(tiles.t, r), *dtp = at.in(tiles.t_change, r);
      const V p = vector_at(weights + lane), dp = vector_at(changes + lane);
      const V s = vector_at(sp) + keys.shift, ds = vector_at(dsp), t = vector_at(tp), dt = vector_at(dtp);
      const V a = keys.a(j, lane), da = keys.a_change(j, lane);
      const V c = keys.c(j, lane), dc = keys.c_change(j, lane);
      const V m = c * a, dm = dc * a + c * da;
      const V pull = m * t - delta, y = p * pull, dy = dp * pull + p * (dm * t + m * dt - delta_change);
      store(sp, dp * m + p * dm), store(dsp, p * m);
      store(tp, dy * a + y * da), store(dtp, y * a);
      if (kGates || keys.w) {
        const V pt = p * t, dpt = dp * t + p * dt;
        sums.add(keys, keys.gate, keys.w, j, lane, dpt * a + pt * da, dy * s + y * ds + dpt * c + pt * dc);
        moved.add(keys, keys.gate_change, keys.w_change, j, lane, pt * a, y * s + pt * c);
      }
    });
    sums.finish(keys, j), moved.finish(keys, j);
  }

  void backward_backward(const AttentionResults<T>& result) {
    const int64_t width = args.width, value_width = args.value_width;
    const auto q = this->rows(args.in.q, width), k = this->rows(args.in.k, width);
    const auto v = this->rows(args.in.v, value_width), g = this->rows(args.grad_out, value_width);
    const auto uq = this->rows(args.direction.q, width), uk = this->rows(args.direction.k, width);
    const auto uv = this->rows(args.direction.v, value_width), out = this->rows(args.out, value_width);
    const Panels<T> kt = this->across(k, width), ukt = this->across(uk, width);
    const Panels<T> vt = this->across(v, value_width), uvt = this->across(uv, value_width);
    const Panels<T> qp = this->packed(q, width), kp = this->packed(k, width),
                    vp = this->packed(v, value_width);
    const Panels<T> uqp = this->packed(uq, width), ukp = this->packed(uk, width);
    const Panels<T> uvp = this->packed(uv, value_width), gp = this->packed(g, value_width);
    const Panels<T> dk = take_panels<T>(arena, n, padded<T>(width));
    const Panels<T> dv = take_panels<T>(arena, n, padded<T>(value_width));
    const Panels<T> dq = take_panels<T>(arena, tile, padded<T>(width));
    const Panels<T> dg = take_panels<T>(arena, tile, padded<T>(value_width));
    const K all = keys(true);
    KeySums<T, kGates> sums = key_sums(), moved = key_sums();
    const T* edge = this->edge();
    T* bias = args.in.bias ? this->numbers(lanes) : nullptr;
    T* bias_change = args.direction.bias ? this->numbers(lanes) : nullptr;
    T *weights = this->numbers(lanes), *changes = this->numbers(lanes);
    const Tiles tiles{take_panels<T>(arena, tile, lanes), take_panels<T>(arena, tile, lanes),
                      take_panels<T>(arena, tile, lanes), take_panels<T>(arena, tile, lanes)};
    if (!arena.base) return;
    this->clear(dk), this->clear(dv);
    for (int64_t first = 0; first < n; first += tile) {
      const int64_t count = n - first < tile ? n - first : tile;
      gemm(count, width, q.factor(first), kt, tiles.s, false);
      gemm(count, width, uq.factor(first), kt, tiles.s_change, false);
      gemm(count, width, q.factor(first), ukt, tiles.s_change, true);
      gemm(count, value_width, g.factor(first), vt, tiles.t, false);
      gemm(count, value_width, g.factor(first), uvt, tiles.t_change, false);
      for (int64_t r = 0; r < count; ++r) {
        const int64_t j = first + r;
        if (bias) this->bias_row(args.in.bias, j, bias);
        if (bias_change) this->bias_row(args.direction.bias, j, bias_change);
        second_row(all, sums, moved, tiles, r, j, bias, bias_change, edge, saved_sum(j), delta(g, out, j),
                   weights, changes);
        if (bias) put_bias(tiles.t, r, j, bias, result);
      }
      gemm(count, n, InLanes<T>{tiles.s}, vp, dg, false);
      gemm(count, n, InLanes<T>{tiles.s_change}, uvp, dg, true);
      this->put_all(dg, count, value_width, T(1), result.out, first);
      this->transposed_product(tiles.s, count, gp.from(first), dv);
      gemm(count, n, InLanes<T>{tiles.t}, kp, dq, false);
      gemm(count, n, InLanes<T>{tiles.t_change}, ukp, dq, true);
      this->put_all(dq, count, width, args.scale, result.q, first);
      this->transposed_product(tiles.t, count, qp.from(first), dk);
      this->transposed_product(tiles.t_change, count, uqp.from(first), dk);
    }
    this->put_all(dk, n, width, args.scale, result.k, 0);
    this->put_all(dv, n, value_width, T(1), result.v, 0);
    for (int64_t k_ = 0; k_ < ((kGates ? args.gates : 0) + 1) * lanes; ++k_)
      sums.row[k_] += moved.row[k_], sums.column[k_] += moved.column[k_];
    put_sums(sums.row, sums.column, result);
  }
};

}  // namespace mdops::MDOPS_ISA
