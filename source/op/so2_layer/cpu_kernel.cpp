// Blocks of edges that stay in the nearest cache, from x to y or to the gradient by x.
#include <algorithm>
#include <cmath>

#include "common/activation_lanes.h"
#include "common/some_lanes.h"
#include "edge_frames/edge_frames.h"
#include "gemm/product.h"
#include "so2_layer/so2_layer.h"

namespace mdops::MDOPS_ISA {

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
// the transposes of the first two, the scalars' columns, and the gate both ways.
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

// to[row][column] = value(row, column), with zeros in the lanes left.
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

// The rows of the next block, whose lines are prefetched one by one in the loops over depths of this block's
// products. Prefetched all at once, they would wait for each other.
template <class T>
class NextRows {
 public:
  explicit NextRows(const So2Args<T>& args)
      : arrays_{args.x, args.y, args.grad, args.result},
        count_(!args.grad  ? 2
               : args.gate ? 4
                           : 3) {}

  void begin(int64_t from, int64_t to) { at_ = from, end_ = to, array_ = 0; }
  void fetch_line() {
    if (at_ >= end_) return;
    __builtin_prefetch(arrays_[array_] + at_, 0, 2);
    if (++array_ == count_) array_ = 0, at_ += 64 / sizeof(T);
  }

 private:
  const T* arrays_[4];
  int count_, array_ = 0;
  int64_t at_ = 0, end_ = 0;
};

// A left factor by rows (gemm/product.h), which prefetches a line at each of its columns.
template <class T>
struct FetchingRows {
  ByRow<T> rows;
  NextRows<T>* next;

  FetchingRows from(int64_t row) const { return {rows.from(row), next}; }
  MDOPS_HD void each(int64_t depth, const auto& work) const {
    rows.each(depth, [&](const T* column, int64_t stride) __attribute__((always_inline)) {
      next->fetch_line();
      work(column, stride);
    });
  }
};

template <class T>
class Block {
  using V = Vector<T>;

 public:
  Block(const So2Args<T>& args, const void* packed, void* memory)
      : args_(args),
        weights_(args, const_cast<void*>(packed)),
        row_(args.row()),
        middle_(args.middle()),
        side_(args.side()),
        next_(args) {
    Arena arena{static_cast<char*>(memory)};
    z_ = arena.take<T>(args.gate ? kBlock * row_ : 0);
    factors_ = arena.take<T>(args.gate ? kBlock * middle_ : 0);
    for (T** rows : {&slopes_, &added_, &p_}) *rows = arena.take<T>(kBlock * side_);
    bytes = arena.used;
  }

