// What the kernels of the inference step on a GPU read and write, and the order of the atoms: rows sorted by
// type, each type's rows filled up to whole tiles, so that a tile of the fitting net has one set of weights.
//
// Nothing here is looked at by the host. What is wrong with an input, or too large for the sums, raises the
// flag `failed`, and all results become NaN.
#pragma once

#include "common/fixed_point.h"
#include "common/pairs.h"
#include "common/rows.h"
#include "spline_potential/gpu_shape.h"

namespace mdops {

// Forces and virials are summed as integers, so that no result depends on the order of the additions: in
// units of 2^-36 eV/A (1.5e-11) and 2^-32 eV. A pair's force beyond 2^17 eV/A or an atom's virial beyond
// 2^30 eV is refused: a thousand such pairs could not be summed.
constexpr double kForceUnit = 1.0 / (1LL << 36), kVirialUnit = 1.0 / (1LL << 32);
constexpr float kMostForce = 131072.0f;
constexpr double kMostVirial = 1 << 30;

// A position on 32 bytes: one sector of memory.
struct alignas(32) Place {
  double x[3], unused;
};

struct StepArgs {
  const double *positions, *cell;
  const int32_t *batch, *types, *neighbors, *images, *counts;
  const float *mean, *std;
  const bool *pair_mask, *zeroed;
  const int32_t* sel;
  const float *tables, *nets, *extra;
  const double *scale, *shift;
  int atoms, systems, list_width, ntypes, table_width, extra_size, layers;
  int64_t net_size, out_bias;
  Cutoff<float> cutoff;
  SplineGrid<float> grid;
  FittingShape net;

  double* energy;
  double* forces;
  double* virial;
  int32_t* within;
  float* nearest;

  // For the whole call.
  Place* places;         // (atoms,)
  int64_t* force_sums;   // (atoms, 4), in kForceUnit
  int64_t* virial_sums;  // (systems, 9), in kVirialUnit
  int32_t* type_counts;  // (blocks of kOrderBlock atoms, ntypes)
  int32_t* row_atom;     // (rows,): -1 in the rows that fill up a tile
  int32_t* tile_type;    // (tiles,): -1 where there are no atoms
  int32_t* failed;       // (1,)
  int rows, tile_rows;

  // For the chunk of rows [first_row, first_row + chunk_rows): row after row.
  int first_row, chunk_rows, energy_parts;
  float4* pairs;        // (chunk_rows, list_width): pair vector, and the neighbour's index as an integer
  uint32_t* touched;    // (chunk_rows, words): first rows of the moments that neighbours add to, a bit each
  float* t;             // (chunk_rows, 4, table_width)
  float* features;      // (chunk_rows, feature_stride): D, then its gradient
  float* largest;       // (1 + 2 layers, chunk_rows): bounds of the rows of every product's A
  double* energy_part;  // (chunk_rows, energy_parts)
  int feature_stride;

