// A whole step on a GPU and the packing of its nets, for PyTorch's op and for callers that do not know
// PyTorch. `parts`: with how many float16 parts a number stands in the nets' products: 2 hold 22 bits,
// float32's accuracy; 1 holds 11, TF32's.
#pragma once

#include <string>
#include <vector>

#include "common/gpu.h"
#include "spline_potential/gpu_args.h"
#include "spline_potential/spline_potential.h"

namespace mdops {

// The fitting net behind the features of D.
GpuNetShape net_shape(const FittingShape& fitting);

// With so many parts: 2 are compiled in gpu_loops.cu, 1 in cuda_tf32.cu, which the ops alone have.
template <int Parts>
struct FusedStep {
  // Why the kernels cannot take a model on this device; empty if they can. Its sizes are those that any
  // device takes.
  static std::string refusal(const GpuLimits& limits, const FittingShape& fitting, int ntypes,
                             int moment_rows);

  // The inputs, sizes and results of `args` are given; `memory` of the GPU has as many bytes as `bytes` says.
  static int64_t bytes(const Gpu& gpu, const StepArgs& args);
  static void run(const Gpu& gpu, const StepArgs& args, void* memory);

  // Packs a net whose layers, the output layer last, are in device memory.
  static void pack(const Gpu& gpu, const FittingShape& fitting, const std::vector<DenseLayer<float>>& layers,
                   float* folded, float* packed);
};

// Why no net of this shape can be packed; empty if it can.
std::string pack_refusal(const FittingShape& fitting);

// Numbers of a packed net, and of memory that packing needs for itself.
int64_t packed_size(const FittingShape& fitting, int parts);
int64_t folded_size(const FittingShape& fitting);

}  // namespace mdops
