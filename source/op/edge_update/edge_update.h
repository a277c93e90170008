// Rows of edges (E, W) after messages to some of them, in rows r of one edge each:
//
//   y_e = base_e + c (f(b) + sum of f(z_r) - f(b) over the rows of e)
//   by z_r = c f'(z_r) times the gradient of y_e
//
// So an edge with one row has the message of its z, and one without any that of the bias b, column by column.
#pragma once

#include "common/activation.h"

namespace mdops {

template <class T>
struct EdgeUpdateArgs {
  const T *z, *base, *scale, *bias, *grad;  // (R, W), (E, W), c (W,), b (W,), by y (E, W)
  const int32_t *index, *offsets;           // (R,), (E + 1,)
  int64_t rows, edges, width;
  Activation activation;
  T threshold;
  T* out;  // y (E, W), or by z (R, W)

  // Whether an edge's offsets are wrong.
  MDOPS_HD bool has_wrong_rows(int64_t edge) const {
    return offsets[edge] < 0 || offsets[edge] > offsets[edge + 1] || offsets[edge + 1] > rows;
  }
};

template <Activation kind, class T>
MDOPS_HD T edge_message(const EdgeUpdateArgs<T>& args, T z) {
  T y, slope;
  activate<kind>(z, args.threshold, &y, &slope);
  return y;
}

// Column k of an edge.
template <Activation kind, class T>
MDOPS_HD T updated_edge(const EdgeUpdateArgs<T>& args, int64_t edge, int64_t k, T none) {
  if (args.has_wrong_rows(edge)) return none;
  const T nothing = edge_message<kind>(args, args.bias[k]);
  T sum = nothing;
  for (int64_t row = args.offsets[edge]; row < args.offsets[edge + 1]; ++row)
    sum += args.index[row] == edge ? edge_message<kind>(args, args.z[row * args.width + k]) - nothing : none;
  return args.base[edge * args.width + k] + args.scale[k] * sum;
}

// The gradient by column k of a row's z.
template <Activation kind, class T>
MDOPS_HD T by_edge_message(const EdgeUpdateArgs<T>& args, int64_t row, int64_t k, T none) {
  const int64_t edge = args.index[row];
  if (edge == -1) return T(0);
  if (edge < 0 || edge >= args.edges) return none;
  T y, slope;
  activate<kind>(args.z[row * args.width + k], args.threshold, &y, &slope);
  return args.scale[k] * slope * args.grad[edge * args.width + k];
}

}  // namespace mdops
