// Blocks of rows that threads take dynamically.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace mdops {

// For work whose results do not depend on where a block begins, nor on its thread: sums over rows have fixed
// shares. Threads are never equally fast, due to other processes or the thread that shares a core, and with
// equal shares all wait for the slowest.
//
// A block is a thread's share of the remaining rows, so that the last ones are small, but at most `most`
// rows; if no thread needs a second block, all are equal.
class RowBlocks {
 public:
  RowBlocks(int64_t rows, int64_t threads, int64_t most)
      : rows_(rows), threads_(threads), most_(most), least_(rows <= threads * most ? part_of(rows) : kTile) {}

  // The next block, [from, to); false if none is left.
  bool next(int64_t* from, int64_t* to) {
    int64_t first = next_.load(std::memory_order_relaxed), end;
    do {
      if (first >= rows_) return false;
      end = std::min(rows_, first + std::max(least_, std::min(most_, part_of(rows_ - first))));
    } while (!next_.compare_exchange_weak(first, end, std::memory_order_relaxed));
    *from = first, *to = end;
    return true;
  }

 private:
  static constexpr int64_t kTile = 16;  // rows that any kernel processes at once

  int64_t part_of(int64_t rows) const {
    const int64_t part = (rows + threads_ - 1) / threads_;
    return (part + kTile - 1) / kTile * kTile;
  }

  const int64_t rows_, threads_, most_, least_;
  std::atomic<int64_t> next_{0};
};

}  // namespace mdops
