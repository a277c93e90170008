// A whole step of several descriptors on a GPU and the packing of its nets, for PyTorch's op and for callers
// without PyTorch; with float32's accuracy.
#pragma once

#include <string>
#include <vector>

#include "common/gpu.h"
#include "hybrid_potential/shape.h"
#include "pair_table/pair_table.h"
#include "spline_potential/gpu_args.h"

namespace mdops {

// Of atoms blended with a pair table.
struct NearRows {
  ListArgs list;
  NearArgs near;
  double far;  // c is 0 from this nearest distance on
  double* c;   // (N,); null: not wanted
};

// What a step has beside each descriptor's arguments.
struct HybridOut {
  const double* weight;  // (N,); null: 1
  float* grad_extra;     // (N, extra)
  int32_t* within;       // (N, descriptors, ntypes)
  NearRows near{};
};

// The net behind the features of all descriptors, each in the order of `Features`, and the further inputs.
GpuNetShape hybrid_net(const std::vector<FittingShape>& parts, const NetShape& net);

// Why the kernels do not support a model on this device, or nets of this shape cannot be packed; empty if
// they can.
std::string hybrid_refusal(const GpuLimits& limits, const GpuNetShape& net,
                           const std::vector<StepArgs>& parts);
std::string hybrid_pack_refusal(const GpuNetShape& net);

// The descriptors' inputs and sizes are given; results, and the net, only in that with the longest cutoff. If
// its width is 0, there is no descriptor: only energies and `grad_extra` result. `memory` of the GPU has
// hybrid_bytes() bytes.
int64_t hybrid_bytes(const Gpu& gpu, const std::vector<StepArgs>& parts, int widest, const HybridOut& out);
void run_hybrid(const Gpu& gpu, const std::vector<StepArgs>& parts, int widest, const HybridOut& out,
                void* memory);

// Sizes of a packed net, and of the memory for packing.
int64_t hybrid_packed_size(const GpuNetShape& net);
int64_t hybrid_folded_size(const GpuNetShape& net);

// Packs a net whose layers, the output layer last, are in device memory: the first takes the features of all
// descriptors and `extra` inputs.
void pack_hybrid(const Gpu& gpu, const std::vector<FittingShape>& parts, const GpuNetShape& net,
                 int64_t extra, const std::vector<DenseLayer<float>>& layers, float* folded, float* packed);

}  // namespace mdops
