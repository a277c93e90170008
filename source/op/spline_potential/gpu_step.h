// The first and last kernels of the inference step on a GPU, and the order of the atoms: rows sorted by type,
// each net's rows filled up to whole tiles, so that a tile of the fitting net has one set of weights.
//
// The host checks nothing here. A wrong input, or a term too large for the sums, marks its system as failed,
// and the results of that system become NaN.
#pragma once

#include "common/early.h"
#include "common/fixed_point.h"
#include "common/gpu_barrier.h"
#include "common/pairs.h"
#include "common/profiler.h"
#include "common/rows.h"
#include "env_mat/gpu_nearest.h"
#include "gemm/gpu_run.h"
#include "spline_moment/gpu_moments.h"
#include "spline_potential/gpu_args.h"

namespace mdops {

constexpr int kOrderBlock = 1024;
constexpr int kAtomThreads = 256;  // at most, with a warp an atom

// The warps that work on an atom: one,
struct OneWarp {
  static constexpr bool kAlone = true;
  static constexpr int rank = 0, size = 1;
};
// or, for few atoms, several in a block.
struct Team {
  static constexpr bool kAlone = false;
  int rank, size;  // this warp's number, and the number of warps
  int number;      // of the team in its block

  explicit __device__ Team(int warps)
      : rank(threadIdx.x / kWarp % warps), size(warps), number(threadIdx.x / kWarp / warps) {}

