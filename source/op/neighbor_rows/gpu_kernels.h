// The kernels on rows of neighbours. A warp an atom finds the rows, after a scan of their numbers. A warp
// computes the splines of 32 rows: each lane has one row's own values, and all lanes share the columns of one
// row after the other. The order of sums is fixed.
#pragma once

#include "common/early.h"
#include "common/gpu_unroll.h"
#include "common/rows.h"
#include "env_mat/gpu_nearest.h"
#include "neighbor_rows/harmonics.h"

namespace mdops::gpu_neighbor_rows {

constexpr int kWarps = 8, kScanThreads = 1024;
constexpr int kScanEach = 4;                      // numbers of a thread in each round
constexpr int kAtomWarps = 4, kFewAtomWarps = 8;  // of one atom's block, for many or few atoms
constexpr int kRowThreads = 128;

// Of the 32 slots of an atom from `first` on: whether this lane's has a neighbour within the cutoff, and its
// type.
template <class T>
struct LaneSlot {
  int64_t slot;
  int type;
  bool near;
  T r2;

  __device__ LaneSlot(const RowListArgs<T>& args, SlotTypes& types, int64_t atom, int64_t first)
      : slot(atom * args.list.width + first + lane_index()), near(false), r2(args.cutoff2) {
    type = types.of(first + lane_index());
    if (type < 0) return;
    r2 = squared_length(args.list.displacements + 3 * slot);
    near = within_cutoff(r2, args.cutoff2);
  }
};

// f(lane's slot, type of the atom) for the slots of an atom with a usable list, in all lanes.
template <class T, class F>
__device__ RowKind each_slot(const RowListArgs<T>& args, int64_t atom, const F& f) {
  const SlotArgs<T>& list = args.list;
  const int32_t type = list.types[atom], *counts = list.counts + atom * list.ntypes;
  const RowKind kind = row_kind(type, list.ntypes, counts, list.width);
  if (kind != RowKind::real) return kind;
  int64_t slots = 0;
  for (int t = 0; t < list.ntypes; ++t) slots += counts[t];
  SlotTypes types(counts, list.ntypes);
  for (int64_t first = 0; first < slots; first += kWarp) f(LaneSlot<T>(args, types, atom, first), type);
  return kind;
}

MDOPS_D int count_lanes(bool is) {
  return __popc(__ballot_sync(kAllLanes, is));
}

// Writes each atom's number of rows to the offsets.
template <class T>
__global__ void count_kernel(RowListArgs<T> args, RowListResults<T> out) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (i >= args.list.atoms) return;
  int rows = 0, taken = 0, within = 0;
  T nearest = args.cutoff2;
  const RowKind kind = each_slot(args, i, [&](const LaneSlot<T>& lane, int type) {
    rows += count_lanes(lane.near && !args.masked(type, lane.type));
    taken += count_lanes(lane.near && args.takes(type, lane.type));
    within += count_lanes(lane.near);
    if (lane.near) nearest = nearest_of(nearest, lane.r2);
  });
  nearest = warp_nearest(nearest);
  if (lane_index() > 0) return;
  out.offsets[i + 1] = rows, out.taken[i] = taken, out.within[i] = within;
  out.nearest[i] = kind == RowKind::wrong ? not_a_number<T>() : sqrt(nearest);
}

// Sums up to each of n numbers, in its place after a zero; by one block.
inline __global__ void __launch_bounds__(kScanThreads) scan_kernel(int32_t* offsets, int64_t n) {
  __shared__ int of_warps[kScanThreads / kWarp];
  if (threadIdx.x == 0) offsets[0] = 0;
  int so_far = 0;
  for (int64_t first = 0; first < n; first += kScanThreads * kScanEach) {
    const int64_t at = first + kScanEach * threadIdx.x;
    int mine[kScanEach], sum = 0, total = 0;
#pragma unroll
    for (int k = 0; k < kScanEach; ++k) mine[k] = at + k < n ? offsets[at + k + 1] : 0;
#pragma unroll
    for (int k = 0; k < kScanEach; ++k) sum += mine[k];
    int up_to = so_far + sum_before<kScanThreads / kWarp>(sum, of_warps, &total);
#pragma unroll
    for (int k = 0; k < kScanEach; ++k) {
      up_to += mine[k];
      if (at + k < n) offsets[at + k + 1] = up_to;
    }
    so_far += total;
  }
}

