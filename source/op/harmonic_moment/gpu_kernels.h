// Harmonic moments on a GPU. Each lane prepares one neighbour: its place among the splines, their values and
// the harmonics. Then the lanes take numbers of splines and components side by side, one neighbour after the
// other, in an order that is always the same. Sums, and gradients by them, of one type of neighbours at a
// time lie in shared memory if they fit, spline by spline: what a neighbour has to do with are six lines in a
// row.
#pragma once

#include <type_traits>

#include "common/rows.h"
#include "gemm/gpu_memory.h"
#include "harmonic_moment/harmonic_moment.h"
#include "spline_moment/gpu_moments.h"

namespace mdops {

namespace gpu_harmonic {

constexpr int kWarps = 4;

// The neighbours of 32 slots that are within the cutoff: of each the values of its six splines, times chi,
// and all harmonics.
template <class T, int Degree>
struct alignas(16) Staged {
  static constexpr int kComponents = components_to(Degree);
  T weight[kSplineSupport][kWarp], harmonic[kComponents][kWarp];
  int32_t first[kWarp];
};

// Whether this lane's slot, of so many, is a neighbour within the cutoff, and its place among those of the
// warp; `count`: how many there are.
template <class T>
struct LanePair {
  T d[3];
  bool near;
  int place, count;

