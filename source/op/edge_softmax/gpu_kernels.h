// Weights of edges on a GPU: a block per atom, a thread per edge; and gradients by the rows of atoms with a
// lane per column and a warp per fourth of the edges, where each lane finds the ends of one of 32.
#pragma once

#include "common/gpu.h"
#include "common/rows.h"
#include "common/vector.h"
#include "edge_softmax/edge_softmax.h"

namespace mdops::gpu_edge_softmax {

constexpr int kThreads = 128, kWarps = kThreads / kWarp;

// Vector size of reads of rows.
template <class T, int kSize>
struct BlockTeam {
  T* shared;  // (kWarps, kWarp)

  MDOPS_D void each(int64_t begin, int64_t end, const auto& f) const {
    for (int64_t k = begin + threadIdx.x; k < end; k += kThreads) f(k);
  }
  MDOPS_D T together(T value, const auto& f) const {
#pragma unroll
    for (int step = kWarp / 2; step > 0; step /= 2) value = f(value, __shfl_xor_sync(kAllLanes, value, step));
    __syncthreads();
    if (lane_index() == 0) shared[threadIdx.x / kWarp] = value;
    __syncthreads();
    value = shared[0];
#pragma unroll
    for (int warp = 1; warp < kWarps; ++warp) value = f(value, shared[warp]);
    return value;
  }
  MDOPS_D T sum(T value) const {
    return together(value, [](T x, T y) { return x + y; });
  }
  MDOPS_D T max(T value) const {
    return together(value, [](T x, T y) { return x > y ? x : y; });
  }
  MDOPS_D void meet() const { __syncthreads(); }

  MDOPS_D T dot(const T* x, const T* y, int64_t size) const {
    T sum = 0;
#pragma unroll 4
    for (int64_t c = 0; c < size; c += kSize) {
      const Vector<T, kSize> one(x + c), other(y + c);
#pragma unroll
      for (int k = 0; k < kSize; ++k) sum += one[k] * other[k];
    }
    return sum;
  }

  MDOPS_D void columns(const EdgeSoftmaxArgs<T>& args, const T* rows, int64_t begin, int64_t end,
                       const auto& find, const auto& write) const {
    const int lane = lane_index(), warp = threadIdx.x / kWarp;
    const int64_t share = (end - begin + kWarps - 1) / kWarps;
    const int64_t own_begin = begin + warp * share,
                  own_end = own_begin + share < end ? own_begin + share : end;
    for (int64_t first = 0; first < args.width; first += kWarp) {
      const int64_t c = first + lane, h = args.head_of(c);
      T sum = 0;
      for (int64_t k = own_begin; k < own_end; k += kWarp) {
        const int count = own_end - k < kWarp ? static_cast<int>(own_end - k) : kWarp;
        const EdgeEnd mine = lane < count ? find(k + lane) : EdgeEnd{-1, -1};
#pragma unroll 8
        for (int i = 0; i < count; ++i) {
          const EdgeEnd found{__shfl_sync(kAllLanes, mine.edge, i), __shfl_sync(kAllLanes, mine.node, i)};
          if (c < args.width) sum += term_of(args, rows, found, h, c, [](const T* p) { return *p; });
        }
      }
      __syncthreads();
      shared[warp * kWarp + lane] = sum;
      __syncthreads();
      if (warp || c >= args.width) continue;
#pragma unroll
      for (int other = 1; other < kWarps; ++other) sum += shared[other * kWarp + lane];
      write(c, sum);
    }
  }
};

template <class T, int kSize>
__global__ void __launch_bounds__(kThreads) atom_kernel(const EdgeSoftmaxArgs<T> args) {
  __shared__ T shared[kThreads];
  const BlockTeam<T, kSize> team{shared};
  if (blockIdx.x < args.atoms)
    softmax_atom(args, blockIdx.x, team);
  else
    clear_rest(args, team);
}

template <class T>
__global__ void __launch_bounds__(kThreads) node_kernel(const EdgeSoftmaxArgs<T> args) {
  __shared__ T shared[kThreads];
  softmax_node(args, blockIdx.x, BlockTeam<T, 1>{shared});
}

template <class T>
void run_edge_softmax(const Gpu& gpu, const EdgeSoftmaxArgs<T>& args) {
  const uintptr_t places = reinterpret_cast<uintptr_t>(args.q) | reinterpret_cast<uintptr_t>(args.k);
  with_vector<T>(places % 16 ? 1 : args.width / args.heads,
                 [&]<int size>() { gpu.launch(atom_kernel<T, size>, args.atoms + 1, kThreads, 0, args); });
  if (args.grad) gpu.launch(node_kernel<T>, args.nodes, kThreads, 0, args);
}

}  // namespace mdops::gpu_edge_softmax

namespace mdops {
using gpu_edge_softmax::run_edge_softmax;
}
