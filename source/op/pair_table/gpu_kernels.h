// The ops on pair tables on a GPU: a warp an atom, a lane a neighbour.
//
// The host checks nothing here. A wrong input, or a term too large for the sums, marks its system as failed,
// and the results of that system become NaN.
#pragma once

#include "common/early.h"
#include "common/fixed_point.h"
#include "pair_table/gpu_loops.h"
#include "pair_table/gpu_near.h"

namespace mdops {

// Forces and virials are summed as pairs of integers, so that no result depends on the order of the
// additions: in units of 2^-8, and the remainders in units of 2^-44, eV/A or eV; small terms go to the
// remainders whole. A term is refused from 2^30 on: there is room for 2^25 of them, and for 2^21 of the small
// ones of an atom's force.
constexpr double kTableUnit = 1.0 / (1 << 8), kTableFine = 1.0 / (1LL << 44), kMostTableTerm = 1 << 30;
constexpr double kSmallTableTerm = 1.0 / (1 << 6), kSmallTableForce = 1.0 / (1 << 2);

// An atom's force takes two sectors of memory: the fourth numbers are unused.
constexpr int kForceColumns = 4;

struct TableSums {
  int64_t *forces, *of_atoms, *virial;  // (N, 2, kForceColumns), (N, 2, 9) or null, (S, 2, 9)
  int32_t* failed;                      // (S,)
};

// The atoms of a blend with weight: those of each kBlendThreads atoms, from the first one's place on.
constexpr int kBlendThreads = 512;
struct BlendAtoms {
  int32_t *atoms, *counts;  // (N,), (blocks,)
  int64_t blocks;
};

MDOPS_D double table_sum(const int64_t* parts, int columns) {
  return static_cast<double>(parts[0]) * kTableUnit + static_cast<double>(parts[columns]) * kTableFine;
}

// The two integers of a term. Returns false for one that is too large.
MDOPS_D bool table_term(double x, double small, int64_t* whole, int64_t* rest) {
  const bool fits = fabs(x) < kMostTableTerm;
  *whole = fits && !(fabs(x) < small) ? __double2ll_rn(x / kTableUnit) : 0;
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

// Calls work(i), by a warp each, for a block's items from `first` to `end` with busy(i). The items are at
// most a warp's lanes; busy(i) is called once each by a thread. All threads must call it.
MDOPS_D void each_busy(int64_t first, int64_t end, const auto& busy, const auto& work) {
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

// The items of a block of kBusyThreads: few, so that those with work spread over a GPU, and more if there are
// many.
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
    // No mean is below the least distance: most atoms need no second loop.
    if (!(sqrt(least2) >= near.high)) c = row_weight(list, near, i);
    if (!whole) c = not_a_number<double>();
  }
  if (lane == 0) weight[i] = c, nearest[i] = kind == RowKind::wrong ? c : least;
}

// The virials of a block's warps, of one system at a time: lane k < 9 has component k of a warp's.
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

  // The warps' sums of one system are written as one: all blocks add to the same numbers. All threads must
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

// Adds the pairs of one atom to forces and virials.
struct PairAdder {
  // A warp's remainders of its pairs, for their neighbours.
  struct Memory {
    int64_t rest[3 * kWarp];
    int32_t j[kWarp];
  };

  const TableSums& sums;
  int64_t own[6] = {};
  double w[6] = {};  // xx, xy, xz, yy, yz, zz
  bool fits = true;

  __device__ explicit PairAdder(const TableSums& sums_) : sums(sums_) {}

  // The pair's part of an energy's gradient, g along d.
  __device__ void add(int64_t j, const double* d, double g) {
    int64_t rest[3];
    add_but_rest(j, d, g, rest);
    for (int a = 0; a < 3; ++a)
      if (rest[a] != 0) atomic_add(of_neighbor(j) + a, -rest[a]);
  }

