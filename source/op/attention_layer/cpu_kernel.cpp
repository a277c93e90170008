#include <algorithm>

#include "attention/passes.h"
#include "attention_layer/attention_layer.h"

namespace mdops::MDOPS_ISA {

namespace {

// The weights as right factors: in the forward pass W in three parts, if there is one, and W_o, in the
// backward pass their transposes.
template <class T>
struct LayerWeights {
  Panels<T> part[3], out;
  int64_t size;

  LayerWeights(const AttentionLayerArgs<T>& args, bool backward, T* base) {
    const int64_t features = args.features, width = args.attention.width;
    const int64_t rows = backward ? width : features, cols = padded<T>(backward ? features : width);
    const int64_t out_rows = backward ? features : width, out_cols = padded<T>(backward ? width : features);
    const int64_t of_part = args.project ? rows * cols : 0;
    for (int k = 0; k < 3; ++k) part[k] = {base ? base + k * of_part : nullptr, rows, cols};
    out = {base ? base + 3 * of_part : nullptr, out_rows, out_cols};
    size = 3 * of_part + out_rows * out_cols;
  }
};

template <class T>
void pack_rows(const T* from, int64_t stride, int64_t cols, const Panels<T>& to) {
  for (int64_t col = 0; col < to.cols; col += Panels<T>::kWide) {
    const int64_t wide = to.width(col);
    for (int64_t row = 0; row < to.rows; ++row)
      for (int64_t c = 0; c < wide; ++c)
        to.panel(col, row)[c] = col + c < cols ? from[row * stride + col + c] : T(0);
  }
}

// An atom's data saved for the gradient.
template <class T>
struct LayerSaved {
  Panels<T> part[3], h;      // q, k, v, if saved, and the normalised h
  T *shrink[3], *deviation;  // 1 / |x| of q, k and v; 1 / sqrt(var + eps)
  T *logsumexp, *rest;

  LayerSaved(const AttentionLayerArgs<T>& args, int64_t begin, int64_t n) {
    const int64_t width = padded<T>(args.attention.width), features = padded<T>(args.features);
    T* at = args.saved ? args.saved + begin * args.kept() : nullptr;
    const auto take = [&](int64_t count) {
      T* piece = at;
      if (at) at += count;
      return piece;
    };
    for (int k = 0; k < 3 && !args.in_place(); ++k) part[k] = {take(n * width), n, width};
    h = {take(n * features), n, features};
    for (int k = 0; k < 3 && !args.in_place(); ++k) shrink[k] = take(n);
    deviation = take(n), logsumexp = take(n);
    rest = at;
  }
};

template <class T, int kGates>
struct LayerPasses : AttentionPasses<T, kGates> {
  using Base = AttentionPasses<T, kGates>;
  using V = Vector<T>;
  using Base::arena, Base::lanes, Base::n, Base::tile;

  const AttentionLayerArgs<T>& layer;
  const int64_t width = layer.attention.width, features = layer.features, columns = layer.columns,
                wide = padded<T>(width), wide_features = padded<T>(features);
  LayerSaved<T> saved{layer, this->begin, n};

  LayerPasses(const AttentionLayerArgs<T>& layer_, int64_t neighbors, int64_t atom, void* scratch)
      : Base(layer_.attention, neighbors, atom, 0, scratch), layer(layer_) {
    for (int k = 0; k < 3 && layer.in_place(); ++k)
      saved.part[k] = take_panels<T>(arena, n, wide), saved.shrink[k] = this->numbers(n);
  }

  // Copies `count` numbers, and pads with zeros to whole vectors.
  T* padded_copy(const T* from, int64_t count) {
    T* to = this->numbers(padded<T>(count));
    if (!to) return to;
    for (int64_t k = 0; k < count; ++k) to[k] = from[k];
    for (int64_t k = count; k < padded<T>(count); ++k) to[k] = 0;
    return to;
  }

