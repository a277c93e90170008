// Harmonic sums on a GPU of many functions, some of them summed with harmonics. The latter are evaluated by
// polynomials, a lane a neighbour, as in gpu_direct.h; then each lane has a component and some of the
// functions. For all functions, only sums of the splines are formed, as integers, and multiplied by the
// coefficients for many atoms at once; backward these products come first.
#pragma once

#include "common/gpu_unroll.h"
#include "harmonic_moment/gpu_direct.h"

namespace mdops::gpu_harmonic {

constexpr int kWideWarps = 16;

// How lanes share the components above degree 0 times functions: each has one component and some functions.
template <int Degree, int Seconds>
struct WideTile {
  static constexpr int kOthers = components_to(Degree) - 1;
  static constexpr int each() {
    int n = 1;
    while (kOthers * (Seconds / n) > kWarp) n *= 2;
    return n;
  }
  static constexpr int kEach = each(), kAcross = Seconds / kEach;
};

// Of 32 neighbours: chi^2 times the functions, and harmonics.
template <class T, int Degree, int Seconds>
struct alignas(16) WideStage {
  static constexpr int kRow = kWarp + kLine<T>;
  T function[Seconds][kRow], harmonic[components_to(Degree) - 1][kRow];
};

// out[i][c] = sum_k a[i][k] table[type of i][k][c], for one table or two beside each other.
template <class T>
struct TypedProduct {
  const T* a;
  int64_t a_row;
  const T* table[2];
  T* out;
  int64_t out_row;
  int depth, columns, tables;
  const int32_t* types;
  int ntypes;
  int64_t atoms;
};

constexpr int kTileRows = 64, kTileDepth = 16, kTileThreads = 256, kTileEach = 4;

// A block has 64 atoms and 64 columns. It loops over their types; atoms of other types count as zero.
template <class T>
__global__ void __launch_bounds__(kTileThreads) typed_product_kernel(TypedProduct<T> p) {
  using Numbers = Pack<T, kTileEach>;
  __shared__ Numbers own[kTileDepth][kTileRows / kTileEach + 1], rows[kTileDepth][kTileRows / kTileEach];
  __shared__ int32_t types[kTileRows];
  const int across = (p.columns + kTileRows - 1) / kTileRows, all = across * p.tables;
  const int tile = static_cast<int>(blockIdx.x % all), which = tile / across;
  const int first_column = tile % across * kTileRows, thread = threadIdx.x;
  const int64_t first = blockIdx.x / all * kTileRows;
  if (thread < kTileRows) types[thread] = first + thread < p.atoms ? p.types[first + thread] : -1;
  __syncthreads();
  const int column = thread % 16 * kTileEach, row = thread / 16 * kTileEach;
  T sum[kTileEach][kTileEach] = {};
  for (int type = 0; type < p.ntypes; ++type) {
    bool is_there = false;
    for (int r = 0; r < kTileRows; ++r) is_there |= types[r] == type;
    if (!is_there) continue;
    const T* const table =
        (which ? p.table[1] : p.table[0]) + static_cast<int64_t>(type) * p.depth * p.columns;
    for (int from = 0; from < p.depth; from += kTileDepth) {
      const int r = thread / 4, c = thread / 16;
      const T* const a = p.a + (first + r) * p.a_row;
#pragma unroll
      for (int u = 0; u < kTileEach; ++u) {
        const int k = from + thread % 4 * kTileEach + u, n = first_column + column + u;
        own[k - from][r / kTileEach].of[r % kTileEach] = types[r] == type && k < p.depth ? a[k] : T(0);
        rows[c][thread % 16].of[u] = from + c < p.depth && n < p.columns
                                         ? table[static_cast<int64_t>(from + c) * p.columns + n]
                                         : T(0);
      }
      __syncthreads();
#pragma unroll
      for (int k = 0; k < kTileDepth; ++k) {
        const Numbers x = own[k][row / kTileEach];
        const Numbers y = rows[k][thread % 16];
        unrolled<kTileEach, kTileEach>([&](int m, int n) { sum[m][n] += x.of[m] * y.of[n]; });
      }
      __syncthreads();
    }
  }
#pragma unroll
  for (int m = 0; m < kTileEach; ++m) {
    const int64_t i = first + row + m;
    const int32_t type = types[row + m];
    const T wrong = type < -1 || type >= p.ntypes ? not_a_number<T>() : T(0);
#pragma unroll
    for (int n = 0; n < kTileEach; ++n) {
      const int at = first_column + column + n;
      if (i < p.atoms && at < p.columns) p.out[i * p.out_row + which * p.columns + at] = sum[m][n] + wrong;
    }
  }
}

// All but the sums of `firsts` functions, and for these `moments` (N, row) of the splines. A warp an atom.
template <class T, int Degree, int Seconds>
__global__ void __launch_bounds__(kWideWarps* kWarp)
    wide_sums_kernel(HarmonicMomentArgs<T> args, HarmonicSumArgs<T> p, T* moments, HarmonicSums<T> out) {
  using Tile = WideTile<Degree, Seconds>;
  using Stage = WideStage<T, Degree, Seconds>;
  using Numbers = Pack<T, kLine<T>>;
  constexpr int kComponents = components_to(Degree);
  const int lane = lane_index(), warp = warp_index(), row = static_cast<int>(args.row());
  DirectArgs<T> own(args, p);
  auto* const waiting = reinterpret_cast<Waiting<T>*>(net_memory());
  auto* const stages = reinterpret_cast<Stage*>(waiting + kWideWarps);
  auto* const counters = reinterpret_cast<int32_t*>(stages + kWideWarps);
  own.copy(reinterpret_cast<T*>(counters + kWideWarps * row));
  Stage* const stage = stages + warp;
  int32_t* const counter = counters + warp * row;
  const bool has_part = lane < Tile::kOthers * Tile::kAcross;
  const int m = has_part ? lane / Tile::kAcross : 0, first_function = lane % Tile::kAcross * Tile::kEach;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kWideWarps;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kWideWarps + warp; i < args.atoms; i += step) {
    const int32_t type = args.types[i], *counts = args.counts + i * args.ntypes;
    const RowKind kind = row_kind(type, args.ntypes, counts, args.width);
    T* const to_masses = out.first + i * p.width() + p.firsts;
    T* const to_second = out.second + i * kComponents * Seconds;
    if (kind != RowKind::real) {
      const T value = kind == RowKind::wrong ? not_a_number<T>() : T(0);
      for (int k = lane; k < row; k += kWarp) moments[i * row + k] = value;
      for (int c = lane; c < kComponents * Seconds; c += kWarp) to_second[c] = value;
      if (lane < 2) to_masses[lane] = value;
      if (lane == 0) out.within[i] = 0, out.nearest[i] = value + args.cutoff;
      continue;
    }
    int total = 0;
    for (int t = 0; t < args.ntypes; ++t) total += counts[t];
    // Splines are below one, and their sums below 2^30.
    const int bits = 30 - (total > 0 ? 32 - __clz(total) : 0);
    const T scale = static_cast<T>(int64_t{1} << bits), unit = T(1) / scale;
    __syncwarp();
    for (int k = lane; k < row; k += kWarp) counter[k] = 0;
    const T* const of_type = own.of_type(type);
    T masses[2] = {0, 0}, sum[Tile::kEach] = {}, nearest2 = args.cutoff * args.cutoff;
    const int within = each_near(
        args, i, waiting + warp, &nearest2,
        [&](const T* d, int other, int, bool is_there) {
          const HarmonicPair<T> pair(d, args.cutoff, args.grid);
          const T chi = is_there ? pair.chi : T(0), chi2 = chi * chi, t = pair.place.t;
          const T* const piece = own.piece(of_type, other, pair);
          masses[0] += chi2, masses[1] += chi2 * chi2;
          T weight[kSplineSupport];
          spline_values(t, weight);
          if (is_there)
            for (int k = 0; k < kSplineSupport; ++k)
              atomicAdd(counter + other * static_cast<int>(args.basis) + pair.place.interval + k,
                        static_cast<int32_t>(rint(weight[k] * chi * scale)));
#pragma unroll
          for (int c = 0; c < Seconds; c += kTogether) {
            T f[kTogether], none[kTogether];
            evaluate<false>(piece + c, Seconds, t, f, none);
#pragma unroll
            for (int u = 0; u < kTogether; ++u) stage->function[c + u][lane] = chi2 * f[u];
          }
          const T* const e = pair.direction;
          HarmonicPair<T>::each(T(1), e[0], e[1], e[2], Degree, [&](int l, int n, T b) {
            if (l > 0) stage->harmonic[n - 1][lane] = b;
          });
          __syncwarp();
#pragma unroll
          for (int j = 0; j < kWarp; j += kLine<T>) {
            const Numbers b = *reinterpret_cast<const Numbers*>(stage->harmonic[m] + j);
#pragma unroll
            for (int u = 0; u < Tile::kEach; ++u) {
              const Numbers f = *reinterpret_cast<const Numbers*>(stage->function[first_function + u] + j);
#pragma unroll
              for (int k = 0; k < kLine<T>; ++k) sum[u] += b.of[k] * f.of[k];
            }
          }
        },
        [](int) {});
    if (has_part)
#pragma unroll
      for (int u = 0; u < Tile::kEach; ++u) to_second[(1 + m) * Seconds + first_function + u] = sum[u];
    for (int c = lane; c < Seconds; c += kWarp) to_second[c] = T(0);
    for (int w = 0; w < 2; ++w) masses[w] = warp_sum(masses[w]);
    nearest2 = warp_nearest(nearest2);
    if (lane == 0) {
      to_masses[0] = masses[0], to_masses[1] = masses[1];
      out.within[i] = within, out.nearest[i] = std::sqrt(nearest2);
    }
    __syncwarp();
    const T wrong = T(0) * masses[0];  // NaN if a distance is
    for (int k = lane; k < row; k += kWarp) moments[i * row + k] = counter[k] * unit + wrong;
  }
}

