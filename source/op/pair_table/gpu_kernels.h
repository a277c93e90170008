// The ops on pair tables on a GPU: a warp an atom, a lane a neighbour.
//
// Nothing here is looked at by the host. What is wrong with an input, or too large for the sums, marks its
// system as failed, and the results of that system become NaN.
#pragma once

#include "common/fixed_point.h"
#include "pair_table/gpu_loops.h"
#include "pair_table/gpu_near.h"

namespace mdops {

// Forces and virials are summed as pairs of integers, so that no result depends on the order of the
// additions: in units of 2^-8, and what those leave over in units of 2^-44, eV/A or eV; small terms are left
// over as a whole. A term is refused from 2^30 on: 2^25 of them have room.
constexpr double kTableUnit = 1.0 / (1 << 8), kTableFine = 1.0 / (1LL << 44), kMostTableTerm = 1 << 30;
constexpr double kSmallTableTerm = 1.0 / (1 << 6);

struct TableSums {
  int64_t *forces, *of_atoms, *virial;  // (N, 2, 3), (N, 2, 9) or null, (S, 2, 9)
  int32_t* failed;                      // (S,)
};

__device__ __forceinline__ double table_sum(const int64_t* parts, int columns) {
  return static_cast<double>(parts[0]) * kTableUnit + static_cast<double>(parts[columns]) * kTableFine;
}

// The two integers of a term. Returns false for one that is too large.
__device__ __forceinline__ bool table_term(double x, int64_t* whole, int64_t* rest) {
  const bool fits = fabs(x) < kMostTableTerm;
  *whole = fits && !(fabs(x) < kSmallTableTerm) ? __double2ll_rn(x / kTableUnit) : 0;
  *rest = fits ? __double2ll_rn((x - static_cast<double>(*whole) * kTableUnit) / kTableFine) : 0;
  return fits;
}

// The rows of `within` and `nearest` of an atom, and the least squared distance of those that are not masked.
struct RowReport {
  double nearest2, least2;
  int count;

  __device__ explicit RowReport(double cutoff) : nearest2(cutoff * cutoff), least2(INFINITY), count(0) {}
  __device__ void add(double r2, bool masked) {
    ++count;
    nearest2 = nearest_of(nearest2, r2);
    if (!masked) least2 = nearest_of(least2, r2);
  }
  __device__ void write(int32_t* within) {
    const int all = __reduce_add_sync(kAllLanes, count);
    if (lane_index() == 0) *within = all;
    count = 0;
  }
};

// Calls work(i) by a warp each for those of a block's items from `first` to `end`, at most a warp's lanes, of
// which busy(i), called once each by a thread, says that they have any. All threads must call it.
template <class Busy, class Work>
__device__ __forceinline__ void each_busy(int64_t first, int64_t end, const Busy& busy, const Work& work) {
  __shared__ int32_t of_block[kWarp];
  __shared__ int count;
  const int lane = lane_index();
  if (threadIdx.x < kWarp) {
    const bool mine = first + lane < end && busy(first + lane);
    const unsigned lanes = __ballot_sync(kAllLanes, mine);
    if (mine) of_block[__popc(lanes & ((1u << lane) - 1))] = lane;
    if (lane == 0) count = __popc(lanes);
  }
  __syncthreads();
  for (int k = threadIdx.x / kWarp; k < count; k += blockDim.x / kWarp) work(first + of_block[k]);
}

// How many items a block of kBusyThreads has: few, so that those with work spread over a GPU, and more where
// there are many.
constexpr int kBusyThreads = 128;
inline int items_of_block(int64_t items, int multiprocessors) {
  constexpr int kWarps = kBusyThreads / kWarp, kBlocks = 4;
  const int64_t share = items / (kWarps * kBlocks * multiprocessors) + 1;
  return kWarps * static_cast<int>(share < 2 ? share : 2);
}

static __global__ void __launch_bounds__(kBusyThreads, 5)
    near_kernel(ListArgs list, NearArgs near, double* weight, int32_t* within, double* nearest) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kBusyThreads + threadIdx.x) / kWarp;
  if (i >= list.atoms) return;
  const int lane = lane_index();
  const RowKind kind = table_row(list, i);
  int32_t* own = within + i * list.ntypes;
  for (int t = lane; t < list.ntypes; t += kWarp) own[t] = 0;
  __syncwarp();
  double c = kind == RowKind::wrong ? not_a_number<double>() : 0, least = near.cutoff;
  if (kind == RowKind::real) {
    RowReport report(near.cutoff);
    const bool whole = each_of_row(
        list, near.pair_mask, near.cutoff, i,
        [&](int, int32_t, const double*, double r2, bool masked) { report.add(r2, masked); },
        [&](int t) { report.write(own + t); });
    const double least2 = warp_nearest(report.least2);
    least = sqrt(warp_nearest(report.nearest2));
    // No mean is below the least distance: most atoms need not be looked at again.
    if (!(sqrt(least2) >= near.high)) c = row_weight(list, near, i);
    if (!whole) c = not_a_number<double>();
  }
  if (lane == 0) weight[i] = c, nearest[i] = kind == RowKind::wrong ? c : least;
}

