// Low-bit products of large tiles by warpgroups.
#include "lowbit/gpu_run.h"

#ifdef MDOPS_HOPPER

namespace mdops::gpu_lowbit {

namespace {

template <LowBit A, LowBit B, int Columns, bool InParts, int Cluster>
void launch_wide(const Gpu& gpu, const Product& p) {
  using T = WideTile8<Columns>;
  CUtensorMap a, b;
  map_factor(gpu, p.a, p.depth, kWideRows, &a);
  map_factor(gpu, p.b, p.depth, Columns / Cluster, &b);
  const int64_t tiles = blocks_for(p.rows, kWideRows * Cluster) * blocks_for(p.cols, Columns) * Cluster;
  const int64_t most = gpu.limits().multiprocessors / Cluster * Cluster;
  gpu.launch_clusters(wide_kernel<A, B, Columns, InParts, Cluster>, tiles < most ? tiles : most, Cluster,
                      kWideThreads, T::kShared, tiles <= most, a, b, p);
}

template <int Columns, int Cluster>
void multiply_wide_product(const Gpu& gpu, const Product& p) {
  if constexpr (Columns > 128)  // groups' sums and their totals take more registers
    if (p.groups > 1) return multiply_wide_product<128, Cluster>(gpu, p);
  with_kinds(p, [&]<LowBit A, LowBit B>() {
    constexpr bool kWhole = A == LowBit::int8;
    if constexpr (!kWhole || Columns <= 128)
      if (!kWhole || p.groups > 1) return launch_wide<A, B, Columns, true, Cluster>(gpu, p);
    if constexpr (kWhole) launch_wide<A, B, Columns, false, Cluster>(gpu, p);
  });
}

}  // namespace

void multiply_wide(const Gpu& gpu, GemmKernel kernel, const Product& p) {
  switch (kernel) {
    case GemmKernel::wide_64:
      return multiply_wide_product<64, 1>(gpu, p);
    case GemmKernel::wide_128:
      return multiply_wide_product<128, 1>(gpu, p);
    case GemmKernel::wide_256:
      return multiply_wide_product<256, 1>(gpu, p);
    case GemmKernel::pair_128:
      return multiply_wide_product<128, 2>(gpu, p);
    default:
      return multiply_wide_product<256, 2>(gpu, p);
  }
}

}  // namespace mdops::gpu_lowbit

#endif
