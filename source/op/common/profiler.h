// Records when stages of kernels began and ended, for `mdops profile`. A kernel begins a stage with
// MDOPS_STAGE(name); it ends with the scope. Without MDOPS_PROFILER that leaves no code, but still checks the
// name.
#pragma once

#include "common/kernel_table.h"
#include "common/math.h"

#define MDOPS_STAGES(X)                \
  X(order, "order of the atoms")       \
  X(pairs, "pairs within the cutoff")  \
  X(moments, "moments")                \
  X(contract, "moments to T")          \
  X(features, "features")              \
  X(net_up, "net up")                  \
  X(net_down, "net down")              \
  X(feature_gradient, "features back") \
  X(uncontract, "T to moments")        \
  X(forces, "forces")                  \
  X(sums, "sums")

namespace mdops {

#define MDOPS_STAGE_ID(id, name) id,
enum class Stage : int32_t { MDOPS_STAGES(MDOPS_STAGE_ID) };
#undef MDOPS_STAGE_ID

}  // namespace mdops

// The second form chooses the stage at run time.
#if !defined(MDOPS_PROFILER)
#define MDOPS_STAGE(id) static_assert(static_cast<int>(::mdops::Stage::id) >= 0)
#define MDOPS_STAGE_IF(condition, yes, no) \
  MDOPS_STAGE(yes);                        \
  MDOPS_STAGE(no)
#else

#define MDOPS_STAGE(id) const StageTimer mdops_timer_of_##id(::mdops::Stage::id)
#define MDOPS_STAGE_IF(condition, yes, no) \
  const StageTimer mdops_timer_of_##yes((condition) ? ::mdops::Stage::yes : ::mdops::Stage::no)

namespace mdops {

#define MDOPS_STAGE_NAME(id, name) name,
inline constexpr const char* kStageNames[] = {MDOPS_STAGES(MDOPS_STAGE_NAME) nullptr};
#undef MDOPS_STAGE_NAME

}  // namespace mdops

#ifdef __CUDACC__

namespace mdops {

// Where the kernels of a source write events; they are in a GPU's memory.
struct StageRecord {
  StageEvent* events;
  unsigned long long count, most;
};
static __device__ StageRecord stage_record;

// One lane records for its warp. Its `thread` is the warp's place on the GPU, which no two share at a time.
class StageTimer {
 public:
  MDOPS_D explicit StageTimer(Stage stage) : stage_(stage), begin_(clock()) {}
  MDOPS_D ~StageTimer() {
    if (threadIdx.x % 32 != 0) return;
    const int64_t end = clock();
    if (stage_record.most == 0) return;
    const unsigned long long at = atomicAdd(&stage_record.count, 1ULL);
    if (at < stage_record.most)
      stage_record.events[at] = {begin_, end, static_cast<int32_t>(stage_), place()};
  }
  StageTimer(const StageTimer&) = delete;

 private:
  static MDOPS_D int64_t clock() {  // ns
    int64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
    return now;
  }
  static MDOPS_D int32_t place() {
    int32_t multiprocessor, warp;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(multiprocessor));
    asm volatile("mov.u32 %0, %%warpid;" : "=r"(warp));
    return multiprocessor << 8 | warp;
  }

  const Stage stage_;
  const int64_t begin_;
};

// The functions of a `KernelTable`, for the current GPU.
static inline int record_stages(int64_t most) {
  StageRecord record{};
  if (cudaMemcpyFromSymbol(&record, stage_record, sizeof(record)) != cudaSuccess) return 1;
  cudaFree(record.events);
  record = {};
  if (most > 0 && cudaMalloc(&record.events, most * sizeof(StageEvent)) != cudaSuccess) return 1;
  record.most = most;
  return cudaMemcpyToSymbol(stage_record, &record, sizeof(record)) != cudaSuccess;
}

static inline int64_t stage_events(StageEvent* to, int64_t most) {
  StageRecord record{};
  if (cudaMemcpyFromSymbol(&record, stage_record, sizeof(record)) != cudaSuccess) return 0;
  const int64_t count = static_cast<int64_t>(record.count < record.most ? record.count : record.most);
  const int64_t copied = count < most ? count : most;
  if (copied > 0) cudaMemcpy(to, record.events, copied * sizeof(StageEvent), cudaMemcpyDeviceToHost);
  return count;
}

}  // namespace mdops

#else

#include <time.h>
#include <unistd.h>

#include <atomic>
#include <memory>

namespace mdops {
namespace MDOPS_ISA {

// The events of all threads, each in its own place; those beyond the last place are lost.
struct StageRecord {
  std::unique_ptr<StageEvent[]> events;
  int64_t most = 0;
  std::atomic<int64_t> count{0};
};
inline StageRecord stage_record;

// Nanoseconds of the clock of Python's time.perf_counter on Linux.
inline int64_t stage_clock() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{1000000000} * now.tv_sec + now.tv_nsec;
}

class StageTimer {
 public:
  explicit StageTimer(Stage stage) : stage_(stage), begin_(stage_clock()) {}
  ~StageTimer() {
    static thread_local const int32_t thread = gettid();
    const int64_t end = stage_clock();
    if (stage_record.count.load(std::memory_order_relaxed) >= stage_record.most) return;
    const int64_t at = stage_record.count.fetch_add(1, std::memory_order_relaxed);
    if (at < stage_record.most) stage_record.events[at] = {begin_, end, static_cast<int32_t>(stage_), thread};
  }
  StageTimer(const StageTimer&) = delete;

 private:
  const Stage stage_;
  const int64_t begin_;
};

// The functions of a `KernelTable`.
inline int record_stages(int64_t most) {
  stage_record.most = 0;
  stage_record.events.reset(most > 0 ? new (std::nothrow) StageEvent[most] : nullptr);
  stage_record.count = 0;
  if (most > 0 && !stage_record.events) return 1;
  stage_record.most = most;
  return 0;
}

inline int64_t stage_events(StageEvent* to, int64_t most) {
  int64_t count = stage_record.count;
  if (count > stage_record.most) count = stage_record.most;
  for (int64_t k = 0; k < count && k < most; ++k) to[k] = stage_record.events[k];
  return count;
}

}  // namespace MDOPS_ISA
}  // namespace mdops

#endif
#endif
