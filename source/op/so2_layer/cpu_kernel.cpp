// Blocks of edges that stay in the nearest cache, from x to y or to the gradient by x.
#include <algorithm>
#include <cmath>

#include "common/activation_lanes.h"
#include "common/some_lanes.h"
#include "gemm/product.h"
#include "so2_layer/so2_layer.h"

namespace mdops {
namespace MDOPS_ISA {

namespace {

constexpr int64_t kBlock = 2 * kRows;  // edges

template <class T>
Vector<T> sigmoid(const Vector<T>& x) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return sigmoid_lanes(x);
  } else {
    T of[kLanes<T>];
    store(of, x);
    for (T& one : of) one = T(1) / (T(1) + std::exp(-one));
    return vector_at(of);
  }
}

// The weights with columns in lanes, of m = 0, of both signs of m = 1, and of the gate. Backward passes have
// the transposes of the first two, the columns that make scalars, and the gate both ways.
//
// Both signs take three products for four (as of complex numbers):
//
//   z_- = p - x_+ (U + V)   z_+ = p + x_- (V - U)      p = (x_- + x_+) U
template <class T>
struct PackedSo2 {
  Panels<T> middle, u, sum, difference, scalars, gate, gate_back;
  int64_t bytes;

  PackedSo2(const So2Args<T>& args, void* memory) {
    Arena arena{static_cast<char*>(memory)};
    const int64_t m = args.middle(), s = args.side(), c = args.channels, a = args.gate ? s : 0;
    middle = take_panels<T>(arena, m, padded<T>(m));
    for (Panels<T>* one : {&u, &sum, &difference}) *one = take_panels<T>(arena, s, padded<T>(s));
    gate = take_panels<T>(arena, c, padded<T>(a));
    if (args.grad && args.gate) {
      scalars = take_panels<T>(arena, m, padded<T>(c));
      gate_back = take_panels<T>(arena, a, padded<T>(c));
    }
    bytes = arena.used;
  }
};

// to[row][column] = value(row, column), zero in the lanes that are left.
template <class T, class Value>
void pack(const Panels<T>& to, int64_t columns, const Value& value) {
  to.each([&](auto place) {
    for (int64_t row = 0; row < to.rows; ++row)
      for (int64_t k = 0; k < kLanes<T>; ++k)
        place.in(to, row)[k] = place.lane() + k < columns ? value(row, place.lane() + k) : T(0);
  });
}

template <class T>
void pack_all(const So2Args<T>& args, void* memory) {
  const PackedSo2<T> to(args, memory);
  const int64_t m = args.middle(), s = args.side(), c = args.channels;
  const bool back = args.grad;
  // Backward U and V are U^T and -V^T.
  const auto middle = [&](int64_t row, int64_t column) {
    return back ? args.weight[column * m + row] : args.weight[row * m + column];
  };
  const auto u = [&](int64_t row, int64_t column) {
    return back ? args.both[column * 2 * s + row] : args.both[row * 2 * s + column];
  };
  const auto v = [&](int64_t row, int64_t column) {
    return back ? -args.both[column * 2 * s + s + row] : args.both[row * 2 * s + s + column];
  };
  pack(to.middle, m, middle);
  pack(to.u, s, u);
  pack(to.sum, s, [&](int64_t row, int64_t column) { return u(row, column) + v(row, column); });
  pack(to.difference, s, [&](int64_t row, int64_t column) { return v(row, column) - u(row, column); });
  if (!args.gate) return;
  pack(to.gate, s, [&](int64_t row, int64_t column) { return args.gate[row * s + column]; });
  if (!back) return;
  pack(to.scalars, c, [&](int64_t row, int64_t column) { return args.weight[row * m + column]; });
  pack(to.gate_back, c, [&](int64_t row, int64_t column) { return args.gate[column * s + row]; });
}

template <class T>
class Block {
  using V = Vector<T>;

 public:
  Block(const So2Args<T>& args, const void* packed, void* memory)
      : args_(args),
        weights_(args, const_cast<void*>(packed)),
        row_(args.row()),
        middle_(args.middle()),
        side_(args.side()) {
    Arena arena{static_cast<char*>(memory)};
    for (T** rows : {&z_, &factors_, &slopes_}) *rows = arena.take<T>(args.gate ? kBlock * row_ : 0);
    for (T** rows : {&added_, &p_}) *rows = arena.take<T>(kBlock * side_);
    bytes = arena.used;
  }

  void run(int64_t from, int64_t to) {
    for (int64_t edge = from; edge < to; edge += count_) {
      count_ = std::min(kBlock, to - edge);
      const int64_t begin = edge * row_, next = begin + count_ * row_;
      // The next block's rows are on their way while this one is computed.
      for (int64_t k = next; k < std::min(next + kBlock * row_, to * row_); k += 64 / sizeof(T)) {
        __builtin_prefetch(args_.x + k, 0, 2);
        __builtin_prefetch(args_.y + k, 1, 2);
        if (args_.grad) __builtin_prefetch(args_.grad + k, 0, 2);
        if (args_.grad && args_.gate) __builtin_prefetch(args_.result + k, 0, 2);
      }
      if (args_.grad)
        backward(args_.x + begin, args_.result + begin, args_.grad + begin, args_.y + begin);
      else
        forward(args_.x + begin, args_.y + begin);
    }
  }

  int64_t bytes;

 private:
  void forward(const T* x, T* y) {
    if (!args_.gate) return add_products(x, x, y);
    product({x, row_}, middle_, weights_.middle, middle_,
            [&](int64_t e, int64_t k, const V& z, auto lanes) { lanes.store(z_ + e * row_ + k, z); });
    make_factors();
    for (int64_t e = 0; e < count_; ++e)
      for (int64_t k = e * row_; k < e * row_ + middle_; ++k) y[k] = x[k] + z_[k] * factors_[k];
    multiply_signs(x, [&](int64_t at, const V& z, auto lanes) {
      lanes.store(y + at, lanes.load(x + at) + z * lanes.load(factors_ + at));
    });
  }

