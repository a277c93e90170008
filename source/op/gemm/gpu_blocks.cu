#include "gemm/gpu_net.h"

namespace mdops {

template void NetCall<2>::blocks() const;

}  // namespace mdops