  // Waits for the others, whose writes are then visible.
  MDOPS_D void sync() const { sync_threads(number + 1, kWarp * size); }
  MDOPS_D int thread() const { return kWarp * rank + lane_index(); }
  MDOPS_D int threads() const { return kWarp * size; }
};

// Marks the system of atom i, if it has a valid one.
MDOPS_D void fail_system_of(const StepArgs& p, int i) {
  const int system = p.batch[i];
  if (system >= 0 && system < p.systems) p.failed[system] = 1;
}

MDOPS_D bool is_real(const StepArgs& p, int type) {
  return type >= 0 && type < p.ntypes;
}

// For the lane that wrote an atom's nearest distance: lists the atom if that is near or NaN.
MDOPS_D void list_near(const StepArgs& p, int i) {
  if (!p.near.c || p.nearest[i] >= p.near.far) return;
  p.near.atoms[p.first_row + atomicAdd(p.near.counts + p.first_row / p.net.rows, 1)] = i;
}

// Clears the sums, copies the positions, and counts this block's atoms of each type.
MDOPS_D void begin_block(const StepArgs& p, int32_t* type_count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  for (int t = threadIdx.x; t < p.ntypes; t += blockDim.x) type_count[t] = 0;
  __syncthreads();
  if (i < p.atoms) {
    const double* x = p.positions + 3 * static_cast<int64_t>(i);
    p.at[i] = {{x[0], x[1], x[2]}, 0};
    if (is_real(p, p.types[i])) atomicAdd(type_count + p.types[i], 1);
  }
  const int threads = gridDim.x * blockDim.x;
  for (int64_t k = i; k < int64_t{p.atom_numbers()} * p.atoms; k += threads) p.atom_sums[k] = 0;
  for (int k = i; k < kVirialSums * p.systems; k += threads) p.virial_sums[k] = 0;
  for (int k = i; k < p.systems; k += threads) p.failed[k] = 0;
  for (int k = i; k < p.rows; k += threads) p.row_atom[k] = -1;
  if (p.near.c) {
    for (int k = i; k < p.atoms; k += threads) p.near.c[k] = 0;
    for (int64_t k = i; k * p.net.rows < p.rows; k += threads) p.near.counts[k] = 0;
  }
  __syncthreads();
}

static __global__ void __launch_bounds__(kOrderBlock) begin_kernel(StepArgs p) {
  follow_kernels();
  MDOPS_STAGE(order);
  extern __shared__ int32_t shared_counts[];
  begin_block(p, shared_counts);
  for (int t = threadIdx.x; t < p.ntypes; t += blockDim.x)
    p.type_counts[blockIdx.x * p.ntypes + t] = shared_counts[t];
}

// Puts every atom into its row, in the order of the atoms within a type, and writes the results of virtual
// ones. A single block, with as many warps as its atoms need, does the work of `begin_kernel`, too.
static __global__ void __launch_bounds__(kOrderBlock) order_kernel(StepArgs p) {
  follow_kernels();
  MDOPS_STAGE(order);
  extern __shared__ int32_t shared_counts[];
  const int warps = blockDim.x / kWarp;
  const bool alone = gridDim.x == 1;
  int32_t* const start = shared_counts;          // [ntypes + 1]: a type's first row
  int32_t* const before = start + p.ntypes + 1;  // [ntypes]: of its atoms, those of earlier blocks
  int32_t* const of_warp = before + p.ntypes;    // [warps][ntypes]
  int32_t* const own = of_warp;                  // [ntypes]: of a block alone, its counts
  if (alone) begin_block(p, own);
  const int lane = lane_index(), warp = threadIdx.x / kWarp;
  for (int t = warp; t < p.ntypes; t += warps) {
    int all = 0, earlier = 0;
    for (int b = lane; b < gridDim.x; b += kWarp) {
      const int n = alone ? own[t] : p.type_counts[b * p.ntypes + t];
      all += n;
      earlier += b < blockIdx.x ? n : 0;
    }
    all = __reduce_add_sync(kAllLanes, all);
    earlier = __reduce_add_sync(kAllLanes, earlier);
    if (lane == 0) start[t + 1] = p.nets == 1 ? all : round_up(all, p.tile_rows), before[t] = earlier;
  }
  __syncthreads();
  for (int k = threadIdx.x; k < warps * p.ntypes; k += blockDim.x) of_warp[k] = 0;
  if (threadIdx.x == 0) {
    start[0] = 0;
    for (int t = 0; t < p.ntypes; ++t) start[t + 1] += start[t];
  }
  __syncthreads();
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const int type = i < p.atoms ? p.types[i] : -1;
  const unsigned same = __match_any_sync(kAllLanes, type);
  const int rank = __popc(same & ((1u << lane) - 1));
  if (is_real(p, type) && rank == 0) of_warp[warp * p.ntypes + type] = __popc(same);
  __syncthreads();
  for (int t = threadIdx.x; t < p.ntypes; t += blockDim.x) {
    int next = start[t] + before[t];
    for (int w = 0; w < warps; ++w) {
      const int n = of_warp[w * p.ntypes + t];
      of_warp[w * p.ntypes + t] = next;
      next += n;
    }
  }
  __syncthreads();
  if (is_real(p, type)) {
    const int row = of_warp[warp * p.ntypes + type] + rank;
    p.row_atom[row] = i;
    if (p.by_atom) p.atom_row[i] = row;
  } else if (i < p.atoms) {
    if (type != -1) fail_system_of(p, i);
    p.energy[i] = 0;
    p.nearest[i] = p.cutoff.cutoff;
    for (int t = 0; t < p.ntypes; ++t) p.within[static_cast<int64_t>(i) * p.ntypes + t] = 0;
    for (int k = 0; p.grad_extra && k < p.extra_size; ++k)
      p.grad_extra[static_cast<int64_t>(i) * p.extra_size + k] = 0;
  }
  for (int tile = i; tile < p.rows / p.tile_rows; tile += gridDim.x * blockDim.x) {
    int t = 0;
    while (t < p.ntypes && tile * p.tile_rows >= start[t + 1]) ++t;
    p.tile_net[tile] = t < p.ntypes ? p.net_of(t) : -1;
  }
}

// Converts the sums to reals.
static __global__ void end_kernel(StepArgs p) {
  follow_kernels();
  MDOPS_STAGE(sums);
  const int k = blockIdx.x * blockDim.x + threadIdx.x;
  const double nan = not_a_number<double>();
  if (k < 3 * p.atoms) {
    const int i = k / 3, component = k - 3 * i, system = p.batch[i];
    const bool failed = system < 0 || system >= p.systems || p.failed[system];
    const int64_t sum = p.atom_sums[p.atom_numbers() * static_cast<int64_t>(i) + component];
    p.forces[k] = failed ? nan : static_cast<double>(sum) * kForceUnit;
    if (failed && component == 0) p.energy[i] = nan;
  }
  if (p.atom_virial && k < 9 * p.atoms) {
    const int i = k / 9, row = (k - 9 * i) / 3, column = (k - 9 * i) % 3, system = p.batch[i];
    const bool failed = system < 0 || system >= p.systems || p.failed[system];
    const int64_t sum = p.atom_sums[16 * static_cast<int64_t>(i) + 4 * (row + 1) + column];
    p.atom_virial[k] = failed ? nan : static_cast<double>(sum) * kVirialUnit;
  }
  if (k < 9 * p.systems) {
    const int64_t* sums = p.virial_sums + k / 9 * kVirialSums + k % 9;
    p.virial[k] = p.failed[k / 9] ? nan : virial_sum(sums[0], sums[9]);
  }
}

}  // namespace mdops