// The slots that are rows, and -1 after the last.
template <class T>
__global__ void fill_kernel(RowListArgs<T> args, RowListResults<T> out) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * (kWarps * kWarp) + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * (kWarps * kWarp);
  for (int64_t k = out.offsets[args.list.atoms] + thread; k < args.list.atoms * args.list.width; k += threads)
    out.slots[k] = -1;
  const int64_t i = thread / kWarp;
  if (i >= args.list.atoms) return;
  int32_t* at = out.slots + out.offsets[i];
  each_slot(args, i, [&](const LaneSlot<T>& lane, int type) {
    const bool is_row = lane.near && !args.masked(type, lane.type);
    const unsigned rows = __ballot_sync(kAllLanes, is_row);
    if (is_row) at[__popc(rows & ((1u << lane_index()) - 1))] = static_cast<int32_t>(lane.slot);
    at += __popc(rows);
  });
}

// A thread a row.
template <class T>
__global__ void __launch_bounds__(kRowThreads)
    environment_kernel(EnvironmentRowsArgs<T> args, EnvironmentRows<T> out, int32_t* types) {
  const int64_t n = static_cast<int64_t>(blockIdx.x) * kRowThreads + threadIdx.x;
  if (n < args.rows) environment_row(args, n, out, types);
}

// `out` is zero at entry.
template <class T>
__global__ void __launch_bounds__(kRowThreads)
    environment_gradient_kernel(EnvironmentRowsArgs<T> args, EnvironmentRows<T, const T*> grad, T* out) {
  const int64_t n = static_cast<int64_t>(blockIdx.x) * kRowThreads + threadIdx.x;
  if (n < args.rows) environment_row_gradient(args, n, grad, out);
}

// `by_d` is zero at entry.
template <class T>
__global__ void __launch_bounds__(kRowThreads)
    environment_second_kernel(EnvironmentRowsArgs<T> args, const T* v, EnvironmentRows<T, const T*> grad,
                              EnvironmentRows<T> out, T* by_d) {
  const int64_t n = static_cast<int64_t>(blockIdx.x) * kRowThreads + threadIdx.x;
  if (n < args.rows) environment_row_second(args, n, v, grad, out, by_d);
}

// Through shared memory, as the numbers of adjacent threads are apart.
template <class T>
__global__ void __launch_bounds__(kRowThreads)
    harmonic_kernel(EnvironmentRowsArgs<T> args, int degree, T* out) {
  __shared__ T rows[kRowThreads * components_to(kMostDegrees)];
  const int components = components_to(degree);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kRowThreads, n = first + threadIdx.x;
  if (n < args.rows) harmonic_row(args, degree, n, rows + components * threadIdx.x);
  __syncthreads();
  const int64_t left = args.rows - first;
  const int numbers = components * static_cast<int>(left < kRowThreads ? left : kRowThreads);
  for (int k = threadIdx.x; k < numbers; k += kRowThreads) out[components * first + k] = rows[k];
}

// `out` is zero at entry.
template <class T>
__global__ void __launch_bounds__(kRowThreads)
    harmonic_gradient_kernel(EnvironmentRowsArgs<T> args, int degree, const T* grad, T* out) {
  const int64_t n = static_cast<int64_t>(blockIdx.x) * kRowThreads + threadIdx.x;
  if (n < args.rows) harmonic_row_gradient(args, degree, n, grad, out);
}

// `by_d` is zero at entry.
template <class T>
__global__ void __launch_bounds__(kRowThreads)
    harmonic_second_kernel(EnvironmentRowsArgs<T> args, int degree, const T* v, const T* grad, T* rows,
                           T* by_d) {
  const int64_t n = static_cast<int64_t>(blockIdx.x) * kRowThreads + threadIdx.x;
  if (n < args.rows) harmonic_row_second(args, degree, n, v, grad, rows, by_d);
}

