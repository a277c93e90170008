// Replaces source/op/common/gpu.h: launches run on the emulated GPU.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>

#include "common/workspace.h"

namespace mdops {

struct GpuLimits {
  int multiprocessors, capability, shared_bytes;
};

inline int64_t blocks_for(int64_t n, int64_t size) {
  return (n + size - 1) / size;
}

class Gpu {
 public:
  explicit Gpu(const GpuLimits& limits) : limits_(limits) {}

  template <class... Parameters, class... Args>
  void launch(void (*kernel)(Parameters...), int64_t blocks, int threads, int64_t shared,
              const Args&... args) const {
    run([&] { kernel(static_cast<Parameters>(args)...); }, blocks, threads, shared);
  }
  template <class... Parameters, class... Args>
  void launch_for(int64_t n, int threads, void (*kernel)(Parameters...), const Args&... args) const {
    launch(kernel, blocks_for(n, threads), threads, 0, args...);
  }
  // Kernels run one after the other in any case.
  template <class... Parameters, class... Args>
  void launch_early(void (*kernel)(Parameters...), int64_t blocks, int threads, int64_t shared,
                    const Args&... args) const {
    launch(kernel, blocks, threads, shared, args...);
  }
  template <class... Parameters>
  int64_t resident_blocks(void (*)(Parameters...), int) const {
    return limits_.multiprocessors;
  }
  void clear(void* memory, int64_t bytes) const { std::memset(memory, 0, static_cast<size_t>(bytes)); }
  void check(cudaError_t) const {}
  cudaStream_t stream() const { return nullptr; }
  GpuLimits limits() const { return limits_; }
  int32_t int32_of(const char*, int64_t value) const { return static_cast<int32_t>(value); }

 private:
  void run(const std::function<void()>& thread, int64_t blocks, int threads, int64_t shared) const;
  GpuLimits limits_;
};

}  // namespace mdops
