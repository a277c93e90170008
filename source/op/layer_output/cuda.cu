#include "common/cuda.h"
#include "layer_output/ops.h"

namespace mdops {

namespace {

constexpr int kThreads = 256;

// A thread a number.
template <class T, Activation kind>
__global__ void __launch_bounds__(kThreads) layer_output_kernel(LayerOutputArgs<T> args) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= args.rows * args.columns) return;
  const int64_t n = at / args.columns;
  if constexpr (kind == Activation::silut) {
    // As nearly always; the other half is not worked out then.
    if (args.z[at] < args.threshold)
      return layer_output<Activation::silu>(args, n * args.columns, n * args.inputs, at - n * args.columns);
  }
  layer_output<kind>(args, n * args.columns, n * args.inputs, at - n * args.columns);
}

struct LayerOutputOnGpu {
  static CudaOp make(const char* name, const Tensor& z) { return CudaOp(name, "z", z); }

  template <class T>
  static void run(const CudaOp& op, const LayerOutputArgs<T>& args) {
    with_activation(args.activation, [&]<Activation kind>() {
      op.launch(layer_output_kernel<T, kind>, blocks_for(args.rows * args.columns, kThreads), kThreads, 0,
                args);
    });
  }
};

using Ops = LayerOutputOps<LayerOutputOnGpu>;

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  m.impl("layer_output", TORCH_BOX(&Ops::layer_output));
  m.impl("layer_output_backward", TORCH_BOX(&Ops::layer_output_backward));
  m.impl("layer_output_backward_backward", TORCH_BOX(&Ops::layer_output_backward_backward));
}

}  // namespace mdops
