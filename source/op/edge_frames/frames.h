// Frames of edges within other ops: the kernels of each device, compiled with those of the own ops.
#pragma once

#include "common/tensor.h"
#include "edge_frames/edge_frames.h"

namespace mdops {

class CudaOp;

// Of `FrameArgs` and `FrameBackwardArgs`, of float and double.
template <class Args>
void make_frames(const Op& op, int64_t degree, const Args& args);
template <class Args>
void make_frames(const CudaOp& op, int64_t degree, const Args& args);

}  // namespace mdops
