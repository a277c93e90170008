// Sums of tiles of rows or columns stay in registers, a piece of the channels at a time.
#include <algorithm>

#include "common/panels.h"
#include "common/some_lanes.h"
#include "common/tiles.h"
#include "common/vectors.h"
#include "edge_rotation/edge_rotation.h"

namespace mdops::MDOPS_ISA {

namespace {

constexpr int kTile = 9;

}  // namespace

template <class T>
void rotate_rows(const RotateArgs<T>& args, int64_t from, int64_t to) {
  const auto [edges, nodes, rows, columns, channels] = args.shape;
  for (int64_t e = from; e < to; ++e) {
    T* const y = args.y + e * rows * channels;
    if (args.x.is_none(e)) {
      std::fill(y, y + rows * channels, T(0));
      continue;
    }
    const T *const x = args.x.at(e, columns * channels), weight = args.weight ? args.weight[e] : T(1);
    each_tile<kTile>(rows, [&, columns = columns, channels = channels](int64_t first, auto size) {
      const T* const turn = args.turn + (e * args.shape.rows + first) * columns;
      each_piece<T>(channels, [&](int64_t c, auto zero) {
        constexpr int count = decltype(size)::value;
        decltype(zero) sums[count] = {};
        for (int64_t d = 0; d < columns; ++d) {
          const auto row = load<decltype(zero)>(x + d * channels + c);
          for (int r = 0; r < count; ++r) sums[r] += turn[r * columns + d] * row;
        }
        for (int r = 0; r < count; ++r) store(y + (first + r) * channels + c, sums[r] * weight);
      });
    });
  }
}

template <class T>
void rotate_sums(const RotateSumArgs<T>& args, int64_t from, int64_t to) {
  const auto [edges, nodes, rows, columns, channels] = args.shape;
  for (int64_t n = from; n < to; ++n) {
    T* const x = args.x + n * columns * channels;
    each_tile<kTile>(
        columns, [&, rows = rows, columns = columns, channels = channels](int64_t first, auto size) {
          each_piece<T>(channels, [&](int64_t c, auto zero) {
            constexpr int count = decltype(size)::value;
            decltype(zero) sums[count] = {};
            for (int64_t p = args.offsets[n]; p < args.offsets[n + 1]; ++p) {
              const int64_t e = args.order ? args.order[p] : p;
              const T *turn = args.turn + e * rows * columns + first, *y = args.y + e * rows * channels + c;
              const T weight = args.weight ? args.weight[e] : T(1);
              for (int64_t r = 0; r < rows; ++r, turn += columns, y += channels) {
                const auto row = load<decltype(zero)>(y) * weight;
                for (int d = 0; d < count; ++d) sums[d] += turn[d] * row;
              }
            }
            for (int d = 0; d < count; ++d) store(x + (first + d) * channels + c, sums[d]);
          });
        });
  }
}

template <class T>
int64_t rotate_outer_room(const RotateOuterArgs<T>& args) {
  return args.shape.nodes * args.shape.channels * padded<T>(args.shape.columns);
}

template <class T>
void rotate_by_channel(const RotateOuterArgs<T>& args, T* room, int64_t from, int64_t to) {
  const int64_t columns = args.shape.columns, channels = args.shape.channels, lanes = padded<T>(columns);
  for (int64_t n = from; n < to; ++n) {
    const T* const x = args.x.x + n * columns * channels;
    T* const rows = room + n * channels * lanes;
    for (int64_t c = 0; c < channels; ++c)
      for (int64_t d = 0; d < lanes; ++d) rows[c * lanes + d] = d < columns ? x[d * channels + c] : T(0);
  }
}

template <class T>
void rotate_outers(const RotateOuterArgs<T>& args, const T* room, int64_t from, int64_t to) {
  const auto [edges, nodes, rows, columns, channels] = args.shape;
  const int64_t lanes = padded<T>(columns), numbers = rows * columns;
  for (int64_t e = from; e < to; ++e) {
    T* const turn = args.turn + e * numbers;
    if (args.x.is_none(e)) {
      std::fill(turn, turn + numbers, T(0));
      if (args.by_weight) args.by_weight[e] = 0;
      continue;
    }
    const T* const x = room + args.x.index[e] * channels * lanes;
    each_tile<kTile>(rows,
                     [&, rows = rows, columns = columns, channels = channels](int64_t first, auto size) {
                       const T* const y = args.y + (e * rows + first) * channels;
                       for (int64_t d = 0; d < columns; d += kLanes<T>) {
                         constexpr int count = decltype(size)::value;
                         Vector<T> sums[count] = {};
                         for (int64_t c = 0; c < channels; ++c) {
                           const Vector<T> row = vector_at(x + c * lanes + d);
                           for (int r = 0; r < count; ++r) sums[r] += y[r * channels + c] * row;
                         }
                         with_lanes<T>(std::min<int64_t>(kLanes<T>, columns - d), [&](auto lanes) {
                           for (int r = 0; r < count; ++r)
                             lanes.store(turn + (first + r) * columns + d, sums[r]);
                         });
                       }
                     });
    if (!args.weight) continue;
    args.by_weight[e] = dot(turn, args.of_weight + e * numbers, numbers);
    for (int64_t k = 0; k < numbers; ++k) turn[k] *= args.weight[e];
  }
}

MDOPS_INSTANTIATE(rotate_rows, rotate_sums, rotate_outer_room, rotate_by_channel, rotate_outers)

}  // namespace mdops::MDOPS_ISA