// V adjacent numbers, aligned for one read.
template <class T, int V>
struct Numbers {
  T x[V];

  MDOPS_D static Numbers load(const T* from) {
    Numbers n;
    if constexpr (V == 4) {
      const float4 four = *reinterpret_cast<const float4*>(from);
      n.x[0] = four.x, n.x[1] = four.y, n.x[2] = four.z, n.x[3] = four.w;
    } else if constexpr (V == 2) {
      const float2 two = *reinterpret_cast<const float2*>(from);
      n.x[0] = two.x, n.x[1] = two.y;
    } else {
      n.x[0] = from[0];
    }
    return n;
  }
  MDOPS_D void store(T* to) const {
    if constexpr (V == 4)
      *reinterpret_cast<float4*>(to) = make_float4(x[0], x[1], x[2], x[3]);
    else if constexpr (V == 2)
      *reinterpret_cast<float2*>(to) = make_float2(x[0], x[1]);
    else
      to[0] = x[0];
  }
};

// A lane's own row.
template <class T>
struct LaneRow {
  Row<T> row;
  bool is_there, is_wrong;
  RowTerms<T> terms;
  T value[kSplineSupport], slope[kSplineSupport];
  int64_t plain, gated;  // rows of the table
  __device__ LaneRow(const SplineRowsArgs<T>& args, int64_t n) : plain(0), gated(0) {
    const int64_t slot = n < args.rows ? args.slots[n] : -1;
    row = row_of_slot(args, slot);
    is_there = !row.is_wrong, is_wrong = slot != -1 && row.is_wrong;
    for (int m = 0; m < kSplineSupport; ++m) value[m] = slope[m] = 0;
    if (!is_there) return;
    terms = RowTerms<T>(row.d, args.cutoff);
    const SplinePlace<T> place = spline_place(terms.f.s, args.grid);
    spline_basis(place, value, slope);
    plain = args.table_row(row.type, args.gated ? 0 : row.kind, place.interval);
    if (args.gated) gated = args.table_row(row.type, 1 + row.kind, place.interval);
  }
};

template <class T>
MDOPS_D void of_lane(const T (&mine)[kSplineSupport], int lane, T (&w)[kSplineSupport]) {
#pragma unroll
  for (int m = 0; m < kSplineSupport; ++m) w[m] = __shfl_sync(kAllLanes, mine[m], lane);
}

// sum_m w[m] of six rows of the table at a column.
template <class T, int V>
MDOPS_D void weighted(const T (&w)[kSplineSupport], const T* rows, int64_t columns, T factor, T (&sum)[V]) {
  T found[V] = {};
#pragma unroll
  for (int m = 0; m < kSplineSupport; ++m) {
    const auto four = Numbers<T, V>::load(rows + m * columns);
#pragma unroll
    for (int v = 0; v < V; ++v) found[v] += w[m] * four.x[v];
  }
#pragma unroll
  for (int v = 0; v < V; ++v) sum[v] += factor * found[v];
}

template <class T, bool Gated, int V>
__global__ void __launch_bounds__(kWarps* kWarp) rows_kernel(SplineRowsArgs<T> args, SplineRows<T> out) {
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp) * kWarp;
  if (first >= args.rows) return;
  const int lane = lane_index();
  const int64_t mine = first + lane;
  const LaneRow<T> own(args, mine);
  const unsigned in_bounds = __ballot_sync(kAllLanes, own.is_there),
                 wrong = __ballot_sync(kAllLanes, own.is_wrong);
  if (mine < args.rows) {
    T environment[4] = {}, direction[3] = {};
    if (own.is_there) row_numbers(own.row, own.terms, environment, direction);
    const T bad = own.is_wrong ? not_a_number<T>() : T(0);
    out.switches[mine] = own.terms.w + bad;
    for (int a = 0; a < 4; ++a) out.environment[4 * mine + a] = environment[a] + bad;
    for (int a = 0; a < 3; ++a) out.directions[3 * mine + a] = direction[a] + bad;
  }
  const int count = static_cast<int>(args.rows - first < kWarp ? args.rows - first : kWarp);
