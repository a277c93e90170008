// Runs the GPU kernels for products with float16 parts and for small products on the host.
// scripts/emulate_linear.py calls them with the pointers of A, B and C, and with their sizes.
#include "fibers.h"
#include "linear/gpu_halves_run.h"
#include "linear/gpu_small.h"

extern "C" void run_product(float** pointers, const int64_t* sizes) {
  using namespace mdops;
  using namespace mdops::gpu_linear;
  const int64_t rows = sizes[0], count = sizes[1], depth = sizes[2], columns = sizes[3];
  const bool transposed = sizes[4] != 0;
  const RowArgs args{rows,
                     columns,
                     depth,
                     1,
                     {pointers[0], count * depth, 1},
                     {pointers[1], transposed ? depth : 1, transposed ? 1 : columns},
                     nullptr,
                     pointers[2],
                     count * columns,
                     {count, depth, depth * columns, columns}};
  const Gpu gpu({2, 90, 232448});
  if (!takes_halves(gpu, args)) stop("a product that this kernel does not take");
  run_halves(gpu, args);
}

// C = A B + bias, (rows, columns), summed over the depth; A may be (depth, rows), and B may be
// (columns, depth).
extern "C" void run_small(float** pointers, const int64_t* sizes) {
  using namespace mdops;
  using namespace mdops::gpu_linear;
  const int64_t rows = sizes[0], depth = sizes[1], columns = sizes[2];
  const bool of_a = sizes[3] != 0, of_b = sizes[4] != 0;
  gpu_linear::run_small(Gpu({2, 90, 232448}), {rows,
                                               columns,
                                               depth,
                                               1,
                                               {pointers[0], of_a ? 1 : depth, of_a ? rows : 1},
                                               {pointers[1], of_b ? depth : 1, of_b ? 1 : columns},
                                               pointers[3],
                                               pointers[2],
                                               columns,
                                               {}});
}
