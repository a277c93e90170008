// The kernels of a step of several descriptors on a GPU: T of each, the row of all features, and the forces
// of each from its part of that row's gradient. A warp works on an atom as in the step of one descriptor
// (spline_potential/gpu_moments.h, gpu_forces.h).
#pragma once

#include "common/gpu_floats.h"
#include "hybrid_potential/gpu_loops.h"
#include "pair_table/gpu_near.h"
#include "spline_potential/gpu_forces.h"

namespace mdops {

// Where a descriptor's features stand.
struct PartFeatures {
  const float* t;  // of the chunk's rows
  int table_width, width, axis, first;
  bool plain;
};

struct HybridFeatures {
  const float* bounds;  // of the rows' features; null where there are none
  int count, first_extra, most_axis;
  PartFeatures parts[kMostParts];
};

// What the forces of a descriptor need beside the step's own arguments.
struct PartForces {
  const double* weight;  // (N,); null: 1
  int first;             // number of the row
  int first_extra;
  bool ends;          // whether this is the first kernel, which ends the rows
  float* grad_extra;  // (N, extra)
  const double* c;    // (N,), of atoms blended with a pair table; null: 0
};

// The weight of atom i's energy in the forces.
MDOPS_D double weight_in_forces(const PartForces& h, int i) {
  const double weight = h.weight ? h.weight[i] : 1;
  return h.c ? (1 - h.c[i]) * weight : weight;
}

// c of the chunk's atoms with a near neighbour, a warp each.
static __global__ void __launch_bounds__(kNearThreads, kNearBlocks)
    near_rows_kernel(StepArgs p, NearRows near) {
  follow_kernels();
  __shared__ double room[kNearThreads / kWarp][kNearRoom];
  const int count = p.near.counts[p.first_row / p.net.rows], warps = gridDim.x * (kNearThreads / kWarp);
  for (int k = (blockIdx.x * kNearThreads + threadIdx.x) / kWarp; k < count; k += warps) {
    const int i = p.near.atoms[p.first_row + k];
    const double c = table_row(near.list, i) == RowKind::real
                         ? row_weight_with(near.list, near.near, i, room[threadIdx.x / kWarp])
                         : not_a_number<double>();
    if (lane_index() == 0) near.c[i] = c;
  }
}

// T of a descriptor, and the bound of the rows' features so far.
template <bool Gated>
__global__ void __launch_bounds__(kAtomThreads, 3)
    part_moments_kernel(StepArgs p, float* bounds, bool first) {
  follow_kernels();
  extern __shared__ __align__(16) char shared[];
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / kWarp;
  const int i = atom_of(p, row);
  if (i < 0) return;
  MDOPS_STAGE(moments);
  const float bound = warp_largest(form_t<Gated>(p, i, row, AtomMemory(shared, p)));
  if (lane_index() == 0) bounds[row] = first ? bound : fmaxf(bound, bounds[row]);
}

template <int Parts>
__global__ void __launch_bounds__(kAtomThreads) features_kernel(StepArgs p, HybridFeatures h) {
  follow_kernels();
  extern __shared__ __align__(16) char shared[];
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / kWarp;
  const int i = atom_of(p, row);
  if (i == -2) return;
  if (i < 0) return write_empty_row<Parts>(p, row);
  MDOPS_STAGE(features);
  float4* const narrow = reinterpret_cast<float4*>(shared) + threadIdx.x / kWarp * h.most_axis;
  const InputRow<Parts> out =
      begin_row<Parts>(p.net, row, bound_with_extra(p, i, h.bounds ? h.bounds[row] : 0.0f));
  for (int k = 0; k < h.count; ++k) {
    const PartFeatures& part = h.parts[k];
    const float* t_row = part.t + row * 4 * part.table_width;
    for (int l = lane_index(); l < part.axis; l += kWarp)
      narrow[l] = part.plain ? make_float4(1, 0, 0, 0)
                             : make_float4(t_row[l], t_row[part.table_width + l],
                                           t_row[2 * part.table_width + l], t_row[3 * part.table_width + l]);
    __syncwarp();
    write_d(Features(part.width, part.axis), part.first, t_row, part.table_width, narrow, out);
    __syncwarp();
  }
  write_extra(p, i, h.first_extra, out);
}

// By a warp: the energy of a row's atom, and the gradient by its further inputs.
MDOPS_D void end_row(const StepArgs& p, const PartForces& h, int64_t row, int i, float weight) {
  const float* const from = p.net.inputs + row * p.net.net.inputs + h.first_extra;
  float* const to = h.grad_extra + static_cast<int64_t>(i) * p.extra_size;
  const bool wide = p.extra_size % 4 == 0 &&
                    (reinterpret_cast<uintptr_t>(from) | reinterpret_cast<uintptr_t>(to)) % 16 == 0;
  const auto weighted = [=](const auto& x) { return weight * x; };
  if (wide)
    map_numbers<4>(reinterpret_cast<const float4*>(from), p.extra_size / 4, reinterpret_cast<float4*>(to),
                   weighted);
  else
    map_numbers<4>(from, p.extra_size, to, weighted);
  if (lane_index() == 0) write_energy(p, row, i);
}

// Without any descriptor.
static __global__ void __launch_bounds__(kAtomThreads) net_end_kernel(StepArgs p, PartForces h) {
  follow_kernels();
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / kWarp;
  const int i = real_atom_of(p, row);
  if (i >= 0) end_row(p, h, row, i, static_cast<float>(weight_in_forces(h, i)));
}

template <bool Gated, bool Virials>
__global__ void __launch_bounds__(kAtomThreads, 2) part_forces_kernel(StepArgs p, PartForces h) {
  follow_kernels();
  extern __shared__ __align__(16) char shared[];
  MDOPS_STAGE(forces);
  const int warp = threadIdx.x / kWarp;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (blockDim.x / kWarp) + warp;
  const ForceMemory m(shared, warp, p);
  const int i = real_atom_of(p, row);
  if (i >= 0) {
    const float* gradient = p.net.inputs + row * p.net.net.inputs;
    const float weight = static_cast<float>(weight_in_forces(h, i));
    atom_forces<Gated, Virials>(p, row, i, gradient + h.first, weight, m);
    if (h.ends) end_row(p, h, row, i, weight);
  }
  if (lane_index() == 0) m.virial[9] = i >= 0 ? p.batch[i] : -1;
  add_virials(p, shared);
}

// (N, parts, ntypes) from (parts, N, ntypes).
static __global__ void within_kernel(const int32_t* of_parts, int64_t atoms, int parts, int ntypes,
                                     int32_t* within) {
  const int64_t k = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (k >= atoms * parts * ntypes) return;
  const int64_t i = k / ntypes / parts, part = k / ntypes % parts;
  within[k] = of_parts[(part * atoms + i) * ntypes + k % ntypes];
}

}  // namespace mdops
