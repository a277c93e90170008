// Rows of an atom times gates, and a product of its scalars, where there are some, added to the first row:
//
//   y_rc = x_rc sigmoid(g_c) + silu(a_c) b_c in row 0          silu(a) = a sigmoid(a)
//
// Backward, for the gradient h by y:
//
//   by x_rc = h_rc sigmoid(g_c)       by g_c = sigmoid(g_c) (1 - sigmoid(g_c)) sum_r h_rc x_rc
//   by a_c = h_0c b_c sigmoid(a_c) (1 + a_c (1 - sigmoid(a_c)))       by b_c = h_0c silu(a_c)
//
// Backward of these, for the gradients U, u_g, u_a, u_b by them, with f', f'' for the derivatives of sigmoid
// at g and s for silu at a:
//
//   by h_rc = U_rc f + u_g f' x_rc + u_a b s' + u_b s in row 0        by x_rc = u_g f' h_rc
//   by g_c = f' sum_r U_rc h_rc + u_g f'' sum_r h_rc x_rc
//   by a_c = h_0c (u_a b s'' + u_b s')                                by b_c = h_0c u_a s'
#pragma once

#include <cmath>
#include <cstdint>

#include "common/isa.h"
#include "common/math.h"

namespace mdops {

template <class T>
struct ScalarGateArgs {
  int64_t atoms, rows, channels;  // N, R, C
  const T *x, *gate, *scalars,
      *grad;                    // (N, R, C), g (N, C), a and b side by side (N, 2 C) or null, h or null
  T *y, *by_gate, *by_scalars;  // (N, R, C), y or the gradient by x; the others of backward passes
  // U, u_g, u_a and u_b side by side, or null; and the gradient by h.
  const T *along_x, *along_gate, *along_scalars;
  T* by_grad;
};

template <class T>
MDOPS_HD T sigmoid_of(T x) {
  return T(1) / (T(1) + std::exp(-x));
}

// What the scalars add, and their gradients.
template <class T>
struct AddedScalars {
  const T *a, *b;

  MDOPS_HD AddedScalars(const ScalarGateArgs<T>& args, int64_t at)
      : a(args.scalars + at), b(a + args.channels) {}

  MDOPS_HD T added(int k) const { return a[k] * sigmoid_of(a[k]) * b[k]; }
  MDOPS_HD void backward(int k, T h, T* by_a, T* by_b) const {
    const T s = sigmoid_of(a[k]);
    by_a[k] = h * b[k] * s * (T(1) + a[k] * (T(1) - s));
    by_b[k] = h * a[k] * s;
  }
  // What is added to the gradient by h, for gradients by those of a and b.
  MDOPS_HD T twice(int k, T h, T along_a, T along_b, T* by_a, T* by_b) const {
    const T s = sigmoid_of(a[k]), fall = s * (T(1) - s);
    const T first = s + a[k] * fall, second = fall * (T(2) + a[k] * (T(1) - T(2) * s));
    by_a[k] = h * (along_a * b[k] * second + along_b * first);
    by_b[k] = h * along_a * first;
    return along_a * b[k] * first + along_b * a[k] * s;
  }
};

// Some rows of some channels from `from` on, zeros behind the last row.
template <int kRows, int kCount, class T>
struct GatedRows {
  T of[kRows][kCount];

