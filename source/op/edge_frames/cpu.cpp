#include "edge_frames/ops.h"

namespace mdops {

namespace {

constexpr int64_t kFrameEdges = 128;  // a piece of work, at least

}  // namespace

template <int kDegree, class T>
static void run_frames(const Op&, const FrameArgs<T>& args) {
  constexpr int columns = frame_columns(kDegree);
  const int order = args.shape.order, numbers = frame_rows(kDegree, order) * columns;
  parallel(args.shape.edges, kFrameEdges, [&](int64_t begin, int64_t end) {
    for (int64_t e = begin; e < end; ++e)
      frame_of<kDegree>(args.vectors + 3 * e, order, args.harmonics + e * columns, args.turn + e * numbers);
  });
}

template <int kDegree, class T>
static void run_frames(const Op&, const FrameBackwardArgs<T>& args) {
  constexpr int columns = frame_columns(kDegree);
  const int order = args.shape.order, numbers = frame_rows(kDegree, order) * columns;
  parallel(args.shape.edges, kFrameEdges, [&](int64_t begin, int64_t end) {
    for (int64_t e = begin; e < end; ++e)
      frame_backward<kDegree>(args.vectors + 3 * e, order, args.by_harmonics + e * columns,
                              args.by_turn + e * numbers, args.by_vectors + 3 * e);
  });
}

template <int kDegree, class T>
static void run_frames(const Op&, const FrameTwiceArgs<T>& args) {
  parallel(args.shape.edges, kFrameEdges, [&](int64_t begin, int64_t end) {
    for (int64_t e = begin; e < end; ++e) frame_twice_of<kDegree>(args, e);
  });
}

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CPU, m) {
  mdops::EdgeFrameOps<mdops::OnCpu>::implement(m);
}
