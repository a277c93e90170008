#include "moment_product/gpu_loops.h"

#include <type_traits>

#include "common/instantiate.h"
#include "gemm_fp64/gpu_loops.h"
#include "moment_product/gpu_double.h"
#include "moment_product/gpu_kernels.h"

namespace mdops {

using namespace gpu_moment_product;

namespace {

// The number of threads for so many n: whole warps, in as few rounds as possible.
int threads_for(int width) {
  const int rounds = width > 0 ? (width + kMostThreads - 1) / kMostThreads : 1;
  return static_cast<int>(blocks_for(blocks_for(width, rounds), kWarp)) * kWarp;
}

template <int Units>
void launch_units(const Gpu& gpu, const MomentProductArgs<double>& p) {
  using Tile = DoubleTile<Units>;
  const auto kernel = p.width % 2 == 0 ? double_kernel<Units, true> : double_kernel<Units, false>;
  const int64_t blocks = blocks_for(p.rows, kTileAtoms) * blocks_for(p.width, Tile::kCols);
  gpu.launch(kernel, blocks, kDoubleThreads, Tile::kBytes, p);
}

void launch_double(const Gpu& gpu, const MomentProductArgs<double>& p) {
  const auto idle = [&](int units) { return blocks_for(p.width, 16 * units) * 16 * units - p.width; };
  return idle(7) < idle(8) ? launch_units<7>(gpu, p) : launch_units<8>(gpu, p);
}

// Whether the tensor cores can be used; they read a table either way.
template <class T>
bool has_cores(const MomentProductArgs<T>& p) {
  return std::is_same_v<T, double> && p.columns == 4;
}

void lead_back(const Gpu& gpu, const MomentProductArgs<double>& p) {
  GemmFp64Args args{4 * p.rows, p.depth, p.width, p.in, p.table, p.out};
  args.nets = p.tables;
  run_product_to_moments(gpu, args, {p.row_atom, p.kinds, p.atoms});
}

template <bool Back, class T>
void launch(const Gpu& gpu, const MomentProductArgs<T>& p) {
  if (p.width == 0 || p.columns == 0) return;
  if constexpr (std::is_same_v<T, double>)
    if (has_cores(p)) return Back ? lead_back(gpu, p) : launch_double(gpu, p);
  const auto kernel = p.columns % 4 == 0 ? product_kernel<T, 4, Back> : product_kernel<T, 1, Back>;
  gpu.launch(kernel, blocks_for(p.rows, kRows), threads_for(p.width), 0, p);
}

template <class T>
int64_t numbers_of(const MomentProductArgs<T>& p) {
  return static_cast<int64_t>(p.tables) * p.depth * p.width;
}

}  // namespace

template <class T>
void run_moment_product(const Gpu& gpu, const MomentProductArgs<T>& args) {
  launch<false>(gpu, args);
}

template <class T>
int64_t moment_gradients_bytes(const MomentProductArgs<T>& args) {
  return has_cores(args) ? 0 : numbers_of(args) * static_cast<int64_t>(sizeof(T));
}

template <class T>
void run_moment_gradients(const Gpu& gpu, const MomentProductArgs<T>& args, void* memory) {
  MomentProductArgs<T> p = args;
  if (!has_cores(p)) {
    T* const to = static_cast<T*>(memory);
    // (tables, width, depth): the table's own rows and columns.
    gpu.launch_for(numbers_of(p), 256, transpose_kernel<T>, p.table, numbers_of(p), p.width, p.depth, to);
    p.table = to;
  }
  launch<true>(gpu, p);
}

MDOPS_INSTANTIATE(run_moment_product, moment_gradients_bytes, run_moment_gradients)

}  // namespace mdops
