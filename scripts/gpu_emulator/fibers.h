// The emulated GPU: one block of threads at a time, each thread a fiber. Only one source of a program may
// include this. A deadlock, and use of shared memory beyond the size of a launch, end the process with a
// message. Other mistakes show in results: shared memory is NaN at first.
#pragma once

#include <ucontext.h>

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "common/gpu.h"

EmulatedIndex threadIdx, blockIdx, blockDim, gridDim;

namespace {

// A pointer that converts to any type.
struct Pointer {
  template <class T>
  operator T*() const {
    return static_cast<T*>(at);
  }
  void* at;
};

// The pointers of a call, one after the other.
class Pointers {
 public:
  Pointers(void** pointers) : next_(pointers) {}
  Pointer operator()() { return {*next_++}; }

 private:
  void** next_;
};

[[noreturn]] void stop(const char* message) {
  std::fprintf(stderr, "emulated GPU, block %u, thread %u: %s\n", blockIdx.x, threadIdx.x, message);
  std::abort();
}

enum class State { ready, at_barrier, in_team, in_warp, waiting, done };

struct Copy {
  char* to;
  const char* from;
  int bytes;
};

struct BulkCopy {
  Copy copy;
  uint32_t barrier;
};

struct Fiber {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(256 << 10);
  State state;
  int turn;  // which of the two buffers for exchanges
  std::vector<Copy> copies;
  std::vector<size_t> groups;  // how many copies there were when each was committed
};

std::vector<std::unique_ptr<Fiber>> fibers;
ucontext_t scheduler;
const std::function<void()>* body;
int barrier_number, barrier_result, team_threads;
std::vector<char> exchanged;
std::map<uint32_t, EmulatedBarrier> barriers;
std::vector<BulkCopy> bulk_copies;
bool has_turned;  // whether threads that wait at such barriers must check again
char* shared_memory;
int64_t shared_size;

constexpr int kWarpBytes = 32 * kLaneBytes;

void wait_as(State state) {
  Fiber& own = *fibers[threadIdx.x];
  own.state = state;
  swapcontext(&own.context, &scheduler);
}

void run_thread() {
  (*body)();
  wait_as(State::done);
}

// Lets threads first .. last of a warp or block continue if all of them that are not done wait in that state.
bool release(int first, int last, State state) {
  bool any = false;
  for (int t = first; t < last; ++t) {
    if (fibers[t]->state != state && fibers[t]->state != State::done) return false;
    any |= fibers[t]->state == state;
  }
  for (int t = first; t < last; ++t)
    if (fibers[t]->state == state) fibers[t]->state = State::ready;
  return any;
}

void end_phase(EmulatedBarrier& barrier) {
  if (barrier.missing > 0 || barrier.bytes > 0) return;
  barrier.missing = barrier.arrivals, barrier.phase ^= 1;
  has_turned = true;
}

void run_block(int threads) {
  std::memset(shared_memory, 0xff, shared_size);
  barriers.clear(), bulk_copies.clear(), team_threads = 0;
  for (int t = 0; t < threads; ++t) {
    Fiber& fiber = *fibers[t];
    fiber.state = State::ready, fiber.turn = 0;
    fiber.copies.clear(), fiber.groups.clear();
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.data();
    fiber.context.uc_stack.ss_size = fiber.stack.size();
    makecontext(&fiber.context, run_thread, 0);
  }
  for (int left = threads; left > 0;) {
    bool moved = false;
    for (int t = 0; t < threads; ++t) {
      if (fibers[t]->state != State::ready) continue;
      threadIdx.x = t;
      swapcontext(&scheduler, &fibers[t]->context);
      left -= fibers[t]->state == State::done;
      moved = true;
    }
    for (int warp = 0; warp < threads; warp += 32) moved |= release(warp, warp + 32, State::in_warp);
    for (int team = 0; team_threads > 0 && team < threads; team += team_threads)
      moved |= release(team, team + team_threads, State::in_team);
    if (has_turned) {
      for (int t = 0; t < threads; ++t)
        if (fibers[t]->state == State::waiting) fibers[t]->state = State::ready;
      has_turned = false, moved = true;
    }
    if (release(0, threads, State::at_barrier)) {
      barrier_result = barrier_number, barrier_number = 0;
      moved = true;
    }
    if (!moved && left > 0) stop("some threads wait for others for ever");
  }
  if (!bulk_copies.empty()) stop("the block has ended before its copies have come");
}

}  // namespace

int emulated_barrier(int number) {
  barrier_number |= number;
  wait_as(State::at_barrier);
  return barrier_result;
}

