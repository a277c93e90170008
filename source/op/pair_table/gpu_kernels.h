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
constexpr int kTableThreads = 256;

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

// What `each_of_row` would tell a report, of one type's slots: the reads of four neighbours are under way at
// once.
__device__ __forceinline__ bool look(const ListArgs& list, double cutoff2, int64_t i, int64_t begin,
                                     int64_t end, bool masked, RowReport& report) {
  constexpr int kAtOnce = 4;
  const double *xi = list.positions + 3 * i, *cell = list.cell + 9 * static_cast<int64_t>(list.batch[i]);
  bool whole = true;
  for (int64_t slot = begin + lane_index(); slot < end; slot += kAtOnce * kWarp) {
    int32_t j[kAtOnce], image[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const bool there = slot + k * kWarp < end;
      j[k] = there ? list.neighbors[slot + k * kWarp] : 0;
      image[k] = there ? list.images[slot + k * kWarp] : 0;
      if (j[k] < 0 || j[k] >= list.atoms) whole = false, j[k] = 0;
    }
    double d[kAtOnce][3];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k)
      displacement(xi, list.positions + 3 * static_cast<int64_t>(j[k]), cell, image[k], d[k]);
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const double r2 = d[k][0] * d[k][0] + d[k][1] * d[k][1] + d[k][2] * d[k][2];
      if (slot + k * kWarp < end && within_cutoff(r2, cutoff2)) report.add(r2, masked);
    }
  }
  return whole;
}

static __global__ void __launch_bounds__(kTableThreads, 4)
    near_kernel(ListArgs list, NearArgs near, double* weight, int32_t* within, double* nearest) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kTableThreads + threadIdx.x) / kWarp;
  if (i >= list.atoms) return;
  const int lane = lane_index();
  const RowKind kind = table_row(list, i);
  int32_t* own = within + i * list.ntypes;
  if (kind != RowKind::real)
    for (int t = lane; t < list.ntypes; t += kWarp) own[t] = 0;
  double c = kind == RowKind::wrong ? not_a_number<double>() : 0, least = near.cutoff;
  if (kind == RowKind::real) {
    RowReport report(near.cutoff);
    bool whole = true;
    int64_t slot = i * list.list_width;
    for (int t = 0; t < list.ntypes; ++t) {
      const int count = list.counts[i * list.ntypes + t];
      const bool masked = near.pair_mask[list.types[i] * list.ntypes + t];
      whole &= look(list, near.cutoff * near.cutoff, i, slot, slot + count, masked, report);
      report.write(own + t);
      slot += count;
    }
    whole = __all_sync(kAllLanes, whole);
    const double least2 = warp_nearest(report.least2);
    least = sqrt(warp_nearest(report.nearest2));
    // No mean is below the least distance: most atoms need not be looked at again.
    if (!(sqrt(least2) >= near.high)) c = weight_at(near, near_sums(list, near, i, least2).mean()).c;
    if (!whole) c = not_a_number<double>();
  }
  if (lane == 0) weight[i] = c, nearest[i] = kind == RowKind::wrong ? c : least;
}

// What pairs of one atom give to forces and virials.
struct PairAdder {
  const ListArgs& list;
  const TableSums& sums;
  int64_t own[6] = {};
  double w[9] = {};
  bool fits = true;

  __device__ PairAdder(const ListArgs& list_, const TableSums& sums_) : list(list_), sums(sums_) {}

  // The pair's part of an energy's gradient, g along d.
  __device__ void add(int64_t slot, const double* d, double g) {
    const int64_t j = list.neighbors[slot];
    for (int a = 0; a < 3; ++a) {
      int64_t whole, rest;
      fits &= table_term(g * d[a], &whole, &rest);
      own[a] += whole, own[3 + a] += rest;
      if (whole != 0) atomic_add(sums.forces + 6 * j + a, -whole);
      atomic_add(sums.forces + 6 * j + 3 + a, -rest);
      for (int b = 0; b < 3; ++b) {
        const double term = -g * d[a] * d[b];
        w[3 * a + b] += term;
        if (!sums.of_atoms) continue;
        fits &= table_term(term, &whole, &rest);
        if (whole != 0) atomic_add(sums.of_atoms + 18 * j + 3 * a + b, whole);
        atomic_add(sums.of_atoms + 18 * j + 9 + 3 * a + b, rest);
      }
    }
  }

  // The sums of all lanes. Returns false if a term was too large.
  __device__ bool finish(int64_t i) {
    const int lane = lane_index();
    for (int k = 0; k < 6; ++k) {
      own[k] = warp_sum(own[k]);
      if (lane == k) atomic_add(sums.forces + 6 * i + k, own[k]);
    }
    for (int k = 0; k < 9; ++k) {
      int64_t whole, rest;
      fits &= table_term(warp_sum(w[k]), &whole, &rest);
      if (lane != k) continue;
      atomic_add(sums.virial + 18 * static_cast<int64_t>(list.batch[i]) + k, whole);
      atomic_add(sums.virial + 18 * static_cast<int64_t>(list.batch[i]) + 9 + k, rest);
    }
    return __all_sync(kAllLanes, fits);
  }
};

// The sums of c's mean, as neighbours come: those so far are of the least distance so far.
struct RunningSums {
  NearSums sums{INFINITY, 0, 0};

