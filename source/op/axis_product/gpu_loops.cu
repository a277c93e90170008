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

}  // namespace

template <class T>
void run_axis_features(const Gpu& gpu, const AxisArgs<T>& args) {
  launch(gpu, features_kernel<T, true>, features_kernel<T, false>, args, args.t_size());
}

template <class T>
void run_axis_gradients(const Gpu& gpu, const AxisArgs<T>& args) {
  launch(gpu, gradient_kernel<T, true>, gradient_kernel<T, false>, args,
         args.t_size() + args.width * int64_t{shared_stride(args.axis)});
}

#define MDOPS_INSTANTIATE(T)                                       \
  template void run_axis_features(const Gpu&, const AxisArgs<T>&); \
  template void run_axis_gradients(const Gpu&, const AxisArgs<T>&);
MDOPS_INSTANTIATE(float)
MDOPS_INSTANTIATE(double)
#undef MDOPS_INSTANTIATE

}  // namespace mdops
