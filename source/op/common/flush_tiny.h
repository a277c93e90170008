// Flushes denormal numbers to zero: a processor is a hundred times slower with them.
#pragma once

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace mdops {

// During its lifetime, in the thread that made it; only on x86.
class FlushTiny {
 public:
#if defined(__SSE2__)
  FlushTiny() : before_(_mm_getcsr()) { _mm_setcsr(before_ | kFlushResults | kFlushArguments); }
  ~FlushTiny() { _mm_setcsr(before_); }
#else
  FlushTiny() = default;
#endif
  FlushTiny(const FlushTiny&) = delete;
  FlushTiny& operator=(const FlushTiny&) = delete;

#if defined(__SSE2__)
 private:
  static constexpr unsigned kFlushResults = 0x8000, kFlushArguments = 0x40;
  unsigned before_;
#endif
};

}  // namespace mdops
