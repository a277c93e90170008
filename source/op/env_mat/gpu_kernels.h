// The kernels of the environment matrix: a warp per row, a lane per slot.
#pragma once

#include "common/rows.h"
#include "env_mat/args.h"

namespace mdops::gpu_env_mat {

constexpr int kWarps = 8;

// A warp per row: calls work(first slot of these 32, how many of them, kind of row, present, norm) in every
// lane; `present` says whether the lane's slot has a neighbour that counts. An unusable row has kind
// RowKind::wrong.
template <class T, class Work>
__device__ void for_slots(const EnvMatArgs<T>& rows, const Work& work) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (i >= rows.atoms) return;
  const int32_t type = rows.types[i], *counts = rows.counts + i * rows.ntypes;
  const RowKind kind = row_kind(type, rows.ntypes, counts, rows.width);
  const Normalisation<T> norm = rows.normalisation(kind == RowKind::real ? type : -1);
  const T cutoff2 = rows.cutoff.cutoff * rows.cutoff.cutoff;
  SlotTypes slot_types(counts, kind == RowKind::real ? rows.ntypes : 0);
  for (int64_t k = 0; k < rows.width; k += kWarp) {
    const int64_t mine = k + lane_index(), first = i * rows.width + k;
    const int t = slot_types.of(mine);
    const bool present =
        mine < rows.width && t >= 0 && !rows.pair_mask[type * rows.ntypes + t] &&
        within_cutoff(squared_length(rows.displacements + 3 * (first + lane_index())), cutoff2);
    const int lanes = static_cast<int>(rows.width - k < kWarp ? rows.width - k : kWarp);
    work(first, lanes, kind, present, norm);
  }
}

template <class T>
MDOPS_D void store_row(const T* row, int columns, T* out) {
  if (columns == 1) {
    out[0] = row[0];
  } else if constexpr (sizeof(T) == 4) {
    *reinterpret_cast<float4*>(out) = make_float4(row[0], row[1], row[2], row[3]);
  } else {
    reinterpret_cast<double2*>(out)[0] = make_double2(row[0], row[1]);
    reinterpret_cast<double2*>(out)[1] = make_double2(row[2], row[3]);
  }
}

template <class T>
MDOPS_D void fill(T* values, int count, T value) {
  for (int a = 0; a < count; ++a) values[a] = value;
}

template <class T>
__global__ void env_mat_kernel(EnvMatArgs<T> rows, T* out) {
  for_slots(rows, [&](int64_t first, int lanes, RowKind kind, bool present, const Normalisation<T>& norm) {
    const int64_t slot = first + lane_index();
    T row[4];
    env_slot(rows.displacements + 3 * slot, present, rows.cutoff, norm, row);
    if (kind == RowKind::wrong) fill(row, 4, not_a_number<T>());
    if (lane_index() < lanes) store_row(row, rows.columns, out + rows.columns * slot);
  });
}

template <class T>
__global__ void env_mat_backward_kernel(EnvMatArgs<T> rows, const T* grad, T* out) {
  __shared__ T buffers[kWarps][3 * kWarp];
  for_slots(rows, [&](int64_t first, int lanes, RowKind kind, bool present, const Normalisation<T>& norm) {
    const int64_t slot = first + lane_index();
    T g[3] = {0, 0, 0};
    if (present)
      env_slot_backward(grad + rows.columns * slot, rows.columns, rows.displacements + 3 * slot, rows.cutoff,
                        norm, g);
    if (kind == RowKind::wrong) fill(g, 3, not_a_number<T>());
    store_triples(g, buffers[threadIdx.x / kWarp], out + 3 * first, lanes);
  });
}

template <class T>
__global__ void env_mat_second_kernel(EnvMatArgs<T> rows, const T* tangent, const T* grad, T* grad_grad,
                                      T* grad_d) {
  __shared__ T buffers[kWarps][3 * kWarp];
  for_slots(rows, [&](int64_t first, int lanes, RowKind kind, bool present, const Normalisation<T>& norm) {
    const int64_t slot = first + lane_index();
    T row[4] = {0, 0, 0, 0}, g[3] = {0, 0, 0};
    if (present)
      env_slot_second(tangent + 3 * slot, grad + rows.columns * slot, rows.columns,
                      rows.displacements + 3 * slot, rows.cutoff, norm, row, g);
    if (kind == RowKind::wrong) {
      fill(row, 4, not_a_number<T>());
      fill(g, 3, not_a_number<T>());
    }
    if (lane_index() < lanes) store_row(row, rows.columns, grad_grad + rows.columns * slot);
    store_triples(g, buffers[threadIdx.x / kWarp], grad_d + 3 * first, lanes);
  });
}

}  // namespace mdops::gpu_env_mat
