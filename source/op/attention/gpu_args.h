// Arguments of the GPU kernels of attention, and what they share: numbers of any dtype, work items, and the
// formulas of one pair of rows (attention.h has them all).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "attention/attention.h"
#include "common/early.h"
#include "common/gpu.h"
#include "common/rows.h"

namespace mdops::gpu_attention {

// The type of sums and of the softmax for tensors of T.
template <class T>
using Sums = std::conditional_t<std::is_same_v<T, double>, double, float>;

MDOPS_D double number(double x) {
  return x;
}
MDOPS_D float number(float x) {
  return x;
}
MDOPS_D float number(__half x) {
  return __half2float(x);
}
MDOPS_D float number(__nv_bfloat16 x) {
  return __bfloat162float(x);
}

MDOPS_D void put(double* to, double x) {
  *to = x;
}
MDOPS_D void put(float* to, float x) {
  *to = x;
}
MDOPS_D void put(__half* to, float x) {
  *to = __float2half_rn(x);
}
MDOPS_D void put(__nv_bfloat16* to, float x) {
  *to = __float2bfloat16_rn(x);
}

// Arguments of T; absent ones are null. The prepare kernel's blocks set `bad`, of kPrepareBlocks integers, if
// offsets or plan are wrong: then all results are NaN.
template <class T>
struct TensorArgs {
  using A = Sums<T>;
  const T *q, *k, *v, *bias, *gate, *switches;
  const A* absent;
  const int32_t *offsets, *plan, *bad;
  int rows, heads, width, value_width, sequences, gates, items, max_length;
  // Strides of rows of q and k, and of v; gradients and directions have the same.
  int key_stride, value_stride;
  int64_t bias_size;
  A scale, shift;
  // Whether rows of no sequence may be left unset, as the caller does not read them.
  bool leaves_rest;

  // Where a row of one head begins in q and tensors of its layout, in v, and in tensors (rows, heads,
  // columns).
  __device__ int64_t key(int t, int head) const {
    return static_cast<int64_t>(t) * key_stride + head * width;
  }
  __device__ int64_t value(int t, int head) const {
    return static_cast<int64_t>(t) * value_stride + head * value_width;
  }
  __device__ int64_t row(int t, int head, int columns) const {
    return (static_cast<int64_t>(t) * heads + head) * columns;
  }
};

// Results of the passes, and inputs of the derivatives.
template <class T>
struct ForwardResults {
  T* out;
  Sums<T>* logsumexp;
};

template <class T>
struct Directions {
  const T *q, *k, *v, *bias, *gate, *switches;
};

// An array of (rows, columns) of which the kernels write only the rows of sequences.
template <class T>
struct RowsToFill {
  T* to;
  int64_t columns;
};

template <class T>
struct GradientArgs {
  using A = Sums<T>;
  const T *grad_out, *out;
  const A* logsumexp;
  A *delta, *mean, *delta_change;  // (rows, heads): G.o, sum_l p z', G.o'
  T *grad_q, *grad_k, *grad_v, *grad_bias;
  T* grad_grad_out;
  A* parts;              // of the gradients of gate and switch: (2 heads, rows, gates + 1)
  RowsToFill<T> around;  // the rows that contain those of grad_q, grad_k and grad_v, if any
};

// If each tile of a sequence's keys has a block, its sums over keys for queries: those of the first tile are
// in the results, those of the others here, with the same strides. Null if a block has all keys.
template <class T>
struct TileSums {
  T* rows;           // as the results' rows
  Sums<T>* numbers;  // as the mean, or a head's part of the gradients of gate and switch
  int64_t rows_apart, numbers_apart;

