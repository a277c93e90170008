// Harmonic moments on a GPU. Each lane prepares one neighbour: its place among the splines, their values and
// the harmonics. Then the lanes share the splines and components of one neighbour after the other, in a fixed
// order. Sums, and gradients by them, of one type of neighbours at a time lie in shared memory if they fit,
// spline by spline: a neighbour uses six consecutive lines.
#pragma once

#include "common/rows.h"
#include "env_mat/gpu_nearest.h"
#include "gemm/gpu_memory.h"
#include "harmonic_moment/harmonic_moment.h"
#include "spline_moment/gpu_moments.h"

namespace mdops::gpu_harmonic {

constexpr int kWarps = 4;

// The neighbours of 32 slots that are within the cutoff: of each the values of its six splines, times chi,
// and all harmonics.
template <class T, int Degree>
struct alignas(16) Staged {
  static constexpr int kComponents = components_to(Degree);
  T weight[kSplineSupport][kWarp], harmonic[kComponents][kWarp];
  int32_t first[kWarp];
};

// Whether this lane's slot, below a limit, is a neighbour within the cutoff, and its place among those of the
// warp; `count`: their number.
template <class T>
struct LanePair {
  T d[3];
  bool near;
  int place, count;
  T r2;

  __device__ LanePair(const HarmonicMomentArgs<T>& args, const T* slots, int64_t slot, int64_t end)
      : d{0, 0, 0}, near(slot < end) {
    if (near)
      for (int a = 0; a < 3; ++a) d[a] = slots[3 * slot + a];
    r2 = d[0] * d[0] + d[1] * d[1] + d[2] * d[2];
    near = near && !(r2 >= args.cutoff * args.cutoff);
    const unsigned all = __ballot_sync(kAllLanes, near);
    place = __popc(all & ((1u << lane_index()) - 1)), count = __popc(all);
  }
};

// Neighbours are added in groups of as many as are read at once.
template <class T>
constexpr int kAtOnce = 16 / sizeof(T);

// Returns chi of this lane's neighbour, or zero. Harmonics from degree 1 on have chi twice.
template <class T, int Degree>
MDOPS_D T stage_pair(const HarmonicMomentArgs<T>& args, const LanePair<T>& lane, Staged<T, Degree>* stage) {
  using Pair = HarmonicPair<T>;
  T chi = 0;
  __syncwarp();
  if (lane.near) {
    const Pair pair(lane.d, args.cutoff, args.grid);
    const T* const e = pair.direction;
    chi = pair.chi;
    T value[kSplineSupport];
    spline_values(pair.place.t, value);
    for (int k = 0; k < kSplineSupport; ++k) stage->weight[k][lane.place] = value[k] * pair.chi;
    Pair::each(T(1), e[0], e[1], e[2], Degree,
               [&](int l, int n, T b) { stage->harmonic[n][lane.place] = l > 0 ? b * chi : b; });
    stage->first[lane.place] = pair.place.interval;
  }
  // Pads with zeros to a multiple of `kAtOnce`.
  const int beyond = lane.count + lane_index();
  if (lane_index() < kAtOnce<T> - 1 && beyond < kWarp) {
    for (int k = 0; k < kSplineSupport; ++k) stage->weight[k][beyond] = T(0);
    for (int n = 0; n < components_to(Degree); ++n) stage->harmonic[n][beyond] = T(0);
    stage->first[beyond] = 0;
  }
  __syncwarp();
  return chi;
}

// Products of the moments of each type of neighbours with a table.
template <class T>
struct SumResults {
  HarmonicSumArgs<T> p;
  HarmonicSums<T> out;

  __device__ void begin(const HarmonicMomentArgs<T>& args, int64_t i, T value) const {
    const int64_t numbers = components_to(args.degree) * p.seconds;
    for (int64_t c = lane_index(); c < p.width(); c += kWarp) out.first[i * p.width() + c] = value;
    for (int64_t c = lane_index(); c < numbers; c += kWarp) out.second[i * numbers + c] = value;
    if (lane_index() == 0) out.within[i] = 0, out.nearest[i] = value + args.cutoff;
    __syncwarp();
  }

