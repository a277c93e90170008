#include "gemm/gpu_net.h"

namespace mdops {

template void NetCall<2>::chain() const;

}  // namespace mdops