  // Transposes to (columns, lanes), zero in the other lanes; `room` (lanes, columns) is for a copy.
  void turn(const Panels<T>& from, const Panels<T>& room, const Panels<T>& to) const {
    for (int64_t col = 0; col < from.cols; col += Panels<T>::kWide) {
      const int64_t size = n * from.width(col);
      for (int64_t k = 0; k < size; ++k) room.panel(col)[k] = from.panel(col)[k];
    }
    clear_from(room, n);
    transpose(room, to);
  }

  // x + bias, scaled to length 1; saves 1 / |x|.
  void finish_part(const Panels<T>& x, const T* bias, T* shrink) const {
    for (int64_t j = 0; j < n; ++j) {
      x.each([&](auto at) __attribute__((always_inline)) {
        T* p = at.in(x, j);
        store(p, vector_at(p) + vector_at(bias + at.lane()));
      });
      shrink[j] = set_length(x, j);
    }
  }

  // Loads part k of the rows from g; saves 1 / |x|.
  void take_part(int k, const Panels<T>& x, T* shrink) const {
    for (int64_t j = 0; j < n; ++j) {
      const T* from = coordinates(layer.g, k, j);
      x.each([&](auto at)
                 __attribute__((always_inline)) { store(at.in(x, j), vector_at(from + at.lane())); });
      shrink[j] = set_length(x, j);
    }
  }

  // The place of part k of neighbour j in rows like g.
  template <class X>
  X* coordinates(X* rows, int k, int64_t j) const {
    return rows + (this->begin + j) * columns + layer.parts_begin() + k * width;
  }

  // Scales row j to length 1 if `normalize`; returns 1 / |x|.
  T set_length(const Panels<T>& x, int64_t j) const {
    if (!layer.normalize) return 1;
    V sum = V{};
    x.each([&](auto at) __attribute__((always_inline)) {
      const V value = vector_at(at.in(x, j));
      sum += value * value;
    });
    const T factor = NormalizedRow<T>(sum_lanes<T>(sum)).inverse;
    x.each([&](auto at) __attribute__((always_inline)) {
      T* p = at.in(x, j);
      store(p, vector_at(p) * factor);
    });
    return factor;
  }

  // Multiplies columns by the factors.
  void multiply_factors(const Panels<T>& x, const T* factors) const {
    for (int64_t j = 0; factors && j < n; ++j)
      x.each([&](auto at) __attribute__((always_inline)) {
        T* p = at.in(x, j);
        store(p, vector_at(p) * vector_at(factors + at.lane()));
      });
  }

  // k transposed, times the factors.
  void turn_keys(const Panels<T>& room, const Panels<T>& to) const {
    turn(saved.part[1], room, to);
    for (int64_t row = 0; layer.factors && row < width; ++row)
      to.each([&](auto at) __attribute__((always_inline)) {
        T* p = at.in(to, row);
        store(p, vector_at(p) * layer.factors[row]);
      });
  }

  // Turns dx of the finished part into that of the product, times a factor.
  void part_gradient(const Panels<T>& dx, const Panels<T>& x, const T* shrink, T factor) const {
    for (int64_t j = 0; j < n; ++j) {
      V sum = V{};
      if (layer.normalize && !(shrink[j] >= T(1 / kShortest)))
        dx.each([&](auto at) __attribute__((always_inline)) {
          sum += vector_at(at.in(dx, j)) * vector_at(at.in(x, j));
        });
      const T along = sum_lanes<T>(sum), scale = shrink[j] * factor;
      dx.each([&](auto at) __attribute__((always_inline)) {
        T* p = at.in(dx, j);
        store(p, (vector_at(p) - along * vector_at(at.in(x, j))) * scale);
      });
    }
  }

