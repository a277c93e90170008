#include "core/threads.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "common/parallel.h"
#include "core/processors.h"

namespace mdops {

namespace core {

namespace {

constexpr int kMost = 1024;  // threads

thread_local Pool* current = nullptr;

// Polls a number for some microseconds, in which a loop's next part usually comes, before the thread sleeps
// until the system wakes it.
void wait_until(const std::atomic<uint32_t>& number, const auto& done) {
  constexpr int kLooks = 2000;
  for (int k = 0; k < kLooks; ++k) {
    if (done(number.load(std::memory_order_acquire))) return;
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  for (uint32_t seen; !done(seen = number.load(std::memory_order_acquire));) number.wait(seen);
}

}  // namespace

void Pool::Job::of(int64_t thread) const {
  const int64_t begin = thread * piece;
  if (begin < n) work(context, begin, std::min(n, begin + piece));
}

Pool::Pool(int size) : process_(getpid()) {
  workers_.reserve(size - 1);
  try {
    for (int k = 1; k < size; ++k) workers_.emplace_back([this, k] { serve(k); });
  } catch (...) {
    stop();
    throw;
  }
}

Pool::~Pool() {
  stop();
}

void Pool::stop() {
  if (is_forked()) {  // nobody to wait for
    for (std::thread& worker : workers_) worker.detach();
    return;
  }
  stops_ = true;
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

bool Pool::is_forked() const {
  return getpid() != process_;
}

void Pool::serve(int64_t thread) {
  for (uint32_t seen = 0;; ++seen) {
    wait_until(round_, [&](uint32_t round) { return round != seen; });
    if (stops_) return;
    job_.of(thread);
    if (busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) busy_.notify_one();
  }
}

void Pool::run(int64_t n, int64_t piece, void (*work)(const void* context, int64_t begin, int64_t end),
               const void* context) {
  job_ = {n, piece, work, context};
  busy_.store(static_cast<uint32_t>(workers_.size()), std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  job_.of(0);
  wait_until(busy_, [](uint32_t busy) { return busy == 0; });
}

UsePool::UsePool(Pool& pool) : before_(current) {
  current = pool.is_forked() ? nullptr : &pool;
}

UsePool::~UsePool() {
  current = before_;
}

void set_pool(int threads, std::unique_ptr<Pool>& pool) {
  const int wanted = threads > 0 ? std::min(threads, kMost) : default_threads();
  if (!pool || pool->size() != wanted || pool->is_forked()) pool = std::make_unique<Pool>(wanted);
}

int default_threads() {
  const char* wanted = std::getenv("OMP_NUM_THREADS");
  const int named = wanted ? std::atoi(wanted) : 0;
  return std::min(named > 0 ? named : processors("/proc/self/cgroup", "/sys/fs/cgroup"), kMost);
}

}  // namespace core

int64_t thread_count() {
  return core::current ? core::current->size() : 1;
}

void run_in_threads(int64_t n, int64_t grain, void (*work)(const void* context, int64_t begin, int64_t end),
                    const void* context) {
  if (n <= 0) return;
  core::Pool* const pool = core::current;
  const int64_t pieces = std::min(thread_count(), (n + grain - 1) / std::max<int64_t>(grain, 1));
  if (pieces <= 1) return work(context, 0, n);
  core::current = nullptr;  // a loop within a piece runs in its thread
  pool->run(n, (n + pieces - 1) / pieces, work, context);
  core::current = pool;
}

}  // namespace mdops
