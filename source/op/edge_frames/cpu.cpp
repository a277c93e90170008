#include "edge_frames/frames.h"
#include "edge_frames/ops.h"

namespace mdops {

constexpr int64_t kFrameEdges = 128;  // a piece of work, at least

// frame(edge, the place of its harmonics, that of its rows).
template <int kDegree, class Frame>
static void each_frame(const FrameShape& shape, const Frame& frame) {
  constexpr int columns = frame_columns(kDegree);
  const int numbers = frame_rows(kDegree, shape.order) * columns;
  parallel_each(shape.edges, kFrameEdges, [&](int64_t e) { frame(e, e * columns, e * numbers); });
}

template <int kDegree, class T>
static void run_frames(const Op&, const FrameArgs<T>& args) {
  each_frame<kDegree>(args.shape, [&](int64_t e, int64_t column, int64_t row) {
    frame_of<kDegree>(args.vectors + 3 * e, args.shape.order, args.harmonics + column, args.turn + row);
  });
}

template <int kDegree, class T>
static void run_frames(const Op&, const FrameBackwardArgs<T>& args) {
  each_frame<kDegree>(args.shape, [&](int64_t e, int64_t column, int64_t row) {
    frame_backward<kDegree>(args.vectors + 3 * e, args.shape.order, args.by_harmonics + column,
                            args.by_turn + row, args.by_vectors + 3 * e);
  });
}

template <int kDegree, class T>
static void run_frames(const Op&, const FrameTwiceArgs<T>& args) {
  each_frame<kDegree>(args.shape, [&](int64_t e, int64_t, int64_t) { frame_twice_of<kDegree>(args, e); });
}

MDOPS_INSTANTIATE_OF(make_frames, Op, FrameArgs, int64_t)
MDOPS_INSTANTIATE_OF(make_frames, Op, FrameBackwardArgs, int64_t)

}  // namespace mdops

MDOPS_ON_CPU(EdgeFrameOps)
