// Nodes (N, W) after messages of which two are functions of their products:
//
//   y = x + a f(z) + b f(u) + c m     a, b, c the rows of the weights (3, W)
//   by z  a f'(z) g      by u  b f'(u) g      by m  c g      for the gradient g by y, which is that by x, too
#pragma once

#include "common/activation.h"

namespace mdops {

template <class T>
struct NodeUpdateArgs {
  const T *x, *z, *u, *m, *weights, *grad;  // (N, W); (3, W); (N, W)
  int64_t numbers, width;                   // N W, W
  Activation activation;
  T threshold;
  T *y, *by_z, *by_u, *by_m;
  int64_t rows;  // N
};

// Terms of number k, in column `column`: a, b and c, and f(z) and f(u) with their slopes.
template <Activation kind, class T>
struct NodeTerms {
  T a, b, c, of_z, of_u, by_z, by_u;

  MDOPS_HD NodeTerms(const NodeUpdateArgs<T>& args, int64_t k, int64_t column)
      : a(args.weights[column]),
        b(args.weights[args.width + column]),
        c(args.weights[2 * args.width + column]) {
    activate<kind>(args.z[k], args.threshold, &of_z, &by_z);
    activate<kind>(args.u[k], args.threshold, &of_u, &by_u);
  }
};

template <Activation kind, class T>
MDOPS_HD void update_node(const NodeUpdateArgs<T>& args, int64_t k, int64_t column) {
  const NodeTerms<kind, T> own(args, k, column);
  args.y[k] = args.x[k] + own.a * own.of_z + own.b * own.of_u + own.c * args.m[k];
}

template <Activation kind, class T>
MDOPS_HD void node_update_gradients(const NodeUpdateArgs<T>& args, int64_t k, int64_t column) {
  const NodeTerms<kind, T> own(args, k, column);
  const T grad = args.grad[k];
  args.by_z[k] = own.a * own.by_z * grad, args.by_u[k] = own.b * own.by_u * grad;
  args.by_m[k] = own.c * grad;
}

}  // namespace mdops