// The virials that a block's warps add to, of one system at a time: lane k < 9 has component k of a warp's.
struct VirialAdder {
  const TableSums& sums;
  int64_t whole = 0, rest = 0;
  int system = -1;

  __device__ explicit VirialAdder(const TableSums& sums_) : sums(sums_) {}

  __device__ void add(int of, int64_t more, int64_t more_rest) {
    if (of != system && system >= 0) {
      write(lane_index(), system, whole, rest);
      whole = rest = 0;
    }
    system = of, whole += more, rest += more_rest;
  }

  // The warps' sums of one system go to memory as one: all blocks add to the same numbers. All threads must
  // call it.
  __device__ void finish() {
    constexpr int warps = kBusyThreads / kWarp;
    __shared__ int64_t of_warps[warps][2][9];
    __shared__ int systems[warps];
    const int lane = lane_index(), warp = threadIdx.x / kWarp;
    if (lane < 9) of_warps[warp][0][lane] = whole, of_warps[warp][1][lane] = rest;
    if (lane == 0) systems[warp] = system;
    __syncthreads();
    if (threadIdx.x >= 9) return;
    int64_t all = 0, all_rest = 0;
    for (int w = 0; w < warps; ++w) {
      if (systems[w] < 0) continue;
      all += of_warps[w][0][lane], all_rest += of_warps[w][1][lane];
      int next = w + 1;
      while (next < warps && systems[next] < 0) ++next;
      if (next < warps && systems[next] == systems[w]) continue;
      write(lane, systems[w], all, all_rest);
      all = all_rest = 0;
    }
  }

 private:
  __device__ void write(int k, int of, int64_t all, int64_t all_rest) const {
    if (k >= 9) return;
    int64_t* const to = sums.virial + 18 * static_cast<int64_t>(of) + k;
    if (all != 0) atomic_add(to, all);
    if (all_rest != 0) atomic_add(to + 9, all_rest);
  }
};

// What pairs of one atom give to forces and virials.
struct PairAdder {
  const TableSums& sums;
  int64_t own[6] = {};
  double w[6] = {};  // xx, xy, xz, yy, yz, zz
  bool fits = true;

  __device__ explicit PairAdder(const TableSums& sums_) : sums(sums_) {}