  // Of tile 1, 2, ... of a sequence.
  __device__ T* rows_of(int tile) const { return rows + (tile - 1) * rows_apart; }
  __device__ Sums<T>* numbers_of(int tile) const { return numbers + (tile - 1) * numbers_apart; }
  __device__ int count(int length) const {
    return rows ? (length + static_cast<int>(kPlanTile) - 1) / static_cast<int>(kPlanTile) : 1;
  }
};

constexpr int kPrepareBlocks = 64, kPrepareThreads = 256;

// A sequence, or part of one, for one block.
struct WorkItem {
  int sequence, begin, length, first;
  int64_t bias;  // where its bias begins within a head's
};

template <class T>
MDOPS_D WorkItem work_item(const TensorArgs<T>& p, int index) {
  const int4 item = reinterpret_cast<const int4*>(p.plan)[1 + index];
  const int begin = p.offsets[item.x];
  return {item.x, begin, p.offsets[item.x + 1] - begin, item.y,
          (static_cast<int64_t>(item.w) << 31) + item.z};
}

// Whether a block may process the item: it is within all arrays.
template <class T>
MDOPS_D bool is_sound(const TensorArgs<T>& p, int4 item) {
  if (item.x < 0 || item.x >= p.sequences || item.y < 0 || item.y % kPlanTile != 0) return false;
  const int begin = p.offsets[item.x], end = p.offsets[item.x + 1];
  if (begin < 0 || end < begin || end > p.rows || item.y >= end - begin) return false;
  const int64_t bias = (static_cast<int64_t>(item.w) << 31) + item.z, length = end - begin;
  if (p.bias == nullptr) return true;
  return item.z >= 0 && item.w >= 0 && bias <= p.bias_size - length * length;
}

// Whether offsets or plan are wrong. All threads of a block must call it, at least kPrepareBlocks of them.
MDOPS_D bool is_bad(const int32_t* bad) {
  return __syncthreads_or(threadIdx.x < kPrepareBlocks ? bad[threadIdx.x] : 0);
}

// Writes zeros, or NaN if the arguments are wrong, to `columns` numbers of each row that belongs to no
// sequence.
template <class T>
__device__ void fill_rows(T* to, int64_t columns, int64_t first, int64_t last, float value) {
  if (to == nullptr) return;
  for (int64_t k = first * columns + blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
       k < last * columns; k += static_cast<int64_t>(gridDim.x) * blockDim.x)
    put(to + k, value);
}

// Checks offsets and plan, and writes where each sequence's bias begins, if requested.
template <class T>
__global__ void __launch_bounds__(kPrepareThreads)
    prepare_kernel(TensorArgs<T> p, int32_t* bad, int64_t* bias_at) {
  follow_kernels();
  const int thread = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
  const int count = p.plan[0];
  bool wrong = count < 0 || count > p.items;
  for (int b = thread; b < p.sequences; b += threads) {
    const int begin = p.offsets[b], end = p.offsets[b + 1];
    wrong |= begin < 0 || end < begin || end > p.rows || end - begin > p.max_length;
  }
  if (!wrong)
    for (int i = thread; i < count; i += threads)
      wrong |= !is_sound(p, reinterpret_cast<const int4*>(p.plan)[1 + i]);
  if (!wrong && bias_at)
    for (int i = thread; i < count; i += threads) {
      const WorkItem item = work_item(p, i);
      if (item.first == 0) bias_at[item.sequence] = item.bias;
    }
  wrong = __syncthreads_or(wrong);
  if (threadIdx.x == 0) bad[blockIdx.x] = wrong;
}

// Runs after the other kernels, or before them: zeros in rows of no sequence; NaN everywhere if arguments are
// wrong.
template <class T>
__global__ void __launch_bounds__(kPrepareThreads)
    fill_kernel(TensorArgs<T> p, RowsToFill<T> a, RowsToFill<T> b, RowsToFill<T> c, RowsToFill<T> d,
                RowsToFill<Sums<T>> sums, RowsToFill<T> whole) {
  follow_kernels();
  const bool bad = is_bad(p.bad);
  if (p.leaves_rest && !bad) return;
  const float value = bad ? not_a_number<float>() : 0.0f;
  const int64_t first = p.sequences > 0 && !bad ? p.offsets[0] : 0;
  const int64_t last = p.sequences > 0 && !bad ? p.offsets[p.sequences] : 0;
  const RowsToFill<T> all[] = {a, b, c, d};
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    fill_rows(all[k].to, all[k].columns, 0, first, value);
    fill_rows(all[k].to, all[k].columns, last, p.rows, value);
  }
  fill_rows(sums.to, sums.columns, 0, first, value);
  fill_rows(sums.to, sums.columns, last, p.rows, value);
  if (bad) fill_rows(whole.to, whole.columns, 0, 1, value);
}

