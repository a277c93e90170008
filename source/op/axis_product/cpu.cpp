#include "axis_product/ops.h"

namespace mdops {

constexpr int64_t kProductAtoms = 16;  // that a thread processes at once

template <class T>
static void run_axis_features(const Op&, const AxisArgs<T> args) {
  parallel(args.atoms, kProductAtoms,
           [&](int64_t begin, int64_t end) { MDOPS_RUN(axis_features, args, begin, end); });
}

template <class T>
static void run_axis_gradients(const Op&, const AxisArgs<T> args) {
  parallel(args.atoms, kProductAtoms,
           [&](int64_t begin, int64_t end) { MDOPS_RUN(axis_gradients, args, begin, end); });
}

}  // namespace mdops

MDOPS_ON_CPU(AxisProductOps)