#pragma unroll 1
  for (int r = 0; r < count; ++r) {
    T value[kSplineSupport];
    of_lane(own.value, r, value);
    const int64_t plain = __shfl_sync(kAllLanes, own.plain, r);
    const int64_t gated = Gated ? __shfl_sync(kAllLanes, own.gated, r) : 0;
    const T w = Gated ? __shfl_sync(kAllLanes, own.terms.w, r) : T(1);
    T* const g = out.g + (first + r) * args.channels;
    const bool is_there = in_bounds >> r & 1;
    const T bad = wrong >> r & 1 ? not_a_number<T>() : T(0);
    for (int64_t k = V * lane; k < args.channels; k += V * kWarp) {
      Numbers<T, V> sum;
#pragma unroll
      for (int v = 0; v < V; ++v) sum.x[v] = bad;
      if (is_there) {
        weighted<T, V>(value, args.table + plain * args.channels + k, args.channels, T(1), sum.x);
        if (Gated) weighted<T, V>(value, args.table + gated * args.channels + k, args.channels, w, sum.x);
      }
      sum.store(g + k);
    }
  }
}

// `out` is zero at entry.
template <class T, bool Gated, int V>
__global__ void __launch_bounds__(kWarps* kWarp)
    rows_backward_kernel(SplineRowsArgs<T> args, SplineRows<T, const T*> grad, T* out) {
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp) * kWarp;
  if (first >= args.rows) return;
  const int lane = lane_index();
  const LaneRow<T> own(args, first + lane);
  const unsigned in_bounds = __ballot_sync(kAllLanes, own.is_there);
  // A row with an invalid slot takes the place of the slot with its own number.
  if (own.is_wrong) {
    const int64_t slot = own.row.slot, slots = args.list.atoms * args.list.width;
    const int64_t to = slot >= 0 && slot < slots ? slot : first + lane;
    for (int a = 0; a < 3; ++a) out[3 * to + a] = not_a_number<T>();
  }
  const int count = kWarp - __clz(in_bounds);
  T by_s = 0, by_switch = 0;
#pragma unroll 1
  for (int r = 0; r < count; ++r) {
    T value[kSplineSupport], slope[kSplineSupport];
    of_lane(own.slope, r, slope);
    if (Gated) of_lane(own.value, r, value);
    const int64_t plain = __shfl_sync(kAllLanes, own.plain, r);
    const int64_t gated = Gated ? __shfl_sync(kAllLanes, own.gated, r) : 0;
    const T w = Gated ? __shfl_sync(kAllLanes, own.terms.w, r) : T(1);
    if (!(in_bounds >> r & 1)) continue;
    const T* const g = grad.g + (first + r) * args.channels;
    T change = 0, of_gate = 0;
    for (int64_t k = V * lane; k < args.channels; k += V * kWarp) {
      const auto u = Numbers<T, V>::load(g + k);
      T x[V] = {}, y[V] = {};
      weighted<T, V>(slope, args.table + plain * args.channels + k, args.channels, T(1), x);
      if (Gated) {
        weighted<T, V>(slope, args.table + gated * args.channels + k, args.channels, w, x);
        weighted<T, V>(value, args.table + gated * args.channels + k, args.channels, T(1), y);
      }
#pragma unroll
      for (int v = 0; v < V; ++v) change += u.x[v] * x[v], of_gate += u.x[v] * y[v];
    }
    change = warp_sum(change);
    if (Gated) of_gate = warp_sum(of_gate);
    if (lane == r) by_s = change, by_switch = of_gate;
  }
  if (!own.is_there) return;
  const int64_t n = first + lane;
  T found[3], by_row[4], by_direction[3];
  for (int a = 0; a < 4; ++a) by_row[a] = grad.environment[4 * n + a];
  for (int a = 0; a < 3; ++a) by_direction[a] = grad.directions[3 * n + a];
  row_gradient(own.row, own.terms, by_row, by_switch + grad.switches[n], by_direction, by_s, found);
  for (int a = 0; a < 3; ++a) out[3 * own.row.slot + a] = found[a];
}

