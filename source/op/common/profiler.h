// When the stages of kernels began and ended, for `mdops profile`. A kernel says MDOPS_STAGE(name); where a
// stage begins: it ends with the scope. Without MDOPS_PROFILER that leaves no code, and still wants a name of
// the list.
#pragma once

#include <cstdint>

#include "common/kernel_table.h"

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

#if !defined(MDOPS_PROFILER)
#define MDOPS_STAGE(id) static_assert(static_cast<int>(::mdops::Stage::id) >= 0)
#else

#define MDOPS_STAGE(id) const StageTimer mdops_timer_of_##id(::mdops::Stage::id)

namespace mdops {

#define MDOPS_STAGE_NAME(id, name) name,
inline constexpr const char* kStageNames[] = {MDOPS_STAGES(MDOPS_STAGE_NAME) nullptr};
#undef MDOPS_STAGE_NAME

}  // namespace mdops

#ifndef __CUDACC__

#include <time.h>
#include <unistd.h>

#include <atomic>
#include <memory>

namespace mdops {
namespace MDOPS_ISA {

// The events of all threads, each in a place of its own; those beyond the last place are lost.
struct StageRecord {
  std::unique_ptr<StageEvent[]> events;
  int64_t most = 0;
  std::atomic<int64_t> count{0};
};
inline StageRecord stage_record;

// Nanoseconds of the clock that Python's time.perf_counter has on Linux.
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