  // The same for a pair of each lane, none if j < 0. All lanes must call it.
  __device__ void add_together(int32_t j, const double* d, double g, Memory& memory) {
    const int lane = lane_index();
    int64_t rest[3] = {0, 0, 0};
    if (j >= 0) add_but_rest(j, d, g, rest);
    for (int a = 0; a < 3; ++a) memory.rest[3 * lane + a] = rest[a];
    memory.j[lane] = j;
    __syncwarp();
    // Consecutive lanes add to one atom's numbers, which are one sector of memory.
    for (int at = lane; at < 3 * kWarp; at += kWarp)
      if (memory.rest[at] != 0) atomic_add(of_neighbor(memory.j[at / 3]) + at % 3, -memory.rest[at]);
    __syncwarp();
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
    if (lane < 6)
      atomic_add(sums.forces + 2 * kForceColumns * i + kForceColumns * (lane / 3) + lane % 3, force);
#pragma unroll
    for (int k = 0; k < 9; ++k)
      if (lane == k) component = w[symmetric_place(k)];
    int64_t whole, rest;
    fits &= table_term(component, kSmallTableTerm, &whole, &rest);
    virial.add(system, whole, rest);
    return __all_sync(kAllLanes, fits);
  }

 private:
  // The remainder of the force on a neighbour.
  __device__ int64_t* of_neighbor(int64_t j) const {
    return sums.forces + 2 * kForceColumns * j + kForceColumns;
  }

  __device__ void add_but_rest(int64_t j, const double* d, double g, int64_t (&rest)[3]) {
    double term[6];
    for (int a = 0; a < 3; ++a) {
      int64_t whole;
      fits &= table_term(g * d[a], kSmallTableForce, &whole, rest + a);
      own[a] += whole, own[3 + a] += rest[a];
      if (whole != 0) atomic_add(sums.forces + 2 * kForceColumns * j + a, -whole);
      for (int b = a; b < 3; ++b)
        w[symmetric_place(3 * a + b)] += term[symmetric_place(3 * a + b)] = -g * d[a] * d[b];
    }
    if (!sums.of_atoms) return;
    for (int k = 0; k < 9; ++k) {
      int64_t whole, left;
      fits &= table_term(term[symmetric_place(k)], kSmallTableTerm, &whole, &left);
      if (whole != 0) atomic_add(sums.of_atoms + 18 * j + k, whole);
      if (left != 0) atomic_add(sums.of_atoms + 18 * j + 9 + k, left);
    }
  }
};

// The neighbours of an atom in the table or in its weight, of one warp: as many as fit are stored.
class BlendRow {
 public:
  static constexpr int kRoom = 160;
  struct Memory {
    double d[3][kRoom], r[kRoom], slope[kRoom], w[kRoom];  // r: r^2 at first
    int32_t j[kRoom], uses[kRoom];
  };

  __device__ BlendRow(const ListArgs& list, const TableArgs& table, const NearArgs& near, int64_t i,
                      Memory& memory)
      : list_(list),
        table_(table),
        near_(near),
        i_(i),
        pairs_(static_cast<int64_t>(list.types[i]) * list.ntypes),
        inverse_(1 / near.decay),
        memory_(memory) {
    const unsigned before = (1u << lane_index()) - 1;
    double least2 = INFINITY;
    whole_ = each_warp_of_neighbors(list, i, [&](int t, int32_t j, const double* d, double r2) {
      const int uses = uses_of(t, j, r2);
      const unsigned lanes = __ballot_sync(kAllLanes, uses != 0);
      const int at = count_ + __popc(lanes & before);
      if (uses != 0 && at < kRoom) {
        for (int a = 0; a < 3; ++a) memory.d[a][at] = d[a];
        memory.r[at] = r2, memory.j[at] = j, memory.uses[at] = uses;
      }
      if (uses & kOfNear) least2 = nearest_of(least2, r2);
      count_ += __popc(lanes);
    });
    least_ = sqrt(warp_nearest(least2));
    __syncwarp();
  }

