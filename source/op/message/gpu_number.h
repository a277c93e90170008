// The formulas of message.h for one number, for every kernel on a GPU.
#pragma once

#include "common/gpu.h"
#include "common/rows.h"
#include "graph/rows.h"
#include "message/message.h"

namespace mdops::gpu_message {

enum class Pass { forward, backward, second };

// The variants of tensor-core kernels: silu and silut, with numbers of two parts; the same with one part; or
// any function, with two.
enum class Way { silu, silu_of_one, any };
__host__ __device__ constexpr int parts_of(Way way) {
  return way == Way::silu_of_one ? 1 : 2;
}

// Empty arrays are also null.
template <class T>
__host__ __device__ Pass pass_of(const MessageArgs<T>& args) {
  if (args.along_x || args.along_p || args.along_row_weight) return Pass::second;
  return args.by_x || args.by_p || args.by_row_weight ? Pass::backward : Pass::forward;
}

// A kernel's memory besides `by_z`; null: not wanted.
template <class T>
struct Memory {
  T* dz;         // (rows, columns) of the second pass, for the gradient by W
  T* of_scales;  // (rows, kept): terms of the gradient by c
};

// The inputs of a number and the results of a pass: y, and y times `grad` backward; the gradient by z, or h;
// f' v of the second pass.
template <class T>
struct Number {
  T z, v, grad, extra;  // grad: w g_s or c g_x; extra: u_w g_s or 0
  T y, y_grad, dz, h, sv;
};

template <Pass pass, Activation kind, class T>
MDOPS_D void evaluate(T threshold, Number<T>& n) {
  T slope;
  if constexpr (pass == Pass::second) {
    T curve;
    activate_twice<kind>(n.z, threshold, &n.y, &slope, &curve);
    n.dz = slope * n.grad, n.sv = slope * n.v;
    n.h = curve * n.grad * n.v + slope * n.extra;
  } else if constexpr (pass == Pass::backward && kind == Activation::silu) {
    // y times `grad` and the slope times `grad` share a product.
    const T s = sigmoid_fast(n.z), of_both = s * n.grad;
    n.y = s * n.z, n.y_grad = of_both * n.z;
    n.dz = n.h = of_both * (T(1) + n.z * (T(1) - s)), n.sv = T(0);
  } else {
    activate<kind>(n.z, threshold, &n.y, &slope);
    n.dz = n.h = pass == Pass::backward ? slope * n.grad : T(0), n.sv = T(0);
    n.y_grad = n.y * n.grad;
  }
}

// The threshold of silut; NaN, which no number exceeds, for silu.
template <class T>
MDOPS_D T threshold_of(const MessageArgs<T>& args) {
  return args.activation == Activation::silu ? not_a_number<T>() : args.threshold;
}

// The same for several numbers. All lanes call it. `threshold` is as above. `kAny`: for functions other than
// silu and silut. Silut is silu if no number exceeds its threshold, which is nearly always so. `kAtOnce`:
// computes silu while this is checked. Angles gain by it; edges wait for memory, and need the registers.
template <Pass pass, bool kAny, bool kAtOnce = true, class T, int Count>
MDOPS_D void evaluate_all(Activation activation, T threshold, Number<T> (&numbers)[Count]) {
  const auto by = [&]<Activation kind>() {
#pragma unroll
    for (int k = 0; k < Count; ++k) evaluate<pass, kind>(threshold, numbers[k]);
  };
  if constexpr (kAny) {
    with_activation(activation, by);
  } else {
    T most[2] = {numbers[0].z, numbers[1].z};
#pragma unroll
    for (int k = 2; k < Count; ++k) most[k % 2] = max(most[k % 2], numbers[k].z);
    const auto is_beyond = [&] { return __any_sync(kAllLanes, max(most[0], most[1]) >= threshold); };
    if (!kAtOnce && is_beyond()) [[unlikely]]
      return by.template operator()<Activation::silut>();
    by.template operator()<Activation::silu>();
    if (kAtOnce && is_beyond()) [[unlikely]]
      by.template operator()<Activation::silut>();
  }
}

// The rows of a first: none if its offsets are wrong.
template <class T>
struct RowsOfFirst {
  int64_t begin, end;
  bool is_wrong;

  __device__ RowsOfFirst(const MessageArgs<T>& args, int64_t f)
      : begin(args.first_offsets[f]), end(args.first_offsets[f + 1]) {
    is_wrong = begin < 0 || begin > end || end > args.rows;
    if (is_wrong) begin = end = 0;
  }
};

// Whether a row belongs to this first, and its second is valid or none.
template <class T>
MDOPS_D bool is_right(const MessageArgs<T>& args, int64_t row, int64_t f, int64_t second) {
  return args.first[row] == f && second >= -1 && second < args.seconds;
}

// The sum of the gradients of rows taken from this row.
template <class T>
__device__ T by_taken(const MessageFrames<T>& frames, int64_t row, int column) {
  if (frames.count == 0 || column >= frames.width) return T(0);
  const int32_t begin = frames.taken_offsets[row], end = frames.taken_offsets[row + 1];
  if (begin < 0 || begin > end || end > frames.count) return not_a_number<T>();
  T sum = 0;
  for (int64_t at = begin; at < end; ++at)
    sum += frames.taken[at] == row ? frames.grad_taken[at * frames.width + column] : not_a_number<T>();
  return sum;
}

// Rows after the last first: x' is x, and gradients come only through x' and through taken rows.
template <bool kFrames = false, class T>
__device__ void finish_rows(const MessageArgs<T>& args, const Memory<T>& memory) {
  const int64_t last = args.first_offsets[args.firsts];
  const int64_t begin = last < 0 || last > args.rows ? 0 : last;
  if (last != begin) return;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  const auto each = [&](T* to, int64_t width, const T* from) {
    if (!to) return;
    for (int64_t k = begin * width + thread; k < args.rows * width; k += threads)
      to[k] = from ? from[k] : T(0);
  };
  const bool is_second = pass_of(args) == Pass::second;
  each(args.to_kept, args.kept, is_second ? args.along_x : args.x);
  if constexpr (kFrames) {
    const MessageFrames<T>& frames = args.frames;
    each(frames.by_frame, 3, nullptr);
    for (int64_t k = begin * args.inputs + thread; args.by_x && k < args.rows * args.inputs; k += threads)
      args.by_x[k] = (args.kept ? args.grad_kept[k] : T(0)) +
                     by_taken(frames, k / args.inputs, static_cast<int>(k % args.inputs));
  } else {
    each(args.by_x, args.inputs, args.kept && !is_second ? args.grad_kept : nullptr);
  }
  each(args.by_row_weight, 1, nullptr);
  each(args.by_z, args.columns(), nullptr);
  each(memory.dz, args.columns(), nullptr);
  each(memory.of_scales, args.kept, nullptr);
}

// The same for rows that are a number times a vector.
template <class T>
__device__ void finish_outer_rows(const MessageArgs<T>& args) {
  const int64_t last = args.first_offsets[args.firsts];
  if (last < 0 || last > args.rows) return;
  const MessageOuter<T>& outer = args.outer;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t r = last + static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; r < args.rows;
       r += threads) {
    T by_number = 0;
    for (int64_t k = 0; k < args.kept; ++k) {
      if (args.to_kept) args.to_kept[r * args.kept + k] = outer.number[r] * outer.vector[k];
      if (outer.by_number) by_number += args.grad_kept[r * args.kept + k] * outer.vector[k];
    }
    if (outer.by_number) outer.by_number[r] = by_number, args.by_row_weight[r] = 0;
  }
}

}  // namespace mdops::gpu_message
