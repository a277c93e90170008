#include "common/cuda.h"
#include "edge_rotation/gpu_rotation.h"
#include "edge_rotation/ops.h"

namespace mdops {

template <class Args>
void rotate(const CudaOp& op, const Args& args) {
  run_rotation(op, args);
}
template void rotate(const CudaOp&, const RotateArgs<float>&);
template void rotate(const CudaOp&, const RotateArgs<double>&);
template void rotate(const CudaOp&, const RotateSumArgs<float>&);
template void rotate(const CudaOp&, const RotateSumArgs<double>&);
template void rotate(const CudaOp&, const RotateOuterArgs<float>&);
template void rotate(const CudaOp&, const RotateOuterArgs<double>&);

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  mdops::EdgeRotationOps<mdops::OnGpu>::implement(m);
}
