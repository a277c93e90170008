// Products of rows by float16's parts as on a GPU, launched on the host. scripts/emulate_linear.py calls them
// with the pointers of A, B and C, and with their sizes.
#include "fibers.h"
#include "linear/gpu_halves_run.h"

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
