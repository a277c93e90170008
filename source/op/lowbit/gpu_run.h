// A low-bit product on a GPU from the host: choice of the kernel, copies of factors, launches.
#pragma once

#include <cstdlib>
#include <cstring>
#include <iterator>

#include "lowbit/gpu_mma.h"
#include "lowbit/gpu_quantize.h"
#include "lowbit/gpu_thin.h"
#include "lowbit/gpu_wgmma.h"

namespace mdops::gpu_lowbit {

//      warps along rows, columns and depth, units of 16 x 32 a warp, stages
using SmallTile = MmaTile<2, 1, 4, 1, 1, 8>;        // 32 x 32
using SmallGroupsTile = MmaTile<2, 1, 1, 1, 1, 8>;  // for groups, whose sums must be whole
using MiddleTile = MmaTile<2, 2, 1, 2, 1, 4>;       // 64 x 64
using LargeTile = MmaTile<2, 4, 1, 4, 1, 3>;        // 128 x 128

enum class GemmKernel : int {
  small,
  middle,
  large,
  thin,
  thin_pair,
  wide_64,
  wide_128,
  wide_256,
  pair_128,
  pair_256
};
constexpr const char* kKernelNames[] = {"small",   "middle",   "large",    "thin",     "thin_pair",
                                        "wide_64", "wide_128", "wide_256", "pair_128", "pair_256"};

inline bool is_wide(GemmKernel kernel) {
  return kernel >= GemmKernel::thin;
}

// How a call runs, and the bytes of copies of its factors (0: they are read directly).
struct Plan {
  GemmKernel kernel;
  int64_t a_bytes, b_bytes, filled;
};

// The kernel that MDOPS_LOWBIT_TILE names, for tests of all of them; false if it names none.
inline bool named_kernel(GemmKernel* kernel) {
  const char* name = std::getenv("MDOPS_LOWBIT_TILE");
  if (name == nullptr) return false;
  for (int k = 0; k < static_cast<int>(std::size(kKernelNames)); ++k)
    if (std::strcmp(name, kKernelNames[k]) == 0) return *kernel = static_cast<GemmKernel>(k), true;
  return false;
}

// How `thin` runs a product: rows of a tile, and blocks that share its depth (`depths`). The fewest rows with
// which the device holds all blocks at once; two blocks share a depth if it outweighs their wait for each
// other. `fits`: whether thin_kernel is faster. Ternary tiles stay so for twice the work, as other kernels
// need a copy of them.
struct ThinShape {
  int rows, depths;
  bool fits;
};

inline ThinShape thin_shape(const Gpu& gpu, const Product& p) {
  const bool ternary = p.b.layout == Layout::ternary;
  const int64_t chip = gpu.limits().multiprocessors, cols = blocks_for(p.cols, ternary ? 128 : 64);
  const int most = p.rows <= 16 ? 16 : p.rows <= 32 ? 32 : 64;
  for (int blocks = p.depth >= (ternary ? 1024 : 3072) ? 2 : 1; blocks > 0; --blocks)
    for (int rows = 16; rows <= most; rows *= 2)
      if (blocks_for(p.rows, rows) * cols * blocks <= chip) return {rows, blocks, true};
  return {most, 1, ternary && blocks_for(p.rows, most) * cols <= 2 * chip};
}

// Whether a pair of tiles of 64 rows, all of them, fetches B once for both (thin_pair). This saves waits for
// the L2 cache, which are rare on less than three fifths of the multiprocessors. It must outweigh the blocks'
// wait for each other, so the depth must be large enough. Ternary numbers have fewer bytes.
inline bool goes_in_thin_pairs(const Gpu& gpu, const Product& p, const ThinShape& shape) {
  const int64_t blocks = 2 * blocks_for(p.cols, 64);
  return p.b.layout != Layout::ternary && p.rows > 64 && p.rows <= 128 && p.depth >= 1024 &&
         shape.rows == 64 && shape.depths == 1 && 5 * blocks > 3 * gpu.limits().multiprocessors;
}

// By the device: the largest tiles that give most multiprocessors one. Two blocks share columns if there are
// very many tiles, or, for 128 columns, if the device holds all at once. Hopper's warpgroups need B by lines:
// for other layouts they read a copy, which pays from some hundred rows on. Float8 uses them early, as
// `mma.sync` converts it to float16.
inline GemmKernel choose_kernel(const Gpu& gpu, const Product& p, bool parts) {
  const GpuLimits limits = gpu.limits();
  const int64_t chip = limits.multiprocessors;
  const auto tiles = [&](int64_t rows, int64_t cols) {
    return blocks_for(p.rows, rows) * blocks_for(p.cols, cols);
  };
  bool wide = false;
#ifdef MDOPS_HOPPER
  wide = limits.capability == 90 && p.depth > 0 && (p.groups <= 1 || p.group % kStageDepth == 0);
#endif
  GemmKernel kernel = GemmKernel::small;
  if (!named_kernel(&kernel)) {
    const int64_t wide_64 = tiles(kWideRows, 64), wide_128 = tiles(kWideRows, 128),
                  wide_256 = tiles(kWideRows, 256);
    const bool by_line = p.b.layout == Layout::by_line, is_fed = by_line || p.rows >= 64;
    const bool is_read = by_line || (p.b.layout == Layout::ternary && is_aligned(p.b));  // by thin_kernel
    const int64_t few = is_read ? 8 : p.is_float() ? 24 : 48;  // tiles of 64 columns
    const bool is_thin = is_read || (is_fed && wide_64 >= few);
    const bool one_wave = p.rows > kWideRows && 2 * tiles(2 * kWideRows, 128) <= chip;  // of pairs
    const ThinShape thin = thin_shape(gpu, p);
    if (wide && is_thin && p.groups <= 1 && thin.fits)
      kernel = goes_in_thin_pairs(gpu, p, thin) ? GemmKernel::thin_pair : GemmKernel::thin;
    else if (wide && is_fed && p.groups <= 1 && 4 * wide_256 > 3 * chip)
      kernel = wide_256 > 4 * chip ? GemmKernel::pair_256 : GemmKernel::wide_256;
    else if (wide && is_fed && 5 * wide_128 > 3 * chip)
      kernel = one_wave || wide_128 > 8 * chip ? GemmKernel::pair_128 : GemmKernel::wide_128;
    else if (wide && is_fed && wide_64 >= few)
      kernel = GemmKernel::wide_64;
    else if (tiles(128, 128) > chip && !parts)
      kernel = GemmKernel::large;
    else if (2 * tiles(64, 64) > chip)
      kernel = GemmKernel::middle;
  }
  if (is_wide(kernel) && !wide) kernel = GemmKernel::large;
  if ((kernel == GemmKernel::thin || kernel == GemmKernel::thin_pair) && p.groups > 1)
    kernel = GemmKernel::wide_64;  // with the documented order of roundings
  if (kernel == GemmKernel::large && (LargeTile::kShared > limits.shared_bytes || (parts && !p.is_float())))
    kernel = GemmKernel::middle;
  if (kernel == GemmKernel::middle && MiddleTile::kShared > limits.shared_bytes) kernel = GemmKernel::small;
  return kernel;
}

inline bool in_parts(const Product& p) {
  return p.is_float() || p.groups > 1;
}

inline Plan plan_product(const Gpu& gpu, const Product& p) {
  Plan plan{choose_kernel(gpu, p, in_parts(p)), 0, 0, p.groups > 0 ? filled_16(p.group) : 0};
  const int64_t stride = p.groups * plan.filled;
  const bool cut = p.groups > 1 && p.group % 16 != 0;
  if (cut || !is_aligned(p.a)) plan.a_bytes = p.rows * stride;
  const bool packed = plan.kernel == GemmKernel::thin && p.b.layout == Layout::ternary;
  if (cut || !is_aligned(p.b) || (is_wide(plan.kernel) && p.b.layout != Layout::by_line && !packed))
    plan.b_bytes = p.cols * stride;
  return plan;
}

template <class T, class Number, Layout Side, bool InParts>
void launch_mma(const Gpu& gpu, const Product& p) {
  const int64_t tiles = blocks_for(p.rows, T::kRows) * blocks_for(p.cols, T::kCols);
  gpu.launch(mma_kernel<T, Number, Side, InParts>, tiles, T::kThreads, T::kShared, p, Stages::of(p));
}

template <class T>
void multiply_by_mma(const Gpu& gpu, const Product& p) {
  using GroupsTile = std::conditional_t<std::is_same_v<T, SmallTile>, SmallGroupsTile, T>;
  constexpr bool kGroups = !std::is_same_v<T, LargeTile>;
  if (p.is_float()) {
    if (p.b.layout == Layout::by_line) return launch_mma<T, float, Layout::by_line, true>(gpu, p);
    return launch_mma<T, float, Layout::by_depth, true>(gpu, p);
  }
  if constexpr (kGroups) {
    if (p.groups > 1) {
      if (p.b.layout == Layout::by_line) return launch_mma<GroupsTile, int, Layout::by_line, true>(gpu, p);
      if (p.b.layout == Layout::by_depth) return launch_mma<GroupsTile, int, Layout::by_depth, true>(gpu, p);
      return launch_mma<GroupsTile, int, Layout::ternary, true>(gpu, p);
    }
  }
  if (p.b.layout == Layout::by_line) return launch_mma<T, int, Layout::by_line, false>(gpu, p);
  if (p.b.layout == Layout::by_depth) return launch_mma<T, int, Layout::by_depth, false>(gpu, p);
  launch_mma<T, int, Layout::ternary, false>(gpu, p);
}

// use.operator()<A, B>() for the kinds of byte factors.
void with_kinds(const Product& p, const auto& use) {
  constexpr LowBit kInt8 = LowBit::int8, kE4 = LowBit::e4m3, kE5 = LowBit::e5m2;
  if (!p.is_float()) return use.template operator()<kInt8, kInt8>();
  if (p.a_kind == kE4 && p.b_kind == kE4) return use.template operator()<kE4, kE4>();
  if (p.a_kind == kE4) return use.template operator()<kE4, kE5>();
  if (p.b_kind == kE4) return use.template operator()<kE5, kE4>();
  use.template operator()<kE5, kE5>();
}

// By warpgroups, compiled in cuda_wide.cu and cuda_thin.cu.
void multiply_wide(const Gpu& gpu, GemmKernel kernel, const Product& p);
void multiply_thin(const Gpu& gpu, GemmKernel kernel, const Product& p);

inline void multiply(const Gpu& gpu, const Plan& plan, Product p, uint8_t* a_copy, uint8_t* b_copy) {
  const Depth depth{p.depth, p.group, plan.filled, p.groups};
  if (plan.a_bytes > 0) p.a = copy_factor(gpu, p.a, depth, a_copy);
  if (plan.b_bytes > 0) p.b = copy_factor(gpu, p.b, depth, b_copy);
  if (plan.a_bytes > 0 && plan.b_bytes > 0 && p.groups > 1 && p.group % 16 != 0) {
    p.group = static_cast<int>(plan.filled);
    p.depth = p.groups * p.group;
  }
  switch (plan.kernel) {
    case GemmKernel::small:
      return multiply_by_mma<SmallTile>(gpu, p);
    case GemmKernel::middle:
      return multiply_by_mma<MiddleTile>(gpu, p);
    case GemmKernel::large:
      return multiply_by_mma<LargeTile>(gpu, p);
#ifdef MDOPS_HOPPER
    case GemmKernel::thin:
    case GemmKernel::thin_pair:
      return multiply_thin(gpu, plan.kernel, p);
    case GemmKernel::wide_64:
    case GemmKernel::wide_128:
    case GemmKernel::wide_256:
    case GemmKernel::pair_128:
    case GemmKernel::pair_256:
      return multiply_wide(gpu, plan.kernel, p);
#endif
    default:
      gpu.refuse("the library has no kernel for it");
  }
}

}  // namespace mdops::gpu_lowbit
