#include "common/cuda.h"
#include "displacements/gpu_loops.h"
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
  Optional memory_;
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

template <class T>
static void run_harmonic_forces(const CudaOp& op, const HarmonicMomentArgs<T>& args,
                                const HarmonicSumArgs<T>& sums, const HarmonicForceArgs<T>& of) {
  if constexpr (std::is_same_v<T, float>) {
    Room room(op);
    if (gpu_harmonic::run_forces(op, args, sums, of, room)) return;
  }
  Tensor grad = empty(op, {args.atoms, args.width, 3}, kDtype<T>);
  run_harmonic_sum_gradients<T>(op, args, sums, of.by_first, of.by_second, data_of(grad));
  Tensor memory = empty(op, {pair_forces_bytes<T>(op, of.rows, false)}, ScalarType::Byte);
  run_pair_forces<T>(op, of.rows, data_of(grad), args.displacements, memory.mutable_data_ptr(), of.forces,
                     of.virial, nullptr);
}

}  // namespace mdops

MDOPS_ON_GPU(HarmonicSumOps)
