// Scratch memory of threads of the CPU ops.
#pragma once

#include <cstdlib>

#include "common/large_pages.h"
#include "common/op.h"

namespace mdops {

// A thread's memory for one use, kept between calls.
class KeptMemory {
 public:
  KeptMemory() = default;
  KeptMemory(const KeptMemory&) = delete;
  ~KeptMemory() {
    release();
    unlink();
  }

  void* take(const Op& op, int64_t bytes) {
    const bool large = bytes >= kLargePage / 4;
    const size_t unit = large ? kLargePage : 64, wanted = (bytes + unit - 1) / unit * unit;
    unlink();
    next_ = newest(), newest() = this;
    if (bytes_ < wanted) {
      release();
      data_ = std::aligned_alloc(unit, wanted);
      if (!data_) fail(op, "out of memory for ", wanted, " bytes of scratch");
      bytes_ = wanted;
      if (large) ask_for_large_pages(data_, wanted);
    }
    is_taken_ = true;
    return data_;
  }

  // Keeps the memory that the thread used last.
  void give_back() {
    is_taken_ = false;
    size_t sum = 0;
    for (KeptMemory* k = newest(); k; k = k->next_) {
      if (!k->is_taken_ && sum + k->bytes_ > kMostKept) k->release();
      sum += k->bytes_;
    }
  }

 private:
  static constexpr size_t kMostKept = 32 << 20;  // of a thread

  // The thread's: the one used last, linked to the others.
  static KeptMemory*& newest() {
    static thread_local KeptMemory* first = nullptr;
    return first;
  }
  void unlink() {
    KeptMemory** link = &newest();
    while (*link && *link != this) link = &(*link)->next_;
    if (*link) *link = next_;
  }
  void release() {
    std::free(data_);
    data_ = nullptr, bytes_ = 0;
  }

  void* data_ = nullptr;
  size_t bytes_ = 0;
  bool is_taken_ = false;
  KeptMemory* next_ = nullptr;
};

// Scratch memory of a thread, for the object's lifetime; only one at a time of each `Use`. A thread keeps
// some of it between calls: all of it is used, and fresh pages cost more than a step of a small system.
// Beyond that it is freed. Sizes near a large page or above get whole ones: all of it is read repeatedly, and
// it has more small pages than the TLB has entries.
template <class Use>
class ScratchMemory {
 public:
  ScratchMemory(const Op& op, int64_t bytes) : data_(kept().take(op, bytes)) {}
  ~ScratchMemory() { kept().give_back(); }
  ScratchMemory(const ScratchMemory&) = delete;

  void* data() const { return data_; }

 private:
  static KeptMemory& kept() {
    static thread_local KeptMemory memory;
    return memory;
  }

  void* data_;
};

}  // namespace mdops