  __device__ void end(int64_t i, const T* masses, int within, T nearest2) const {
    const T own[2] = {warp_sum(masses[0]), warp_sum(masses[1])}, nearest = warp_nearest(nearest2);
    if (lane_index() > 0) return;
    T* const to = out.first + i * p.width() + p.firsts;
    to[0] = own[0], to[1] = own[1];
    out.within[i] = within, out.nearest[i] = std::sqrt(nearest);
  }

  template <int kComponents>
  __device__ void take(const HarmonicMomentArgs<T>& args, int64_t i, int t, const T* sums) const {
    constexpr int kHalf = kWarp / 2;
    const int basis = static_cast<int>(args.basis), lane = lane_index();
    const int firsts = static_cast<int>(p.firsts), seconds = static_cast<int>(p.seconds);
    const int64_t begin = args.types[i] * args.row() + t * args.basis;
    const T* const table = p.table + begin * firsts;
    T* const to_first = out.first + i * p.width();
    T* const to_second = out.second + i * kComponents * seconds;
    if (firsts <= kHalf) {  // each half of the warp takes every other spline
      const int c = lane % kHalf, mine = c < firsts ? c : 0;
      T sum = 0;
#pragma unroll 8
      for (int b = lane / kHalf; b < basis; b += 2) sum += sums[b * kComponents] * table[b * firsts + mine];
      sum += __shfl_xor_sync(kAllLanes, sum, kHalf);
      if (lane < firsts) to_first[c] += sum;
    } else {
      for (int from = 0; from < firsts; from += kEach * kWarp)
        each_column<kComponents>(sums, basis, table, firsts, from + lane, to_first);
    }
    // A lane has a column of the others' table, and components `apart` from each other.
    const int c = lane & (seconds - 1), apart = kWarp / seconds;
    for (int m = 1 + lane / seconds; __any_sync(kAllLanes, m < kComponents); m += kEach * apart) {
      T sum[kEach] = {};
      int at[kEach];
#pragma unroll
      for (int u = 0; u < kEach; ++u) at[u] = m + u * apart < kComponents ? m + u * apart : 0;
#pragma unroll 4
      for (int b = 0; b < basis; ++b) {
        const T x = table[b * firsts + c];
#pragma unroll
        for (int u = 0; u < kEach; ++u) sum[u] += sums[b * kComponents + at[u]] * x;
      }
#pragma unroll
      for (int u = 0; u < kEach; ++u)
        if (at[u] > 0) to_second[at[u] * seconds + c] += sum[u];
    }
  }

 private:
  static constexpr int kEach = 4;

