// What the CUDA half of every op shares: its device and stream, and launching kernels with their errors
// caught.
#pragma once

#include <cuda_runtime.h>
#include <torch/csrc/stable/accelerator.h>

#include <limits>
#include <string>

#include "common/tensor.h"

namespace mdops {

// One call of an op on a GPU. While it lives, the GPU of tensor `on` (the argument called `argument`) is the
// current device; kernels run in PyTorch's current stream of that device.
class CudaOp : public Op {
 public:
  CudaOp(const char* name, const char* argument, const Tensor& on)
      : Op(name, device_of(name, argument, on)), guard_(gpu) {
    void* stream = nullptr;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(gpu, &stream));
    stream_ = static_cast<cudaStream_t>(stream);
  }

  cudaStream_t stream() const { return stream_; }

  // kernel<<<blocks, threads, shared bytes>>>(args...); nothing for no blocks. An error becomes an exception.
  template <class... Parameters, class... Args>
  void launch(void (*kernel)(Parameters...), int64_t blocks, int threads, size_t shared, Args... args) const {
    if (blocks <= 0) return;
    if (blocks > std::numeric_limits<int32_t>::max()) fail(*this, "too many atoms or pairs for one call");
    kernel<<<static_cast<unsigned>(blocks), threads, shared, stream_>>>(static_cast<Parameters>(args)...);
    check(cudaGetLastError());
  }

  // How many blocks of a kernel the GPU holds at once.
  template <class... Parameters>
  int64_t resident_blocks(void (*kernel)(Parameters...), int threads) const {
    int blocks = 0, processors = 0;
    check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, 0));
    check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, gpu));
    return static_cast<int64_t>(blocks) * processors;
  }

  // Sets all bytes of a contiguous tensor to zero.
  void clear(Tensor& tensor) const {
    check(cudaMemsetAsync(tensor.mutable_data_ptr(), 0, tensor.numel() * tensor.element_size(), stream_));
  }

  void check(cudaError_t error) const {
    if (error != cudaSuccess)
      fail(*this, std::string("CUDA does not run it on cuda:") + std::to_string(gpu) + ": " +
                      cudaGetErrorString(error) + " (`mdops doctor` looks for the reason)");
  }

 private:
  static int32_t device_of(const char* name, const char* argument, const Tensor& on) {
    if (!on.is_cuda())
      fail(name, std::string("argument `") + argument + "` is on another device than the op's other " +
                     "arguments (cuda)");
    return on.get_device_index();
  }

  torch::stable::accelerator::DeviceGuard guard_;
  cudaStream_t stream_;
};

// Blocks of `size` for n items.
inline int64_t blocks_for(int64_t n, int64_t size) {
  return (n + size - 1) / size;
}

// A value that is not there: what the kernels answer to a wrong index.
template <class T>
__device__ __forceinline__ T not_a_number() {
  return static_cast<T>(__int_as_float(0x7fffffff));
}

}  // namespace mdops
