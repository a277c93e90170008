// The inference step on a GPU as a table: how a library rebuilt for one model runs the op.
#pragma once

#include <cuda_runtime.h>

#include <cstring>
#include <type_traits>

#include "common/kernel_table.h"
#include "spline_potential/gpu_args.h"

namespace mdops {

// What passes between libraries has the same layout in all, also in those rebuilt for a model.
static_assert(std::is_trivially_copyable_v<StepArgs> && sizeof(StepArgs) == 608);

// Where a call runs, and the op's name in its errors.
struct GpuPlace {
  const char* op;
  int index;
  cudaStream_t stream;
};

// Why a call is refused; returned as text, as no exception crosses the libraries.
struct CallError {
  char text[1000];
};

struct StepTable : KernelTable {
  static constexpr const char* kFamily = "spline_potential_gpu";
  static bool is(const KernelTable& table) {
    return table.size == sizeof(StepTable) && std::strcmp(table.family, kFamily) == 0;
  }

  // The sizes it was built for; ntypes, basis and extra may be kAnySize.
  int64_t arguments;  // bytes
  int32_t capability, parts, ntypes, basis, extra, width, axis, plain, gated, activation, layers;
  int32_t neurons[GpuNetShape::kMostLayers], residual[GpuNetShape::kMostLayers];
  float threshold;

  // Memory for a call, -1 if it is refused; and the call, whose result is 0 unless refused.
  int64_t (*bytes)(const GpuPlace& place, const StepArgs& args, CallError* why);
  int (*run)(const GpuPlace& place, const StepArgs& args, void* memory, CallError* why);

  bool fits(const StepArgs& p, int net_parts, int device_capability) const {
    const GpuNetShape& net = p.net.net;
    if (arguments != sizeof(StepArgs) || capability != device_capability || parts != net_parts ||
        !takes_size(ntypes, p.ntypes) || !takes_size(basis, p.basis()) || !takes_size(extra, p.extra_size) ||
        width != p.width || axis != p.axis || plain != p.plain || gated != p.gated || layers != net.layers ||
        activation != static_cast<int32_t>(net.activation) ||
        (net.activation == Activation::silut && threshold != net.threshold))
      return false;
    for (int n = 0; n < layers; ++n)
      if (neurons[n] != net.neurons[n] || residual[n] != (n > 0 && net.residual[n])) return false;
    return true;
  }
};

}  // namespace mdops
