// Low-bit products of few rows or few tiles by warpgroups.
#include "lowbit/gpu_run.h"

#ifdef MDOPS_HOPPER

namespace mdops::gpu_lowbit {

namespace {

template <LowBit A, LowBit B, class T>
void launch_thin(const Gpu& gpu, const Product& p) {
  // Ternary numbers lie in lines of columns, four of the depth each.
  const Factor lines{p.b.data, p.b.layout, p.b.stride, T::kTernary ? blocks_for(p.depth, 4) : p.b.lines};
  CUtensorMap a, b;
  map_factor(gpu, p.a, p.depth, T::kRows, &a);
  map_factor(gpu, lines, T::kTernary ? p.cols : p.depth,
             T::kTernary ? kStageDepth / 4 : T::kColumns / T::kSharers, &b);
  const int64_t blocks =
      blocks_for(p.rows, T::kRows * T::kSharers) * blocks_for(p.cols, T::kColumns) * T::kCluster;
  gpu.launch_clusters(thin_kernel<A, B, T>, blocks, T::kCluster, T::kThreads + 32, T::kShared, true, a, b, p);
}

template <LowBit A, LowBit B, int Rows>
void launch_thin(const Gpu& gpu, const Product& p, int depths) {
  if (depths == 1) return launch_thin<A, B, ThinTile<B, Rows, 1>>(gpu, p);
  launch_thin<A, B, ThinTile<B, Rows, 2>>(gpu, p);
}

template <LowBit A, LowBit B>
void launch_thin(const Gpu& gpu, const Product& p) {
  const ThinShape shape = thin_shape(gpu, p);
  if (shape.rows == 16) return launch_thin<A, B, 16>(gpu, p, shape.depths);
  if (shape.rows == 32) return launch_thin<A, B, 32>(gpu, p, shape.depths);
  launch_thin<A, B, 64>(gpu, p, shape.depths);
}

void multiply_thin_product(const Gpu& gpu, const Product& p) {
  if (p.b.layout == Layout::ternary) return launch_thin<LowBit::int8, LowBit::ternary>(gpu, p);
  with_kinds(p, [&]<LowBit A, LowBit B>() { launch_thin<A, B>(gpu, p); });
}

void multiply_thin_pair(const Gpu& gpu, const Product& p) {
  with_kinds(p, [&]<LowBit A, LowBit B>() { launch_thin<A, B, ThinTile<B, 64, 1, 2>>(gpu, p); });
}

}  // namespace

void multiply_thin(const Gpu& gpu, GemmKernel kernel, const Product& p) {
  return kernel == GemmKernel::thin ? multiply_thin_product(gpu, p) : multiply_thin_pair(gpu, p);
}

}  // namespace mdops::gpu_lowbit

#endif