  __device__ bool whole() const { return whole_; }

  // Half the sum of the table's energies, of all lanes, and the sums of the distances.
  __device__ double add_up(NearSums& around) {
    double energy = 0;
    around = {least_, 0, 0};
    const auto add = [&](const Known& of, int uses) {
      energy += 0.5 * of.u, around.weights += of.w;
      if (uses & kOfNear) around.weighted += of.w * of.r;  // NaN if there is none
    };
    if (count_ <= kRoom) {
#pragma unroll 1
      for (int k = lane_index(); k < count_; k += kWarp) {
        const Known of = known(memory_.uses[k], memory_.r[k]);
        add(of, memory_.uses[k]);
        memory_.r[k] = of.r, memory_.slope[k] = of.slope * of.by_r, memory_.w[k] = of.w * of.by_r;
      }
    } else {
      each_neighbor(list_, i_, [&](int t, int32_t j, const double*, double r2) {
        const int uses = uses_of(t, j, r2);
        if (uses != 0) add(known(uses, r2), uses);
      });
    }
    __syncwarp();
    around.weights = warp_sum(around.weights), around.weighted = warp_sum(around.weighted);
    return warp_sum(energy);
  }

  // Calls work(j, d, r, du/dr / r, w / r) by all lanes, for a neighbour of each, after `add_up`; j < 0: none.
  __device__ void each(const auto& work) const {
    if (count_ <= kRoom) {
#pragma unroll 1
      for (int first = 0; first < count_; first += kWarp) {
        const int k = first + lane_index(), at = k < count_ ? k : 0;
        const double d[3] = {memory_.d[0][at], memory_.d[1][at], memory_.d[2][at]};
        work(k < count_ ? memory_.j[at] : -1, d, memory_.r[at], memory_.slope[at], memory_.w[at]);
      }
    } else {
      each_warp_of_neighbors(list_, i_, [&](int t, int32_t j, const double* d, double r2) {
        const int uses = uses_of(t, j, r2);
        const Known of = known(uses, r2);
        work(uses != 0 ? j : -1, d, of.r, of.slope * of.by_r, of.w * of.by_r);
      });
    }
  }

 private:
  static constexpr int kOfTable = 1, kOfNear = 2;

  // A pair's values: energy and its slope, and the weight of its distance; 0 where it is not used.
  struct Known {
    double r, by_r, u, slope, w;
  };

  __device__ Known known(int uses, double r2) const {
    Known of{};
    of.by_r = rsqrt(r2), of.r = r2 * of.by_r;
    if (uses & kOfTable) {
      const PairEnergy pair = pair_energy(table_, pairs_ + uses / 4, of.r);
      of.u = pair.u, of.slope = pair.slope;
    }
    if (uses & kOfNear) of.w = exp((least_ - of.r) * inverse_);
    return of;
  }

  // The uses of a neighbour of type t, and its type.
  __device__ int uses_of(int t, int32_t j, double r2) const {
    if (j < 0) return 0;
    const bool table = !table_.pair_mask[pairs_ + t] && within_cutoff(r2, table_.cutoff * table_.cutoff);
    const bool near = !near_.pair_mask[pairs_ + t] && within_cutoff(r2, near_.cutoff * near_.cutoff);
    return table || near ? (table ? kOfTable : 0) | (near ? kOfNear : 0) | 4 * t : 0;
  }

