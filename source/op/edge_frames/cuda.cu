#include "common/cuda.h"
#include "edge_frames/gpu_kernels.h"
#include "edge_frames/ops.h"

namespace mdops {

template <int kDegree, class T>
static void run_frames(const CudaOp& op, const FrameArgs<T>& args) {
  gpu_frames::run<kDegree>(op, args);
}

template <int kDegree, class T>
static void run_frames(const CudaOp& op, const FrameBackwardArgs<T>& args) {
  gpu_frames::run<kDegree>(op, args);
}

template <int kDegree, class T>
static void run_frames(const CudaOp& op, const FrameTwiceArgs<T>& args) {
  gpu_frames::run<kDegree>(op, args);
}

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  mdops::EdgeFrameOps<mdops::OnGpu>::implement(m);
}
