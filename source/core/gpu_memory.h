// Memory of a GPU, and CUDA errors as errors of the core.
#pragma once

#include <cuda_runtime.h>

#include <cstring>
#include <string>

#include "common/parallel.h"
#include "core/error.h"

namespace mdops::core {

inline void check_cuda(cudaError_t error) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // clears it, as the GPU may go on
  if (error == cudaErrorMemoryAllocation) throw Error(MDOPS_MEMORY, "the GPU has not enough memory");
  throw Error(MDOPS_DEVICE, std::string("CUDA: ") + cudaGetErrorString(error));
}

// During its lifetime, a GPU is the thread's current device. Its context is pushed and popped. cudaSetDevice,
// also on the way back, would make a context: on GPU 0 in every process of a program that never used it.
class OnGpu {
 public:
  explicit OnGpu(int index);
  ~OnGpu();
  OnGpu(const OnGpu&) = delete;
};

// free() on a GPU. Does nothing if that no longer exists, e.g. at the end of a process.
void free_on(int index, const auto& free) noexcept {
  try {
    const OnGpu here(index);
    free();
  } catch (const Error&) {
  }
}

// Numbers in the memory of the current device, or of the host with access by the GPU. They are lost when it
// grows. It is freed on that device, whichever is current then.
template <class T, bool OfHost = false>
class GpuArray {
 public:
  GpuArray() = default;
  GpuArray(const GpuArray&) = delete;
  ~GpuArray() { release(); }

  T* data() const { return data_; }

  T* resize(int64_t size) {
    if (size <= size_) return data_;
    release();
    const int64_t more = size + size / 8;  // as the number of ghosts goes up and down
    void* memory = nullptr;
    check_cuda(cudaGetDevice(&gpu_));
    check_cuda(OfHost ? cudaMallocHost(&memory, more * sizeof(T)) : cudaMalloc(&memory, more * sizeof(T)));
    data_ = static_cast<T*>(memory), size_ = more;
    return data_;
  }

  // From memory anywhere.
  T* copy(const T* from, int64_t size, cudaStream_t stream) {
    resize(size);
    if (size) check_cuda(cudaMemcpyAsync(data_, from, size * sizeof(T), cudaMemcpyDefault, stream));
    return data_;
  }
  // Of a vector.
  T* copy(const auto& from, cudaStream_t stream) { return copy(from.data(), from.size(), stream); }

 private:
  void release() {
    if (data_) free_on(gpu_, [&] { OfHost ? cudaFreeHost(data_) : cudaFree(data_); });
    data_ = nullptr, size_ = 0;
  }

  int gpu_ = 0;
  T* data_ = nullptr;
  int64_t size_ = 0;
};

template <class T>
using HostArray = GpuArray<T, true>;

// Columns of rows with these strides.
template <class T>
void copy_columns(const T* from, int64_t from_apart, T* to, int64_t to_apart, int64_t columns, int64_t rows,
                  cudaStream_t stream) {
  if (!columns || !rows) return;
  check_cuda(cudaMemcpy2DAsync(to, to_apart * sizeof(T), from, from_apart * sizeof(T), columns * sizeof(T),
                               rows, cudaMemcpyDeviceToDevice, stream));
}

// Whether the memory is unknown to CUDA, which would copy it by one thread.
inline bool is_pageable(const void* memory) {
  cudaPointerAttributes about{};
  check_cuda(cudaPointerGetAttributes(&about, memory));
  return about.type == cudaMemoryTypeUnregistered;
}

// Copies from and to the caller's memory, anywhere: pageable memory is copied through pinned memory, by all
// threads of the loops.
template <class T>
class Transfer {
 public:
  // The numbers in `to`'s GPU memory.
  T* on_gpu(const T* from, int64_t size, GpuArray<T>& to, cudaStream_t stream) {
    if (!size || !is_pageable(from)) return to.copy(from, size, stream);
    copy(from, size, here_.resize(size));
    return to.copy(here_.data(), size, stream);
  }

  // Starts copying numbers back; they are at `to` after a wait for the stream and `finish`, which does
  // nothing after `forget`.
  void back(const T* from, int64_t size, T* to, cudaStream_t stream) {
    forget();
    if (!size) return;
    if (is_pageable(to)) to_ = to, size_ = size, to = here_.resize(size);
    check_cuda(cudaMemcpyAsync(to, from, size * sizeof(T), cudaMemcpyDefault, stream));
  }
  void finish() {
    if (to_) copy(here_.data(), size_, to_);
    forget();
  }
  void forget() { to_ = nullptr; }

 private:
  static void copy(const T* from, int64_t size, T* to) {
    parallel(size, 1 << 15, [&](int64_t begin, int64_t end) {
      std::memcpy(to + begin, from + begin, (end - begin) * sizeof(T));
    });
  }

  HostArray<T> here_;
  T* to_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace mdops::core
