// The kernels of pair vectors and of the gradients of pair forces.
#pragma once

#include "common/rows.h"
#include "displacements/args.h"

namespace mdops::gpu_displacements {

constexpr int kThreads = 256;

constexpr int kPerThread = 4;  // components, to have several loads in flight

// Components in the order of the result: the three of a pair read contiguous memory each. `Index` counts
// them; in 32 bits if possible, which makes the divisions for slot and row cheaper.
template <class T, class Index>
__global__ void displacements_kernel(const double* x, const double* cell, PairRows rows,
                                     const int32_t* images, T* out) {
  const Index begin = static_cast<Index>(blockIdx.x) * (kThreads * kPerThread) + threadIdx.x;
  const Index width = static_cast<Index>(rows.width), slots = static_cast<Index>(rows.rows) * width;
  int32_t found[kPerThread], image[kPerThread];
#pragma unroll
  for (int u = 0; u < kPerThread; ++u) {
    const Index slot = (begin + u * kThreads) / 3;
    found[u] = slot < slots ? rows.neighbors[slot] : -1;
    image[u] = slot < slots ? images[slot] : 0;
  }
#pragma unroll
  for (int u = 0; u < kPerThread; ++u) {
    const Index component = begin + u * kThreads, slot = component / 3;
    if (slot >= slots) return;
    const int64_t i = rows.first + static_cast<int64_t>(slot / width);
    const int axis = static_cast<int>(component - 3 * slot);
    const int32_t j = found[u], system = rows.batch[i];
    double d = 0;
    if (j >= 0 && j < rows.atoms && system >= 0 && system < rows.systems)
      d = displacement_component(x[3 * i + axis], x[3 * static_cast<int64_t>(j) + axis],
                                 cell + 9 * static_cast<int64_t>(system), image[u], axis);
    else if (j != -1)
      d = not_a_number<double>();
    out[component] = static_cast<T>(d);
  }
}

// A warp per row, a lane per slot.
template <class T>
__global__ void pair_forces_backward_kernel(PairRows rows, PairForceGrads of, const T* grad,
                                            const T* displacements, T* grad_grad, T* grad_displacements) {
  __shared__ T buffer[3 * kThreads];
  T* own = buffer + 3 * kWarp * (threadIdx.x / kWarp);
  const int64_t i = static_cast<int64_t>(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (i >= rows.atoms) return;
  const int64_t system = rows.batch[i];
  for (int64_t first = 0; first < rows.width; first += kWarp) {
    const int64_t slot = first + lane_index(), p = i * rows.width + slot;
    const int64_t j = slot < rows.width ? rows.neighbors[p] : -1;
    T by_g[3] = {0, 0, 0}, by_d[3] = {0, 0, 0};
    if (j >= 0 && j < rows.atoms && system >= 0 && system < rows.systems)
      pair_force_gradient(of.forces + 3 * i, of.forces + 3 * j, of.virial + 9 * system,
                          of.atom_virial + 9 * j, grad + 3 * p, displacements + 3 * p, by_g, by_d);
    else if (j != -1)
      for (int a = 0; a < 3; ++a) by_g[a] = by_d[a] = not_a_number<T>();
    const int lanes = static_cast<int>(rows.width - first < kWarp ? rows.width - first : kWarp);
    store_triples(by_g, own, grad_grad + 3 * (i * rows.width + first), lanes);
    store_triples(by_d, own, grad_displacements + 3 * (i * rows.width + first), lanes);
  }
}

}  // namespace mdops::gpu_displacements
