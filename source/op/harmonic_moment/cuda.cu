#include <optional>

#include "common/cuda.h"
#include "harmonic_moment/gpu_run.h"
#include "harmonic_moment/ops.h"

namespace mdops {

// Device memory for a call.
class Room {
 public:
  explicit Room(const CudaOp& op) : op_(op) {}
  void* operator()(int64_t bytes) {
    memory_ = empty(op_, {bytes}, ScalarType::Byte);
    return memory_->mutable_data_ptr();
  }

 private:
  const CudaOp& op_;
  std::optional<Tensor> memory_;
};

template <class T>
static void run_harmonic_sums(const CudaOp& op, const HarmonicMomentArgs<T>& args,
                              const HarmonicSumArgs<T>& sums, const HarmonicSums<T>& out) {
  Room room(op);
  gpu_harmonic::run_sums(op, args, sums, out, room);
}

template <class T>
static void run_harmonic_sum_gradients(const CudaOp& op, const HarmonicMomentArgs<T>& args,
                                       const HarmonicSumArgs<T>& sums, const T* by_first, const T* by_second,
                                       T* pair_grad) {
  Room room(op);
  gpu_harmonic::run_sum_gradients(op, args, sums, by_first, by_second, pair_grad, room);
}

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  mdops::HarmonicSumOps<mdops::OnGpu>::implement(m);
}
