// Layers of any widths and type of number: a warp an edge, a lane a number.
#pragma once

#include <algorithm>

#include "common/activation.h"
#include "common/gpu.h"
#include "common/rows.h"
#include "gemm/gpu_memory.h"
#include "so2_layer/so2_layer.h"

namespace mdops {

namespace gpu_so2 {

template <class T>
__device__ __forceinline__ T sigmoid(T x) {
  if constexpr (sizeof(T) == sizeof(float))
    return quotient(1.0f, 1.0f + expf(-x));  // behind its range it is zero, as it should be
  else
    return T(1) / (T(1) + exp(-x));
}

// A warp's edge: z, or dz in backward passes, its factors, and their gradients.
template <class T>
class PlainEdge {
 public:
  static __host__ __device__ int64_t numbers(const So2Args<T>& args) {
    return args.row() + 2 * args.middle();
  }

  __device__ PlainEdge(const So2Args<T>& args, T* shared)
      : args_(args), z_(shared), factors_(z_ + args.row()), slopes_(factors_ + args.middle()) {}

  __device__ void run(int64_t e) {
    const int64_t row = args_.row();
    const T *const x = args_.x + e * row, *const g = args_.grad ? args_.grad + e * row : nullptr;
    T* const y = args_.y + e * row;
    if (args_.gate || !g) {
      each(g ? args_.channels : row, [&](int64_t k) { z_[k] = product(x, k); });
      __syncwarp();
    }
    if (args_.gate) {
      each(args_.middle(), [&](int64_t k) { factors_[k] = sigmoid(gate(k)); });
      __syncwarp();
    }
    if (!g)
      each(row, [&](int64_t k) { y[k] = x[k] + (args_.gate ? factors_[factor(k)] : T(1)) * z_[k]; });
    else
      backward(x, g, args_.result + e * row, y);
    __syncwarp();
  }

 private:
  __device__ void backward(const T* x, const T* g, const T* result, T* y) {
    const int64_t row = args_.row(), c = args_.channels, s = args_.side();
    if (args_.gate) {
      each(args_.middle(), [&](int64_t k) {
        T sum = g[k] * (result[k] - x[k]);
        for (int64_t at = k - c + args_.middle(); k >= c && at < row; at += s)
          sum += g[at] * (result[at] - x[at]);
        slopes_[k] = sum * (T(1) - factors_[k]);
      });
      __syncwarp();
      each(row, [&](int64_t k) {
        T sum = g[k] * factors_[factor(k)];
        if (k < c) {
          sum += slopes_[k];
          for (int64_t a = 0; a < s; ++a) sum += slopes_[c + a] * args_.gate[k * s + a];
        }
        z_[k] = sum;
      });
    } else {
      each(row, [&](int64_t k) { z_[k] = g[k]; });
    }
    __syncwarp();
    each(row, [&](int64_t k) { y[k] = g[k] + product_back(k); });
  }

  template <class F>
  __device__ void each(int64_t count, const F& f) const {
    for (int64_t k = threadIdx.x; k < count; k += kWarp) f(k);
  }

  // Which factor number k of a row has.
  __device__ int64_t factor(int64_t k) const {
    return k < args_.middle() ? k : args_.channels + (k - args_.middle()) % args_.side();
  }

  // Number k of z.
  __device__ T product(const T* x, int64_t k) const {
    const int64_t m = args_.middle(), s = args_.side();
    T sum = 0;
    if (k < m) {
      for (int64_t i = 0; i < m; ++i) sum += x[i] * args_.weight[i * m + k];
      return sum;
    }
    const bool positive = k - m >= s;
    const T* const column = args_.both + (k - m - (positive ? s : 0));
    const T *const own = x + m + (positive ? s : 0), *const other = x + m + (positive ? 0 : s);
    for (int64_t i = 0; i < s; ++i) {
      const T crossed = other[i] * column[i * 2 * s + s];
      sum += own[i] * column[i * 2 * s] + (positive ? crossed : -crossed);
    }
    return sum;
  }

  // Number k of dz times the transposed weights.
  __device__ T product_back(int64_t k) const {
    const int64_t m = args_.middle(), s = args_.side();
    T sum = 0;
    if (k < m) {
      for (int64_t i = 0; i < m; ++i) sum += z_[i] * args_.weight[k * m + i];
      return sum;
    }
    const bool positive = k - m >= s;
    const T* const row = args_.both + (k - m - (positive ? s : 0)) * 2 * s;
    const T *const own = z_ + m + (positive ? s : 0), *const other = z_ + m + (positive ? 0 : s);
    for (int64_t i = 0; i < s; ++i) {
      const T crossed = other[i] * row[s + i];
      sum += own[i] * row[i] + (positive ? -crossed : crossed);
    }
    return sum;
  }

  // Number k of s [1 G].
  __device__ T gate(int64_t k) const {
    const int64_t c = args_.channels, s = args_.side();
    if (k < c) return z_[k];
    T sum = 0;
    for (int64_t i = 0; i < c; ++i) sum += z_[i] * args_.gate[i * s + k - c];
    return sum;
  }

  const So2Args<T>& args_;
  T *z_, *factors_, *slopes_;
};

template <class T>
__global__ void __launch_bounds__(kWarp) plain_kernel(const So2Args<T> args) {
  PlainEdge<T> edge(args, reinterpret_cast<T*>(net_memory()));
  for (int64_t e = blockIdx.x; e < args.edges; e += gridDim.x) edge.run(e);
}

template <class T>
void run_plain(const Gpu& gpu, const So2Args<T>& args) {
  const int64_t blocks = std::min<int64_t>(args.edges, 16 * gpu.limits().multiprocessors);
  gpu.launch(plain_kernel<T>, blocks, kWarp, PlainEdge<T>::numbers(args) * sizeof(T), args);
}

}  // namespace gpu_so2

}  // namespace mdops