  // The pair's part of an energy's gradient, g along d.
  __device__ void add(int64_t j, const double* d, double g) {
    double term[6];
    for (int a = 0; a < 3; ++a) {
      int64_t whole, rest;
      fits &= table_term(g * d[a], &whole, &rest);
      own[a] += whole, own[3 + a] += rest;
      if (whole != 0) atomic_add(sums.forces + 6 * j + a, -whole);
      if (rest != 0) atomic_add(sums.forces + 6 * j + 3 + a, -rest);
      for (int b = a; b < 3; ++b)
        w[symmetric_place(3 * a + b)] += term[symmetric_place(3 * a + b)] = -g * d[a] * d[b];
    }
    if (!sums.of_atoms) return;
    for (int k = 0; k < 9; ++k) {
      int64_t whole, rest;
      fits &= table_term(term[symmetric_place(k)], &whole, &rest);
      if (whole != 0) atomic_add(sums.of_atoms + 18 * j + k, whole);
      if (rest != 0) atomic_add(sums.of_atoms + 18 * j + 9 + k, rest);
    }
  }

  // The sums of all lanes. Returns false if a term was too large.
  __device__ bool finish(int64_t i, int system, VirialAdder& virial) {
    const int lane = lane_index();
    int64_t force = 0;
    double component = 0;
#pragma unroll
    for (int k = 0; k < 6; ++k) {
      const int64_t sum = warp_sum(own[k]);
      if (lane == k) force = sum;
      w[k] = warp_sum(w[k]);
    }
    if (lane < 6) atomic_add(sums.forces + 6 * i + lane, force);
#pragma unroll
    for (int k = 0; k < 9; ++k)
      if (lane == k) component = w[symmetric_place(k)];
    int64_t whole, rest;
    fits &= table_term(component, &whole, &rest);
    virial.add(system, whole, rest);
    return __all_sync(kAllLanes, fits);
  }
};

// Calls work(t, j, d, r2, of_table, of_near) for the neighbours that the table has or that make the weights.
template <class Work>
__device__ __forceinline__ bool each_of_blend(const ListArgs& list, const TableArgs& table,
                                              const NearArgs& near, int64_t i, const Work& work) {
  const int64_t row = static_cast<int64_t>(list.types[i]) * list.ntypes;
  return each_neighbor(list, i, [&](int t, int32_t j, const double* d, double r2) {
    const bool of_table = !table.pair_mask[row + t] && within_cutoff(r2, table.cutoff * table.cutoff);
    const bool of_near = !near.pair_mask[row + t] && within_cutoff(r2, near.cutoff * near.cutoff);
    if (of_table || of_near) work(t, j, d, r2, of_table, of_near);
  });
}

// The energy of atom i in a blend, and what it gives to the sums: that of its pairs, and the weight's slope
// times the difference of energies.
__device__ __forceinline__ double blended_atom(const ListArgs& list, const TableArgs& table,
                                               const GpuTableTask& task, int64_t i, double weight,
                                               PairAdder& adder, bool* good) {
  const int64_t row = static_cast<int64_t>(list.types[i]) * list.ntypes;
  const NearArgs& near = task.near;
  double energy = 0;
  RunningSums around(near.decay);
  *good &= each_of_blend(list, table, near, i,
                         [&](int t, int32_t, const double*, double r2, bool of_table, bool of_near) {
                           const double r = sqrt(r2);
                           if (of_table) energy += 0.5 * pair_energy(table, row + t, r).u;
                           if (of_near) around.add(r);
                         });
  energy = warp_sum(energy);
  around.join();
  const double least = around.sums.least, mean = around.sums.mean(), inverse = around.inverse;
  const double slope =
      (energy - task.other[i]) * weight_at(near, mean).slope / around.sums.weights;  // dE/ds by a weight
  each_of_blend(list, table, near, i,
                [&](int t, int32_t j, const double* d, double r2, bool of_table, bool of_near) {
                  const double by_r = rsqrt(r2), r = r2 * by_r;
                  double g = of_table ? 0.5 * weight * pair_energy(table, row + t, r).slope : 0;
                  if (of_near && slope != 0)
                    g += mean_slope(slope * exp((least - r) * inverse), r, mean, inverse);
                  if (g != 0) adder.add(j, d, g * by_r);
                });
  return energy;
}

