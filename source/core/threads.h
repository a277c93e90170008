// The core's own threads, for the loops of common/parallel.h without PyTorch.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace mdops::core {

// Threads that wait for work: the caller's and `size - 1` more. One thread at a time may use a pool. A forked
// process has none of them, and computes on its own thread.
class Pool {
 public:
  // Throws std::system_error if the system gives no more threads.
  explicit Pool(int size);
  ~Pool();
  Pool(const Pool&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }
  bool is_forked() const;

  // work(context, begin, end) over pieces of [0, n), `piece` each, one a thread at most.
  void run(int64_t n, int64_t piece, void (*work)(const void* context, int64_t begin, int64_t end),
           const void* context);

 private:
  struct Job {
    int64_t n, piece;
    void (*work)(const void* context, int64_t begin, int64_t end);
    const void* context;

    void of(int64_t thread) const;
  };

  void serve(int64_t thread);
  void stop();

  pid_t process_;
  Job job_{};
  std::atomic<uint32_t> round_{0}, busy_{0};  // jobs so far; workers still busy with this one
  bool stops_ = false;
  std::vector<std::thread> workers_;
};

// During its lifetime, the loops of this thread run in the pool.
class UsePool {
 public:
  explicit UsePool(Pool& pool);
  ~UsePool();
  UsePool(const UsePool&) = delete;

 private:
  Pool* before_;
};

// Makes `pool` one of `threads` threads, 0: of default_threads(), unless it already is.
void set_pool(int threads, std::unique_ptr<Pool>& pool);

// OMP_NUM_THREADS, or the number of processors of this process; 1,024 at most.
int default_threads();

}  // namespace mdops::core
