// What the kernels of the inference step on a GPU read and write, and the order of the atoms: rows sorted by
// type, each net's rows filled up to whole tiles, so that a tile of the fitting net has one set of weights.
//
// Nothing here is looked at by the host. What is wrong with an input, or too large for the sums, marks its
// system as failed, and the results of that system become NaN.
#pragma once

#include "common/early.h"
#include "common/fixed_point.h"
#include "common/pairs.h"
#include "common/profiler.h"
#include "common/rows.h"
#include "gemm/gpu_run.h"
#include "spline_moment/gpu_moments.h"
#include "spline_potential/args.h"

namespace mdops {

// Forces and virials are summed as integers, so that no result depends on the order of the additions: in
// units of 2^-36 eV/A (1.5e-11) and 2^-32 eV. An atom's force has 2^27 eV/A of room: a pair's beyond 2^17, or
// beyond what as many pairs as a row holds could add up to from both sides, is refused. An atom's virial is
// refused from 2^30 eV on; where those of atoms are asked for, as sums over the pairs that lead to them, a
// pair's is from 2^30 eV over a row's places on. A system's is summed in two integers, of which none can
// overflow.
constexpr double kForceUnit = 1.0 / (1LL << 36), kVirialUnit = 1.0 / (1LL << 32);
constexpr float kMostForce = 131072.0f, kMostForceOfRow = 1 << 26;
constexpr double kMostVirial = 1 << 30;

// The integers of a system's virial: nine sums of high parts, in 2^32 units, and nine of the low 32 bits.
constexpr int kVirialSums = 18;

MDOPS_HD int64_t virial_part(int64_t value, int part) {
  return part < 9 ? value >> 32 : value & 0xffffffff;
}

MDOPS_HD double virial_sum(int64_t high, int64_t low) {
  high += low >> 32, low &= 0xffffffff;
  if (high >= -(int64_t{1} << 30) && high < int64_t{1} << 30)  // one integer holds it: rounded once
    return static_cast<double>(high * (int64_t{1} << 32) + low) * kVirialUnit;
  return static_cast<double>(high) + static_cast<double>(low) * kVirialUnit;
}

// A position on 32 bytes: one sector of memory.
struct alignas(32) Place {
  double x[3], unused;
};

// D[l][k] for l < M2 and k >= l as the net's input: row after row of l, k from 4 floor(l / 4) on, so that
// every row starts and ends on four numbers. The entries k < l have no weight. Then come the `extra` inputs,
// then zeros.
struct Features {
  int width, axis;  // M rounded up to 4, and M2

  MDOPS_HD Features(int m, int m2) : width(round_up(m, 4)), axis(m2) {}
  static MDOPS_HD int first(int l) { return l & ~3; }
  // Where D[l][k = 0] would stand: the row's numbers are at row(l) + k.
  MDOPS_HD int row(int l) const {
    const int g = l / 4;
    return 4 * (g * width - 2 * g * (g - 1)) + (l % 4) * (width - 4 * g) - 4 * g;
  }
  MDOPS_HD int count() const { return row(axis - 1) + width; }
};

// Sizes of the descriptor. A library that is rebuilt for a model has them as constants, as those of the
// tables.
struct StepSizes {
#ifdef MDOPS_MODEL_WIDTH
  static constexpr int extra_size = MDOPS_MODEL_EXTRA;
  static constexpr int width = MDOPS_MODEL_WIDTH, axis = MDOPS_MODEL_AXIS;
  int unused_sizes[3];
#else
  int extra_size, width, axis;
#endif
};

// What all kernels of a step take. The results are the op's (docs/ops.md).
struct StepArgs : StepInputs<float, int>, StepSizes {
  bool plain;                     // D = T's first row, T_< being (1, 0, 0, 0), and axis 1
  float most_force, most_virial;  // of a pair

  double* energy;
  double* forces;
  double* virial;
  double* atom_virial;  // null: not asked for
  int32_t* within;
  float* nearest;

