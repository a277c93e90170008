#include "angle_products/ops.h"

namespace mdops {

template <class T>
static void run_angle_products(const Op&, const AngleProductArgs<T>& args) {
  parallel(args.rows, 4096, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) angle_product(args, row);
  });
}

template <class T>
static void run_angle_gradients(const Op&, const AngleProductArgs<T>& args) {
  parallel(args.things, 256, [&](int64_t begin, int64_t end) {
    for (int64_t thing = begin; thing < end; ++thing) {
      T sum[4] = {};
      angle_gradient(args, thing, 0, 1, sum);
      for (int k = 0; k < 4; ++k) args.by_u[4 * thing + k] = sum[k];
    }
  });
}

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CPU, m) {
  mdops::AngleProductOps<mdops::OnCpu>::implement(m);
}
