#include "gemm/gpu_net.h"

namespace mdops {

template void NetCall<1>::blocks() const;

}  // namespace mdops
