// The C interface between the ops and kernels that are rebuilt for one model and machine (jit.md): such a
// library has one function, mdops_kernel_table, which returns the struct of its family. Each begins with this
// header. The library uses neither PyTorch nor Python.
#pragma once

#include <cstdint>

namespace mdops {

// Must be raised with every change of these structs, and of their functions' arguments.
constexpr uint32_t kTableVersion = 5;

// In place of a size that is no constant of the library: it depends on the atoms, and is passed in each call.
constexpr int32_t kAnySize = -1;
inline bool takes_size(int32_t built, int64_t wanted) {
  return built == kAnySize || built == wanted;
}

// A stage of a kernel, from begin to end in ns.
struct StageEvent {
  int64_t begin, end;
  int32_t stage, thread;
};

struct KernelTable {
  uint32_t version, size;  // kTableVersion, and bytes of the family's struct
  const char* family;
  // In libraries built with MDOPS_PROFILER, else null: the stages' names, null after the last; record keeps
  // the next `most` events, or none for 0 (returns nonzero without memory); events copies them and returns
  // their number.
  const char* const* stages;
  int (*record)(int64_t most);
  int64_t (*events)(StageEvent* to, int64_t most);
};

}  // namespace mdops

#define MDOPS_EXPORT extern "C" __attribute__((visibility("default")))
