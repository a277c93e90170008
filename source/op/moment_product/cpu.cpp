#include <algorithm>

#include "common/scratch.h"
#include "moment_product/ops.h"

namespace mdops {

// Rows of one table in a block, whatever stands between them.
template <class T>
static void multiply_rows(const Op& op, const MomentProductArgs<T>& args, bool back) {
  struct Use;
  const MomentProductSizes sizes = MDOPS_RUN(moment_product_sizes, args);
  std::vector<std::vector<int32_t>> rows(args.tables);
  for (int64_t r = 0; r < args.rows; ++r) rows[args.kind_of(r)].push_back(static_cast<int32_t>(r));
  std::vector<std::pair<const int32_t*, int64_t>> blocks;
  for (const auto& own : rows)
    for (int64_t first = 0, count = own.size(); first < count; first += sizes.rows)
      blocks.emplace_back(own.data() + first, std::min(sizes.rows, count - first));
  parallel(blocks.size(), 1, [&](int64_t begin, int64_t end) {
    const ScratchMemory<Use> memory(op, sizes.scratch);
    for (int64_t k = begin; k < end; ++k)
      MDOPS_RUN(moment_product_rows, args, back, blocks[k].first, blocks[k].second, memory.data());
  });
}

template <class T>
static void run_moment_product(const Op& op, const MomentProductArgs<T>& args) {
  multiply_rows(op, args, false);
}

template <class T>
static void run_moment_gradients(const Op& op, const MomentProductArgs<T>& args) {
  multiply_rows(op, args, true);
}

}  // namespace mdops

MDOPS_ON_CPU(MomentProductOps)