  void forward(int64_t atom, T* result) {
    const LayerWeights<T> weights(layer, false, const_cast<T*>(layer.packed));
    T* bias[3];
    for (int k = 0; layer.project && k < 3; ++k) bias[k] = padded_copy(layer.project_bias + k * width, width);
    T *out_bias = padded_copy(layer.out_bias, features), *inside = this->numbers(wide_features);
    const Panels<T> room = take_panels<T>(arena, lanes, wide), kt = take_panels<T>(arena, wide, lanes);
    const Keys<T, kGates> all = this->keys(false);
    const T* edge = this->edge();
    const Panels<T> s = take_panels<T>(arena, tile, lanes), o = take_panels<T>(arena, tile, wide);
    const Panels<T> h = take_panels<T>(arena, tile, wide_features);
    if (!arena.base) return;
    for (int64_t c = 0; c < wide_features; ++c) inside[c] = c < features ? T(1) : T(0);
    T* end = layer.saved + (this->begin + n) * layer.kept();
    for (T* p = saved.rest; p < end; ++p) *p = 0;
    const ByRow<T> g{layer.g + this->begin * columns, columns};
    for (int k = 0; k < 3; ++k) {
      if (!layer.project) {
        take_part(k, saved.part[k], saved.shrink[k]);
        continue;
      }
      gemm(n, features, g, weights.part[k], saved.part[k], false);
      finish_part(saved.part[k], bias[k], saved.shrink[k]);
    }
    turn_keys(room, kt);
    const T* absents = layer.attention.absent;
    const T absent = absents ? absents[atom] : T(0);
    const T least = absent > T(0) ? T(0) : -std::numeric_limits<T>::infinity();
    for (int64_t first = 0; first < n; first += tile) {
      const int64_t count = n - first < tile ? n - first : tile;
      gemm(count, width, InLanes<T>{saved.part[0]}.from(first), kt, s, false);
      T inverse[Base::kMostRows];
      for (int64_t r = 0; r < count; ++r) {
        T top, sum = this->softmax_row(all, s, r, first + r, nullptr, edge, least, &top);
        if (absents) sum += absent * std::exp(-top);
        inverse[r] = T(1) / sum;
        saved.logsumexp[first + r] = top + std::log(sum);
      }
      gemm(count, n, InLanes<T>{s}, saved.part[2], o, false);
      gemm(count, width, InLanes<T>{o}, weights.out, h, false);
      for (int64_t r = 0; r < count; ++r)
        norm_row(h, r, first + r, inverse[r], g.from(first + r).base, out_bias, inside,
                 result + (this->begin + first + r) * features);
    }
  }

  // Writes the norm of row r of o W_o, times `inverse`, to a row of the result.
  void norm_row(const Panels<T>& h, int64_t r, int64_t j, T inverse, const T* g, const T* bias,
                const T* inside, T* result) const {
    V sum = V{};
    const int64_t whole = features / kLanes<T> * kLanes<T>;
    h.each([&](auto at) __attribute__((always_inline)) {
      T* p = at.in(h, r);
      const int64_t c = at.lane();
      V value = vector_at(p) * inverse + vector_at(bias + c);
      if (c < whole) {
        value += vector_at(g + c);
      } else {
        T rest[kLanes<T>] = {};
        for (int64_t k = c; k < features; ++k) rest[k - c] = g[k];
        value += vector_at(rest);
      }
      sum += value;
      store(p, value);
    });
    const T mean = sum_lanes<T>(sum) / static_cast<T>(features);
    V squares = V{};
    h.each([&](auto at) __attribute__((always_inline)) {
      const V value = (vector_at(at.in(h, r)) - mean) * vector_at(inside + at.lane());
      squares += value * value;
    });
    const T deviation = T(1) / std::sqrt(sum_lanes<T>(squares) / static_cast<T>(features) + layer.eps);
    saved.deviation[j] = deviation;
    h.each([&](auto at) __attribute__((always_inline)) {
      const V value = (vector_at(at.in(h, r)) - mean) * vector_at(inside + at.lane()) * deviation;
      store(at.in(saved.h, j), value);
    });
    store_row(saved.h, j, features, result);
    for (int64_t c = 0; c < features; ++c) result[c] = result[c] * layer.norm[c] + layer.norm_bias[c];
  }