  const ListArgs& list_;
  const TableArgs& table_;
  const NearArgs& near_;
  const int64_t i_, pairs_;  // the atom, and the first pair of its type
  const double inverse_;     // of the decay length
  Memory& memory_;
  double least_;
  int count_ = 0;
  bool whole_ = true;
};

// The memory of a warp for atoms of a blend.
struct BlendMemory {
  BlendRow::Memory row;
  PairAdder::Memory pairs;
};

// The energy of atom i in a blend; adds to the sums its pairs, and the weight's slope times the difference of
// energies.
MDOPS_D double blended_atom(const ListArgs& list, const TableArgs& table, const GpuTableTask& task, int64_t i,
                            double weight, BlendMemory& memory, PairAdder& adder, bool* good) {
  BlendRow row(list, table, task.near, i, memory.row);
  *good &= row.whole();
  NearSums around;
  const double energy = row.add_up(around), mean = around.mean(), inverse = 1 / task.near.decay;
  const double slope =
      (energy - task.other[i]) * weight_at(task.near, mean).slope / around.weights;  // dE/ds by a weight
  row.each([&](int32_t j, const double* d, double r, double of_table, double w) {
    double g = 0.5 * weight * of_table;
    if (w != 0 && slope != 0) g += mean_slope(slope * w, r, mean, inverse);
    adder.add_together(j, d, g, memory.pairs);
  });
  return energy;
}

// The energy of atom i; adds its pairs to the sums.
MDOPS_D double table_atom(const ListArgs& list, const TableArgs& table, int64_t i, double weight,
                          const GpuTableResults& out, PairAdder& adder, double* least, bool* good) {
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

// Writes an atom's results, by a lane.
MDOPS_D void end_atom(const ListArgs& list, const TableSums& sums, const GpuTableResults& out, int64_t i,
                      double energy, double least, bool good, RowKind kind) {
  out.energy[i] = good ? energy : not_a_number<double>();
  out.nearest[i] = kind == RowKind::wrong ? not_a_number<double>() : least;
  const int system = list.batch[i];
  if (!good && system >= 0 && system < list.systems) sums.failed[system] = 1;
}

// By a lane: writes the results of an atom without weight. Returns whether it does have weight.
MDOPS_D bool answer_idle(const ListArgs& list, const TableArgs& table, const GpuTableResults& out, int64_t i,
                         double energy, const double* weight) {
  out.energy[i] = energy, out.nearest[i] = table.cutoff;
  for (int t = 0; t < list.ntypes; ++t) out.within[i * list.ntypes + t] = 0;
  return !(weight && weight[i] == 0);
}

// A warp an atom, `per_block` atoms a block.
static __global__ void __launch_bounds__(kBusyThreads, 5)
    table_kernel(ListArgs list, TableArgs table, const double* weights, TableSums sums, GpuTableResults out,
                 int per_block) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * per_block, end = first + per_block;
  VirialAdder virial(sums);
  const auto is_busy = [&](int64_t i) { return answer_idle(list, table, out, i, 0, nullptr); };
  const auto answer = [&](int64_t i) {
    const double weight = weights ? weights[i] : 1;
    const RowKind kind = table_row(list, i);
    double energy = 0, least = table.cutoff;
    bool good = kind != RowKind::wrong && weight == weight;
    if (kind == RowKind::real) {
      PairAdder adder(sums);
      energy = table_atom(list, table, i, weight, out, adder, &least, &good);
      good &= adder.finish(i, list.batch[i], virial);
    }
    if (lane_index() == 0) end_atom(list, sums, out, i, energy, least, good, kind);
  };
  each_busy(first, end < list.atoms ? end : list.atoms, is_busy, answer);
  virial.finish();
}

// For a blend: clears the sums, answers the atoms without weight, and lists the others of its block.
static __global__ void __launch_bounds__(kBlendThreads)
    blend_begin_kernel(ListArgs list, TableArgs table, GpuTableTask task, TableSums sums, BlendAtoms busy,
                       GpuTableResults out) {
  follow_kernels();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kBlendThreads + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kBlendThreads;
  const auto clear = [&](auto* numbers, int64_t count) {
    for (int64_t k = i; k < count; k += threads) numbers[k] = 0;
  };
  clear(sums.forces, 2 * kForceColumns * list.atoms);
  if (sums.of_atoms) clear(sums.of_atoms, 18 * list.atoms);
  clear(sums.virial, 18 * list.systems);
  clear(sums.failed, list.systems);
  const bool mine =
      i < list.atoms && answer_idle(list, table, out, i, task.sums.forces ? task.other[i] : 0, task.weight);
  constexpr int kWarps = kBlendThreads / kWarp;
  __shared__ int32_t of_warp[kWarps];
  const int lane = lane_index(), warp = threadIdx.x / kWarp;
  const unsigned lanes = __ballot_sync(kAllLanes, mine);
  if (lane == 0) of_warp[warp] = __popc(lanes);
  __syncthreads();
  int before = 0, all = 0;
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) before += of_warp[w];
    all += of_warp[w];
  }
  if (mine)
    busy.atoms[i - threadIdx.x + before + __popc(lanes & ((1u << lane) - 1))] = static_cast<int32_t>(i);
  if (threadIdx.x == 0) busy.counts[blockIdx.x] = all;
}