void emulated_team_barrier(int threads) {
  team_threads = threads;
  wait_as(State::in_team);
}

EmulatedBarrier& emulated_barrier_at(uint32_t at) {
  emulated_check(shared_memory + at, sizeof(uint64_t));
  return barriers[at];
}

void emulated_arrive(uint32_t at) {
  EmulatedBarrier& barrier = emulated_barrier_at(at);
  --barrier.missing;
  end_phase(barrier);
}

void emulated_copy_bulk(void* to, const void* from, int bytes, uint32_t barrier) {
  emulated_check(to, 16), emulated_check(static_cast<char*>(to) + bytes - 16, 16);
  if (reinterpret_cast<uintptr_t>(from) % 16 != 0 || bytes % 16 != 0) stop("a bulk copy that is not aligned");
  std::memset(to, 0xff, bytes);
  bulk_copies.push_back({{static_cast<char*>(to), static_cast<const char*>(from), bytes}, barrier});
  has_turned = true;
}

void emulated_wait_at(uint32_t at, uint32_t parity) {
  EmulatedBarrier& barrier = emulated_barrier_at(at);
  while (barrier.phase == parity) {
    size_t left = 0;
    for (const BulkCopy& bulk : bulk_copies) {
      if (bulk.barrier == at && barrier.missing < barrier.arrivals)
        std::memcpy(bulk.copy.to, bulk.copy.from, bulk.copy.bytes), barrier.bytes -= bulk.copy.bytes;
      else
        bulk_copies[left++] = bulk;
    }
    bulk_copies.resize(left);
    end_phase(barrier);
    if (barrier.phase == parity) wait_as(State::waiting);
  }
}

const char* emulated_exchange(const void* given, int bytes) {
  Fiber& own = *fibers[threadIdx.x];
  char* const all = exchanged.data() + (threadIdx.x / 32 * 2 + own.turn) * kWarpBytes;
  own.turn ^= 1;
  std::memcpy(all + threadIdx.x % 32 * kLaneBytes, given, bytes);
  wait_as(State::in_warp);
  return all;
}

void mdops::Gpu::run(const std::function<void()>& thread, int64_t blocks, int threads, int64_t shared) const {
  if (threads % 32 != 0 || shared > limits_.shared_bytes) stop("a launch that no GPU takes");
  while (static_cast<int>(fibers.size()) < threads) fibers.push_back(std::make_unique<Fiber>());
  body = &thread;
  exchanged.assign(threads / 32 * 2 * kWarpBytes, 0);
  std::vector<char> memory(shared + 1024);
  shared_memory = memory.data() + 1024 - reinterpret_cast<uintptr_t>(memory.data()) % 1024,
  shared_size = shared;
  blockDim.x = threads, gridDim.x = static_cast<unsigned>(blocks);
  for (int64_t block = 0; block < blocks; ++block) {
    blockIdx.x = static_cast<unsigned>(block);
    run_block(threads);
  }
}

char* emulated_memory() {
  return shared_memory;
}

void emulated_check(const void* at, int bytes) {
  const char* const first = static_cast<const char*>(at);
  if (first < shared_memory || first + bytes > shared_memory + shared_size) stop("beyond its shared memory");
  if (reinterpret_cast<uintptr_t>(at) % bytes != 0) stop("shared memory at an address that is not aligned");
}

void emulated_copy(void* to, const void* from, int bytes) {
  std::memset(to, 0xff, bytes);
  fibers[threadIdx.x]->copies.push_back({static_cast<char*>(to), static_cast<const char*>(from), bytes});
}

void emulated_commit() {
  Fiber& own = *fibers[threadIdx.x];
  own.groups.push_back(own.copies.size());
}

void emulated_wait(int pending) {
  Fiber& own = *fibers[threadIdx.x];
  const size_t groups = own.groups.size(), left = pending < 0 ? 0 : pending;
  const size_t done = pending < 0 ? own.copies.size() : groups > left ? own.groups[groups - left - 1] : 0;
  for (size_t k = 0; k < done; ++k) {
    const Copy& copy = own.copies[k];
    if (copy.from)
      std::memcpy(copy.to, copy.from, copy.bytes);
    else
      std::memset(copy.to, 0, copy.bytes);
  }
  own.copies.erase(own.copies.begin(), own.copies.begin() + done);
  std::vector<size_t> rest;
  for (size_t k = groups - std::min(groups, left); k < groups; ++k) rest.push_back(own.groups[k] - done);
  own.groups = rest;
}
