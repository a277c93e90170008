// Memory in large pages, where the system has them for who asks.
#pragma once

#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace mdops {

// Bytes of an array that no cache keeps until somebody reads it.
constexpr int64_t kLargeArray = int64_t{32} << 20;

constexpr int64_t kLargePage = int64_t{2} << 20;  // as most systems have them

// For `bytes` that have just been allocated and nobody has written yet.
inline void ask_for_large_pages([[maybe_unused]] void* memory, [[maybe_unused]] int64_t bytes) {
#if defined(__linux__)
  const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t from = (reinterpret_cast<uintptr_t>(memory) + page - 1) / page * page;
  const uintptr_t to = (reinterpret_cast<uintptr_t>(memory) + bytes) / page * page;
  madvise(reinterpret_cast<void*>(from), to - from, MADV_HUGEPAGE);  // which may refuse: then they are small
#endif
}

// The same if there are many of them. The pages of a large array come one by one as it is written and go one
// by one when it is freed, which takes longer than to fill them: an array that the allocator has a mapping of
// its own for, as the C library has for all of this size, had better have few.
inline void use_large_pages(void* memory, int64_t bytes) {
  if (bytes >= kLargeArray) ask_for_large_pages(memory, bytes);
}

}  // namespace mdops
