// The C interface between the ops and kernels that are rebuilt for one model and machine (jit.md): such
// a library has one function, mdops_kernel_table, which answers with the struct of its family. Each begins
// with this header. The library knows neither PyTorch nor Python.
#pragma once

#include <cstdint>

namespace mdops {

// To be raised with every change of these structs, and of what their functions are called with.
constexpr uint32_t kTableVersion = 5;

// In place of a size that a library has no constant for: it depends on the atoms, and comes with each call.
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
  // Of libraries built with MDOPS_PROFILER, null in others: the stages' names, null after the last; record
  // keeps the next `most` events, and none for 0 (not 0: no memory for them); events copies them and says how
  // many there are.
  const char* const* stages;
  int (*record)(int64_t most);
  int64_t (*events)(StageEvent* to, int64_t most);
};

}  // namespace mdops

#define MDOPS_EXPORT extern "C" __attribute__((visibility("default")))