  void backward(const T* x, const T* result, const T* g, T* by_x) {
    if (!args_.gate) return add_products(g, g, by_x);
    const int64_t c = args_.channels;
    product({x, row_}, middle_, weights_.scalars, c,
            [&](int64_t e, int64_t k, const V& s, auto lanes) { lanes.store(z_ + e * row_ + k, s); });
    make_factors();
    for (int64_t k = 0; k < count_ * row_; ++k) {
      slopes_[k] = g[k] * (result[k] - x[k]);
      z_[k] = g[k] * factors_[k];
    }
    for (int64_t e = 0; e < count_; ++e) {
      T *const slope = slopes_ + e * row_, *const f = factors_ + e * row_;
      for (int64_t k = 0; k < side_; ++k) slope[c + k] += slope[middle_ + k] + slope[middle_ + side_ + k];
      for (int64_t k = 0; k < middle_; ++k) slope[k] *= T(1) - f[k];
      for (int64_t k = 0; k < c; ++k) z_[e * row_ + k] += slope[k];
    }
    product({slopes_ + c, row_}, side_, weights_.gate_back, c,
            [&](int64_t e, int64_t k, const V& by_s, auto lanes) {
              T* const to = z_ + e * row_ + k;
              lanes.store(to, lanes.load(to) + by_s);
            });
    add_products(z_, g, by_x);
  }

  // end(edge, column, vector, its lanes that count) of rows times a matrix of so many columns.
  template <class End>
  void product(const ByRow<T>& x, int64_t depth, const Panels<T>& weights, int64_t columns, const End& end) {
    gemm_to(count_, depth, x, weights,
            [&](int64_t e, int64_t column, const V& z) __attribute__((always_inline)) {
              with_lanes<T>(std::min<int64_t>(kLanes<T>, columns - column),
                            [&](auto lanes) __attribute__((always_inline)) { end(e, column, z, lanes); });
            });
  }

  // end(where in rows a vector begins, vector, lanes) of z_- and z_+.
  template <class End>
  void multiply_signs(const T* x, const End& end) {
    const T *const negative = x + middle_, *const positive = negative + side_;
    for (int64_t e = 0; e < count_; ++e)
      for (int64_t k = 0; k < side_; ++k)
        added_[e * side_ + k] = negative[e * row_ + k] + positive[e * row_ + k];
    product({added_, side_}, side_, weights_.u, side_,
            [&](int64_t e, int64_t k, const V& z, auto lanes) { lanes.store(p_ + e * side_ + k, z); });
    product({positive, row_}, side_, weights_.sum, side_, [&](int64_t e, int64_t k, const V& z, auto lanes) {
      end(e * row_ + middle_ + k, lanes.load(p_ + e * side_ + k) - z, lanes);
    });
    product({negative, row_}, side_, weights_.difference, side_,
            [&](int64_t e, int64_t k, const V& z, auto lanes) {
              end(e * row_ + middle_ + side_ + k, lanes.load(p_ + e * side_ + k) + z, lanes);
            });
  }

  // y = base + rows of both kinds times their matrices.
  void add_products(const T* x, const T* base, T* y) {
    const auto add = [&](int64_t at, const V& z, auto lanes) {
      lanes.store(y + at, lanes.load(base + at) + z);
    };
    product({x, row_}, middle_, weights_.middle, middle_,
            [&](int64_t e, int64_t k, const V& z, auto lanes) { add(e * row_ + k, z, lanes); });
    multiply_signs(x, add);
  }

  // sigmoid(s [1 G]) of each edge's scalars, the first of z, for each of its numbers.
  void make_factors() {
    const int64_t c = args_.channels;
    product({z_, row_}, c, weights_.gate, side_, [&](int64_t e, int64_t k, const V& logits, auto lanes) {
      const V f = sigmoid<T>(logits);
      for (int64_t part = 0; part < 3; ++part) lanes.store(factors_ + e * row_ + c + part * side_ + k, f);
    });
    for (int64_t e = 0; e < count_; ++e)
      for (int64_t k = 0; k < c; k += kLanes<T>)
        with_lanes<T>(std::min<int64_t>(kLanes<T>, c - k), [&](auto lanes) {
          lanes.store(factors_ + e * row_ + k, sigmoid<T>(lanes.load(z_ + e * row_ + k)));
        });
  }

  const So2Args<T>& args_;
  const PackedSo2<T> weights_;
  const int64_t row_, middle_, side_;
  T *z_, *factors_, *slopes_;  // of each number of a row
  T *added_, *p_;              // of both signs
  int64_t count_ = 0;
};

template <class T>
So2Sizes sizes_of(const So2Args<T>& args) {
  return {PackedSo2<T>(args, nullptr).bytes, Block<T>(args, nullptr, nullptr).bytes};
}

}  // namespace

template <class T>
So2Sizes so2_sizes(const So2Args<T>& args) {
  return sizes_of(args);
}

template <class T>
void so2_pack(const So2Args<T>& args, void* packed) {
  pack_all(args, packed);
}

template <class T>
void so2_rows(const So2Args<T>& args, int64_t from, int64_t to, const void* packed, void* scratch) {
  Block<T>(args, packed, scratch).run(from, to);
}

MDOPS_INSTANTIATE(so2_sizes)
MDOPS_INSTANTIATE(so2_pack)
MDOPS_INSTANTIATE(so2_rows)

}  // namespace MDOPS_ISA
}  // namespace mdops
