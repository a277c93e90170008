// A net of dense layers on rows of numbers, and its derivatives. With y = net(x),
//
//   value     y
//   tangent   dy = (dy/dx) u, along a direction u of x
//   gradients of  L = <a, y> + <b, dy>  by x, and by the weights, biases and timesteps,
//
// which is the gradient of y (b = 0), the second derivative that a loss on gradients needs (a = 0), or both
// in one pass. A layer is z = x W + b, y = t f(z) + r, with r = x or [x, x] in residual layers. Backward,
// with Y and D the gradients of L by y and dy:
//
//   D' = t f' D,   Y' = t f' Y + t f'' dz D            by dz and z
//   W: x^T Y' + dx^T D'    b: sum Y'    t: sum f' dz D + f Y    x: Y' W^T + (r)    dx: D' W^T + (r)
#pragma once

#include "common/isa.h"
#include "gemm/bf16.h"
#include "gemm/net.h"

namespace mdops {

constexpr int64_t kMlpGroup = 64;  // inputs of the first layer at once: they stay in cache with their weights
constexpr int kMlpRows = 64, kMostMlpRows = 256;  // of a block on the CPU
constexpr int kMlpTableEdge =
    16;  // columns of a thread's sums are padded to whole vectors of any instruction set

// All layers; the last one is the linear output layer.
template <class T>
struct MlpArgs {
  NetShape shape;
  DenseLayer<T> layers[kMaxLayers];
  bool timed[kMaxLayers];  // whether the layer has timesteps, else ones
  const T* x;              // (N, features)
  const Bf16Net* bf16;     // or null

  // Rows of a block on the CPU. With bfloat16 units products are so quick that reading the weights limits
  // speed.
  int64_t rows_at_once() const { return bf16 ? kMostMlpRows : kMlpRows; }
  int last() const { return shape.layers - 1; }
  int64_t inputs(int n) const { return n ? shape.neurons[n - 1] : shape.features; }
  int64_t outputs() const { return shape.neurons[last()]; }
};

// What a call requests; null if not requested.
template <class T>
struct MlpTask {
  T* value;                // (N, outputs)
  bool of_first_output;    // the gradient of the sum of the first output: a = (1, 0, ...), b = 0
  const T* a;              // (N, outputs)
  const T *direction, *b;  // (N, features), (N, outputs)
  T* tangent;              // (N, outputs), with a direction
  T* grad_x;               // (N, features)
  bool past_caches;        // bypasses caches when writing grad_x, if worthwhile
  T* sums;                 // this thread's, MlpSums: the gradients by weights, biases and timesteps

  bool differentiates() const { return grad_x || sums; }
};

// A thread's sums of the layers' gradients: panels of (inputs, padded outputs), and vectors.
struct MlpSums {
  int64_t weight[kMaxLayers], bias[kMaxLayers], timestep[kMaxLayers], size = 0;

  MDOPS_HD static int64_t padded(int64_t columns) {
    return (columns + kMlpTableEdge - 1) / kMlpTableEdge * kMlpTableEdge;
  }
  template <class T>
  explicit MlpSums(const MlpArgs<T>& args) {
    for (int n = 0; n < args.shape.layers; ++n) {
      const int64_t columns = padded(args.shape.neurons[n]);
      weight[n] = size, size += args.inputs(n) * columns;
      bias[n] = size, size += columns;
      timestep[n] = size, size += columns;
    }
  }
};

// The gradients of one layer, in the caller's layout.
template <class T>
struct MlpLayerGradients {
  T *weight, *bias, *timestep;
};

// Elements of one thread's scratch memory.
MDOPS_DECLARE_KERNELS(int64_t mlp_scratch_size(const MlpArgs<T>& args, const MlpTask<T>& task))
// Rows [from, to).
MDOPS_DECLARE_KERNELS(void mlp_rows(const MlpArgs<T>& args, const MlpTask<T>& task, int64_t from, int64_t to,
                                    T* scratch))
// Writes rows [from, to) of layer n's weight gradients, summed over threads; with the first rows also its
// vectors. Overwrites the first thread's sums.
MDOPS_DECLARE_KERNELS(void mlp_collect(const MlpArgs<T>& args, int n, int64_t from, int64_t to,
                                       T* const* sums, int64_t threads, const MlpLayerGradients<T>& out))

}  // namespace mdops
