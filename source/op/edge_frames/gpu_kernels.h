// Frames of edges on a GPU: a thread per edge. A block's reads and writes are contiguous. Up to degree 4 they
// go through shared memory, with an odd number of numbers per edge, so that lanes have no bank conflicts.
#pragma once

#include "common/gpu.h"
#include "common/rows.h"
#include "edge_frames/edge_frames.h"
#include "gemm/gpu_memory.h"

namespace mdops::gpu_frames {

// Threads of a block.
template <int kDegree>
constexpr int kBlock = kDegree <= 3 ? 64 : 32;
template <int kDegree>
constexpr bool kStaged = kDegree <= 4;

// Numbers of an edge in shared memory: rows, then harmonics.
template <int kDegree>
__host__ __device__ constexpr int numbers_of(int order) {
  return (frame_rows(kDegree, order) + 1) * frame_columns(kDegree);
}
template <int kDegree>
__host__ __device__ constexpr int stride_of(int order) {
  return numbers_of<kDegree>(order) | 1;
}

// Calls f(place in shared memory, place in an array with a constant number of numbers per edge) for the
// block's edges, for those of the array after `behind` others in shared memory.
template <int kCount, class F>
MDOPS_D void each_number(int edges, int behind, int stride, const F& f) {
#pragma unroll 4
  for (int k = threadIdx.x; k < edges * kCount; k += blockDim.x)
    f(k / kCount * stride + behind + k % kCount, k);
}
// For rows of matrices, the first in shared memory.
template <int kDegree, class F>
MDOPS_D void each_of_rows(int edges, int order, int stride, const F& f) {
  if (order > 0)
    each_number<frame_rows(kDegree, 1) * frame_columns(kDegree)>(edges, 0, stride, f);
  else if (order == 0)
    each_number<frame_rows(kDegree, 0) * frame_columns(kDegree)>(edges, 0, stride, f);
}

template <int kDegree, class T>
__global__ void __launch_bounds__(kBlock<kDegree>) frame_kernel(const FrameArgs<T> args) {
  T* const shared = reinterpret_cast<T*>(net_memory());
  constexpr int columns = frame_columns(kDegree);
  const int order = args.shape.order, stride = stride_of<kDegree>(order);
  const int rows = frame_rows(kDegree, order) * columns;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x, e = first + threadIdx.x;
  const int64_t left = args.shape.edges - first;
  const int edges = left < blockDim.x ? static_cast<int>(left) : static_cast<int>(blockDim.x);
  if constexpr (!kStaged<kDegree>) {
    if (threadIdx.x < edges)
      frame_of<kDegree>(args.vectors + 3 * e, order, args.harmonics + e * columns, args.turn + e * rows);
    return;
  }
  T* const own = shared + threadIdx.x * stride;
  if (threadIdx.x < edges) frame_of<kDegree>(args.vectors + 3 * e, order, own + rows, own);
  __syncthreads();
  each_of_rows<kDegree>(edges, order, stride,
                        [&](int from, int to) { args.turn[first * rows + to] = shared[from]; });
  each_number<columns>(edges, rows, stride,
                       [&](int from, int to) { args.harmonics[first * columns + to] = shared[from]; });
}

template <int kDegree, class T>
__global__ void __launch_bounds__(kBlock<kDegree>) backward_kernel(const FrameBackwardArgs<T> args) {
  T* const shared = reinterpret_cast<T*>(net_memory());
  constexpr int columns = frame_columns(kDegree);
  const int order = args.shape.order, stride = stride_of<kDegree>(order);
  const int rows = frame_rows(kDegree, order) * columns;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x, e = first + threadIdx.x;
  const int64_t left = args.shape.edges - first;
  const int edges = left < blockDim.x ? static_cast<int>(left) : static_cast<int>(blockDim.x);
  if constexpr (!kStaged<kDegree>) {
    if (threadIdx.x < edges)
      frame_backward<kDegree>(args.vectors + 3 * e, order, args.by_harmonics + e * columns,
                              args.by_turn + e * rows, args.by_vectors + 3 * e);
    return;
  }
  const T* const own = shared + threadIdx.x * stride;
  each_of_rows<kDegree>(edges, order, stride,
                        [&](int to, int from) { shared[to] = args.by_turn[first * rows + from]; });
  each_number<columns>(edges, rows, stride,
                       [&](int to, int from) { shared[to] = args.by_harmonics[first * columns + from]; });
  __syncthreads();
  if (threadIdx.x < edges)
    frame_backward<kDegree>(args.vectors + 3 * e, order, own + rows, own, args.by_vectors + 3 * e);
}

// Without shared memory: only trainings use it, with few edges.
template <int kDegree, class T>
__global__ void __launch_bounds__(kBlock<kDegree>) twice_kernel(const FrameTwiceArgs<T> args) {
  const int64_t e = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (e < args.shape.edges) frame_twice_of<kDegree>(args, e);
}

template <int kDegree, class T>
void run_frames(const Gpu& gpu, const FrameTwiceArgs<T>& args) {
  constexpr int threads = kBlock<kDegree>;
  gpu.launch_for(args.shape.edges, threads, twice_kernel<kDegree, T>, args);
}

template <int kDegree, class T>
void run_frames(const Gpu& gpu, const FrameArgs<T>& args) {
  constexpr int threads = kBlock<kDegree>;
  gpu.launch(frame_kernel<kDegree, T>, blocks_for(args.shape.edges, threads), threads,
             kStaged<kDegree> ? threads * stride_of<kDegree>(args.shape.order) * sizeof(T) : 0, args);
}

template <int kDegree, class T>
void run_frames(const Gpu& gpu, const FrameBackwardArgs<T>& args) {
  constexpr int threads = kBlock<kDegree>;
  gpu.launch(backward_kernel<kDegree, T>, blocks_for(args.shape.edges, threads), threads,
             kStaged<kDegree> ? threads * stride_of<kDegree>(args.shape.order) * sizeof(T) : 0, args);
}

}  // namespace mdops::gpu_frames

namespace mdops {
using gpu_frames::run_frames;
}
