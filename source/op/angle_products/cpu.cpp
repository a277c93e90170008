#include "angle_products/ops.h"

namespace mdops {

template <class T>
static void run_angle_products(const Op&, const AngleProductArgs<T>& args) {
  parallel_each(args.rows, 4096, [&](int64_t row) { angle_product(args, row); });
}

template <class T>
static void run_angle_gradients(const Op&, const AngleProductArgs<T>& args) {
  parallel_each(args.things, 256, [&](int64_t thing) {
    T sum[4] = {};
    angle_gradient(args, thing, 0, 1, sum);
    for (int k = 0; k < 4; ++k) args.by_u[4 * thing + k] = sum[k];
  });
}

}  // namespace mdops

MDOPS_ON_CPU(AngleProductOps)
