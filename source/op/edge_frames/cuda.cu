#include "common/cuda.h"
#include "edge_frames/frames.h"
#include "edge_frames/gpu_kernels.h"
#include "edge_frames/ops.h"

namespace mdops {

template <class Args>
void make_frames(const CudaOp& op, int64_t degree, const Args& args) {
  with_degree(degree, [&]<int kDegree>() { run_frames<kDegree>(op, args); });
}
template void make_frames(const CudaOp&, int64_t, const FrameArgs<float>&);
template void make_frames(const CudaOp&, int64_t, const FrameArgs<double>&);
template void make_frames(const CudaOp&, int64_t, const FrameBackwardArgs<float>&);
template void make_frames(const CudaOp&, int64_t, const FrameBackwardArgs<double>&);

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  mdops::EdgeFrameOps<mdops::OnGpu>::implement(m);
}
