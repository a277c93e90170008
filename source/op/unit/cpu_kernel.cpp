#include "common/vectors.h"
#include "unit/unit.h"

namespace mdops {
namespace MDOPS_ISA {

namespace {

template <class T>
void run(const UnitArgs<T>& args, int64_t from, int64_t to) {
  const int64_t width = args.width;
  for (int64_t n = from * args.parts; n < to * args.parts; ++n) {
    const int64_t part = n % args.parts, at = n / args.parts * width;  // of y
    const T* x = args.x + n * width;
    const UnitRow<T> row(dot(x, x, width));
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
    const UnitCurve<T> curve(row, x_u, x_g, dot(u, g, width));
    T* by_g = args.of_y[part] + at;
    for (int64_t k = 0; k < width; ++k) by_g[k] = row.inverse * u[k] + c * x[k];
    for (int64_t k = 0; k < width; ++k) by_x[k] = curve.x * x[k] + curve.u * u[k] + curve.g * g[k];
  }
}

}  // namespace

void unit_rows(const UnitArgs<float>& args, int64_t from, int64_t to) {
  run(args, from, to);
}
void unit_rows(const UnitArgs<double>& args, int64_t from, int64_t to) {
  run(args, from, to);
}

}  // namespace MDOPS_ISA
}  // namespace mdops
