#include <cmath>

#include "common/vectors.h"
#include "rowwise/add_norm.h"
#include "rowwise/layer_output.h"
#include "rowwise/normalize.h"

namespace mdops::MDOPS_ISA {

namespace {

template <class T>
NormMeans<T> means(const T* z, const T* n, int64_t width) {
  return {sum_of(z, width) / width, dot(z, n, width) / width};
}

// The parts of a row that are as wide as the input, or the whole row: no column computes its index in x.
template <Activation kind, class T>
void output_of(const LayerOutputArgs<T>& args, int64_t n) {
  const int64_t part = args.inputs ? args.inputs : args.columns, input = n * args.inputs;
  for (int64_t first = 0; first < args.columns; first += part) {
    const int64_t at = n * args.columns + first;
    const T* z = args.z + at;
    if (args.u) {
      const T *u = args.u + at, *grad = args.grad + at, *w = args.inputs ? args.w + input : nullptr;
      T *y = args.y + at, *by_z = args.by_z + at;
      for (int64_t c = 0; c < part; ++c) {
        T f, slope, curve;
        activate_twice<kind>(z[c], args.threshold, &f, &slope, &curve);
        y[c] = slope * u[c], by_z[c] = curve * u[c] * grad[c];
      }
      for (int64_t c = 0; w && c < part; ++c) y[c] += w[c];
    } else if (args.grad) {
      const T* grad = args.grad + at;
      T *by_z = args.by_z + at, *by_x = args.inputs ? args.by_x + input : nullptr;
      for (int64_t c = 0; c < part; ++c) {
        T f, slope;
        activate<kind>(z[c], args.threshold, &f, &slope);
        by_z[c] = slope * grad[c];
      }
      for (int64_t c = 0; by_x && c < part; ++c) by_x[c] = first ? by_x[c] + grad[c] : grad[c];
    } else {
      const T* x = args.inputs ? args.x + input : nullptr;
      T* y = args.y + at;
      for (int64_t c = 0; c < part; ++c) {
        T slope;
        activate<kind>(z[c], args.threshold, &y[c], &slope);
      }
      for (int64_t c = 0; x && c < part; ++c) y[c] += x[c];
    }
  }
}

}  // namespace

template <class T>
void normalize_rows(const NormalizeArgs<T>& args, int64_t from, int64_t to) {
  const int64_t width = args.width;
  for (int64_t n = from * args.parts; n < to * args.parts; ++n) {
    const int64_t part = n % args.parts, at = n / args.parts * width;  // of y
    const T* x = args.x + n * width;
    const NormalizedRow<T> row(dot(x, x, width));
    if (!args.grad[0]) {
      T* y = args.of_y[part] + at;
      for (int64_t k = 0; k < width; ++k) y[k] = x[k] * row.inverse;
      continue;
    }
    const T *g = args.grad[part] + at, x_g = dot(x, g, width);
    T* by_x = args.of_x + n * width;
    if (!args.direction) {
      const T c = row.of_x(x_g);
      for (int64_t k = 0; k < width; ++k) by_x[k] = row.inverse * g[k] + c * x[k];
      continue;
    }
    const T* u = args.direction + n * width;
    const T x_u = dot(x, u, width), c = row.of_x(x_u);
    const NormalizedCurve<T> curve(row, x_u, x_g, dot(u, g, width));
    T* by_g = args.of_y[part] + at;
    for (int64_t k = 0; k < width; ++k) by_g[k] = row.inverse * u[k] + c * x[k];
    for (int64_t k = 0; k < width; ++k) by_x[k] = curve.x * x[k] + curve.u * u[k] + curve.g * g[k];
  }
}

template <class T>
void add_norm_rows(const AddNormArgs<T>& args, int64_t from, int64_t to, int64_t run, T* memory) {
  const int64_t width = args.width;
  T *const n = memory, *const a = n + width, *const z = a + width, *const j = z + width;
  const T* const w = args.weight;
  T* const sums = args.sums ? args.partial + run * args.sums * width : nullptr;
  for (int64_t k = 0; sums && k < args.sums * width; ++k) sums[k] = 0;
  for (int64_t row = from; row < to; ++row) {
    const int64_t at = row * width;
    const T *const x = args.x + at, *const y = args.y ? args.y + at : nullptr;
    T* const out = args.out + at;
    NormRow<T> norm{};
    if (y) {
      MDOPS_INDEPENDENT
      for (int64_t k = 0; k < width; ++k) n[k] = x[k] + y[k];
    } else {
      MDOPS_INDEPENDENT
      for (int64_t k = 0; k < width; ++k) n[k] = x[k];
    }
    norm.mean = sum_of(n, width) / width;
    MDOPS_INDEPENDENT
    for (int64_t k = 0; k < width; ++k) n[k] -= norm.mean;
    norm.r = T(1) / std::sqrt(dot(n, n, width) / width + args.eps);
    MDOPS_INDEPENDENT
    for (int64_t k = 0; k < width; ++k) n[k] *= norm.r;
    if (!args.grad) {
      MDOPS_INDEPENDENT
      for (int64_t k = 0; k < width; ++k) out[k] = w[k] * n[k] + args.bias[k];
      continue;
    }
    const T* const g = args.grad + at;
    MDOPS_INDEPENDENT
    for (int64_t k = 0; k < width; ++k) a[k] = w[k] * g[k];
    norm.a = means(a, n, width);
    if (!args.direction) {
      MDOPS_INDEPENDENT
      for (int64_t k = 0; k < width; ++k) {
        out[k] = norm.by_h(a[k], n[k]);
        sums[k] += n[k] * g[k], sums[width + k] += g[k];
      }
      continue;
    }
    const T* const p = args.direction + at;
    T* const by_grad = args.by_grad + at;
    MDOPS_INDEPENDENT
    for (int64_t k = 0; k < width; ++k) z[k] = args.along_weight[k] * g[k];
    norm.p = means(p, n, width), norm.z = means(z, n, width), norm.p_a = dot(p, a, width) / width;
    MDOPS_INDEPENDENT
    for (int64_t k = 0; k < width; ++k) {
      j[k] = norm.along(p[k], n[k]);
      by_grad[k] = norm.by_grad(j[k], n[k], w[k], args.along_weight[k], args.along_bias[k]);
      out[k] = norm.second_by_h(p[k], a[k], z[k], n[k]);
      sums[k] += g[k] * j[k];
    }
  }
}

template <class T>
void layer_output_rows(const LayerOutputArgs<T>& args, int64_t from, int64_t to) {
  with_activation(args.activation, [&]<Activation kind>() {
    for (int64_t n = from; n < to; ++n) output_of<kind>(args, n);
  });
}

MDOPS_INSTANTIATE(normalize_rows, add_norm_rows, layer_output_rows)

}  // namespace mdops::MDOPS_ISA
