// Blocks of edges that stay in the nearest cache, from x to y or to the gradient by x.
#include <algorithm>
#include <cmath>

#include "common/activation_lanes.h"
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

// The weights with columns in lanes, of m = 0, of both signs of m = 1 side by side, and of the gate. Backward
// passes have the transposes of the first two, the columns that make scalars, and the gate both ways.
template <class T>
struct PackedSo2 {
  Panels<T> middle, sides, scalars, gate, gate_back;
  int64_t bytes;

  PackedSo2(const So2Args<T>& args, void* memory) {
    Arena arena{static_cast<char*>(memory)};
    const int64_t m = args.middle(), s = 2 * args.side(), c = args.channels, a = args.gate ? args.side() : 0;
    middle = take_panels<T>(arena, m, padded<T>(m));
    sides = take_panels<T>(arena, s, padded<T>(s));
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
  const auto middle = [&](int64_t row, int64_t column) { return args.weight[row * m + column]; };
  // [U V; -V U]
  const auto sides = [&](int64_t row, int64_t column) {
    if (row < s) return args.both[row * 2 * s + column];
    const T* const own = args.both + (row - s) * 2 * s;
    return column < s ? -own[s + column] : own[column - s];
  };
  const auto gate = [&](int64_t row, int64_t column) { return args.gate[row * s + column]; };
  const auto flipped = [](const auto& value) {
    return [&value](int64_t row, int64_t column) { return value(column, row); };
  };
  if (args.gate) pack(to.gate, s, gate);
  if (!args.grad) {
    pack(to.middle, m, middle);
    pack(to.sides, 2 * s, sides);
    return;
  }
  pack(to.middle, m, flipped(middle));
  pack(to.sides, 2 * s, flipped(sides));
  if (!args.gate) return;
  pack(to.scalars, c, middle);
  pack(to.gate_back, c, flipped(gate));
}

template <class T>
class Block {
  using V = Vector<T>;

 public:
  Block(const So2Args<T>& args, const void* packed, void* memory)
      : args_(args),
        weights_(args, const_cast<void*>(packed)),
        row_(args.row()),
        factors_row_(padded<T>(args.middle())) {
    Arena arena{static_cast<char*>(memory)};
    middle_ = take_panels<T>(arena, kBlock, padded<T>(args.middle()));
    sides_ = take_panels<T>(arena, kBlock, padded<T>(2 * args.side()));
    gates_ = take_panels<T>(arena, kBlock, padded<T>(args.side()));
    scalars_ = take_panels<T>(arena, kBlock, padded<T>(args.channels));
    z_ = arena.take<T>(kBlock * (row_ + kLanes<T>));
    factors_ = arena.take<T>(kBlock * factors_row_);
    slopes_ = arena.take<T>(kBlock * factors_row_);
    bytes = arena.used;
  }

  void run(int64_t from, int64_t to) {
    for (edge_ = from; edge_ < to; edge_ += count_) {
      count_ = std::min(kBlock, to - edge_);
      if (args_.grad)
        backward();
      else
        forward();
    }
  }

  int64_t bytes;

 private:
  void forward() {
    const T* x = args_.x + edge_ * row_;
    multiply(x, z_);
    T* y = args_.y + edge_ * row_;
    if (!args_.gate) {
      for (int64_t k = 0; k < count_ * row_; ++k) y[k] = x[k] + z_[k];
      return;
    }
    make_factors();
    each_row([&](int64_t at, int64_t of_factor) {
      for (int64_t c = 0; c < args_.channels; ++c)
        y[at + c] = x[at + c] + z_[at + c] * factors_[of_factor + c];
    });
  }

  void backward() {
    const int64_t begin = edge_ * row_;
    const T *const x = args_.x + begin, *const g = args_.grad + begin, *const result = args_.result + begin;
    if (args_.gate) {
      gemm(count_, args_.middle(), ByRow<T>{const_cast<T*>(x), row_}, weights_.scalars, scalars_, false);
      for (int64_t e = 0; e < count_; ++e) store_row(scalars_, e, args_.channels, z_ + e * row_);
      make_factors();
      std::fill(slopes_, slopes_ + count_ * factors_row_, T(0));
      each_row([&](int64_t at, int64_t of_factor) {
        for (int64_t c = 0; c < args_.channels; ++c) {
          slopes_[of_factor + c] += g[at + c] * (result[at + c] - x[at + c]);
          z_[at + c] = g[at + c] * factors_[of_factor + c];
        }
      });
      for (int64_t k = 0; k < count_ * factors_row_; ++k) slopes_[k] *= T(1) - factors_[k];
      gemm(count_, args_.side(), ByRow<T>{slopes_ + args_.channels, factors_row_}, weights_.gate_back,
           scalars_, false);
      for (int64_t e = 0; e < count_; ++e) {
        T* const first = z_ + e * row_;
        scalars_.each([&](auto place) {
          const T *const added = place.in(scalars_, e), *const slope =
                                                            slopes_ + e * factors_row_ + place.lane();
          const int64_t left = std::min<int64_t>(kLanes<T>, args_.channels - place.lane());
          for (int64_t k = 0; k < left; ++k) first[place.lane() + k] += slope[k] + added[k];
        });
      }
    }
    T* const by_x = args_.y + begin;
    multiply(args_.gate ? z_ : g, by_x);
    for (int64_t k = 0; k < count_ * row_; ++k) by_x[k] += g[k];
  }

  // Rows of both kinds times their matrices.
  void multiply(const T* x, T* to) {
    const int64_t m = args_.middle(), s = 2 * args_.side();
    gemm(count_, m, ByRow<T>{const_cast<T*>(x), row_}, weights_.middle, middle_, false);
    gemm(count_, s, ByRow<T>{const_cast<T*>(x) + m, row_}, weights_.sides, sides_, false);
    for (int64_t e = 0; e < count_; ++e) {
      store_row(middle_, e, m, to + e * row_);
      store_row(sides_, e, s, to + e * row_ + m);
    }
  }

  // sigmoid(s [1 G]) of each edge.
  void make_factors() {
    const int64_t c = args_.channels;
    gemm(count_, c, ByRow<T>{z_, row_}, weights_.gate, gates_, false);
    for (int64_t e = 0; e < count_; ++e) {
      T* const own = factors_ + e * factors_row_;
      std::copy(z_ + e * row_, z_ + e * row_ + c, own);
      store_row(gates_, e, args_.side(), own + c);
      std::fill(own + args_.middle(), own + factors_row_, T(0));
      for (int64_t k = 0; k < factors_row_; k += kLanes<T>) store(own + k, sigmoid<T>(vector_at(own + k)));
    }
  }

  // f(where a row of channels begins, where its factors do) for all rows of the block.
  template <class F>
  void each_row(const F& f) const {
    const int64_t c = args_.channels, l = args_.degrees;
    for (int64_t e = 0; e < count_; ++e)
      for (int64_t r = 0; r < 3 * l + 1; ++r) {
        const int64_t degree = r <= l ? r : (r - l - 1) % l + 1;
        f(e * row_ + r * c, e * factors_row_ + degree * c);
      }
  }

  const So2Args<T>& args_;
  const PackedSo2<T> weights_;
  const int64_t row_, factors_row_;
  Panels<T> middle_, sides_, gates_, scalars_;
  T *z_, *factors_, *slopes_;
  int64_t edge_ = 0, count_ = 0;
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
