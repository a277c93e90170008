#include "common/large_results.h"

#include <cstdlib>
#include <mutex>

#include "common/large_pages.h"

namespace mdops {

namespace {

struct Block {
  void* data;
  int64_t bytes;
};

// Memory of deleted results, in the order of deletion.
class Kept {
 public:
  Kept() { blocks_.reserve(kMost / kLargeArray + 1); }  // so that `give` cannot fail

  // The smallest block that `bytes` fit into, or null: a much larger block would be mostly unused.
  Block take(int64_t bytes) {
    const std::lock_guard<std::mutex> lock(guard_);
    auto best = blocks_.end();
    for (auto block = blocks_.begin(); block != blocks_.end(); ++block)
      if (block->bytes >= bytes && block->bytes <= bytes + bytes / 4 &&
          (best == blocks_.end() || block->bytes < best->bytes))
        best = block;
    if (best == blocks_.end()) return {nullptr, 0};
    const Block taken = *best;
    blocks_.erase(best);
    bytes_ -= taken.bytes;
    return taken;
  }

  void give(const Block& block) {
    if (block.bytes > kMost || !leave_to_system(block)) return std::free(block.data);
    const std::lock_guard<std::mutex> lock(guard_);
    blocks_.push_back(block);
    for (bytes_ += block.bytes; bytes_ > kMost; blocks_.erase(blocks_.begin())) {
      bytes_ -= blocks_.front().bytes;
      std::free(blocks_.front().data);
    }
  }

 private:
  static constexpr int64_t kMost = int64_t{1} << 30;

  // Whether the system may reclaim the block's pages when it needs them.
  static bool leave_to_system([[maybe_unused]] const Block& block) {
#if defined(__linux__) && defined(MADV_FREE)
    return madvise(block.data, block.bytes, MADV_FREE) == 0;
#else
    return false;
#endif
  }

  std::mutex guard_;
  std::vector<Block> blocks_;
  int64_t bytes_ = 0;
};

// Never destroyed: a tensor may outlive everything else.
Kept& kept() {
  static Kept* const all = new Kept;
  return *all;
}

int64_t size_of(ScalarType dtype) {
  return dtype == ScalarType::Double ? 8 : dtype == ScalarType::Half || dtype == ScalarType::BFloat16 ? 2 : 4;
}

Block new_block(const Op& op, int64_t bytes) {
  const Block block{std::aligned_alloc(kLargePage, bytes), bytes};
  if (!block.data) fail(op, "out of memory for a result of ", bytes, " bytes");
  ask_for_large_pages(block.data, bytes);
  return block;
}

}  // namespace

Tensor empty_result(const Op& op, const std::vector<int64_t>& shape, ScalarType dtype) {
  int64_t bytes = size_of(dtype);
  std::vector<int64_t> strides(shape.size());
  for (size_t d = shape.size(); d-- > 0;) {
    strides[d] = d + 1 < shape.size() ? strides[d + 1] * shape[d + 1] : 1;
    bytes *= shape[d];
  }
  if (bytes < kLargeArray) return empty(shape, dtype);
  bytes = (bytes + kLargePage - 1) / kLargePage * kLargePage;
  Block block = kept().take(bytes);
  if (!block.data) block = new_block(op, bytes);
  return torch::stable::from_blob(block.data, {shape.data(), shape.size()}, {strides.data(), strides.size()},
                                  torch::stable::Device(torch::headeronly::DeviceType::CPU), dtype,
                                  [bytes = block.bytes](void* data) { kept().give({data, bytes}); });
}

}  // namespace mdops