  MDOPS_HD GatedRows(const T* from, int64_t rows, int64_t channels, int count) {
    for (int i = 0; i < kRows; ++i)
      for (int k = 0; k < count; ++k) of[i][k] = i < rows ? from[i * channels + k] : T(0);
  }
};

// `count` channels of an atom from c on, side by side, so many rows at once.
template <int kRows, int kCount, class T>
MDOPS_HD void gate_channels(const ScalarGateArgs<T>& args, int64_t n, int64_t c, int count) {
  const int64_t channels = args.channels, of_atom = n * channels + c, of_scalars = 2 * n * channels + c;
  const int64_t at = n * args.rows * channels + c;
  T factors[kCount], added[kCount] = {};
  for (int k = 0; k < count; ++k) factors[k] = sigmoid_of(args.gate[of_atom + k]);
  if (!args.grad) {
    if (args.scalars)
      for (int k = 0; k < count; ++k) added[k] = AddedScalars<T>(args, of_scalars).added(k);
    for (int64_t r = 0; r < args.rows; r += kRows) {
      const int64_t from = at + r * channels;
      const GatedRows<kRows, kCount, T> x(args.x + from, args.rows - r, channels, count);
      for (int i = 0; i < kRows; ++i)
        for (int k = 0; k < count && r + i < args.rows; ++k) {
          const T own = x.of[i][k] * factors[k];
          args.y[from + i * channels + k] = r + i ? own : own + added[k];
        }
    }
    return;
  }
  T* const by_a = args.by_scalars + of_scalars;
  if (args.scalars)
    for (int k = 0; k < count; ++k)
      AddedScalars<T>(args, of_scalars).backward(k, args.grad[at + k], by_a, by_a + channels);
  T sums[kCount] = {};
  for (int64_t r = 0; r < args.rows; r += kRows) {
    const int64_t from = at + r * channels;
    const GatedRows<kRows, kCount, T> x(args.x + from, args.rows - r, channels, count);
    const GatedRows<kRows, kCount, T> h(args.grad + from, args.rows - r, channels, count);
    for (int i = 0; i < kRows; ++i)
      for (int k = 0; k < count && r + i < args.rows; ++k) {
        sums[k] += h.of[i][k] * x.of[i][k];
        args.y[from + i * channels + k] = h.of[i][k] * factors[k];
      }
  }
  for (int k = 0; k < count; ++k) args.by_gate[of_atom + k] = factors[k] * (T(1) - factors[k]) * sums[k];
}

// The same for the passes back through those backward.
template <int kCount, class T>
MDOPS_HD void gate_channels_twice(const ScalarGateArgs<T>& args, int64_t n, int64_t c, int count) {
  const int64_t channels = args.channels, of_atom = n * channels + c, of_scalars = 2 * n * channels + c;
  const int64_t at = n * args.rows * channels + c;
  const T *const h = args.grad + at, *const u = args.along_x + at, *const x = args.x + at;
  T factor[kCount], slope[kCount], added[kCount] = {}, grads[kCount] = {}, rows[kCount] = {};
  T* const by_a = args.by_scalars + of_scalars;
  const T *const along_a = args.along_scalars + of_scalars, *const along_b = along_a + channels;
  if (args.scalars)
    for (int k = 0; k < count; ++k)
      added[k] =
          AddedScalars<T>(args, of_scalars).twice(k, h[k], along_a[k], along_b[k], by_a, by_a + channels);
  for (int k = 0; k < count; ++k) {
    factor[k] = sigmoid_of(args.gate[of_atom + k]);
    slope[k] = args.along_gate[of_atom + k] * factor[k] * (T(1) - factor[k]);
  }
  for (int64_t r = 0; r < args.rows; ++r)
    for (int k = 0; k < count; ++k) {
      const int64_t own = r * channels + k;
      const T grad = u[own] * factor[k] + slope[k] * x[own];
      args.by_grad[at + own] = r ? grad : grad + added[k];
      args.y[at + own] = slope[k] * h[own];
      grads[k] += u[own] * h[own], rows[k] += h[own] * x[own];
    }
  for (int k = 0; k < count; ++k)
    args.by_gate[of_atom + k] =
        factor[k] * (T(1) - factor[k]) * grads[k] + slope[k] * (T(1) - T(2) * factor[k]) * rows[k];
}

// Either.
template <int kRows, int kCount, class T>
MDOPS_HD void pass_channels(const ScalarGateArgs<T>& args, int64_t n, int64_t c, int count) {
  if (args.along_x)
    gate_channels_twice<kCount>(args, n, c, count);
  else
    gate_channels<kRows, kCount>(args, n, c, count);
}

}  // namespace mdops