// The rows of an atom; if offsets are out of range, no rows and an error.
struct RowRange {
  int begin, end;
  bool is_wrong;

  template <class T>
  __device__ RowRange(const RowMomentArgs<T>& args, int64_t atom)
      : begin(args.offsets[atom]), end(args.offsets[atom + 1]) {
    is_wrong = begin < 0 || end < begin || end > args.rows;
    if (is_wrong) begin = end = 0;
  }
};

// Count of C components at once: all three or four, or eight of any other number, padded with zeros.
template <int Count>
constexpr bool kIsAll = Count <= 4;

// f(first) for each of them.
template <int Count, class F>
MDOPS_D void each_components(int components, const F& f) {
  if constexpr (kIsAll<Count>)
    f(0);
  else
    for (int first = 0; first < components; first += Count) f(first);
}

template <int Count, class T>
MDOPS_D void load_components(const T* row, int first, int components, T (&r)[Count]) {
#pragma unroll
  for (int a = 0; a < Count; ++a) r[a] = kIsAll<Count> || first + a < components ? row[first + a] : T(0);
}

// Numbers of a row's g: zeros if it has no node, NaN if its index is wrong.
template <int V, class T>
MDOPS_D Numbers<T, V> numbers_of_row(const RowMomentArgs<T>& args, int64_t row, int64_t k) {
  int64_t from = row;
  if (args.index) {
    from = args.index[row];
    if (from < 0 || from >= args.nodes) {
      Numbers<T, V> nothing;
#pragma unroll
      for (int v = 0; v < V; ++v) nothing.x[v] = from == -1 ? T(0) : not_a_number<T>();
      return nothing;
    }
  }
  return Numbers<T, V>::load(args.g + from * args.channels + k);
}

// A block an atom; its warps share the rows.
template <class T, int V, int Count, int Warps>
__global__ void __launch_bounds__(Warps* kWarp) moments_kernel(RowMomentArgs<T> args, T* out) {
  __shared__ T sums[Warps][Count][V * kWarp];
  const int64_t atom = blockIdx.x, components = kIsAll<Count> ? Count : args.components;
  const int lane = lane_index(), warp = threadIdx.x / kWarp;
  const RowRange rows(args, atom);
  each_components<Count>(components, [&](int first) {
    for (int64_t at = 0; at < args.channels; at += V * kWarp) {
      const int64_t k = at + V * lane;
      const bool in_bounds = k < args.channels;
      T sum[Count][V] = {};
      if (in_bounds) {
#pragma unroll 4
        for (int j = rows.begin + warp; j < rows.end; j += Warps) {
          const auto g = numbers_of_row<V>(args, j, k);
          T r[Count];
          load_components(args.environment + components * j, first, components, r);
          unrolled<Count, V>([&](int a, int v) { sum[a][v] += r[a] * g.x[v]; });
        }
      }
      unrolled<Count, V>([&](int a, int v) { sums[warp][a][V * lane + v] = sum[a][v]; });
      __syncthreads();
      for (int n = threadIdx.x; n < Count * V * kWarp; n += Warps * kWarp) {
        const int a = n / (V * kWarp), column = n % (V * kWarp);
        if (at + column >= args.channels || (!kIsAll<Count> && first + a >= components)) continue;
        T total = rows.is_wrong ? not_a_number<T>() : T(0);
        for (int w = 0; w < Warps; ++w) total += sums[w][a][column];
        out[(components * atom + first + a) * args.channels + at + column] = total;
      }
      __syncthreads();
    }
  });
}

