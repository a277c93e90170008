// A whole step on a GPU and the packing of its nets, for PyTorch's op and for callers that do not know
// PyTorch. `parts`: with how many float16 parts a number stands in the nets' products: 2 hold 22 bits,
// float32's accuracy; 1 holds 11, TF32's.
#pragma once

#include <string>
#include <vector>

#include "common/gpu.h"
#include "spline_potential/gpu_step.h"
#include "spline_potential/spline_potential.h"

namespace mdops {

// The fitting net behind the features of D.
GpuNetShape net_shape(const FittingShape& fitting);

// Why the kernels cannot take a model on this device; empty if they can. Its sizes are those that any device
// takes.
std::string step_refusal(const GpuLimits& limits, const FittingShape& fitting, int ntypes, int moment_rows,
                         int parts);

// The inputs, sizes and results of `args` are given; `memory` of the GPU has as many bytes as `step_bytes`
// says.
int64_t step_bytes(const Gpu& gpu, const StepArgs& args, int parts);
void run_step(const Gpu& gpu, const StepArgs& args, int parts, void* memory);

// Why no net of this shape can be packed; empty if it can.
std::string pack_refusal(const FittingShape& fitting);

// Numbers of a packed net, and of memory that packing needs for itself.
int64_t packed_size(const FittingShape& fitting, int parts);
int64_t folded_size(const FittingShape& fitting);

// Packs a net whose layers, the output layer last, are in device memory.
void pack_net(const Gpu& gpu, const FittingShape& fitting, const std::vector<DenseLayer<float>>& layers,
              int parts, float* folded, float* packed);

}  // namespace mdops