  __device__ LanePair(const HarmonicMomentArgs<T>& args, const T* slots, int64_t slot, int64_t end)
      : d{0, 0, 0}, near(slot < end) {
    if (near)
      for (int a = 0; a < 3; ++a) d[a] = slots[3 * slot + a];
    near = near && !(d[0] * d[0] + d[1] * d[1] + d[2] * d[2] >= args.cutoff * args.cutoff);
    const unsigned all = __ballot_sync(kAllLanes, near);
    place = __popc(all & ((1u << lane_index()) - 1)), count = __popc(all);
  }
};

// Neighbours are added so many at once, as many as are read at once.
template <class T>
constexpr int kAtOnce = 16 / sizeof(T);

template <class T, int Degree>
__device__ __forceinline__ void stage_pair(const HarmonicMomentArgs<T>& args, const LanePair<T>& lane,
                                           Staged<T, Degree>* stage) {
  using Pair = HarmonicPair<T>;
  __syncwarp();
  if (lane.near) {
    const Pair pair(lane.d, args.cutoff, args.grid);
    const T* const e = pair.direction;
    T value[kSplineSupport];
    spline_values(pair.place.t, value);
    for (int k = 0; k < kSplineSupport; ++k) stage->weight[k][lane.place] = value[k] * pair.chi;
    Pair::each(T(1), e[0], e[1], e[2], Degree, [&](int, int n, T b) { stage->harmonic[n][lane.place] = b; });
    stage->first[lane.place] = pair.place.interval;
  }
  // Up to a multiple of `kAtOnce` places that add zero.
  const int beyond = lane.count + lane_index();
  if (lane_index() < kAtOnce<T> - 1 && beyond < kWarp) {
    for (int k = 0; k < kSplineSupport; ++k) stage->weight[k][beyond] = T(0);
    for (int n = 0; n < components_to(Degree); ++n) stage->harmonic[n][beyond] = T(0);
    stage->first[beyond] = 0;
  }
  __syncwarp();
}

// A warp an atom.
template <class T, int Degree, bool InShared>
__global__ void __launch_bounds__(kWarps* kWarp) moments_kernel(HarmonicMomentArgs<T> args, T* moments) {
  using Numbers = Pack<T, kAtOnce<T>>;
  constexpr int kComponents = components_to(Degree), kNumbers = kSplineSupport * kComponents;
  constexpr int kItems = (kNumbers + kWarp - 1) / kWarp;
  const int warp = warp_index(), lane = lane_index(), warps = blockDim.x / kWarp;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * warps + warp;
  if (i >= args.atoms) return;
  T* const out = moments + i * args.numbers();
  const int32_t* const counts = args.counts + i * args.ntypes;
  const RowKind kind = row_kind(args.types[i], args.ntypes, counts, args.width);
  if (kind != RowKind::real) {
    const T answer = kind == RowKind::wrong ? not_a_number<T>() : T(0);
    for (int64_t k = lane; k < args.numbers(); k += kWarp) out[k] = answer;
    return;
  }
  const int basis = static_cast<int>(args.basis);
  const int64_t row = args.row(),
                bytes = sizeof(Staged<T, Degree>) + (InShared ? basis * kComponents * sizeof(T) : 0);
  char* const memory = net_memory() + warp * bytes;
  auto* const stage = reinterpret_cast<Staged<T, Degree>*>(memory);
  // What of a neighbour's numbers is this lane's: spline k, component n, and their place behind its first.
  const int64_t step = InShared ? kComponents : 1;
  int k_of[kItems], n_of[kItems];
  int64_t place_of[kItems];
#pragma unroll
  for (int item = 0; item < kItems; ++item) {
    const int number = lane + item * kWarp, known = number < kNumbers ? number : 0;
    k_of[item] = known / kComponents, n_of[item] = known % kComponents;
    place_of[item] = InShared ? known : n_of[item] * row + k_of[item];
  }
  const bool has_last = lane + (kItems - 1) * kWarp < kNumbers;
  const T* const slots = args.displacements + 3 * i * args.width;
  int64_t slot = 0;
  for (int t = 0; t < args.ntypes; ++t) {
    T* const of_type = out + t * basis;
    T* const sums = InShared ? reinterpret_cast<T*>(stage + 1) : of_type;
    if constexpr (InShared) {
      __syncwarp();
      for (int k = lane; k < basis * kComponents; k += kWarp) sums[k] = T(0);
    } else {
      for (int n = 0; n < kComponents; ++n)
        for (int b = lane; b < basis; b += kWarp) of_type[n * row + b] = T(0);
    }
    const int64_t begin = slot, end = slot + counts[t];
    slot = end;
    if (args.pair_mask[args.types[i] * args.ntypes + t]) {
      if constexpr (!InShared) continue;
    } else {
      for (int64_t first = begin; first < end; first += kWarp) {
        const LanePair<T> own(args, slots, first + lane, end);
        stage_pair(args, own, stage);
        for (int j = 0; j < own.count; j += kAtOnce<T>) {
          Numbers weight[kItems], harmonic[kItems];
#pragma unroll
          for (int item = 0; item < kItems; ++item) {
            weight[item] = *reinterpret_cast<const Numbers*>(stage->weight[k_of[item]] + j);
            harmonic[item] = *reinterpret_cast<const Numbers*>(stage->harmonic[n_of[item]] + j);
          }
#pragma unroll
          for (int u = 0; u < kAtOnce<T>; ++u) {
            T* const to = sums + stage->first[j + u] * step;
            T now[kItems];
#pragma unroll
            for (int item = 0; item < kItems; ++item)
              if (item + 1 < kItems || has_last) now[item] = to[place_of[item]];
#pragma unroll
            for (int item = 0; item < kItems; ++item)
              if (item + 1 < kItems || has_last)
                to[place_of[item]] = now[item] + weight[item].of[u] * harmonic[item].of[u];
            __syncwarp();  // the next one's numbers are other lanes'
          }
        }
      }
    }
    if constexpr (InShared) {
      __syncwarp();
      // Lanes beside each other in a line of components, or in four lines where those would be in one bank.
      constexpr int kLines = kComponents % 2 ? 1 : 4, kAcross = kWarp / kLines;
      for (int n = lane / kAcross; n < kComponents; n += kLines)
        for (int b = lane % kAcross; b < basis; b += kAcross)
          of_type[n * row + b] = sums[b * kComponents + n];
    }
  }
}

// The same for gradients: of each neighbour the values of its six splines and of five quartic ones, with
// zeros up to sixteen bytes, and then the sums of gradients by both, without chi.
template <class T, int Degree>
struct alignas(16) StagedGradients {
  static constexpr int kComponents = components_to(Degree), kStride = kComponents | 1;
  static constexpr int kQuartics = kSplineSupport - 1, kWeights = 12;
  using Weights = Pack<T, kWeights>;
  Weights weight[kWarp];
  int32_t first[kWarp];
  T sum[2][kWarp][kStride];
  T triples[3 * kWarp];
};

// A block an atom, a warp so many of its neighbours.
template <class T, int Degree, bool InShared>
__global__ void __launch_bounds__(kWarps* kWarp)
    gradients_kernel(HarmonicMomentArgs<T> args, const T* grad, const T* slope, T* pair_grad) {
  using Own = StagedGradients<T, Degree>;
  constexpr int kComponents = Own::kComponents;
  constexpr int kSideBySide = kWarp / kComponents;  // neighbours
  const int warp = warp_index(), lane = lane_index(), threads = blockDim.x, warps = threads / kWarp;
  const int64_t i = blockIdx.x;
  T* const out = pair_grad + 3 * i * args.width;
  const int32_t* const counts = args.counts + i * args.ntypes;
  const RowKind kind = row_kind(args.types[i], args.ntypes, counts, args.width);
  if (kind != RowKind::real) {
    const T answer = kind == RowKind::wrong ? not_a_number<T>() : T(0);
    for (int64_t k = threadIdx.x; k < 3 * args.width; k += threads) out[k] = answer;
    return;
  }
  const int basis = static_cast<int>(args.basis);
  const int64_t row = args.row(), of_atom = i * args.numbers();
  auto* const stages = reinterpret_cast<Own*>(net_memory());
  Own* const stage = stages + warp;
  T* const tables = reinterpret_cast<T*>(stages + warps);
  const int beside = lane / kComponents, n = lane % kComponents;
  const int64_t step = InShared ? Own::kStride : 1;
  const T* const slots = args.displacements + 3 * i * args.width;
  int64_t slot = 0;
  for (int t = 0; t < args.ntypes; ++t) {
    const int64_t begin = slot, end = slot + counts[t];
    slot = end;
    if (begin == end) continue;
    if (args.pair_mask[args.types[i] * args.ntypes + t]) {
      for (int64_t k = 3 * begin + threadIdx.x; k < 3 * end; k += threads) out[k] = T(0);
      continue;
    }
    const T *by = grad + of_atom + t * basis, *by_slope = slope + of_atom + t * basis;
    const T *from = by + n * row, *steep = by_slope + n * row;
    if constexpr (InShared) {
      T* const second = tables + basis * Own::kStride;
      __syncthreads();
      for (int line = warp; line < 2 * kComponents; line += warps) {
        const int m = line < kComponents ? line : line - kComponents;
        const T* const read = (line < kComponents ? by : by_slope) + m * row;
        T* const to = (line < kComponents ? tables : second) + m;
#pragma unroll 4
        for (int b = lane; b < basis; b += kWarp) to[b * Own::kStride] = read[b];
      }
      __syncthreads();
      from = tables + n, steep = second + n;
    }
    for (int64_t first = begin + warp * kWarp; first < end; first += threads) {
      const LanePair<T> own(args, slots, first + lane, end);
      const HarmonicPair<T> pair(own.d, args.cutoff, args.grid);
      __syncwarp();
      if (own.near) {
        typename Own::Weights w{};
        spline_values(pair.place.t, w.of);
        quartic_values(pair.place.t, w.of + kSplineSupport);
        stage->weight[own.place] = w, stage->first[own.place] = pair.place.interval;
      }
      __syncwarp();
      if (beside < kSideBySide) {
#pragma unroll 2
        for (int j = beside; j < own.count; j += kSideBySide) {
          const typename Own::Weights w = stage->weight[j];
          const int64_t at = stage->first[j] * step;
          T p = 0, q = 0;
#pragma unroll
          for (int k = 0; k < kSplineSupport; ++k) p += w.of[k] * from[at + k * step];
#pragma unroll
          for (int k = 0; k < Own::kQuartics; ++k) q += w.of[kSplineSupport + k] * steep[at + k * step];
          stage->sum[0][j][n] = p, stage->sum[1][j][n] = q;
        }
      }
      __syncwarp();
      T v[3] = {0, 0, 0};
      if (own.near) pair.gradient(Degree, stage->sum[0][own.place], stage->sum[1][own.place], v);
      const int64_t left = end - first;
      store_triples(v, stage->triples, out + 3 * first, left < kWarp ? static_cast<int>(left) : kWarp);
    }
  }
  for (int64_t k = 3 * slot + threadIdx.x; k < 3 * args.width; k += threads) out[k] = T(0);
}

}  // namespace gpu_harmonic

}  // namespace mdops
