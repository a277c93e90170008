// The shared CUDA part of every op's binding: its device, PyTorch's stream, and tensors.
#pragma once

#include <torch/csrc/stable/accelerator.h>

#include "common/gpu.h"
#include "common/tensor.h"

namespace mdops {

// One call of an op on a GPU. While it lives, that GPU is the current device; kernels run in PyTorch's
// current stream of that device.
class CudaOp : public Op, public Gpu {
 public:
  CudaOp(const char* name, int32_t device) : Op(name, device), Gpu(name, gpu, stream_of(gpu)), guard_(gpu) {}

  using Gpu::clear;
  // Sets all bytes of a contiguous tensor to zero.
  void clear(Tensor& tensor) const {
    clear(tensor.mutable_data_ptr(), tensor.numel() * tensor.element_size());
  }

 private:
  static cudaStream_t stream_of(int32_t gpu) {
    void* stream = nullptr;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(gpu, &stream));
    return static_cast<cudaStream_t>(stream);
  }

  torch::stable::accelerator::DeviceGuard guard_;
};

// The tensor, or a copy of it if its memory is not aligned to 16 bytes, which kernels read at once, and by
// which cuBLAS chooses kernels.
inline bool is_aligned(Input tensor) {
  return reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 16 == 0;
}
inline Tensor aligned(Input tensor) {
  return is_aligned(tensor) ? tensor : torch::stable::clone(tensor);
}

// As in common/large_results.h on a CPU; on a GPU PyTorch already keeps memory.
inline Tensor empty_result(const CudaOp& op, const std::vector<int64_t>& shape, ScalarType dtype) {
  return empty(op, shape, dtype);
}

struct OnGpu {
  using Call = CudaOp;
  // For the GPU of the first tensor that is on one.
  static CudaOp make(const char* name, const auto&... arguments) {
    const Tensor* first = first_tensor([](Input tensor) { return tensor.is_cuda(); }, arguments...);
    if (!first) fail(name, "no argument is on a GPU");
    return CudaOp(name, first->get_device_index());
  }
  static Tensor placed(Input tensor) { return aligned(tensor); }
  static bool is_placed(Input tensor) { return is_aligned(tensor); }
  static Tensor summed(const Op& op, const std::vector<int64_t>& shape, ScalarType dtype) {
    return empty(op, shape, dtype);
  }
};

}  // namespace mdops
