// CUDA C++ for a host compiler: one block of threads at a time, each thread a fiber that runs until
// it must wait for others. Included before everything else (scripts/emulate_attention.py).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <vector_functions.h>
#include <vector_types.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#undef __shared__
#define __shared__ static
#undef __global__
#define __global__
#undef __device__
#define __device__
#undef __host__
#define __host__
#undef __forceinline__
#define __forceinline__ inline
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __grid_constant__
#define __grid_constant__
#undef __align__
#define __align__(n) alignas(n)

struct EmulatedIndex {
  unsigned x;
};
extern EmulatedIndex threadIdx, blockIdx, blockDim, gridDim;

using std::exp;
using std::frexp;
using std::isfinite;
using std::ldexp;
using std::log;
using std::max;
using std::min;
// As in CUDA, these ignore NaN.
inline float max(float a, float b) {
  return fmaxf(a, b);
}
inline double max(double a, double b) {
  return fmax(a, b);
}

// Waits for the block; returns whether any thread's number is not zero.
int emulated_barrier(int number);
// Waits for the threads of a team; a team has `threads` consecutive threads of the block.
void emulated_team_barrier(int threads);
// Returns the values of all lanes of the warp, kLaneBytes apart, after each has passed its own.
constexpr int kLaneBytes = 64;
const char* emulated_exchange(const void* given, int bytes);

// The block's shared memory, and a check that `bytes` bytes are inside of it and aligned.
char* emulated_memory();
void emulated_check(const void* at, int bytes);
// Asynchronous copies of the thread, of zeros if there is no `from`. The target is undefined until the thread
// has waited for all of its groups but the last `pending` (-1: for all copies).
void emulated_copy(void* to, const void* from, int bytes);
void emulated_commit();
void emulated_wait(int pending);

// Barriers that count arrivals and received bytes, by their addresses in shared memory. A bulk copy is made
// when a thread waits for its barrier; before, its target is undefined.
struct EmulatedBarrier {
  int arrivals, missing;
  int64_t bytes = 0;
  uint32_t phase = 0;
};
EmulatedBarrier& emulated_barrier_at(uint32_t at);
void emulated_arrive(uint32_t at);
void emulated_wait_at(uint32_t at, uint32_t parity);
void emulated_copy_bulk(void* to, const void* from, int bytes, uint32_t barrier);

template <class T>
T emulated_lane(const char* all, int lane) {
  T value;
  std::memcpy(&value, all + kLaneBytes * lane, sizeof(T));
  return value;
}

inline void __syncthreads() {
  emulated_barrier(0);
}
inline int __syncthreads_or(int x) {
  return emulated_barrier(x);
}
inline void __syncwarp() {
  emulated_exchange("", 1);
}
template <class T>
T __shfl_xor_sync(unsigned, T x, int mask) {
  return emulated_lane<T>(emulated_exchange(&x, sizeof(T)), threadIdx.x % 32 ^ mask);
}
template <class T>
T __shfl_sync(unsigned, T x, int lane) {
  return emulated_lane<T>(emulated_exchange(&x, sizeof(T)), lane);
}
template <class T>
T __shfl_up_sync(unsigned, T x, int lanes) {
  const int lane = threadIdx.x % 32;
  return emulated_lane<T>(emulated_exchange(&x, sizeof(T)), lane < lanes ? lane : lane - lanes);
}
inline unsigned __reduce_max_sync(unsigned, unsigned x) {
  const char* all = emulated_exchange(&x, sizeof(x));
  unsigned largest = 0;
  for (int lane = 0; lane < 32; ++lane) largest = std::max(largest, emulated_lane<unsigned>(all, lane));
  return largest;
}
inline unsigned __ballot_sync(unsigned, int x) {
  const char* all = emulated_exchange(&x, sizeof(x));
  unsigned lanes = 0;
  for (int lane = 0; lane < 32; ++lane) lanes |= unsigned{emulated_lane<int>(all, lane) != 0} << lane;
  return lanes;
}
inline int __any_sync(unsigned mask, int x) {
  return __ballot_sync(mask, x) != 0;
}
inline int __all_sync(unsigned mask, int x) {
  return __ballot_sync(mask, x) == ~0u;
}
inline int __popc(unsigned x) {
  return __builtin_popcount(x);
}

template <class To, class From>
To emulated_bits(From x) {
  static_assert(sizeof(To) == sizeof(From));
  To y;
  std::memcpy(&y, &x, sizeof(x));
  return y;
}
inline float __int_as_float(int x) {
  return emulated_bits<float>(x);
}
inline int __float_as_int(float x) {
  return emulated_bits<int>(x);
}
inline unsigned __float_as_uint(float x) {
  return emulated_bits<unsigned>(x);
}
inline float __uint_as_float(unsigned x) {
  return emulated_bits<float>(x);
}
inline float __fmul_rn(float a, float b) {
  return a * b;
}
inline float __fsub_rn(float a, float b) {
  return a - b;
}
template <class T>
T __ldg(const T* from) {
  return *from;
}
inline int __ffs(unsigned x) {
  return __builtin_ffs(static_cast<int>(x));
}
inline int __clz(int x) {
  return x ? __builtin_clz(static_cast<unsigned>(x)) : 32;
}
inline int __clzll(long long x) {
  return x ? __builtin_clzll(static_cast<unsigned long long>(x)) : 64;
}
inline long long __float2ll_rn(float x) {
  return std::llrintf(x);
}
inline long long __double2ll_rn(double x) {
  return std::llrint(x);
}
inline long long __double_as_longlong(double x) {
  return emulated_bits<long long>(x);
}
template <class T>
T atomicAdd(T* to, T x) {
  const T old = *to;
  *to = old + x;
  return old;
}
inline unsigned atomicOr(unsigned* to, unsigned x) {
  const unsigned old = *to;
  *to |= x;
  return old;
}
inline int atomicMax(int* to, int x) {
  const int old = *to;
  *to = x > old ? x : old;
  return old;
}
inline unsigned atomicMax(unsigned* to, unsigned x) {
  const unsigned old = *to;
  *to = max(old, x);
  return old;
}
inline unsigned long long atomicMax(unsigned long long* to, unsigned long long x) {
  const unsigned long long old = *to;
  *to = max(old, x);
  return old;
}
inline unsigned long long atomicMin(unsigned long long* to, unsigned long long x) {
  const unsigned long long old = *to;
  *to = min(old, x);
  return old;
}
inline cudaError_t cudaGetLastError() {
  return cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void* to, int byte, size_t bytes, cudaStream_t) {
  std::memset(to, byte, bytes);
  return cudaSuccess;
}
template <class T>
void __stcg(T* to, T x) {
  *to = x;
}
template <class T>
void __stcs(T* to, T x) {
  *to = x;
}
template <class T>
T __ldcs(const T* from) {
  return *from;
}