// The n-th of the listed atoms, or -1. All lanes must call it.
MDOPS_D int64_t busy_atom(const BlendAtoms& busy, int64_t n) {
  const int lane = lane_index();
  for (int64_t block = 0; block < busy.blocks; block += kWarp) {
    const int own = block + lane < busy.blocks ? busy.counts[block + lane] : 0;
    const int sum = running_sum(own);
    const unsigned beyond = __ballot_sync(kAllLanes, n < sum);
    if (beyond != 0) {
      const int lane_of_it = __ffs(beyond) - 1;
      const int64_t at =
          (block + lane_of_it) * kBlendThreads + n - __shfl_sync(kAllLanes, sum - own, lane_of_it);
      return busy.atoms[at];
    }
    n -= __shfl_sync(kAllLanes, sum, kWarp - 1);
  }
  return -1;
}

// A warp an atom with weight, of a blend.
static __global__ void __launch_bounds__(kNearThreads, kNearBlocks)
    blend_kernel(ListArgs list, TableArgs table, GpuTableTask task, TableSums sums, BlendAtoms busy,
                 GpuTableResults out) {
  follow_kernels();
  constexpr int kWarps = kNearThreads / kWarp;
  static_assert(kNearThreads == kBusyThreads);  // for VirialAdder
  __shared__ BlendMemory memory[kWarps];
  const int warp = threadIdx.x / kWarp;
  VirialAdder virial(sums);
  for (int64_t n = static_cast<int64_t>(blockIdx.x) * kWarps + warp;; n += int64_t{gridDim.x} * kWarps) {
    const int64_t i = busy_atom(busy, n);
    if (i < 0) break;
    const double weight = task.weight ? task.weight[i] : 1;
    const RowKind kind = table_row(list, i);
    double energy = 0;
    bool good = kind != RowKind::wrong && weight == weight;
    if (kind == RowKind::real) {
      PairAdder adder(sums);
      energy = blended_atom(list, table, task, i, weight, memory[warp], adder, &good);
      good &= adder.finish(i, list.batch[i], virial);
    }
    if (task.sums.forces) energy = (1 - weight) * task.other[i] + weight * energy;
    if (lane_index() == 0) end_atom(list, sums, out, i, energy, table.cutoff, good, kind);
  }
  virial.finish();
}

// Converts the sums to reals.
static __global__ void table_end_kernel(ListArgs list, TableSums sums, OtherSums other, GpuTableResults out) {
  follow_kernels();
  const int64_t k = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const double nan = not_a_number<double>();
  const auto failed = [&](int64_t i) {
    const int system = list.batch[i];
    return system < 0 || system >= list.systems || sums.failed[system];
  };
  if (k < 3 * list.atoms) {
    const bool bad = failed(k / 3);
    const double force = table_sum(sums.forces + 2 * kForceColumns * (k / 3) + k % 3, kForceColumns);
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