  MDOPS_HD int basis() const { return grid.intervals + 5; }
  MDOPS_HD int moment_rows() const { return ntypes * basis(); }
  MDOPS_HD int words() const { return (moment_rows() + 31) / 32; }
  __device__ Normalisation<float> normalisation(int type) const {
    return {mean[type], 1.0f / std[2 * type], 1.0f / std[2 * type + 1]};
  }
};

constexpr int kOrderBlock = 1024;
constexpr int kAtomThreads = 256;  // at most, where a warp works on an atom

__device__ __forceinline__ float nan_of_gpu() {
  return __int_as_float(0x7fffffff);
}

__device__ __forceinline__ bool is_real(const StepArgs& p, int type) {
  return type >= 0 && type < p.ntypes;
}

// Clears what is summed, copies the positions, and counts each block's atoms of each type.
__global__ void __launch_bounds__(kOrderBlock) begin_kernel(StepArgs p) {
  extern __shared__ int32_t type_count[];
  const int i = blockIdx.x * kOrderBlock + threadIdx.x;
  for (int t = threadIdx.x; t < p.ntypes; t += kOrderBlock) type_count[t] = 0;
  __syncthreads();
  if (i < p.atoms) {
    const double* x = p.positions + 3 * static_cast<int64_t>(i);
    p.places[i] = {{x[0], x[1], x[2]}, 0};
    for (int a = 0; a < 4; ++a) p.force_sums[4 * static_cast<int64_t>(i) + a] = 0;
    if (is_real(p, p.types[i])) atomicAdd(type_count + p.types[i], 1);
  }
  for (int k = i; k < 9 * p.systems; k += gridDim.x * kOrderBlock) p.virial_sums[k] = 0;
  for (int k = i; k < p.rows; k += gridDim.x * kOrderBlock) p.row_atom[k] = -1;
  if (i == 0) *p.failed = 0;
  __syncthreads();
  for (int t = threadIdx.x; t < p.ntypes; t += kOrderBlock)
    p.type_counts[blockIdx.x * p.ntypes + t] = type_count[t];
}

// Puts every atom into its row, in the order of the atoms within a type, and answers the virtual ones.
__global__ void __launch_bounds__(kOrderBlock) order_kernel(StepArgs p) {
  extern __shared__ int32_t shared_counts[];
  constexpr int warps = kOrderBlock / kWarp;
  int32_t* const start = shared_counts;          // [ntypes + 1]: a type's first row
  int32_t* const before = start + p.ntypes + 1;  // [ntypes]: of its atoms, those of earlier blocks
  int32_t* const of_warp = before + p.ntypes;    // [warps][ntypes]
  const int lane = lane_index(), warp = threadIdx.x / kWarp;
  for (int k = threadIdx.x; k < warps * p.ntypes; k += kOrderBlock) of_warp[k] = 0;
  for (int t = warp; t < p.ntypes; t += warps) {
    int all = 0, earlier = 0;
    for (int b = lane; b < gridDim.x; b += kWarp) {
      const int n = p.type_counts[b * p.ntypes + t];
      all += n;
      earlier += b < blockIdx.x ? n : 0;
    }
    all = __reduce_add_sync(kAllLanes, all);
    earlier = __reduce_add_sync(kAllLanes, earlier);
    if (lane == 0) start[t + 1] = round_up(all, p.tile_rows), before[t] = earlier;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    start[0] = 0;
    for (int t = 0; t < p.ntypes; ++t) start[t + 1] += start[t];
  }
  const int i = blockIdx.x * kOrderBlock + threadIdx.x;
  const int type = i < p.atoms ? p.types[i] : -1;
  const unsigned same = __match_any_sync(kAllLanes, type);
  const int rank = __popc(same & ((1u << lane) - 1));
  if (is_real(p, type) && rank == 0) of_warp[warp * p.ntypes + type] = __popc(same);
  __syncthreads();
  for (int t = threadIdx.x; t < p.ntypes; t += kOrderBlock) {
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
    if (type != -1) *p.failed = 1;
    p.energy[i] = 0;
    p.nearest[i] = p.cutoff.cutoff;
    for (int t = 0; t < p.ntypes; ++t) p.within[static_cast<int64_t>(i) * p.ntypes + t] = 0;
  }
  for (int tile = i; tile < p.rows / p.tile_rows; tile += gridDim.x * kOrderBlock) {
    int t = 0;
    while (t < p.ntypes && tile * p.tile_rows >= start[t + 1]) ++t;
    p.tile_type[tile] = t < p.ntypes ? t : -1;
  }
}

// The sums as numbers.
__global__ void end_kernel(StepArgs p) {
  const int64_t k = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  const bool failed = *p.failed != 0;
  const double nan = nan_of_gpu();
  if (k < 3 * static_cast<int64_t>(p.atoms))
    p.forces[k] = failed ? nan : static_cast<double>(p.force_sums[k / 3 * 4 + k % 3]) * kForceUnit;
  if (k < 9 * static_cast<int64_t>(p.systems))
    p.virial[k] = failed ? nan : static_cast<double>(p.virial_sums[k]) * kVirialUnit;
  if (failed && k < p.atoms) p.energy[k] = nan;
}

}  // namespace mdops
