// Memory that a thread of the CPU's ops works in.
#pragma once

#include <cstdint>
#include <cstdlib>

#include "common/large_pages.h"
#include "common/op.h"

namespace mdops {

// What a thread keeps of one use between calls.
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

  // Of all that the thread keeps, what was used last stays.
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

  // The thread's: the one used last, and from it the others.
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

// Scratch memory of a thread, for as long as the object lives; of each `Use` there is one at a time. A thread
// keeps some of it from call to call: it is touched whole, and fresh pages cost more than a step of a small
// system. More than that is given back. What is no small part of a large page gets whole ones: it is read
// over and over, all of it, and has more small pages than a processor knows its way to.
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
