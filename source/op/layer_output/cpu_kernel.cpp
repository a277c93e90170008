#include "layer_output/layer_output.h"

namespace mdops {
namespace MDOPS_ISA {

namespace {

// The parts of a row that are as wide as the input, or the whole row: no column asks for its place in x.
template <Activation kind, class T>
void row_of(const LayerOutputArgs<T>& args, int64_t n) {
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

template <class T>
void run(const LayerOutputArgs<T>& args, int64_t from, int64_t to) {
  with_activation(args.activation, [&]<Activation kind>() {
    for (int64_t n = from; n < to; ++n) row_of<kind>(args, n);
  });
}

}  // namespace

void layer_output_rows(const LayerOutputArgs<float>& args, int64_t from, int64_t to) {
  run(args, from, to);
}
void layer_output_rows(const LayerOutputArgs<double>& args, int64_t from, int64_t to) {
  run(args, from, to);
}

}  // namespace MDOPS_ISA
}  // namespace mdops
