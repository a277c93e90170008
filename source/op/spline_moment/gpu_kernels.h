// The kernels of the spline moment ops: a warp an atom, one type after the other, with the type's sums, or
// its part of the gradient, in shared memory.
#pragma once

#include "env_mat/gpu_nearest.h"
#include "spline_moment/gpu_moments.h"

namespace mdops::gpu_moment {

constexpr int kMostWarps = 8;  // in a block

// Blocks that a multiprocessor should hold at once: this limits a thread's registers.
template <class T, bool Second>
constexpr int kBlocks = sizeof(T) == 8 ? 2
                        : Second       ? 3
                                       : 4;

// Two numbers a lane in shared memory, so that half a warp adds a neighbour. Sums in global memory have one
// copy, for one group.
template <int Columns, bool Shared>
using Lanes = Sharing<Columns, Columns == 4 ? 2 : 1, Shared ? kWarp / (Columns == 4 ? 16 : 8) : 1>;

// Numbers of one type, rounded up so that the next copy is aligned.
template <int Columns>
__host__ __device__ constexpr int padded_size(int basis) {
  return (basis * Columns + 3) / 4 * 4;
}

// The same for sums, with two more rows.
template <int Columns>
__host__ __device__ constexpr int type_sums(int basis) {
  return padded_size<Columns>(basis + 2);
}

template <class T>
MDOPS_D void load_vector(const T* values, int64_t slot, T* d) {
  for (int a = 0; a < 3; ++a) d[a] = values[3 * slot + a];
}

template <class T>
MDOPS_D void fill(T* out, int64_t size, T value) {
  for (int64_t k = lane_index(); k < size; k += kWarp) out[k] = value;
}

template <int Columns, bool Shared, class T>
MDOPS_D void clear_sums(int basis, T* sums) {
  const int quads = type_sums<Columns>(basis) * Lanes<Columns, Shared>::kCopies / 4;
  if constexpr (Shared)
    for (int k = lane_index(); k < quads; k += kWarp) reinterpret_cast<Pack<T, 4>*>(sums)[k] = Pack<T, 4>{};
  else
    fill(sums, basis * Columns, T(0));
}

// Writes the sum of the copies to the result.
template <int Columns, class T>
MDOPS_D void write_sums(int basis, const T* sums, T* out) {
  constexpr int width = Columns == 4 ? 4 : 1;
  using Numbers = Pack<T, width>;
  for (int k = lane_index(); k < basis * Columns / width; k += kWarp) {
    Numbers total = reinterpret_cast<const Numbers*>(sums)[k];
#pragma unroll
    for (int copy = 1; copy < Lanes<Columns, true>::kCopies; ++copy) {
      const Numbers other = reinterpret_cast<const Numbers*>(sums + copy * type_sums<Columns>(basis))[k];
      for (int a = 0; a < width; ++a) total.of[a] += other.of[a];
    }
    reinterpret_cast<Numbers*>(out)[k] = total;
  }
}

// Adds the neighbours [begin, begin + count) of one type to its sums; counts those within the cutoff in
// `inside`, and updates this lane's smallest squared distance, `nearest`.
template <int Columns, bool Gated, bool Shared, class T, bool Tangent>
MDOPS_D void add_type(const MomentArgs<T>& args, const T* tangent, int64_t begin, int count, bool masked,
                      const Normalisation<T>& norm, Staged<T, Tangent>* stage, T* sums, int* inside,
                      T* nearest) {
  const T cutoff2 = args.cutoff.cutoff * args.cutoff.cutoff;
  for (int k = 0; k < count; k += kWarp) {
    const int64_t slot = begin + k + lane_index();
    T d[3] = {0, 0, 0}, v[3] = {0, 0, 0}, r2 = cutoff2;
    const bool there = k + lane_index() < count;
    if (there) {
      load_vector(args.displacements, slot, d);
      r2 = squared_length(d);
    }
    const bool within = there && within_cutoff(r2, cutoff2);
    const unsigned lanes = __ballot_sync(kAllLanes, within);
    *inside += __popc(lanes);
    *nearest = nearest_of(*nearest, r2);
    if (masked) continue;
    const int before = __popc(lanes & ((1u << lane_index()) - 1));
    if (within) {
      if constexpr (Tangent) load_vector(tangent, slot, v);
      T w;
      prepare<Gated>(args.cutoff, args.grid, norm, 0, d, v, before, stage, &w);
    } else {
      leave_empty(__popc(lanes) + lane_index() - before, stage);
    }
    __syncwarp();
    add_staged<Lanes<Columns, Shared>, !Shared>(*stage, __popc(lanes), type_sums<Columns>(args.basis()),
                                                sums);
    __syncwarp();
  }
}

// The moments of one atom, or with `Tangent` their derivative along the tangents. One type's sums are in
// shared memory, or directly in the result if they do not fit.
template <int Columns, bool Gated, bool Shared, class T, bool Tangent>
MDOPS_D void moments_of(const MomentArgs<T>& args, int64_t i, const T* tangent, Staged<T, Tangent>* stage,
                        T* shared_sums, T* moments, int32_t* within, T* nearest) {
  const int size = args.basis() * Columns, type = args.types[i];
  const int32_t* counts = args.counts + i * args.ntypes;
  const RowKind kind = row_kind(type, args.ntypes, counts, args.width);
  T* out = moments + i * args.ntypes * size;
  if (kind != RowKind::real) {
    const bool wrong = kind == RowKind::wrong;
    fill(out, static_cast<int64_t>(args.ntypes) * size, wrong ? not_a_number<T>() : T(0));
    if constexpr (!Tangent) {
      fill(within + i * args.ntypes, args.ntypes, 0);
      if (lane_index() == 0) nearest[i] = wrong ? not_a_number<T>() : args.cutoff.cutoff;
    }
    return;
  }
  clear_lines(stage);
  const Normalisation<T> norm = args.normalisation(type);
  T least = args.cutoff.cutoff * args.cutoff.cutoff;
  int64_t slot = i * args.width;
  int taken = 0;
  for (int t = 0; t < args.ntypes; slot += counts[t++], out += size) {
    T* sums = Shared ? shared_sums : out;
    const bool masked = args.places.masked(type, t);
    int inside = 0;
    clear_sums<Columns, Shared>(args.basis(), sums);
    __syncwarp();
    add_type<Columns, Gated, Shared>(args, tangent, slot, counts[t], masked, norm, stage, sums, &inside,
                                     &least);
    if constexpr (!Tangent) {
      const int own = args.places.taken(type, t, inside);
      taken += own;
      if (lane_index() == 0) {
        within[i * args.ntypes + t] = inside;
        if (!Gated && !args.places.padding) add_padding<Columns>(norm, T(args.places.sel[t] - own), sums);
      }
    }
    __syncwarp();
    if constexpr (Shared) write_sums<Columns>(args.basis(), sums, out);
    __syncwarp();
  }
  if constexpr (!Tangent) {
    if (!Gated && args.places.padding && lane_index() == 0) {
      const int t = args.places.padding[i];
      const bool there = t >= 0 && t < args.ntypes;
      const T slots = there ? T(args.places.empty(taken)) : not_a_number<T>();
      add_padding<Columns>(norm, slots, moments + (i * args.ntypes + (there ? t : 0)) * size);
    }
    least = warp_nearest(least);
    if (lane_index() == 0) nearest[i] = std::sqrt(least);
  }
}

template <int Columns, bool Gated, bool Shared, class T, bool Tangent>
__global__ void __launch_bounds__(kMostWarps* kWarp, kBlocks<T, Tangent>)
    moment_kernel(MomentArgs<T> args, int64_t atoms, const T* tangent, T* moments, int32_t* within,
                  T* nearest) {
  extern __shared__ __align__(16) char shared[];
  const int warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  auto* stages = reinterpret_cast<Staged<T, Tangent>*>(shared);
  const int size = type_sums<Columns>(args.basis()) * Lanes<Columns, Shared>::kCopies;
  T* sums = reinterpret_cast<T*>(stages + warps) + warp * size;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * warps + warp;
  if (i < atoms)
    moments_of<Columns, Gated, Shared>(args, i, tangent, stages + warp, sums, moments, within, nearest);
}

// Copies one type's gradient into shared memory; by 16 bytes if both are aligned.
template <class T>
MDOPS_D void copy_grad(const T* from, int size, T* to) {
  constexpr int per = 16 / sizeof(T);
  if (reinterpret_cast<uintptr_t>(from) % 16 == 0 && size % per == 0)
    for (int k = lane_index(); k < size / per; k += kWarp)
      reinterpret_cast<float4*>(to)[k] = reinterpret_cast<const float4*>(from)[k];
  else
    for (int k = lane_index(); k < size; k += kWarp) to[k] = from[k];
}

// The pair gradients of one atom. `copy` holds one type's gradient; unused if that does not fit.
template <int Columns, Gate G, bool Second, bool Shared, class T>
__device__ void pulled_of(const MomentArgs<T>& args, int64_t i, const T* tangent, const T* grad, T* copy,
                          T* buffer, T* out) {
  const int size = args.basis() * Columns, type = args.types[i];
  const int32_t* counts = args.counts + i * args.ntypes;
  const RowKind kind = row_kind(type, args.ntypes, counts, args.width);
  int64_t slot = i * args.width;
  const int64_t end = slot + args.width;
  if (kind == RowKind::real) {
    const Normalisation<T> norm = args.normalisation(type);
    const T cutoff2 = args.cutoff.cutoff * args.cutoff.cutoff;
    const T* of_type = grad + i * args.ntypes * size;
    for (int t = 0; t < args.ntypes; slot += counts[t++], of_type += size) {
      const bool masked = args.places.masked(type, t);
      if (Shared && counts[t] > 0 && !masked) {
        __syncwarp();
        copy_grad(of_type, size, copy);
        __syncwarp();
      }
      for (int k = 0; k < counts[t]; k += kWarp) {
        T d[3] = {0, 0, 0}, v[3] = {0, 0, 0}, g[3] = {0, 0, 0};
        const int left = counts[t] - k;
        if (lane_index() < left && !masked) {
          load_vector(args.displacements, slot + k + lane_index(), d);
          if constexpr (Second) load_vector(tangent, slot + k + lane_index(), v);
          if (within_cutoff(squared_length(d), cutoff2))
            pull<Columns, G, Second, Shared>(args.cutoff, args.grid, norm, Shared ? copy : of_type,
                                             static_cast<const T*>(nullptr), d, v, g);
        }
        store_triples(g, buffer, out + 3 * (slot + k), left < kWarp ? left : kWarp);
      }
    }
  }
  fill(out + 3 * slot, 3 * (end - slot), kind == RowKind::wrong ? not_a_number<T>() : T(0));
}

template <int Columns, Gate G, bool Second, bool Shared, class T>
__global__ void __launch_bounds__(kMostWarps* kWarp, kBlocks<T, Second>)
    pull_kernel(MomentArgs<T> args, int64_t atoms, const T* tangent, const T* grad, T* out) {
  extern __shared__ __align__(16) char shared[];
  const int warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  T* buffers = reinterpret_cast<T*>(shared);
  const int size = padded_size<Columns>(args.basis());
  T* copies = buffers + static_cast<int64_t>(warps) * 3 * kWarp;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * warps + warp;
  if (i < atoms)
    pulled_of<Columns, G, Second, Shared>(args, i, tangent, grad, Shared ? copies + warp * size : nullptr,
                                          buffers + warp * 3 * kWarp, out);
}

}  // namespace mdops::gpu_moment
