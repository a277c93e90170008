#include "gemm_fp64/gpu_loops.h"

#include <algorithm>
#include <limits>

#include "gemm_fp64/gpu_kernels.h"

namespace mdops {

using namespace gpu_gemm_fp64;

namespace {

// How many rows are in tiles of full height: whole rounds of tiles, or all.
int high_rows(const Gpu& gpu, const GemmFp64Args& p) {
  const int64_t multiprocessors = gpu.limits().multiprocessors, across = blocks_for(p.cols, Tile::kCols);
  int64_t best = 0, least = std::numeric_limits<int64_t>::max();
  // Rounds of the tensor cores, in units of 16 rows a warp; a low tile loads as much of B as others.
  constexpr int64_t of_high = 4 * Tile::kRowUnits, of_low = 5;
  const auto look = [&](int64_t tiles) {
    const int64_t rows = std::min(p.rows, tiles * Tile::kRows);
    const int64_t high = blocks_for(rows, Tile::kRows) * across;
    const int64_t low = blocks_for(p.rows - rows, Tile::kLow) * across;
    const int64_t cost =
        blocks_for(high, multiprocessors) * of_high + blocks_for(low, multiprocessors) * of_low;
    if (cost < least) least = cost, best = tiles * Tile::kRows;
  };
  const int64_t all = blocks_for(p.rows, Tile::kRows), rounds = all * across / multiprocessors;
  for (int64_t round = std::max<int64_t>(0, rounds - 1); round <= rounds; ++round)
    look(std::min(all, round * multiprocessors / across));
  look(all);
  return static_cast<int>(best);
}

template <class T, bool transposed, bool to_moments>
void launch(const Gpu& gpu, const KernelArgs& p) {
  const auto whole = [](const double* at) { return reinterpret_cast<uintptr_t>(at) % 16 == 0; };
  const bool two =
      p.depth % 2 == 0 && whole(p.a) && whole(p.b) && (to_moments || (p.cols % 2 == 0 && whole(p.c)));
  const auto kernel = two ? product_kernel<T, transposed, true, to_moments>
                          : product_kernel<T, transposed, false, to_moments>;
  const int64_t low = std::max<int64_t>(0, p.rows - p.high_rows);
  const int64_t tiles = (p.high_rows / T::kRows + blocks_for(low, T::kLow)) * blocks_for(p.cols, T::kCols);
  gpu.launch(kernel, std::min<int64_t>(tiles, int64_t{T::kBlocks} * gpu.limits().multiprocessors),
             T::kThreads, T::kBytes, p);
}

template <bool transposed, bool to_moments>
void run(const Gpu& gpu, const GemmFp64Args& args, const MomentRows& moments) {
  gpu.int32_of("rows", args.rows + Tile::kRows);
  if (args.depth == 0) {
    gpu.clear(args.c, 8 * args.cols * (to_moments ? 4 * moments.atoms : args.rows));
    return;
  }
  const KernelArgs p{args, moments, high_rows(gpu, args)};
  constexpr int of_segments = 1024;  // which a block has, too
  if (gpu.limits().shared_bytes >= Tile::kBytes + of_segments)
    launch<Tile, transposed, to_moments>(gpu, p);
  else
    launch<TileOf<3>, transposed, to_moments>(gpu, p);
}

}  // namespace

void run_gemm_fp64(const Gpu& gpu, const GemmFp64Args& args, bool transposed) {
  return transposed ? run<true, false>(gpu, args, {}) : run<false, false>(gpu, args, {});
}

void run_product_to_moments(const Gpu& gpu, const GemmFp64Args& args, const MomentRows& moments) {
  run<true, true>(gpu, args, moments);
}

}  // namespace mdops
