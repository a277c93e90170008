// Loops in threads. Kernels do not depend on the threads' origin: common/threads.cpp uses PyTorch's.
#pragma once

#include <cstdint>
#include <exception>
#include <mutex>

namespace mdops {

// How many threads `parallel` has.
int64_t thread_count();

// Calls work(context, begin, end), which must not throw, over pieces of [0, n) of at least `grain`.
void run_in_threads(int64_t n, int64_t grain, void (*work)(const void* context, int64_t begin, int64_t end),
                    const void* context);

// Calls f(begin, end) over such pieces, and rethrows an exception of any piece.
template <class F>
void parallel(int64_t n, int64_t grain, const F& f) {
  struct Pieces {
    const F& f;
    mutable std::exception_ptr error;
    mutable std::mutex guard;
  };
  const Pieces pieces{f, nullptr, {}};
  run_in_threads(
      n, grain,
      [](const void* context, int64_t begin, int64_t end) {
        const Pieces& all = *static_cast<const Pieces*>(context);
        try {
          all.f(begin, end);
        } catch (...) {
          const std::lock_guard<std::mutex> lock(all.guard);
          all.error = std::current_exception();
        }
      },
      &pieces);
  if (pieces.error) std::rethrow_exception(pieces.error);
}

// Calls f(k) for each k below n.
template <class F>
void parallel_each(int64_t n, int64_t grain, const F& f) {
  parallel(n, grain, [&](int64_t begin, int64_t end) {
    const F& each = f;  // its address is read once
    for (int64_t k = begin; k < end; ++k) each(k);
  });
}

}  // namespace mdops
