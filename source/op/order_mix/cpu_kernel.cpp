// A vector has columns of an edge's row; blocks of equal |m| have compile-time sizes, except very large ones.
#include <algorithm>

#include "common/some_lanes.h"
#include "common/tiles.h"
#include "order_mix/order_mix.h"

namespace mdops::MDOPS_ISA {

namespace {

constexpr int kMostSize = 7;  // of a block in registers

// work(size, rows before it, numbers before it, number of signs) for the blocks of equal |m|.
MDOPS_INLINE void each_block(const OrderShape& shape, const auto& work) {
  int64_t row = 0, number = 0;
  for (int64_t m = 0; m <= shape.order; ++m) {
    const int64_t size = shape.size(m), signs = m ? 2 : 1;
    work(size, row, number, signs);
    row += signs * size, number += size * size;
  }
}

template <class T, class Work>
MDOPS_INLINE void each_columns(int64_t columns, const Work& work) {
  for (int64_t d = 0; d < columns; d += kLanes<T>)
    with_lanes<T>(std::min<int64_t>(kLanes<T>, columns - d),
                  [&](auto lanes) __attribute__((always_inline)) { work(d, lanes); });
}

}  // namespace

template <class T>
void mix_rows(const OrderMixArgs<T>& args, int64_t from, int64_t to) {
  const OrderShape& shape = args.shape;
  const int64_t step = shape.columns, all = shape.rows() * step;
  if (shape.size(0) > kMostSize) {
    for (int64_t e = from; e < to; ++e)
      for (int64_t d = 0; d < step; ++d) mix_column(args, e, d);
    return;
  }
  each_block(shape, [&](int64_t count, int64_t row, int64_t number, int64_t signs) {
    const int64_t of_k = args.transposed ? 1 : count, of_o = args.transposed ? count : 1;
    with_count<kMostSize>(count, [&](auto size) {
      constexpr int known = decltype(size)::value;
      for (int64_t e = from; e < to; ++e) {
        const T* const numbers = args.numbers + e * shape.numbers() + number;
        for (int64_t sign = 0; sign < signs; ++sign) {
          const int64_t begin = e * all + (row + sign * known) * step;
          each_columns<T>(step, [&](int64_t d, auto lanes) __attribute__((always_inline)) {
            Vector<T> x[known];
            for (int k = 0; k < known; ++k) x[k] = lanes.load(args.x + begin + k * step + d);
            for (int o = 0; o < known; ++o) {
              Vector<T> sum{};
              if (args.base) sum = lanes.load(args.base + begin + o * step + d);
              for (int k = 0; k < known; ++k) sum += numbers[k * of_k + o * of_o] * x[k];
              lanes.store(args.y + begin + o * step + d, sum);
            }
          });
        }
      }
    });
  });
}

template <class T>
void outer_numbers(const OrderOuterArgs<T>& args, int64_t from, int64_t to) {
  const OrderShape& shape = args.shape;
  const int64_t step = shape.columns, all = shape.rows() * step;
  if (shape.size(0) > kMostSize) {
    for (int64_t e = from; e < to; ++e)
      for (int64_t q = 0; q < shape.numbers(); ++q) outer_number(args, e, q);
    return;
  }
  each_block(shape, [&](int64_t count, int64_t row, int64_t number, int64_t signs) {
    with_count<kMostSize>(count, [&](auto size) {
      constexpr int known = decltype(size)::value;
      for (int64_t e = from; e < to; ++e) {
        T* const numbers = args.numbers + e * shape.numbers() + number;
        for (int k = 0; k < known; ++k) {
          Vector<T> sums[known] = {};
          for (int64_t sign = 0; sign < signs; ++sign) {
            const int64_t begin = e * all + (row + sign * known) * step;
            each_columns<T>(step, [&](int64_t d, auto lanes) __attribute__((always_inline)) {
              const Vector<T> x = lanes.load(args.x + begin + k * step + d);
              for (int o = 0; o < known; ++o) sums[o] += x * lanes.load(args.y + begin + o * step + d);
            });
          }
          for (int o = 0; o < known; ++o) numbers[k * known + o] = sum_lanes<T>(sums[o]);
        }
      }
    });
  });
}

MDOPS_INSTANTIATE(mix_rows, outer_numbers)

}  // namespace mdops::MDOPS_ISA
