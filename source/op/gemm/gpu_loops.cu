// The kernels of nets of whole models, which this one source of a library compiles (those of TF32's accuracy:
// spline_potential/gpu_tf32.cu).
#include "gemm/gpu_net.h"

namespace mdops {

template void run_net<2>(const Gpu&, const NetArgs&, const NetMemory&, int64_t, NetWay::Kind);

}  // namespace mdops
