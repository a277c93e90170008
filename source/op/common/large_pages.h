// Requests memory in large pages, if the system has them.
#pragma once

#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace mdops {

constexpr int64_t kLargePage = int64_t{2} << 20;  // usual on most systems

// For `bytes` just allocated and not yet written.
inline void ask_for_large_pages([[maybe_unused]] void* memory, [[maybe_unused]] int64_t bytes) {
#if defined(__linux__)
  const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t from = (reinterpret_cast<uintptr_t>(memory) + page - 1) / page * page;
  const uintptr_t to = (reinterpret_cast<uintptr_t>(memory) + bytes) / page * page;
  madvise(reinterpret_cast<void*>(from), to - from, MADV_HUGEPAGE);  // may fail: then pages are small
#endif
}

}  // namespace mdops
