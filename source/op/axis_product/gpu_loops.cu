#include "axis_product/gpu_loops.h"

#include "axis_product/gpu_kernels.h"

namespace mdops {

using namespace gpu_axis;

namespace {

template <class T>
void launch(const Gpu& gpu, void (*copies)(AxisArgs<T>), void (*reads)(AxisArgs<T>), const AxisArgs<T>& p,
            int64_t numbers) {
  const int64_t bytes = numbers * static_cast<int64_t>(sizeof(T));
  if (bytes <= kPlainShared)
    gpu.launch(copies, p.atoms, kThreads, bytes, p);
  else
    gpu.launch(reads, p.atoms, kThreads, 0, p);
}

// Whether the kernels for three or four rows take it, with this many `numbers` in shared memory.
template <class T>
bool has_four(const AxisArgs<T>& p, int64_t numbers) {
  return (p.rows == 3 || p.rows == 4) && p.axis <= kMostAxis &&
         numbers * static_cast<int64_t>(sizeof(T)) <= kPlainShared;
}

}  // namespace

template <class T>
void run_axis_features(const Gpu& gpu, const AxisArgs<T>& args) {
  const int64_t columns = 4 * int64_t{args.width};
  if (has_four(args, columns))
    return gpu.launch(four_features_kernel<T>, args.atoms, kFourThreads, columns * sizeof(T), args);
  launch(gpu, features_kernel<T, true>, features_kernel<T, false>, args, args.t_size());
}

template <class T>
void run_axis_gradients(const Gpu& gpu, const AxisArgs<T>& args) {
  const int64_t numbers = 4 * int64_t{args.width} + whole_fours(args.width * shared_stride(args.axis)) +
                          4 * (kFourThreads / args.axis) * args.axis;
  if (has_four(args, numbers))
    return gpu.launch(four_gradient_kernel<T>, args.atoms, kFourThreads, numbers * sizeof(T), args);
  launch(gpu, gradient_kernel<T, true>, gradient_kernel<T, false>, args,
         args.t_size() + args.width * int64_t{shared_stride(args.axis)});
}

MDOPS_INSTANTIATE(run_axis_features, run_axis_gradients)

}  // namespace mdops
