// The kernels of nets of whole models, with gpu_chain.cu and gpu_blocks.cu (those of TF32's accuracy are in
// cuda_*.cu, and in spline_potential/cuda_tf32.cu).
#include "gemm/gpu_net.h"

namespace mdops {

extern template void NetCall<2>::chain() const;
extern template void NetCall<2>::blocks() const;
template void run_net<2>(const Gpu&, const NetArgs&, const NetMemory&, int64_t, NetKernel::Kind);

}  // namespace mdops
