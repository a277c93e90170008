// Which products use gpu_halves.h, and how many blocks.
#pragma once

#include <algorithm>

#include "linear/gpu_halves.h"

namespace mdops::gpu_linear {

constexpr int kFillingUnits = 6;  // of 64 rows and a block's columns, per multiprocessor

// 96, 64 or 32 columns per block: of those that fit into shared memory, the number that leaves the fewest
// columns of the last block idle; 0: none fit.
inline int half_columns(const Gpu& gpu, int64_t columns, int64_t depth) {
  int found = 0;
  for (int count : {96, 64, 32})
    if (shared_for_halves(count, depth) <= gpu.limits().shared_bytes &&
        (!found || blocks_for(columns, count) * count < blocks_for(columns, found) * found))
      found = count;
  return found;
}

// Requires no bias, and fours of A, and of B if its depth is contiguous, on 16 bytes. For few rows gpu_rows.h
// is faster, except with coefficients.
inline bool takes_halves(const Gpu& gpu, const RowArgs& args) {
  const bool fours = args.a.deep == 1 && args.depth % 4 == 0 && args.a.line % 4 == 0 &&
                     (args.b.deep > 1 || args.b.line % 4 == 0);
  if (!fours || args.bias || args.depth == 0) return false;
  const int columns = half_columns(gpu, args.columns, args.depth);
  return columns && (args.coefficients.count > 1 ||
                     blocks_for(args.rows, kHalfRows) * blocks_for(args.columns, columns) >=
                         kFillingUnits * gpu.limits().multiprocessors);
}

template <int kColumns, bool kOne>
void run_halves_of(const Gpu& gpu, RowArgs args) {
  const int64_t wide = blocks_for(args.columns, kColumns);
  const int64_t units = blocks_for(args.rows, kHalfRows) * args.coefficients.count;
  const int threads = half_threads(kColumns, kOne);
  const int64_t down =
      std::clamp<int64_t>(gpu.limits().multiprocessors / wide, 1, blocks_for(units, threads / kGroupThreads));
  args.wide = gpu.int32_of("weight", wide);
  gpu.int32_of("x", units);
  gpu.launch(halves_kernel<kColumns, kOne>, down * wide, threads, shared_for_halves(kColumns, args.depth),
             args);
}

inline void run_halves(const Gpu& gpu, const RowArgs& args) {
  const auto run = [&]<int kColumns>() {
    args.depth <= kHalfDepth ? run_halves_of<kColumns, true>(gpu, args)
                             : run_halves_of<kColumns, false>(gpu, args);
  };
  const int columns = half_columns(gpu, args.columns, args.depth);
  if (columns == 96) return run.template operator()<96>();
  columns == 64 ? run.template operator()<64>() : run.template operator()<32>();
}

}  // namespace mdops::gpu_linear
