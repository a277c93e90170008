// A GPU for the kernels of one call: its stream, its limits, and launches with error checks. Nothing here
// uses PyTorch.
#pragma once

#include <cuda_runtime.h>

#include <cstdlib>
#include <limits>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "common/workspace.h"

namespace mdops {

// What tiles are chosen by.
struct GpuLimits {
  int multiprocessors;
  int capability;    // 10 major + minor
  int shared_bytes;  // that a block may ask for
};

// Shared memory that a block has without asking.
constexpr int kPlainShared = 48 << 10;

// A tile for chips with little shared memory runs on any: with MDOPS_GPU_SHARED_BYTES set, to fewer bytes
// than the chip has, a test takes the way of such a chip.
inline int limited_shared_bytes(int bytes) {
  const char* limit = std::getenv("MDOPS_GPU_SHARED_BYTES");
  const int most = limit ? std::atoi(limit) : 0;
  return most > 0 && most < bytes ? most : bytes;
}

// Blocks of `size` for n items.
inline int64_t blocks_for(int64_t n, int64_t size) {
  return (n + size - 1) / size;
}

class Gpu {
 public:
  Gpu(const char* op, int index, cudaStream_t stream) : op_(op), index_(index), stream_(stream) {
    limits_.shared_bytes = limited_shared_bytes(limits_.shared_bytes);
  }

  cudaStream_t stream() const { return stream_; }

  // kernel<<<blocks, threads, shared bytes>>>(args...); nothing for no blocks. An error, or an integer that
  // the kernel's parameter cannot hold, becomes an exception.
  template <class... Parameters, class... Args>
  void launch(void (*kernel)(Parameters...), int64_t blocks, int threads, int64_t shared,
              const Args&... args) const {
    launch_with(nullptr, 0, kernel, blocks, threads, shared, args...);
  }
  // With a thread for each of n items, in blocks of so many.
  template <class... Parameters, class... Args>
  void launch_for(int64_t n, int threads, void (*kernel)(Parameters...), const Args&... args) const {
    launch(kernel, blocks_for(n, threads), threads, 0, args...);
  }

  // The same for a kernel that calls `follow_kernels` (common/early.h): its blocks may begin while the kernel
  // before is under way, if that calls it, too. For kernels one after the other that take a few microseconds.
  // Only if it leaves multiprocessors idle: larger ones are in each other's way. And on Hopper alone, where
  // the code is sure to be Hopper's: older code does not wait.
  template <class... Parameters, class... Args>
  void launch_early(void (*kernel)(Parameters...), int64_t blocks, int threads, int64_t shared,
                    const Args&... args) const {
    if (!may_be_early(blocks)) return launch(kernel, blocks, threads, shared, args...);
    cudaLaunchAttribute attribute = early();
    launch_with(&attribute, 1, kernel, blocks, threads, shared, args...);
  }

  // In clusters of so many blocks side by side, which share memory (from sm_90 on). `follows`: it may be
  // early, too.
  template <class... Parameters, class... Args>
  void launch_clusters(void (*kernel)(Parameters...), int64_t blocks, int cluster, int threads,
                       int64_t shared, bool follows, const Args&... args) const {
    cudaLaunchAttribute attributes[] = {{}, early()};
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
    const int count = follows && may_be_early(blocks) ? 2 : 1;
    launch_with(attributes, count, kernel, blocks, threads, shared, args...);
  }

  // A size as the kernels count it.
  int32_t int32_of(const char* name, int64_t value) const {
    if (value < std::numeric_limits<int32_t>::min() || value > std::numeric_limits<int32_t>::max())
      refuse("argument `" + std::string(name) + "` is of size or value " + std::to_string(value) +
             ", expected what fits into 32 bits");
    return static_cast<int32_t>(value);
  }

