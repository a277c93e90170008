// Information about the CUDA library.
#include "common/cuda.h"

namespace mdops {

namespace {

// The CUDA versions of the runtime in this library and of the driver (0: none), as 1000 major + 10 minor.
std::tuple<int64_t, int64_t> cuda_versions() {
  int driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess) driver = 0;
  return {CUDART_VERSION, driver};
}

// Whether it has kernels with instructions that only Hopper has (sm_90a).
bool cuda_is_for_hopper() {
#ifdef MDOPS_HOPPER
  return true;
#else
  return false;
#endif
}

}  // namespace

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CompositeExplicitAutograd, m) {
  m.impl("cuda_versions", TORCH_BOX(&mdops::cuda_versions));
  m.impl("cuda_is_for_hopper", TORCH_BOX(&mdops::cuda_is_for_hopper));
}
