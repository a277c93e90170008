#include <cmath>

#include "add_norm/add_norm.h"
#include "common/vectors.h"

namespace mdops {
namespace MDOPS_ISA {

namespace {

template <class T>
NormMeans<T> means(const T* z, const T* n, int64_t width) {
  return {sum_of(z, width) / width, dot(z, n, width) / width};
}

template <class T>
void run(const AddNormArgs<T>& args, int64_t from, int64_t to, int64_t piece, T* memory) {
  const int64_t width = args.width;
  T *const n = memory, *const a = n + width, *const z = a + width, *const j = z + width;
  const T* const w = args.weight;
  T* const sums = args.sums ? args.partial + piece * args.sums * width : nullptr;
  for (int64_t k = 0; sums && k < args.sums * width; ++k) sums[k] = 0;
  for (int64_t row = from; row < to; ++row) {
    const int64_t at = row * width;
    const T *const x = args.x + at, *const y = args.y + at;
    T* const out = args.out + at;
    NormRow<T> norm{};
    MDOPS_INDEPENDENT
    for (int64_t k = 0; k < width; ++k) n[k] = x[k] + y[k];
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

}  // namespace

void add_norm_rows(const AddNormArgs<float>& args, int64_t from, int64_t to, int64_t piece, float* memory) {
  run(args, from, to, piece, memory);
}
void add_norm_rows(const AddNormArgs<double>& args, int64_t from, int64_t to, int64_t piece, double* memory) {
  run(args, from, to, piece, memory);
}

}  // namespace MDOPS_ISA
}  // namespace mdops
