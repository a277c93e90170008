// The kernels on rows of length 1: a warp a row.
#pragma once

#include "common/rows.h"
#include "common/vector.h"
#include "rowwise/normalize.h"

namespace mdops::gpu_normalize {

constexpr int kWarps = 8;

enum class Pass { forward, backward, second };

// One of a kernel's arguments, without the copy that indexing needs.
template <class T>
MDOPS_D T* pick(T* const (&all)[kMostRowParts], int part) {
  return part == 0 ? all[0] : part == 1 ? all[1] : all[2];
}

// One part of a row, `size` numbers at once.
template <class T, Pass pass, int size>
MDOPS_D void normalize_part(const NormalizeArgs<T>& args, int64_t n, int part) {
  using Numbers = Vector<T, size>;
  const int64_t of_y = n * args.width, of_x = (n * args.parts + part) * args.width;
  const T *x = args.x + of_x, *g = pass == Pass::forward ? nullptr : pick(args.grad, part) + of_y;
  const T* u = pass == Pass::second ? args.direction + of_x : nullptr;
  T xx = 0, x_g = 0, x_u = 0, u_g = 0;
  for (int64_t k = size * lane_index(); k < args.width; k += size * kWarp) {
    const Numbers a(x + k), b = g ? Numbers(g + k) : Numbers(), c = u ? Numbers(u + k) : Numbers();
#pragma unroll
    for (int j = 0; j < size; ++j)
      xx += a[j] * a[j], x_g += a[j] * b[j], x_u += a[j] * c[j], u_g += b[j] * c[j];
  }
  xx = warp_sum(xx);
  if (pass != Pass::forward) x_g = warp_sum(x_g);
  if (pass == Pass::second) x_u = warp_sum(x_u), u_g = warp_sum(u_g);
  const NormalizedRow<T> row(xx);
  const NormalizedCurve<T> curve(row, x_u, x_g, u_g);
  const T by = row.of_x(pass == Pass::second ? x_u : x_g);
  T* const to = pass == Pass::backward ? args.of_x + of_x : pick(args.of_y, part) + of_y;
  for (int64_t k = size * lane_index(); k < args.width; k += size * kWarp) {
    const Numbers a(x + k), b = g ? Numbers(g + k) : Numbers(), c = u ? Numbers(u + k) : Numbers();
    Numbers first, second;
#pragma unroll
    for (int j = 0; j < size; ++j) {
      first[j] = pass == Pass::forward ? a[j] * row.inverse : row.inverse * (u ? c[j] : b[j]) + by * a[j];
      second[j] = curve.x * a[j] + curve.u * c[j] + curve.g * b[j];
    }
    first.store(to + k);
    if (pass == Pass::second) second.store(args.of_x + of_x + k);
  }
}

template <class T, Pass pass, int size>
__global__ void __launch_bounds__(kWarps* kWarp) normalize_kernel(NormalizeArgs<T> args) {
  const int64_t n = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (n >= args.rows) return;
#pragma unroll
  for (int part = 0; part < kMostRowParts; ++part)
    if (part < args.parts) normalize_part<T, pass, size>(args, n, part);
}

}  // namespace mdops::gpu_normalize