  void run(int64_t from, int64_t to) {
    for (int64_t edge = from; edge < to; edge += count_) {
      count_ = std::min(kBlock, to - edge);
      const int64_t begin = edge * row_, next = begin + count_ * row_;
      next_.begin(next, std::min(next + kBlock * row_, to * row_));
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
    for (int64_t e = 0; e < count_; ++e) {
      const T *const own = x + e * row_, *const z = z_ + e * row_, *const f = factors_ + e * middle_;
      T* __restrict const to = y + e * row_;
      for (int64_t k = 0; k < middle_; ++k) to[k] = own[k] + z[k] * f[k];
    }
    multiply_signs(x, [&](int64_t e, int64_t at, int64_t k, const V& z, auto lanes) {
      const T* const f = factors_ + e * middle_ + args_.channels + k;
      lanes.store(y + at, lanes.load(x + at) + z * lanes.load(f));
    });
  }

  void backward(const T* x, const T* result, const T* g, T* by_x) {
    if (!args_.gate) return add_products(g, g, by_x);
    const int64_t c = args_.channels;
    product({x, row_}, middle_, weights_.scalars, c,
            [&](int64_t e, int64_t k, const V& s, auto lanes) { lanes.store(z_ + e * row_ + k, s); });
    make_factors();
    for (int64_t e = 0; e < count_; ++e)
      differentiate(x + e * row_, result + e * row_, g + e * row_, factors_ + e * middle_, z_ + e * row_,
                    slopes_ + e * side_);
    product({slopes_, side_}, side_, weights_.gate_back, c,
            [&](int64_t e, int64_t k, const V& by_s, auto lanes) {
              T* const to = z_ + e * row_ + k;
              lanes.store(to, lanes.load(to) + by_s);
            });
    add_products(z_, g, by_x);
  }

  // dz of an edge without the part of its scalars through the gate, and the slopes a_l of l > 0.
  void differentiate(const T* x, const T* result, const T* g, const T* f, T* __restrict dz,
                     T* __restrict slopes) const {
    const int64_t c = args_.channels;
    for (int64_t k = 0; k < c; ++k) dz[k] = g[k] * f[k] + g[k] * (result[k] - x[k]) * (T(1) - f[k]);
    x += c, result += c, g += c, f += c, dz += c;
    const int64_t negative = side_, positive = 2 * side_;
    for (int64_t k = 0; k < side_; ++k) {
      const T slope = g[k] * (result[k] - x[k]) + g[negative + k] * (result[negative + k] - x[negative + k]) +
                      g[positive + k] * (result[positive + k] - x[positive + k]);
      slopes[k] = slope * (T(1) - f[k]);
      dz[k] = g[k] * f[k];
      dz[negative + k] = g[negative + k] * f[k];
      dz[positive + k] = g[positive + k] * f[k];
    }
  }

  // end(edge, column, vector, its valid lanes) for rows times a matrix with `columns` columns.
  void product(const ByRow<T>& x, int64_t depth, const Panels<T>& weights, int64_t columns, const auto& end) {
    gemm_to(count_, depth, FetchingRows<T>{x, &next_}, weights,
            [&](int64_t e, int64_t column, const V& z) __attribute__((always_inline)) {
              with_lanes<T>(std::min<int64_t>(kLanes<T>, columns - column),
                            [&](auto lanes) __attribute__((always_inline)) { end(e, column, z, lanes); });
            });
  }

  // end(edge, a vector's offset in rows, that within its sign, vector, lanes) for z_- and z_+.
  void multiply_signs(const T* x, const auto& end) {
    const T *const negative = x + middle_, *const positive = negative + side_;
    for (int64_t e = 0; e < count_; ++e)
      for (int64_t k = 0; k < side_; ++k)
        added_[e * side_ + k] = negative[e * row_ + k] + positive[e * row_ + k];
    product({added_, side_}, side_, weights_.u, side_,
            [&](int64_t e, int64_t k, const V& z, auto lanes) { lanes.store(p_ + e * side_ + k, z); });
    product({positive, row_}, side_, weights_.sum, side_, [&](int64_t e, int64_t k, const V& z, auto lanes) {
      end(e, e * row_ + middle_ + k, k, lanes.load(p_ + e * side_ + k) - z, lanes);
    });
    product({negative, row_}, side_, weights_.difference, side_,
            [&](int64_t e, int64_t k, const V& z, auto lanes) {
              end(e, e * row_ + middle_ + side_ + k, k, lanes.load(p_ + e * side_ + k) + z, lanes);
            });
  }

  // y = base + rows of both kinds times their matrices.
  void add_products(const T* x, const T* base, T* y) {
    const auto add = [&](int64_t, int64_t at, int64_t, const V& z, auto lanes) {
      lanes.store(y + at, lanes.load(base + at) + z);
    };
    product({x, row_}, middle_, weights_.middle, middle_,
            [&](int64_t e, int64_t k, const V& z, auto lanes) { add(e, e * row_ + k, k, z, lanes); });
    multiply_signs(x, add);
  }

  // sigmoid(s [1 G]) of each edge's scalars, the first of z.
  void make_factors() {
    const int64_t c = args_.channels;
    product({z_, row_}, c, weights_.gate, side_, [&](int64_t e, int64_t k, const V& logits, auto lanes) {
      lanes.store(factors_ + e * middle_ + c + k, sigmoid<T>(logits));
    });
    for (int64_t e = 0; e < count_; ++e)
      for (int64_t k = 0; k < c; k += kLanes<T>)
        with_lanes<T>(std::min<int64_t>(kLanes<T>, c - k), [&](auto lanes) {
          lanes.store(factors_ + e * middle_ + k, sigmoid<T>(lanes.load(z_ + e * row_ + k)));
        });
  }

  const So2Args<T>& args_;
  const PackedSo2<T> weights_;
  const int64_t row_, middle_, side_;
  NextRows<T> next_;
  T *z_, *factors_;          // of each number of a row, and of m = 0
  T *slopes_, *added_, *p_;  // of one sign
  int64_t count_ = 0;
};

// The weights of a last layer for columns of each degree, the numbers of moments in rows, or backward in
// lanes: W, U and V one above the other, with the base of the layer in the first two. Columns of l = 0 have
// only W.
template <class T>
struct PackedEnd {
  Panels<T> of_degree[kMostDegree + 1];
  int64_t bytes;