  // delta of attention.h as a sum over keys, as `out` is not saved; writes p to `weights`.
  T sum_delta(const Keys<T, kGates>& keys, const Panels<T>& s, const Panels<T>& t, int64_t r, int64_t j,
              const T* edge, T total, T* weights) const {
    V sum = V{};
    s.each([&](auto at) __attribute__((always_inline)) {
      const int64_t lane = at.lane();
      const V a = keys.a(j, lane), score = this->score(vector_at(at.in(s, r)), nullptr, lane);
      const V p = exp_of<T>(this->logit(keys, score, a) + vector_at(edge + lane) - total);
      store(weights + lane, p);
      sum += p * (keys.c(j, lane) * a) * vector_at(at.in(t, r));
    });
    return sum_lanes<T>(sum);
  }

  void backward(const AttentionLayerResults<T>& result) {
    const LayerWeights<T> weights(layer, true, const_cast<T*>(layer.packed));
    const T* norm = padded_copy(layer.norm, features);
    T *row = this->numbers(wide_features), *weights_row = this->numbers(lanes);
    T* inside = this->numbers(wide_features);
    const T* factors = layer.factors ? padded_copy(layer.factors, width) : nullptr;
    const Panels<T> room = take_panels<T>(arena, lanes, wide);
    const Panels<T> kt = take_panels<T>(arena, wide, lanes), vt = take_panels<T>(arena, wide, lanes);
    const Panels<T> dh = take_panels<T>(arena, n, wide_features), d_o = take_panels<T>(arena, n, wide);
    Panels<T> d[3];
    for (Panels<T>& part : d) part = take_panels<T>(arena, n, wide);
    const Keys<T, kGates> all = this->keys(false);
    KeySums<T, kGates> sums = this->key_sums();
    const T* edge = this->edge();
    const Panels<T> s = take_panels<T>(arena, tile, lanes), t = take_panels<T>(arena, tile, lanes);
    if (!arena.base) return;
    for (int64_t c = 0; c < wide_features; ++c) inside[c] = c < features ? T(1) : T(0), row[c] = 0;
    for (int64_t j = 0; j < n; ++j) {
      const T* grad = layer.grad + (this->begin + j) * features;
      for (int64_t c = 0; c < features; ++c) row[c] = grad[c];
      norm_gradient(dh, j, row, norm, inside);
    }
    for (int k = 0; k < 3 && layer.in_place(); ++k) take_part(k, saved.part[k], saved.shrink[k]);
    gemm(n, features, InLanes<T>{dh}, weights.out, d_o, false);
    turn_keys(room, kt), turn(saved.part[2], room, vt);
    this->clear(d[1]), this->clear(d[2]);
    for (int64_t first = 0; first < n; first += tile) {
      const int64_t count = n - first < tile ? n - first : tile;
      gemm(count, width, InLanes<T>{saved.part[0]}.from(first), kt, s, false);
      gemm(count, width, InLanes<T>{d_o}.from(first), vt, t, false);
      for (int64_t r = 0; r < count; ++r) {
        const int64_t j = first + r;
        const T total = saved.logsumexp[j], delta = sum_delta(all, s, t, r, j, edge, total, weights_row);
        this->backward_row(all, sums, s, t, r, j, nullptr, edge, total, delta, weights_row);
      }
      this->transposed_product(s, count, d_o.from(first), d[2]);
      this->transposed_product(t, count, saved.part[0].from(first), d[1]);
      gemm(count, n, InLanes<T>{t}, saved.part[1], d[0].from(first), false);
    }
    for (int k = 0; k < 3; ++k) {
      if (k < 2) multiply_factors(d[k], factors);
      part_gradient(d[k], saved.part[k], saved.shrink[k], k < 2 ? layer.attention.scale : T(1));
      if (layer.project)
        gemm(n, width, InLanes<T>{d[k]}, weights.part[k], dh, true);
      else
        for (int64_t j = 0; j < n; ++j) store_row(d[k], j, width, coordinates(result.g, k, j));
    }
    for (int64_t j = 0; j < n; ++j) {
      T* row = result.g + (this->begin + j) * columns;
      store_row(dh, j, features, row);
      if (!layer.project) std::fill(row + features, row + layer.parts_begin(), T(0));
    }
    AttentionResults<T> of_keys{};
    of_keys.gate = result.gate, of_keys.switches = result.switches;
    this->put_sums(sums.row, sums.column, of_keys);
  }

