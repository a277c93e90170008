// Loads of nodes at edges in kernels of convolutions along edges.
#pragma once

#include "common/gpu.h"
#include "common/vector.h"
#include "edge_convolution/edge_convolution.h"
#include "graph/gpu_rows.h"

namespace mdops::gpu_edge_convolution {

using gpu_graph_rows::row_at;

// A node's row at an edge: its number, kNone, or kWrong for an index out of range.
constexpr int32_t kNone = -1, kWrong = -2;
template <class T>
MDOPS_D int32_t node_at(const NodeRows<T>& x, int64_t row) {
  return x.is_right(row) ? x.index[row] : kWrong;
}

// Adjacent numbers of a node's row; zeros if they are not `there`.
template <int size, class T>
MDOPS_D Vector<T, size> numbers_at(const T* x, int32_t node, int64_t stride, int64_t column, bool there) {
  Vector<T, size> found;
#pragma unroll
  for (int k = 0; k < size; ++k) found[k] = node == kWrong ? not_a_number<T>() : T(0);
  if (there && node >= 0) found = Vector<T, size>(x + node * stride + column);
  return found;
}

// The nodes of both ends of an edge, if both exist.
template <class T>
MDOPS_D void stage_ends(const EdgeConvolutionArgs<T>& args, int64_t row, int32_t& a, int32_t& x) {
  const int32_t of_a = node_at(args.a, row), of_x = node_at(args.x, row);
  const bool wrong = of_a == kWrong || of_x == kWrong, none = of_a < 0 || of_x < 0;
  a = wrong ? kWrong : none ? kNone : of_a, x = wrong ? kWrong : none ? kNone : of_x;
}

}  // namespace mdops::gpu_edge_convolution
