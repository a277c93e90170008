#include <algorithm>

#include "rowwise/ops.h"

namespace mdops {

constexpr int64_t kRowBlock = 256;  // of a thread's piece, or of a run of sums

MDOPS_IN_PIECES(run_normalize, NormalizeArgs, normalize_rows, args.rows, kRowBlock)

// Whatever the number of threads.
static int64_t norm_runs(const Op&, int64_t rows) {
  return (rows + kRowBlock - 1) / kRowBlock;
}

template <class T>
static void run_add_norm(const Op& op, const AddNormArgs<T>& args, const NormSums<T>& sums) {
  const int64_t runs = norm_runs(op, args.rows);
  parallel(runs, 1, [&](int64_t begin, int64_t end) {
    std::vector<T> memory(4 * args.width);
    for (int64_t k = begin; k < end; ++k)
      MDOPS_RUN(add_norm_rows, args, k * kRowBlock, std::min(args.rows, (k + 1) * kRowBlock), k,
                memory.data());
  });
  T* const to[] = {sums.first, sums.second};
  for (int which = 0; which < 2; ++which)
    for (int64_t k = 0; to[which] && k < args.width; ++k) {
      T sum = 0;
      for (int64_t r = 0; r < runs; ++r) sum += args.partial[(r * args.sums + which) * args.width + k];
      to[which][k] = sum;
    }
}

MDOPS_IN_PIECES(run_layer_output, LayerOutputArgs, layer_output_rows, args.rows, kRowBlock)

static void run_curve(const Op&, const auto& args) {
  parallel_each(args.count, 4096, [&](int64_t k) { args.run(k); });
}

}  // namespace mdops

MDOPS_ON_CPU(NormalizeOps, AddNormOps, LayerOutputOps, CurveOps)
