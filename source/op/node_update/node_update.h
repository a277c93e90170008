// Nodes (N, W) after messages of which two are functions of their products:
//
//   y = x + a f(z) + b f(u) + c m     a, b, c the rows of the weights (3, W)
//   by z  a f'(z) g      by u  b f'(u) g      by m  c g      for the gradient g by y, which is that by x, too
#pragma once

#include <cstdint>

#include "common/activation.h"

namespace mdops {

template <class T>
struct NodeUpdateArgs {
  const T *x, *z, *u, *m, *weights, *grad;  // (N, W); (3, W); (N, W)
  int64_t numbers, width;                   // N W, W
  Activation activation;
  T threshold;
  T *y, *by_z, *by_u, *by_m;
};

// Number k, of column `column`.
template <Activation kind, class T>
MDOPS_HD void update_node(const NodeUpdateArgs<T>& args, int64_t k, int64_t column) {
  const T *const a = args.weights + column, *const b = a + args.width, *const c = b + args.width;
  T of_z, of_u, slope;
  activate<kind>(args.z[k], args.threshold, &of_z, &slope);
  activate<kind>(args.u[k], args.threshold, &of_u, &slope);
  args.y[k] = args.x[k] + *a * of_z + *b * of_u + *c * args.m[k];
}

template <Activation kind, class T>
MDOPS_HD void node_update_gradients(const NodeUpdateArgs<T>& args, int64_t k, int64_t column) {
  const T *const a = args.weights + column, *const b = a + args.width, *const c = b + args.width;
  T y, of_z, of_u;
  activate<kind>(args.z[k], args.threshold, &y, &of_z);
  activate<kind>(args.u[k], args.threshold, &y, &of_u);
  args.by_z[k] = *a * of_z * args.grad[k], args.by_u[k] = *b * of_u * args.grad[k];
  args.by_m[k] = *c * args.grad[k];
}

}  // namespace mdops