// The sums over the warp of Count numbers a lane: lane l gets that of number l % Count.
template <int Count, class T>
MDOPS_D T sums_of_warp(T (&x)[Count]) {
  const int lane = lane_index();
#pragma unroll
  for (int step = Count / 2; step; step /= 2)
#pragma unroll
    for (int a = 0; a < step; ++a) {
      const bool upper = lane & step;
      const T sent = upper ? x[a] : x[a + step], kept = upper ? x[a + step] : x[a];
      x[a] = kept + __shfl_xor_sync(kAllLanes, sent, step);
    }
#pragma unroll
  for (int step = Count; step < kWarp; step *= 2) x[0] += __shfl_xor_sync(kAllLanes, x[0], step);
  return x[0];
}

// A block an atom, which writes the atom's rows. The atom's gradient stays in registers for all of three or
// four components with up to V x 32 channels, else it is read from the caches.
template <class T, int V, int Count, int Warps>
__global__ void __launch_bounds__(Warps* kWarp)
    moments_backward_kernel(RowMomentArgs<T> args, const T* grad, T* by_environment, T* by_g) {
  const int64_t atom = blockIdx.x, components = kIsAll<Count> ? Count : args.components;
  const int lane = lane_index(), warp = threadIdx.x / kWarp;
  const RowRange rows(args, atom);
  const T* const of_atom = grad + components * atom * args.channels;
  const bool at_once = args.channels <= V * kWarp;
  T t[Count][V] = {};
  const auto load = [&](int first, int64_t k) {
#pragma unroll
    for (int a = 0; a < Count; ++a) {
      if (!kIsAll<Count> && first + a >= components) break;  // padding
      const auto four = Numbers<T, V>::load(of_atom + (first + a) * args.channels + k);
#pragma unroll
      for (int v = 0; v < V; ++v) t[a][v] = four.x[v];
    }
  };
  const bool stays = kIsAll<Count> && at_once;
  if (stays && V * lane < args.channels) load(0, V * lane);
#pragma unroll 2
  for (int j = rows.begin + warp; j < rows.end; j += Warps) {
    Numbers<T, V> x{};
    each_components<Count>(components, [&](int first) {
      T r[Count], sum[(Count + 3) / 4 * 4] = {};
      load_components(args.environment + components * j, first, components, r);
      for (int64_t k = V * lane; k < args.channels; k += V * kWarp) {
        if (!stays) load(first, k);
        const auto g = numbers_of_row<V>(args, j, k);
        T* const to = by_g + j * args.channels + k;
        if (!at_once) x = first ? Numbers<T, V>::load(to) : Numbers<T, V>{};
        unrolled<Count, V>([&](int a, int v) { x.x[v] += r[a] * t[a][v], sum[a] += t[a][v] * g.x[v]; });
        if (!at_once || first + Count >= components) x.store(to);
      }
      const T mine = sums_of_warp(sum);
      if (lane < Count && (kIsAll<Count> || first + lane < components))
        by_environment[components * j + first + lane] = mine;
    });
  }
}

// Rows after the last atom's belong to none. If an atom's offsets are wrong, all rows without a valid atom
// become NaN.
template <class T>
__global__ void clear_rows_kernel(RowMomentArgs<T> args, T* by_environment, T* by_g) {
  follow_kernels();
  bool is_wrong = args.offsets[0] != 0;
  for (int64_t i = threadIdx.x; i < args.atoms; i += blockDim.x) is_wrong |= RowRange(args, i).is_wrong;
  is_wrong = __syncthreads_or(is_wrong);
  if (args.leaves_rest && !is_wrong) return;
  const int64_t begin = is_wrong ? 0 : args.offsets[args.atoms];
  const T value = is_wrong ? not_a_number<T>() : T(0);
  const int64_t numbers = (args.rows - begin) * args.channels,
                environments = args.components * (args.rows - begin);
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t k = thread; k < numbers; k += threads) by_g[begin * args.channels + k] = value;
  for (int64_t k = thread; k < environments; k += threads)
    by_environment[args.components * begin + k] = value;
}

}  // namespace mdops::gpu_neighbor_rows
