#include "common/cuda.h"
#include "edge_frames/frames.h"
#include "edge_frames/gpu_kernels.h"
#include "edge_frames/ops.h"

namespace mdops {

template <class Args>
void make_frames(const CudaOp& op, const Args& args, int64_t degree) {
  with_degree(degree, [&]<int kDegree>() { run_frames<kDegree>(op, args); });
}
MDOPS_OF_FLOATS(make_frames, CudaOp, FrameArgs, int64_t);
MDOPS_OF_FLOATS(make_frames, CudaOp, FrameBackwardArgs, int64_t);

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  mdops::EdgeFrameOps<mdops::OnGpu>::implement(m);
}
