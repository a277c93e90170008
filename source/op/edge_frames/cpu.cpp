#include "edge_frames/ops.h"

namespace mdops {

constexpr int64_t kFrameEdges = 128;  // minimum edges per piece

template <int kDegree, class T>
static void run_frames(const Op&, const FrameArgs<T>& args) {
  parallel(args.shape.edges, kFrameEdges,
           [&](int64_t begin, int64_t end) { MDOPS_RUN(frame_rows_of, args, kDegree, begin, end); });
}

template <int kDegree, class T>
static void run_frames(const Op&, const FrameBackwardArgs<T>& args) {
  parallel(args.shape.edges, kFrameEdges,
           [&](int64_t begin, int64_t end) { MDOPS_RUN(frame_gradients_of, args, kDegree, begin, end); });
}

template <int kDegree, class T>
static void run_frames(const Op&, const FrameTwiceArgs<T>& args) {
  parallel_each(args.shape.edges, kFrameEdges, [&](int64_t e) { frame_twice_of<kDegree>(args, e); });
}

MDOPS_INSTANTIATE_OF(make_frames, Op, FrameArgs, int64_t)
MDOPS_INSTANTIATE_OF(make_frames, Op, FrameBackwardArgs, int64_t)

}  // namespace mdops

MDOPS_ON_CPU(EdgeFrameOps)
