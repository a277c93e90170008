// Memory that a thread of the CPU's ops works in.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>

#include "common/large_pages.h"
#include "common/op.h"

namespace mdops {

// Scratch memory of a thread, for as long as the object lives; of each `Use` there is one at a time. A thread
// keeps some of it from call to call: it is touched whole, and fresh pages cost more than a step of a small
// system. More than that is given back. What is no small part of a large page gets whole ones: it is read
// over and over, all of it, and has more small pages than a processor knows its way to.
template <class Use>
class ScratchMemory {
 public:
  ScratchMemory(const Op& op, int64_t bytes) {
    const bool large = bytes >= kLargePage / 4;
    const size_t unit = large ? kLargePage : 64, wanted = (bytes + unit - 1) / unit * unit;
    if (kept().bytes < wanted) {
      kept().release();
      kept().data = std::aligned_alloc(unit, wanted);
      if (!kept().data) fail(op, "out of memory for " + std::to_string(wanted) + " bytes of scratch");
      kept().bytes = wanted;
      if (large) ask_for_large_pages(kept().data, wanted);
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
