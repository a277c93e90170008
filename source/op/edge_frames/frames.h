// Frames of edges for other ops: the kernels of each device, compiled with the frames' own ops.
#pragma once

#include "common/tensor.h"
#include "edge_frames/edge_frames.h"

namespace mdops {

// For `FrameArgs` and `FrameBackwardArgs`, of float and double.
template <class Call, class Args>
void make_frames(const Call& op, const Args& args, int64_t degree);

}  // namespace mdops