  // How many blocks of a kernel the GPU holds at once.
  template <class... Parameters>
  int64_t resident_blocks(void (*kernel)(Parameters...), int threads) const {
    int blocks = 0;
    check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, 0));
    return static_cast<int64_t>(blocks) * limits().multiprocessors;
  }

  const GpuLimits& limits() const { return limits_; }

  // Sets bytes of device memory to zero.
  void clear(void* memory, int64_t bytes) const {
    check(cudaMemsetAsync(memory, 0, static_cast<size_t>(bytes), stream_));
  }

  void check(cudaError_t error) const {
    if (error != cudaSuccess)
      refuse("CUDA does not run it on cuda:" + std::to_string(index_) + ": " + cudaGetErrorString(error) +
             " (`mdops doctor` looks for the reason)");
  }

  [[noreturn]] void refuse(const std::string& message) const {
    throw std::runtime_error(std::string("mdops::") + op_ + ": " + message);
  }

 private:
  bool may_be_early(int64_t blocks) const {
#ifdef MDOPS_HOPPER
    return limits().capability == 90 && blocks <= limits().multiprocessors;
#else
    return static_cast<void>(blocks), false;
#endif
  }

  static cudaLaunchAttribute early() {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    return attribute;
  }

  template <class... Parameters, class... Args>
  void launch_with(cudaLaunchAttribute* attributes, int count, void (*kernel)(Parameters...), int64_t blocks,
                   int threads, int64_t shared, const Args&... args) const {
    if (blocks <= 0) return;
    if (blocks > std::numeric_limits<int32_t>::max()) refuse("too many atoms or pairs for one call");
    if (shared > kPlainShared) allow_shared(reinterpret_cast<const void*>(kernel), shared);
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(blocks));
    config.blockDim = dim3(static_cast<unsigned>(threads));
    config.dynamicSmemBytes = static_cast<size_t>(shared);
    config.stream = stream_;
    config.attrs = attributes, config.numAttrs = count;
    check(cudaLaunchKernelEx(&config, kernel, fitted<Parameters>(args)...));
  }

  template <class To, class From>
  To fitted(const From& value) const {
    if constexpr (std::is_integral_v<To> && std::is_integral_v<From>) {
      const To fitted = static_cast<To>(value);
      if (static_cast<From>(fitted) != value || (fitted < To(0)) != (value < From(0)))
        refuse("a size of " + std::to_string(value) + " is more than its kernels count");
      return fitted;
    } else {
      return static_cast<To>(value);
    }
  }

  // Of the device. Each thread asks once for itself, so that no launch waits for another thread; an error is
  // not kept.
  GpuLimits device_limits() const {
    static thread_local std::map<int, GpuLimits> known;
    if (const auto found = known.find(index_); found != known.end()) return found->second;
    GpuLimits limits{};
    int major = 0, minor = 0;
    check(cudaDeviceGetAttribute(&limits.multiprocessors, cudaDevAttrMultiProcessorCount, index_));
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index_));
    check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index_));
    check(cudaDeviceGetAttribute(&limits.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, index_));
    limits.capability = 10 * major + minor;
    return known[index_] = limits;
  }

  // Lets blocks of the kernel have all the shared memory that the device has, which is the kernel's for all
  // threads: to set what each call needs would take it away from another. Once in each thread.
  void allow_shared(const void* kernel, int64_t bytes) const {
    static thread_local std::set<std::pair<const void*, int>> allowed;
    if (bytes > limits().shared_bytes)
      refuse("it needs " + std::to_string(bytes) + " bytes of a GPU's shared memory, more than the " +
             std::to_string(limits().shared_bytes) + " that cuda:" + std::to_string(index_) + " has");
    if (allowed.count({kernel, index_})) return;
    cudaFuncAttributes has{};
    int most = 0;
    check(cudaFuncGetAttributes(&has, kernel));
    check(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, index_));
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               most - static_cast<int>(has.sharedSizeBytes)));
    allowed.insert({kernel, index_});
  }

  const char* op_;
  int index_;
  cudaStream_t stream_;
  GpuLimits limits_ = device_limits();
};

}  // namespace mdops