// The energy of atom i, and what it gives to the sums.
__device__ __forceinline__ double table_atom(const ListArgs& list, const TableArgs& table, int64_t i,
                                             double weight, const GpuTableResults& out, PairAdder& adder,
                                             double* least, bool* good) {
  double energy = 0;
  RowReport report(table.cutoff);
  const int64_t row = static_cast<int64_t>(list.types[i]) * list.ntypes;
  *good &= each_of_row(
      list, table.pair_mask, table.cutoff, i,
      [&](int t, int32_t j, const double* d, double r2, bool masked) {
        report.add(r2, masked);
        if (masked || weight == 0) return;
        const double r = sqrt(r2);
        const PairEnergy pair = pair_energy(table, row + t, r);
        energy += 0.5 * pair.u;
        if (pair.slope != 0) adder.add(j, d, 0.5 * weight * pair.slope / r);
      },
      [&](int t) { report.write(out.within + i * list.ntypes + t); });
  *least = sqrt(warp_nearest(report.nearest2));
  return warp_sum(energy);
}

// A warp an atom of the `per_block` of a block; of a blend those without weight are answered at once.
template <bool Blends>
static __global__ void __launch_bounds__(kBusyThreads, 5)
    table_kernel(ListArgs list, TableArgs table, GpuTableTask task, TableSums sums, GpuTableResults out,
                 int per_block) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * per_block, end = first + per_block;
  VirialAdder virial(sums);
  const auto answer_idle = [&](int64_t i) {
    out.energy[i] = Blends && task.sums.forces ? task.other[i] : 0, out.nearest[i] = table.cutoff;
    for (int t = 0; t < list.ntypes; ++t) out.within[i * list.ntypes + t] = 0;
    return !(Blends && task.weight && task.weight[i] == 0);
  };
  const auto answer = [&](int64_t i) {
    const double weight = task.weight ? task.weight[i] : 1;
    const RowKind kind = table_row(list, i);
    double energy = 0, least = table.cutoff;
    bool good = kind != RowKind::wrong && weight == weight;
    if (kind == RowKind::real) {
      PairAdder adder(sums);
      if constexpr (Blends)
        energy = blended_atom(list, table, task, i, weight, adder, &good);
      else
        energy = table_atom(list, table, i, weight, out, adder, &least, &good);
      good &= adder.finish(i, list.batch[i], virial);
    }
    if (lane_index() != 0) return;
    if (Blends && task.sums.forces) energy = (1 - weight) * task.other[i] + weight * energy;
    out.energy[i] = good ? energy : not_a_number<double>();
    out.nearest[i] = kind == RowKind::wrong ? not_a_number<double>() : least;
    const int system = list.batch[i];
    if (!good && system >= 0 && system < list.systems) sums.failed[system] = 1;
  };
  each_busy(first, end < list.atoms ? end : list.atoms, answer_idle, answer);
  virial.finish();
}

// The sums as numbers.
static __global__ void table_end_kernel(ListArgs list, TableSums sums, OtherSums other, GpuTableResults out) {
  const int64_t k = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const double nan = not_a_number<double>();
  const auto failed = [&](int64_t i) {
    const int system = list.batch[i];
    return system < 0 || system >= list.systems || sums.failed[system];
  };
  if (k < 3 * list.atoms) {
    const bool bad = failed(k / 3);
    const double force = table_sum(sums.forces + k / 3 * 6 + k % 3, 3);
    out.forces[k] = bad ? nan : other.forces ? other.forces[k] + force : force;
    if (bad && k % 3 == 0) out.energy[k / 3] = nan;
  }
  if (out.of_atoms && k < 9 * list.atoms) {
    const double own = table_sum(sums.of_atoms + k / 9 * 18 + k % 9, 9);
    out.of_atoms[k] = failed(k / 9) ? nan : other.of_atoms ? other.of_atoms[k] + own : own;
  }
  if (k < 9 * list.systems) {
    const double own = table_sum(sums.virial + k / 9 * 18 + k % 9, 9);
    out.virial[k] = sums.failed[k / 9] ? nan : other.virial ? other.virial[k] + own : own;
  }
}

}  // namespace mdops
