#include "common/cuda.h"
#include "edge_softmax/gpu_kernels.h"
#include "edge_softmax/ops.h"

namespace mdops {

template <class T>
static void run_edge_softmax(const CudaOp& op, const EdgeSoftmaxArgs<T>& args) {
  gpu_edge_softmax::run(op, args);
}

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  mdops::EdgeSoftmaxOps<mdops::OnGpu>::implement(m);
}