  // Columns c, c + 32 and so on, of the first component.
  template <int kComponents>
  static __device__ void each_column(const T* sums, int basis, const T* table, int columns, int c, T* to) {
    T sum[kEach] = {};
#pragma unroll 4
    for (int b = 0; b < basis; ++b) {
      const T x = sums[b * kComponents];
#pragma unroll
      for (int u = 0; u < kEach; ++u)
        if (c + u * kWarp < columns) sum[u] += x * table[b * columns + c + u * kWarp];
    }
#pragma unroll
    for (int u = 0; u < kEach; ++u)
      if (c + u * kWarp < columns) to[c + u * kWarp] += sum[u];
  }
};

// A warp an atom. The moments of each type of neighbours, spline by spline, lie in shared memory, or in
// `room` of so many numbers for each atom.
template <class T, int Degree, bool InShared>
__global__ void __launch_bounds__(kWarps* kWarp)
    moments_kernel(HarmonicMomentArgs<T> args, T* room, SumResults<T> results) {
  using Numbers = Pack<T, kAtOnce<T>>;
  constexpr int kComponents = components_to(Degree), kNumbers = kSplineSupport * kComponents;
  constexpr int kItems = (kNumbers + kWarp - 1) / kWarp;
  const int warp = warp_index(), lane = lane_index(), warps = blockDim.x / kWarp;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * warps + warp;
  if (i >= args.atoms) return;
  const int32_t* const counts = args.counts + i * args.ntypes;
  const RowKind kind = row_kind(args.types[i], args.ntypes, counts, args.width);
  results.begin(args, i, kind == RowKind::wrong ? not_a_number<T>() : T(0));
  if (kind != RowKind::real) return;
  const int basis = static_cast<int>(args.basis), numbers = basis * kComponents;
  const int64_t bytes = sizeof(Staged<T, Degree>) + (InShared ? numbers * sizeof(T) : 0);
  auto* const stage = reinterpret_cast<Staged<T, Degree>*>(net_memory() + warp * bytes);
  T* const sums = InShared ? reinterpret_cast<T*>(stage + 1) : room + i * numbers;
  // The spline and component of which this lane sums.
  int k_of[kItems], n_of[kItems];
#pragma unroll
  for (int item = 0; item < kItems; ++item) {
    const int number = lane + item * kWarp, known = number < kNumbers ? number : 0;
    k_of[item] = known / kComponents, n_of[item] = known % kComponents;
  }
  const bool has_last = lane + (kItems - 1) * kWarp < kNumbers;
  const T* const slots = args.displacements + 3 * i * args.width;
  T masses[2] = {0, 0}, nearest2 = args.cutoff * args.cutoff;
  int within = 0;
  int64_t slot = 0;
  for (int t = 0; t < args.ntypes; ++t) {
    const int64_t begin = slot, end = slot + counts[t];
    slot = end;
    const bool masked = args.pair_mask[args.types[i] * args.ntypes + t];
    if (begin == end) continue;
    __syncwarp();
    for (int k = lane; k < numbers; k += kWarp) sums[k] = T(0);
    for (int64_t first = begin; first < end; first += kWarp) {
      const LanePair<T> own(args, slots, first + lane, end);
      within += own.count;
      if (own.near) nearest2 = nearest_of(nearest2, own.r2);
      if (masked) continue;
      const T chi = stage_pair(args, own, stage), chi2 = chi * chi;
      masses[0] += chi2, masses[1] += chi2 * chi2;
      for (int j = 0; j < own.count; j += kAtOnce<T>) {
        Numbers weight[kItems], harmonic[kItems];
#pragma unroll
        for (int item = 0; item < kItems; ++item) {
          weight[item] = *reinterpret_cast<const Numbers*>(stage->weight[k_of[item]] + j);
          harmonic[item] = *reinterpret_cast<const Numbers*>(stage->harmonic[n_of[item]] + j);
        }
#pragma unroll
        for (int u = 0; u < kAtOnce<T>; ++u) {
          T* const to = sums + stage->first[j + u] * kComponents + lane;
          T now[kItems];
#pragma unroll
          for (int item = 0; item < kItems; ++item)
            if (item + 1 < kItems || has_last) now[item] = to[item * kWarp];
#pragma unroll
          for (int item = 0; item < kItems; ++item)
            if (item + 1 < kItems || has_last)
              to[item * kWarp] = now[item] + weight[item].of[u] * harmonic[item].of[u];
          __syncwarp();  // other lanes write the next one's numbers
        }
      }
    }
    __syncwarp();
    if (!masked) results.template take<kComponents>(args, i, t, sums);
  }
  results.end(i, masses, within, nearest2);
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

// Gradients by the moments of a type of neighbours, and by those of the slopes behind them: products with a
// table.
template <class T>
struct SumGradients {
  HarmonicSumArgs<T> p;
  const T *by_first, *by_second;

  __device__ void masses(int64_t i, T* by) const {
    for (int w = 0; w < 2; ++w) by[w] = by_first[i * p.width() + p.firsts + w];
  }

  static constexpr int kEach = 4;  // functions at once
  int64_t padded_firsts() const { return (p.firsts + kEach - 1) / kEach * kEach; }
  int64_t room(int components) const { return padded_firsts() + components * p.seconds; }

  __device__ void begin(const HarmonicMomentArgs<T>& args, int64_t i, T* own) const {
    const int threads = blockDim.x, firsts = static_cast<int>(p.firsts);
    const int numbers = components_to(args.degree) * static_cast<int>(p.seconds);
    const int padded = (firsts + kEach - 1) / kEach * kEach;
    for (int k = threadIdx.x; k < padded; k += threads)
      own[k] = k < firsts ? by_first[i * p.width() + k] : T(0);
    for (int k = threadIdx.x; k < numbers; k += threads) own[padded + k] = by_second[i * numbers + k];
  }

  // A thread a spline.
  template <int kComponents, int kStride>
  __device__ void give(const HarmonicMomentArgs<T>& args, int64_t i, int t, const T* own, T* tables) const {
    using Numbers = Pack<T, kEach>;
    const int basis = static_cast<int>(args.basis), firsts = static_cast<int>(p.firsts);
    const int seconds = static_cast<int>(p.seconds), padded = (firsts + kEach - 1) / kEach * kEach;
    const int64_t row = args.row(), type = args.types[i];
    for (int task = threadIdx.x; task < 2 * basis; task += blockDim.x) {
      const bool second = task >= basis;
      const int b = second ? task - basis : task;
      const int64_t place = t * args.basis + b;
      const T* of_first = (second ? p.rows[1] : p.rows[0]) + type * firsts * row + place;
      const T* of_second = of_first;
      T sum[kComponents] = {};
      for (int c = 0; c < padded; c += kEach, of_first += kEach * row) {
        const Numbers by = *reinterpret_cast<const Numbers*>(own + c);
#pragma unroll
        for (int u = 0; u < kEach; ++u)
          if (c + u < firsts) sum[0] += by.of[u] * of_first[u * row];
      }
      for (int c = 0; c < seconds; c += kEach, of_second += kEach * row) {
        T x[kEach];
#pragma unroll
        for (int u = 0; u < kEach; ++u) x[u] = of_second[u * row];
#pragma unroll
        for (int m = 1; m < kComponents; ++m) {
          const Numbers by = *reinterpret_cast<const Numbers*>(own + padded + m * seconds + c);
#pragma unroll
          for (int u = 0; u < kEach; ++u) sum[m] += by.of[u] * x[u];
        }
      }
#pragma unroll
      for (int m = 0; m < kComponents; ++m) tables[task * kStride + m] = sum[m];
    }
  }
};

// A block an atom, and each warp some of its neighbours. The gradients of `source` lie in shared memory, or
// in `room`.
template <class T, int Degree, bool InShared>
__global__ void __launch_bounds__(kWarps* kWarp)
    gradients_kernel(HarmonicMomentArgs<T> args, T* room, SumGradients<T> source, T* pair_grad) {
  using Own = StagedGradients<T, Degree>;
  constexpr int kComponents = Own::kComponents, kStride = Own::kStride;
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
  auto* const stages = reinterpret_cast<Own*>(net_memory());
  Own* const stage = stages + warp;
  T* const tables = InShared ? reinterpret_cast<T*>(stages + warps) : room + i * 2 * basis * kStride;
  T* const own_room = reinterpret_cast<T*>(stages + warps) + (InShared ? 2 * basis * kStride : 0);
  source.begin(args, i, own_room);
  T by_masses[2];
  source.masses(i, by_masses);
  const int beside = lane / kComponents, n = lane % kComponents;
  const T *const from = tables + n, *const steep = from + basis * kStride;
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
    __syncthreads();
    source.template give<kComponents, kStride>(args, i, t, own_room, tables);
    __syncthreads();
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
          const int at = stage->first[j] * kStride;
          T p = 0, q = 0;
#pragma unroll
          for (int k = 0; k < kSplineSupport; ++k) p += w.of[k] * from[at + k * kStride];
#pragma unroll
          for (int k = 0; k < Own::kQuartics; ++k) q += w.of[kSplineSupport + k] * steep[at + k * kStride];
          stage->sum[0][j][n] = p, stage->sum[1][j][n] = q;
        }
      }
      __syncwarp();
      T v[3] = {0, 0, 0};
      if (own.near) {
        const T along = pair.by_masses(by_masses[0], by_masses[1]);
        pair.gradient(Degree, stage->sum[0][own.place], stage->sum[1][own.place], along, v);
      }
      const int64_t left = end - first;
      store_triples(v, stage->triples, out + 3 * first, left < kWarp ? static_cast<int>(left) : kWarp);
    }
  }
  for (int64_t k = 3 * slot + threadIdx.x; k < 3 * args.width; k += threads) out[k] = T(0);
}

}  // namespace mdops::gpu_harmonic