  PackedEnd(const So2Args<T>& args, void* memory) {
    Arena arena{static_cast<char*>(memory)};
    for (int64_t l = 0; l <= args.degrees; ++l) {
      const int64_t c = args.channels, numbers = l ? args.row() : args.middle();
      of_degree[l] = args.grad ? take_panels<T>(arena, c, padded<T>(numbers))
                               : take_panels<T>(arena, numbers, padded<T>(c));
    }
    bytes = arena.used;
  }
};

template <class T>
void pack_end(const So2Args<T>& args, void* memory) {
  const PackedEnd<T> to(args, memory);
  const int64_t m = args.middle(), s = args.side(), c = args.channels;
  for (int64_t l = 0; l <= args.degrees; ++l) {
    const auto weight = [&](int64_t k, int64_t channel) {
      const int64_t column = l * c + channel, side = column - c;
      if (k < m) return args.weight[k * m + column] + T(k == column);
      if (k < m + s) return args.both[(k - m) * 2 * s + side] + T(k - m == side);
      return args.both[(k - m - s) * 2 * s + s + side];
    };
    const auto transposed = [&](int64_t channel, int64_t k) { return weight(k, channel); };
    args.grad ? pack(to.of_degree[l], l ? args.row() : m, transposed) : pack(to.of_degree[l], c, weight);
  }
}

template <class T>
PackedSizes sizes_of(const So2Args<T>& args) {
  return {PackedSo2<T>(args, nullptr).bytes, Block<T>(args, nullptr, nullptr).bytes};
}

}  // namespace

template <class T>
PackedSizes so2_sizes(const So2Args<T>& args) {
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

template <class T>
int64_t so2_end_size(const So2Args<T>& args) {
  return PackedEnd<T>(args, nullptr).bytes;
}

template <class T>
void so2_end_pack(const So2Args<T>& args, void* packed) {
  pack_end(args, packed);
}

template <class T>
void so2_end(const So2Args<T>& args, const T* from, T* to, int64_t nodes, const void* packed) {
  const PackedEnd<T> weights(args, const_cast<void*>(packed));
  const int64_t columns = (args.degrees + 1) * (args.degrees + 1), width = args.row();
  const int64_t wide = args.grad ? args.channels : width, out = args.grad ? width : args.channels;
  for (int64_t n = 0; n < nodes; ++n, from += columns * wide, to += columns * out)
    for (int64_t l = 0; l <= args.degrees; ++l) {
      const Panels<T>& own = weights.of_degree[l];
      const int64_t numbers = l ? width : args.middle(), count = args.grad ? numbers : args.channels;
      gemm_to(2 * l + 1, own.rows, ByRow<T>{from + l * l * wide, wide}, own,
              [&](int64_t row, int64_t k, const Vector<T>& sums) __attribute__((always_inline)) {
                with_lanes<T>(std::min<int64_t>(kLanes<T>, count - k),
                              [&](auto lanes) { lanes.store(to + (l * l + row) * out + k, sums); });
              });
    }
}

MDOPS_INSTANTIATE(so2_sizes, so2_pack, so2_rows, so2_end_size, so2_end_pack, so2_end)

}  // namespace mdops::MDOPS_ISA
