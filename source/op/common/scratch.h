// Memory that a thread of the CPU's ops works in.
#pragma once

#include <cstdlib>
#include <string>

#include "common/op.h"

namespace mdops {

// Scratch memory of a thread, for as long as the object lives; of each `Use` there is one at a time. A thread
// keeps some of it from call to call: it is touched whole, and fresh pages cost more than a step of a small
// system. More than that is given back.
template <class Use>
class ScratchMemory {
 public:
  ScratchMemory(const Op& op, int64_t bytes) {
    const size_t wanted = (bytes + 63) / 64 * 64;
    if (kept().bytes < wanted) {
      kept().release();
      kept().data = std::aligned_alloc(64, wanted);
      if (!kept().data) fail(op, "out of memory for " + std::to_string(wanted) + " bytes of scratch");
      kept().bytes = wanted;
    }
  }
  ~ScratchMemory() {
    if (kept().bytes > kMostKept) kept().release();
  }
  ScratchMemory(const ScratchMemory&) = delete;

  void* data() const { return kept().data; }

 private:
  static constexpr size_t kMostKept = 32 << 20;

  struct Kept {
    void* data = nullptr;
    size_t bytes = 0;
    void release() {
      std::free(data);
      data = nullptr, bytes = 0;
    }
    ~Kept() { release(); }
  };
  static Kept& kept() {
    static thread_local Kept memory;
    return memory;
  }
};

}  // namespace mdops