  // LayerNorm's gradient of row j, from that of its result.
  void norm_gradient(const Panels<T>& dh, int64_t j, const T* grad, const T* norm, const T* inside) const {
    V sum = V{}, along = V{};
    dh.each([&](auto at) __attribute__((always_inline)) {
      const V dx = vector_at(grad + at.lane()) * vector_at(norm + at.lane());
      sum += dx, along += dx * vector_at(at.in(saved.h, j));
    });
    const T mean = sum_lanes<T>(sum) / static_cast<T>(features),
            part = sum_lanes<T>(along) / static_cast<T>(features);
    const T deviation = saved.deviation[j];
    dh.each([&](auto at) __attribute__((always_inline)) {
      const V dx = vector_at(grad + at.lane()) * vector_at(norm + at.lane());
      const V rest = dx - mean - vector_at(at.in(saved.h, j)) * part;
      store(at.in(dh, j), rest * vector_at(inside + at.lane()) * deviation);
    });
  }
};

// Calls work(passes) with the kernels for this number of gates, and returns how much memory they used.
template <class T, class Work>
int64_t with_passes(const AttentionLayerArgs<T>& args, int64_t neighbors, int64_t atom, void* scratch,
                    const Work& work) {
  const auto run = [&](auto passes) {
    work(passes);
    return passes.arena.used;
  };
  return args.attention.gates == 3 ? run(LayerPasses<T, 3>(args, neighbors, atom, scratch))
                                   : run(LayerPasses<T, 0>(args, neighbors, atom, scratch));
}

}  // namespace

template <class T>
int64_t attention_layer_packed_size(const AttentionLayerArgs<T>& args) {
  const int64_t up = LayerWeights<T>(args, false, nullptr).size,
                down = LayerWeights<T>(args, true, nullptr).size;
  return up > down ? up : down;
}

template <class T>
void attention_layer_pack(const AttentionLayerArgs<T>& args, bool backward, T* base) {
  const int64_t features = args.features, width = args.attention.width;
  const LayerWeights<T> to(args, backward, base);
  for (int k = 0; args.project && k < 3; ++k)
    if (backward)
      rows_to_lanes(args.project + k * width, 3 * width, features, width, to.part[k]);
    else
      pack_rows(args.project + k * width, 3 * width, width, to.part[k]);
  if (backward)
    rows_to_lanes(args.out, features, width, features, to.out);
  else
    pack_rows(args.out, features, features, to.out);
}

template <class T>
int64_t attention_layer_scratch_size(const AttentionLayerArgs<T>& args, bool backward, int64_t neighbors) {
  return with_passes(args, neighbors, 0, nullptr,
                     [&](auto& passes) { backward ? passes.backward({}) : passes.forward(0, nullptr); });
}

template <class T>
void attention_layer_forward(const AttentionLayerArgs<T>& args, int64_t atom, T* out, void* scratch) {
  with_passes(args, args.attention.length(atom), atom, scratch,
              [&](auto& passes) { passes.forward(atom, out); });
}

template <class T>
void attention_layer_backward(const AttentionLayerArgs<T>& args, int64_t atom,
                              const AttentionLayerResults<T>& out, void* scratch) {
  with_passes(args, args.attention.length(atom), atom, scratch, [&](auto& passes) { passes.backward(out); });
}

MDOPS_INSTANTIATE(attention_layer_packed_size, attention_layer_pack, attention_layer_scratch_size,
                  attention_layer_forward, attention_layer_backward)

}  // namespace mdops::MDOPS_ISA
