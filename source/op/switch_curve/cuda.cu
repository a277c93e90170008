#include "common/cuda.h"
#include "switch_curve/ops.h"

namespace mdops {

namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kThreads) switch_kernel(SwitchArgs<T> args) {
  const int64_t k = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (k < args.count) args.run(k);
}

struct SwitchOnGpu {
  static CudaOp make(const char* name, const Tensor& r) { return CudaOp(name, "r", r); }

  template <class T>
  static void run(const CudaOp& op, const SwitchArgs<T>& args) {
    op.launch(switch_kernel<T>, blocks_for(args.count, kThreads), kThreads, 0, args);
  }
};

}  // namespace

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  m.impl("switch_curve", TORCH_BOX(&mdops::switch_curve<mdops::SwitchOnGpu>));
}