  __device__ void add(double r, double decay) {
    if (!(r >= sums.least)) to(r, decay);
    const double w = sums.weight(r, decay);
    sums.weights += w, sums.weighted += w * r;
  }
  // For a distance that is not larger.
  __device__ void to(double least, double decay) {
    const double factor = sums.weights == 0 ? 0 : exp((least - sums.least) / decay);
    sums = {least, sums.weights * factor, sums.weighted * factor};
  }
  // Of all lanes.
  __device__ void join(double decay) {
    double least = sums.least;
    for (int d = kWarp / 2; d > 0; d /= 2) least = nearest_of(least, __shfl_xor_sync(kAllLanes, least, d));
    if (sums.least != least) to(least, decay);
    sums.weights = warp_sum(sums.weights), sums.weighted = warp_sum(sums.weighted);
  }
};

// Calls work(t, slot, d, r, of_table, of_near) for the neighbours that the table has or that make the
// weights, and after each type done(t).
template <class Work, class Done>
__device__ __forceinline__ bool each_of_blend(const ListArgs& list, const TableArgs& table,
                                              const NearArgs& near, int64_t i, const Work& work,
                                              const Done& done) {
  const int64_t row = static_cast<int64_t>(list.types[i]) * list.ntypes;
  const double cutoff = near.cutoff > table.cutoff ? near.cutoff : table.cutoff;
  return each_of_row(
      list, table.pair_mask, cutoff, i,
      [&](int t, int64_t at, const double* d, double r2, bool masked) {
        const double r = sqrt(r2);
        const bool of_table = !masked && !(r >= table.cutoff);
        const bool of_near = !near.pair_mask[row + t] && !(r >= near.cutoff);
        if (of_table || of_near) work(t, at, d, r, of_table, of_near);
      },
      done);
}

// The energy of atom i in a blend, and what it gives to the sums: that of its pairs, and the weight's slope
// times the difference of energies.
__device__ __forceinline__ double blended_atom(const ListArgs& list, const TableArgs& table,
                                               const GpuTableTask& task, int64_t i, double weight,
                                               PairAdder& adder, bool* good) {
  const int64_t row = static_cast<int64_t>(list.types[i]) * list.ntypes;
  const NearArgs& near = task.near;
  double energy = 0;
  RunningSums around;
  *good &= each_of_blend(
      list, table, near, i,
      [&](int t, int64_t, const double*, double r, bool of_table, bool of_near) {
        if (of_table) energy += 0.5 * pair_energy(table, row + t, r).u;
        if (of_near) around.add(r, near.decay);
      },
      [](int) {});
  energy = warp_sum(energy);
  around.join(near.decay);
  const NearSums& sums = around.sums;
  const double slope = (energy - task.other[i]) * weight_at(near, sums.mean()).slope;
  each_of_blend(
      list, table, near, i,
      [&](int t, int64_t at, const double* d, double r, bool of_table, bool of_near) {
        double g = of_table ? 0.5 * weight * pair_energy(table, row + t, r).slope : 0;
        if (of_near && slope != 0) g += slope * mean_slope(sums, near, sums.weight(r, near.decay), r);
        if (g != 0) adder.add(at, d, g / r);
      },
      [](int) {});
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
      [&](int t, int64_t at, const double* d, double r2, bool masked) {
        report.add(r2, masked);
        if (masked || weight == 0) return;
        const double r = sqrt(r2);
        const PairEnergy pair = pair_energy(table, row + t, r);
        energy += 0.5 * pair.u;
        if (pair.slope != 0) adder.add(at, d, 0.5 * weight * pair.slope / r);
      },
      [&](int t) { report.write(out.within + i * list.ntypes + t); });
  *least = sqrt(warp_nearest(report.nearest2));
  return warp_sum(energy);
}

// A warp an atom; of a blend those without weight are answered at once.
static __global__ void __launch_bounds__(kTableThreads)
    table_kernel(ListArgs list, TableArgs table, GpuTableTask task, TableSums sums, GpuTableResults out) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kTableThreads + threadIdx.x) / kWarp;
  if (i >= list.atoms) return;
  const double weight = task.weight ? task.weight[i] : 1;
  const bool idle = task.blends && weight == 0;
  const RowKind kind = idle ? RowKind::empty : table_row(list, i);
  double energy = 0, least = table.cutoff;
  bool good = kind != RowKind::wrong && weight == weight;
  for (int t = lane_index(); t < list.ntypes; t += kWarp) out.within[i * list.ntypes + t] = 0;
  __syncwarp();
  if (kind == RowKind::real) {
    PairAdder adder(list, sums);
    energy = task.blends ? blended_atom(list, table, task, i, weight, adder, &good)
                         : table_atom(list, table, i, weight, out, adder, &least, &good);
    good &= adder.finish(i);
  }
  if (lane_index() != 0) return;
  out.energy[i] = good ? energy : not_a_number<double>();
  out.nearest[i] = kind == RowKind::wrong ? not_a_number<double>() : least;
  const int system = list.batch[i];
  if (!good && system >= 0 && system < list.systems) sums.failed[system] = 1;
}

// The sums as numbers.
static __global__ void table_end_kernel(ListArgs list, TableSums sums, GpuTableResults out) {
  const int64_t k = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const double nan = not_a_number<double>();
  const auto failed = [&](int64_t i) {
    const int system = list.batch[i];
    return system < 0 || system >= list.systems || sums.failed[system];
  };
  if (k < 3 * list.atoms) {
    const bool bad = failed(k / 3);
    out.forces[k] = bad ? nan : table_sum(sums.forces + k / 3 * 6 + k % 3, 3);
    if (bad && k % 3 == 0) out.energy[k / 3] = nan;
  }
  if (out.of_atoms && k < 9 * list.atoms)
    out.of_atoms[k] = failed(k / 9) ? nan : table_sum(sums.of_atoms + k / 9 * 18 + k % 9, 9);
  if (k < 9 * list.systems)
    out.virial[k] = sums.failed[k / 9] ? nan : table_sum(sums.virial + k / 9 * 18 + k % 9, 9);
}

}  // namespace mdops
