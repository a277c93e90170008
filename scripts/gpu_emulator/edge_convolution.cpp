// Runs the GPU kernels of convolutions along edges on the host. scripts/emulate_edge_convolution.py calls it
// with the pointers of its tensors and their sizes.
#include "edge_convolution/gpu_kernels.h"

#include "fibers.h"

namespace {

using namespace mdops;

template <class T>
void run(int pass, Pointers next, const int64_t* sizes) {
  EdgeConvolutionArgs<T> args{};
  args.rows = sizes[0], args.inputs = sizes[1], args.turns = sizes[2], args.width = sizes[3];
  args.a.nodes = sizes[4], args.x.nodes = sizes[5];
  for (const T** array : {&args.a.x, &args.x.x, &args.b, &args.w, &args.t, &args.weight}) *array = next();
  for (const int32_t** array : {&args.a.index, &args.x.index, &args.order, &args.offsets}) *array = next();
  args.index = pass == 0 ? args.a.index : args.x.index;
  args.targets = pass == 0 ? args.a.nodes : args.x.nodes;
  for (T** array : {&args.by_a, &args.by_x, &args.by_b, &args.by_w, &args.by_t, &args.by_weight})
    *array = next();
  const Gpu gpu({2, 90, 232448});
  if (pass == 0) gpu_edge_convolution::run_nodes<T, true>(gpu, args);
  if (pass == 1) gpu_edge_convolution::run_nodes<T, false>(gpu, args);
  if (pass == 2) gpu_edge_convolution::run_edges(gpu, args);
  if (pass == 3) {
    std::vector<T> sums(gpu_edge_convolution::weight_shares(gpu, args) * args.inputs * args.width);
    gpu_edge_convolution::run_weight(gpu, args, sums.data());
  }
}

}  // namespace

extern "C" void run_edge_convolution(bool is_double, int pass, void** pointers, int64_t* sizes) {
  is_double ? run<double>(pass, pointers, sizes) : run<float>(pass, pointers, sizes);
}
