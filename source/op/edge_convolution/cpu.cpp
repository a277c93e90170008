#include <algorithm>

#include "common/scratch.h"
#include "edge_convolution/ops.h"

namespace mdops {

constexpr int64_t kConvolutionNodes = 16, kConvolutionEdges = 256;  // minimum per piece
constexpr int64_t kConvolutionShare = 512, kConvolutionShares = 64;

template <ConvolutionPass pass, class T>
static void run_convolution(const Op& op, const EdgeConvolutionArgs<T>& args) {
  struct Use;
  const EdgeConvolutionSizes sizes = MDOPS_RUN(convolution_sizes, args);
  if constexpr (pass == ConvolutionPass::by_weight) {
    // Shares independent of the number of threads, so that the sums have the same bits.
    const int64_t shares = std::clamp<int64_t>(args.rows / kConvolutionShare, 1, kConvolutionShares);
    Tensor sums = empty(op, {shares, sizes.sums}, kDtype<T>);
    T* const to = sums.template mutable_data_ptr<T>();
    parallel(shares, 1, [&](int64_t begin, int64_t end) {
      const ScratchMemory<Use> memory(op, sizes.scratch);
      for (int64_t k = begin; k < end; ++k)
        MDOPS_RUN(convolution_weight, args, args.rows * k / shares, args.rows * (k + 1) / shares,
                  memory.data(), to + k * sizes.sums);
    });
    MDOPS_RUN(convolution_weight_sum, args, to, shares);
  } else {
    Tensor packed = empty(op, {sizes.packed}, ScalarType::Byte);
    MDOPS_RUN(convolution_pack, args, packed.mutable_data_ptr());
    constexpr bool of_edges = pass == ConvolutionPass::by_edges;
    parallel(of_edges ? args.rows : args.targets, of_edges ? kConvolutionEdges : kConvolutionNodes,
             [&](int64_t begin, int64_t end) {
               const ScratchMemory<Use> memory(op, sizes.scratch);
               if constexpr (of_edges)
                 MDOPS_RUN(convolution_edges, args, begin, end, packed.const_data_ptr(), memory.data());
               else
                 MDOPS_RUN(convolution_nodes, args, begin, end, packed.const_data_ptr(), memory.data());
             });
  }
}

// Missing on GPUs.
template <class Device, class T>
struct OwnConvolutionOps : EdgeConvolutionOps<Device, T> {
  MDOPS_IMPLEMENT_FLOATS(OwnConvolutionOps, edge_convolution_own)
};

}  // namespace mdops

MDOPS_ON_CPU(EdgeConvolutionOps, OwnConvolutionOps)
