// Neighbours in a GPU's memory, and the search for them there.
#pragma once

#include "core/gpu_memory.h"
#include "core/list.h"

namespace mdops::core {

// In the layout of kernels.
struct GpuRows : RowsOnGpu {
  int64_t width = 0;
  GpuArray<int32_t> neighbors, images, counts;  // (N, width), the same, (N + M, ntypes)
  GpuArray<int32_t> types;                      // (N + M,): -1 for ghosts, too
};

// The list on the current device, of that index; it is copied there once, and stays until the list changes.
// Throws if it was made elsewhere.
const GpuRows& rows_on_gpu(const mdops_list& list, int gpu, cudaStream_t stream);

// Memory of searches on one GPU.
class GpuSearch {
 public:
  GpuSearch(int gpu, int ntypes) : gpu_(gpu), ntypes_(ntypes) {}

  // Fills `rows` with neighbours within the cutoff of the input's atoms, whose positions are already there.
  // Waits for the GPU.
  void run(const mdops_input& input, const double* positions, double cutoff, cudaStream_t stream,
           GpuRows& rows);

 private:
  const int gpu_, ntypes_;
  GpuArray<double> cell_;
  GpuArray<bool> periodic_;
  GpuArray<int32_t> types_, systems_;
  GpuArray<char> cells_;
  GpuArray<unsigned long long> longest_;
  GpuArray<int64_t> needed_;
  HostArray<int64_t> needed_here_;
};

}  // namespace mdops::core