  // For the whole call.
  Place* at;             // (atoms,)
  int64_t* atom_sums;    // (atoms, atom_numbers()): the force, in kForceUnit, and the virial, in kVirialUnit
  int64_t* virial_sums;  // (systems, kVirialSums)
  int32_t* type_counts;  // (blocks of kOrderBlock atoms, ntypes)
  int32_t* row_atom;     // (rows,): -1 in the rows that fill up a tile
  int32_t* tile_net;     // (tiles,): -1 where there are no atoms
  int32_t* failed;       // (systems,)
  int rows, tile_rows;

  // For the chunk of rows [first_row, first_row + net.rows): row after row.
  int first_row, output_parts;
  float4* pairs;      // (net.rows, list_width): pair vector, and the neighbour's index as an integer
  uint32_t* touched;  // (net.rows, words): first rows of the moments that neighbours add to, a bit each
  float* t;           // (net.rows, 4, table_width)
  NetArgs net;        // its input is D and the extra inputs
  int64_t out_bias;   // of a packed net

  // A sector of memory each: the force, and the rows of the virial, if that is asked for. Of four the last is
  // unused.
  MDOPS_HD int atom_numbers() const { return atom_virial ? 16 : 4; }
  MDOPS_HD Features features() const { return {width, axis}; }
  MDOPS_HD int words() const { return (moment_rows() + 31) / 32; }
  __device__ Normalisation<float> normalisation(int type) const {
    if (plain) return ones(mean[type], std[2 * type], std[2 * type + 1]);
    return normalised(mean[type], std[2 * type], std[2 * type + 1]);
  }
};

constexpr int kOrderBlock = 1024;
constexpr int kAtomThreads = 256;  // at most, where a warp works on an atom

// The warps that work on an atom: one,
struct OneWarp {
  static constexpr bool kAlone = true;
  static constexpr int rank = 0, size = 1;
};
// or, where atoms are few, several side by side in a block.
struct Team {
  static constexpr bool kAlone = false;
  int rank, size;  // this warp's number among them, and how many they are
  int number;      // of the team in its block

  explicit __device__ Team(int warps)
      : rank(threadIdx.x / kWarp % warps), size(warps), number(threadIdx.x / kWarp / warps) {}

  // Waits for the others, and sees what they have written.
  __device__ __forceinline__ void sync() const {
    asm volatile("bar.sync %0, %1;" ::"r"(number + 1), "r"(kWarp * size) : "memory");
  }
  __device__ __forceinline__ int thread() const { return kWarp * rank + lane_index(); }
  __device__ __forceinline__ int threads() const { return kWarp * size; }
};

// Marks the system of atom i; an atom of none is answered alone.
__device__ __forceinline__ void fail_system_of(const StepArgs& p, int i) {
  const int system = p.batch[i];
  if (system >= 0 && system < p.systems) p.failed[system] = 1;
}

__device__ __forceinline__ bool is_real(const StepArgs& p, int type) {
  return type >= 0 && type < p.ntypes;
}

// Clears what is summed, copies the positions, and counts this block's atoms of each type.
__device__ __forceinline__ void begin_block(const StepArgs& p, int32_t* type_count) {
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

// Puts every atom into its row, in the order of the atoms within a type, and answers the virtual ones. One
// block alone, of as many warps as it has atoms for, does what `begin_kernel` does, too.
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
    p.row_atom[of_warp[warp * p.ntypes + type] + rank] = i;
  } else if (i < p.atoms) {
    if (type != -1) fail_system_of(p, i);
    p.energy[i] = 0;
    p.nearest[i] = p.cutoff.cutoff;
    for (int t = 0; t < p.ntypes; ++t) p.within[static_cast<int64_t>(i) * p.ntypes + t] = 0;
  }
  for (int tile = i; tile < p.rows / p.tile_rows; tile += gridDim.x * blockDim.x) {
    int t = 0;
    while (t < p.ntypes && tile * p.tile_rows >= start[t + 1]) ++t;
    p.tile_net[tile] = t < p.ntypes ? p.net_of(t) : -1;
  }
}

// The sums as numbers.
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
