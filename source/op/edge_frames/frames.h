// Frames of edges within other ops: the kernels of each device, compiled with those of the own ops.
#pragma once

#include "common/tensor.h"
#include "edge_frames/edge_frames.h"

namespace mdops {

class CudaOp;

// Of `FrameArgs` and `FrameBackwardArgs`, of float and double.
template <class Args>
void make_frames(const Op& op, const Args& args, int64_t degree);
template <class Args>
void make_frames(const CudaOp& op, const Args& args, int64_t degree);

}  // namespace mdops