// Inputs of the formulas of one pair (j, l).
template <class A>
struct PairInputs {
  A s;       // scale q_j.k_l + bias_jl
  A t;       // G_j.v_l
  A a;       // w_j w_l, or 1
  A c;       // gate_j.gate_l, or 1
  A s1, t1;  // how s and t change
  A a1, c1;  // how a and c change
};

// What a pair adds to sums over pairs.
template <class A>
struct PairGradients {
  A pm, x, b, e;
  A pm1, x1, b1, e1;
};

template <class A>
MDOPS_D A logit(A s, A a, A shift, bool switched) {
  return switched ? (s + shift) * a : s;
}

// A query whose keys are all masked (its sum of exponentials is 0, logsumexp -inf) has a result of zeros and
// no gradient: kernels replace its logsumexp by infinity, so that all its exponentials are 0 again.
template <class A>
MDOPS_D A usable(A logsumexp) {
  const A infinity = __int_as_float(0x7f800000);
  return logsumexp == -infinity ? infinity : logsumexp;
}
template <class A>
MDOPS_D A inverse_of_sum(A sum) {
  return sum == A(0) ? A(0) : A(1) / sum;
}

// A product with a probability; 0 if that is 0: the other factor may be infinite, where keys are masked.
template <class A>
MDOPS_D A weighted(A probability, A x) {
  return probability == A(0) ? A(0) : probability * x;
}

template <bool Second, class A>
MDOPS_D PairGradients<A> pair_gradients(const PairInputs<A>& i, A shift, bool switched, A logsumexp, A delta,
                                        A mean, A delta_change) {
  PairGradients<A> r{};
  const A m = i.c * i.a, raised = i.s + shift;
  const A p = exp(logit(i.s, i.a, shift, switched) - usable(logsumexp));
  const A y = p * (m * i.t - delta);
  r.pm = p * m, r.x = y * i.a, r.b = weighted(y, raised) + p * i.t * i.c, r.e = p * i.t * i.a;
  if constexpr (Second) {
    const A z1 = switched ? i.s1 * i.a + raised * i.a1 : i.s1;
    const A p1 = weighted(p, z1 - mean), m1 = i.c1 * i.a + i.c * i.a1;
    const A y1 = p1 * (m * i.t - delta) + p * (m1 * i.t + m * i.t1 - delta_change);
    const A pt1 = p1 * i.t + p * i.t1;
    r.pm1 = p1 * m + p * m1, r.x1 = y1 * i.a + y * i.a1;
    r.b1 = weighted(y1, raised) + y * i.s1 + pt1 * i.c + p * i.t * i.c1;
    r.e1 = pt1 * i.a + p * i.t * i.a1;
  }
  return r;
}

// How a pair's part of o changes: the coefficients of v and of its direction; and its part of the mean of z'.
template <class A>
struct PairChange {
  A of_v, pm, mean;
};

template <class A>
MDOPS_D PairChange<A> pair_change(const PairInputs<A>& i, A shift, bool switched, A logsumexp) {
  const A p = exp(logit(i.s, i.a, shift, switched) - usable(logsumexp));
  const A z1 = switched ? i.s1 * i.a + (i.s + shift) * i.a1 : i.s1;
  const A mean = weighted(p, z1);
  return {mean * i.c * i.a + p * (i.c1 * i.a + i.c * i.a1), p * i.c * i.a, mean};
}

}  // namespace mdops::gpu_attention
