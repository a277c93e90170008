// A whole step on a GPU and the packing of its nets, for PyTorch's op and for callers without PyTorch.
// `parts`: the float16 parts of a number in the nets' products: 2 hold 22 bits, float32's accuracy; 1 holds
// 11, TF32's.
#pragma once

#include <string>
#include <vector>

#include "common/gpu.h"
#include "spline_potential/gpu_args.h"
#include "spline_potential/spline_potential.h"

namespace mdops {

// The fitting net behind the features of D.
GpuNetShape net_shape(const FittingShape& fitting);

// With `parts`: 2 are compiled in gpu_loops.cu, 1 in cuda_tf32.cu, which only the ops have.
template <int Parts>
struct FusedStep {
  // Why the kernels do not support a model on this device; empty if they do. Its sizes are those that any
  // device supports.
  static std::string refusal(const GpuLimits& limits, const FittingShape& fitting, int ntypes,
                             int moment_rows);

  // The inputs, sizes and results of `args` are given; `memory` of the GPU has bytes() bytes.
  static int64_t bytes(const Gpu& gpu, const StepArgs& args);
  static void run(const Gpu& gpu, const StepArgs& args, void* memory);

  // Packs a net whose layers, the output layer last, are in device memory.
  static void pack(const Gpu& gpu, const FittingShape& fitting, const std::vector<DenseLayer<float>>& layers,
                   float* folded, float* packed);
};

// Why a net of this shape cannot be packed; empty if it can.
std::string pack_refusal(const FittingShape& fitting);

// Sizes of a packed net, and of the memory for packing.
int64_t packed_size(const FittingShape& fitting, int parts);
int64_t folded_size(const FittingShape& fitting);

}  // namespace mdops
