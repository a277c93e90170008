// A device that has an error when it is asked for the first time, and launches on it: how often the
// environment is looked at.
#include <cstdio>
#include <cstring>

#include "common/gpu.h"

namespace {

int asked = 0, looked = 0;

void kernel(int) {}

}  // namespace

extern "C" char* getenv(const char* name) noexcept {
  looked += std::strcmp(name, "MDOPS_GPU_SHARED_BYTES") == 0;
  return nullptr;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  if (asked++ == 0) return cudaErrorNotReady;
  *value = attribute == cudaDevAttrMultiProcessorCount            ? 132
           : attribute == cudaDevAttrComputeCapabilityMajor       ? 9
           : attribute == cudaDevAttrMaxSharedMemoryPerBlockOptin ? 227 << 10
                                                                  : 0;
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, const void*) {
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) {
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void*, int, size_t, cudaStream_t) {
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t) {
  return "not ready";
}

int main() {
  try {
    mdops::Gpu("op", 0, nullptr).limits();
    std::puts("no error");
  } catch (const std::exception& error) {
    std::puts(error.what());
  }
  const mdops::Gpu gpu("op", 0, nullptr);
  const mdops::GpuLimits limits = gpu.limits();
  std::printf("%d %d %d\n", limits.multiprocessors, limits.capability, limits.shared_bytes);
  looked = 0;
  for (int k = 0; k < 100; ++k) gpu.launch_early(kernel, 1, 32, 100 << 10, k);
  std::printf("%d\n", looked);
}