// The gradients by pair vectors. `by_moments` (N, 2, row): by the moments of splines of degree 0, and by
// those of their slopes.
template <class T, int Degree, int Seconds, class To>
__global__ void __launch_bounds__(kWideWarps* kWarp)
    wide_gradients_kernel(HarmonicMomentArgs<T> args, HarmonicSumArgs<T> p, const T* by_first,
                          const T* by_second, const T* by_moments, typename To::Given given) {
  using Numbers = Pack<T, kTogether>;
  constexpr int kComponents = components_to(Degree), kAll = kComponents * Seconds;
  const int lane = lane_index(), warp = warp_index(), row = static_cast<int>(args.row());
  DirectArgs<T> own(args, p);
  auto* const waiting = reinterpret_cast<Waiting<T>*>(net_memory());
  T* const by = reinterpret_cast<T*>(waiting + kWideWarps) + warp * kAll;
  T* const rows = reinterpret_cast<T*>(waiting + kWideWarps) + kWideWarps * kAll;
  T *const values = rows + warp * 2 * row, *const steep = values + row;
  char* const room = reinterpret_cast<char*>(rows + kWideWarps * 2 * row);
  To to(args, given, room);
  own.copy(reinterpret_cast<T*>(room + kWideWarps * To::kBytes));
  each_atom<kWideWarps>(args, to, [&](int64_t i) {
    __syncwarp();
    for (int c = lane; c < kAll; c += kWarp) by[c] = by_second[i * kAll + c];
    for (int k = lane; k < 2 * row; k += kWarp) values[k] = by_moments[i * 2 * row + k];
    const T *const of_masses = by_first + i * p.width() + p.firsts, by_square = of_masses[0],
                   by_fourth = of_masses[1];
    __syncwarp();
    const T* const of_type = own.of_type(args.types[i]);
    each_gradient<Degree>(
        args, i, waiting + warp, to, [&](const HarmonicPair<T>& pair, int other, T* by_component) {
          const T chi = pair.chi, dchi = pair.dchi, own_chi = chi * chi, fall = T(2) * chi * dchi;
          const T rate = args.grid.inv_step, t = pair.place.t;
          const T* const piece = own.piece(of_type, other, pair);
          const int at = other * static_cast<int>(args.basis) + pair.place.interval;
          T weight[kSplineSupport], value = 0, slope = 0;
          spline_values(t, weight);
          for (int k = 0; k < kSplineSupport; ++k) value += weight[k] * values[at + k];
          quartic_values(t, weight);
          for (int k = 0; k + 1 < kSplineSupport; ++k) slope += weight[k] * steep[at + k];
          T along = pair.by_masses(by_square, by_fourth) + dchi * value + chi * slope;
          const T* const e = pair.direction;
          T harmonic[kComponents];
          HarmonicPair<T>::each(T(1), e[0], e[1], e[2], Degree, [&](int, int n, T b) { harmonic[n] = b; });
#pragma unroll 1
          for (int c = 0; c < Seconds; c += kTogether) {
            T f[kTogether], rise[kTogether];
            evaluate<true>(piece + c, Seconds, t, f, rise);
#pragma unroll
            for (int u = 0; u < kTogether; ++u) {
              rise[u] = fall * f[u] + own_chi * rate * rise[u];
              f[u] *= own_chi;
            }
#pragma unroll
            for (int n = 1; n < kComponents; ++n) {
              const Numbers g = *reinterpret_cast<const Numbers*>(by + n * Seconds + c);
              T q = 0;
#pragma unroll
              for (int u = 0; u < kTogether; ++u) by_component[n] += g.of[u] * f[u], q += g.of[u] * rise[u];
              along += q * harmonic[n];
            }
          }
          return along;
        });
  });
}

}  // namespace mdops::gpu_harmonic
