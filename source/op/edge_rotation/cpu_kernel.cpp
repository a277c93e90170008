#include <algorithm>
#include <cstring>

#include "edge_rotation/edge_rotation.h"

namespace mdops {
namespace MDOPS_ISA {

namespace {

constexpr int64_t kChannels = 16;  // that a row has in registers at once

// out[c] (+)= sum_k factors[k * step] rows[k][c], of `count` rows one after another.
template <bool kAdds, class T>
void combine(const T* factors, int64_t step, const T* __restrict rows, int64_t count, int64_t channels,
             T* __restrict out) {
  int64_t c = 0;
  for (; c + kChannels <= channels; c += kChannels) {
    T sums[kChannels];
    for (int64_t k = 0; k < kChannels; ++k) sums[k] = kAdds ? out[c + k] : T(0);
    for (int64_t row = 0; row < count; ++row) {
      const T factor = factors[row * step];
      for (int64_t k = 0; k < kChannels; ++k) sums[k] += factor * rows[row * channels + c + k];
    }
    for (int64_t k = 0; k < kChannels; ++k) out[c + k] = sums[k];
  }
  for (; c < channels; ++c) {
    T sum = kAdds ? out[c] : T(0);
    for (int64_t row = 0; row < count; ++row) sum += factors[row * step] * rows[row * channels + c];
    out[c] = sum;
  }
}

// x . y, in lanes that are summed up at the end.
template <class T>
T dot(const T* __restrict x, const T* __restrict y, int64_t channels) {
  T sums[kChannels] = {};
  int64_t c = 0;
  for (; c + kChannels <= channels; c += kChannels)
    for (int64_t k = 0; k < kChannels; ++k) sums[k] += x[c + k] * y[c + k];
  for (int64_t half = kChannels / 2; half > 0; half /= 2)
    for (int64_t k = 0; k < half; ++k) sums[k] += sums[k + half];
  for (; c < channels; ++c) sums[0] += x[c] * y[c];
  return sums[0];
}

}  // namespace

template <class T>
void rotate_rows(const RotateArgs<T>& args, int64_t from, int64_t to) {
  const auto [edges, nodes, rows, columns, channels] = args.shape;
  for (int64_t e = from; e < to; ++e) {
    T* y = args.y + e * rows * channels;
    if (args.x.is_none(e)) {
      std::fill(y, y + rows * channels, T(0));
      continue;
    }
    const T *turn = args.turn + e * rows * columns, *x = args.x.at(e, columns * channels);
    for (int64_t r = 0; r < rows; ++r)
      combine<false>(turn + r * columns, 1, x, columns, channels, y + r * channels);
    if (args.weight)
      for (int64_t k = 0; k < rows * channels; ++k) y[k] *= args.weight[e];
  }
}

template <class T>
void rotate_sums(const RotateSumArgs<T>& args, int64_t from, int64_t to) {
  const auto [edges, nodes, rows, columns, channels] = args.shape;
  constexpr int64_t most = kMostColumns;  // rows of weighted matrices that are at hand at once
  T weighted[most];
  for (int64_t n = from; n < to; ++n) {
    T* x = args.x + n * columns * channels;
    std::fill(x, x + columns * channels, T(0));
    for (int64_t p = args.offsets[n]; p < args.offsets[n + 1]; ++p) {
      const int64_t e = args.order ? args.order[p] : p;
      const T *turn = args.turn + e * rows * columns, *y = args.y + e * rows * channels;
      for (int64_t d = 0; d < columns; ++d) {
        if (!args.weight) {
          combine<true>(turn + d, columns, y, rows, channels, x + d * channels);
          continue;
        }
        for (int64_t first = 0; first < rows; first += most) {
          const int64_t count = std::min(most, rows - first);
          for (int64_t r = 0; r < count; ++r) weighted[r] = args.weight[e] * turn[(first + r) * columns + d];
          combine<true>(weighted, 1, y + first * channels, count, channels, x + d * channels);
        }
      }
    }
  }
}

template <class T>
void rotate_outers(const RotateOuterArgs<T>& args, int64_t from, int64_t to) {
  const auto [edges, nodes, rows, columns, channels] = args.shape;
  for (int64_t e = from; e < to; ++e) {
    T* turn = args.turn + e * rows * columns;
    if (args.x.is_none(e)) {
      std::fill(turn, turn + rows * columns, T(0));
      if (args.by_weight) args.by_weight[e] = 0;
      continue;
    }
    const T *y = args.y + e * rows * channels, *x = args.x.at(e, columns * channels);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t d = 0; d < columns; ++d)
        turn[r * columns + d] = dot(y + r * channels, x + d * channels, channels);
    if (!args.weight) continue;
    T sum = 0;
    for (int64_t k = 0; k < rows * columns; ++k) {
      sum += turn[k] * args.of_weight[e * rows * columns + k];
      turn[k] *= args.weight[e];
    }
    args.by_weight[e] = sum;
  }
}

MDOPS_INSTANTIATE(rotate_rows)
MDOPS_INSTANTIATE(rotate_sums)
MDOPS_INSTANTIATE(rotate_outers)

}  // namespace MDOPS_ISA
}  // namespace mdops
