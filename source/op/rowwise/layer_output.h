// The output of a dense layer with the product z (N, C): y = f(z) + (x, x, ..), where x (N, I) is its input,
// repeated to this width, or absent (I = 0). With both derivatives:
//
//   of <G, y>                  by z   f'(z) G              by x   the sum of G's parts
//   of <u, by z> + <w, by x>   by G   f'(z) u + (w, w, ..)   by z   f''(z) u G
#pragma once

#include "common/activation.h"
#include "common/isa.h"

namespace mdops {

// What is null belongs to a later pass.
template <class T>
struct LayerOutputArgs {
  int64_t rows, columns, inputs;
  Activation activation;
  T threshold;
  const T *z, *x, *grad, *u, *w;
  T *y, *by_z, *by_x;  // y, or the gradient by G
};

// Column c of a row whose numbers begin at `row` (of z) and `input` (of x).
template <Activation kind, class T>
MDOPS_HD void layer_output(const LayerOutputArgs<T>& args, int64_t row, int64_t input, int64_t c) {
  const int64_t at = row + c;
  T f, slope, curve;
  activate_twice<kind>(args.z[at], args.threshold, &f, &slope, &curve);
  if (args.u) {
    args.y[at] = slope * args.u[at] + (args.inputs ? args.w[input + c % args.inputs] : T(0));
    args.by_z[at] = curve * args.u[at] * args.grad[at];
  } else if (args.grad) {
    args.by_z[at] = slope * args.grad[at];
    if (c >= args.inputs) return;
    T sum = 0;
    for (int64_t k = c; k < args.columns; k += args.inputs) sum += args.grad[row + k];
    args.by_x[input + c] = sum;
  } else {
    args.y[at] = f + (args.inputs ? args.x[input + c % args.inputs] : T(0));
  }
}

// Rows [from, to): the given arguments tell the pass.
MDOPS_DECLARE_KERNELS(void layer_output_rows(const LayerOutputArgs<T>& args, int64_t from, int64_t to))

}  // namespace mdops
