// The thread's current GPU, by the contexts of CUDA's driver.
#include <cuda.h>
#include <dlfcn.h>

#include <map>
#include <mutex>

#include "core/gpu_memory.h"

namespace mdops::core {

namespace {

// Functions of the driver, loaded when the first model goes to a GPU: some machines do not have it.
struct Driver {
  decltype(&cuInit) init;
  decltype(&cuDeviceGet) device;
  decltype(&cuDevicePrimaryCtxRetain) retain;
  decltype(&cuCtxPushCurrent_v2) push;
  decltype(&cuCtxPopCurrent_v2) pop;
  decltype(&cuGetErrorString) text;

  Driver() {
    void* const library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) throw Error(MDOPS_DEVICE, "CUDA: there is no driver (libcuda.so.1)");
    find(library, "cuInit", init), find(library, "cuDeviceGet", device);
    find(library, "cuDevicePrimaryCtxRetain", retain);
    find(library, "cuCtxPushCurrent_v2", push), find(library, "cuCtxPopCurrent_v2", pop);
    find(library, "cuGetErrorString", text);
    check(init(0));
  }

  void check(CUresult result) const {
    if (result == CUDA_SUCCESS) return;
    const char* why = nullptr;
    if (text(result, &why) != CUDA_SUCCESS || !why) why = "an unknown error";
    throw Error(result == CUDA_ERROR_OUT_OF_MEMORY ? MDOPS_MEMORY : MDOPS_DEVICE,
                std::string("CUDA: ") + why);
  }

 private:
  template <class Function>
  static void find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (!function) throw Error(MDOPS_DEVICE, std::string("CUDA: the driver has no ") + name);
  }
};

const Driver& driver() {
  static const Driver made;
  return made;
}

// The CUDA runtime's context of a GPU, kept until the process ends.
CUcontext context_of(int index) {
  static std::mutex guard;
  static std::map<int, CUcontext>& kept =
      *new std::map<int, CUcontext>;  // models may be freed as the process ends
  const std::lock_guard<std::mutex> lock(guard);
  CUcontext& context = kept[index];
  if (context) return context;
  CUdevice device = 0;
  driver().check(driver().device(&device, index));
  driver().check(driver().retain(&context, device));
  return context;
}

}  // namespace

OnGpu::OnGpu(int index) {
  driver().check(driver().push(context_of(index)));
}

OnGpu::~OnGpu() {
  CUcontext popped = nullptr;
  driver().pop(&popped);
}

}  // namespace mdops::core
