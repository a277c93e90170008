#include "common/cuda.h"
#include "linear/cuda_call.h"
#include "so2_layer/gpu_layers_call.h"
#include "so2_layer/gpu_run.h"
#include "so2_layer/ops.h"

namespace mdops {

template <class T>
static void run_so2(const CudaOp& op, const So2Args<T>& args) {
  Tensor memory = empty(op, {gpu_so2::memory_for(op, args)}, ScalarType::Byte);
  gpu_so2::run(op, args, memory.mutable_data_ptr(),
               [&](const auto&... given) { multiply_into<T>(op, given...); });
}

template <class T>
static void run_so2_messages(const CudaOp& op, So2Messages<T>& args) {
  if constexpr (std::is_same_v<T, float>) {
    if (gpu_so2::takes_layers(op, args)) {
      Tensor memory = empty(op, {gpu_so2::memory_of_layers(op, args)}, ScalarType::Byte);
      return gpu_so2::run_layers(op, args, static_cast<char*>(memory.mutable_data_ptr()));
    }
  }
  run_one_by_one(op, args);
}

}  // namespace mdops

MDOPS_ON_GPU(So2LayerOps, So2MessageOps)
