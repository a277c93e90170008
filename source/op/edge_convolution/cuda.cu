#include "common/cuda.h"
#include "edge_convolution/gpu_kernels.h"
#include "edge_convolution/ops.h"

namespace mdops {

template <ConvolutionPass pass, class T>
static void run_convolution(const CudaOp& op, const EdgeConvolutionArgs<T>& args) {
  if constexpr (pass == ConvolutionPass::by_a) {
    gpu_edge_convolution::run_nodes<T, true>(op, args);
  } else if constexpr (pass == ConvolutionPass::by_x) {
    gpu_edge_convolution::run_nodes<T, false>(op, args);
  } else if constexpr (pass == ConvolutionPass::by_edges) {
    gpu_edge_convolution::run_edges(op, args);
  } else {
    const int64_t shares = gpu_edge_convolution::weight_shares(op, args);
    Tensor sums = empty(op, {shares * args.inputs * args.width}, kDtype<T>);
    gpu_edge_convolution::run_weight(op, args, sums.template mutable_data_ptr<T>());
  }
}

}  // namespace mdops

MDOPS_ON_GPU(EdgeConvolutionOps)
