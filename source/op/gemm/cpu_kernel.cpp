#include "gemm/mlp_passes.h"

namespace mdops::MDOPS_ISA {

template <class T>
int64_t mlp_scratch_size(const MlpArgs<T>& args, const MlpTask<T>& task) {
  return MlpBlock<T>(args, task, 0, 0, args.rows_at_once(), nullptr).arena.used /
             static_cast<int64_t>(sizeof(T)) +
         1;
}

template <class T>
void mlp_rows(const MlpArgs<T>& args, const MlpTask<T>& task, int64_t from, int64_t to, T* scratch) {
  const int64_t most = args.rows_at_once();
  for (int64_t first = from; first < to; first += most) {
    const int64_t count = to - first < most ? to - first : most;
    MlpBlock<T>(args, task, first, count, padded<T>(count), scratch).run();
  }
}

template <class T>
void mlp_collect(const MlpArgs<T>& args, int n, int64_t from, int64_t to, T* const* sums, int64_t threads,
                 const MlpLayerGradients<T>& out) {
  const MlpSums at(args);
  const int64_t columns = args.shape.neurons[n];
  const Panels<T> total = weight_sums(args, n, sums[0]);
  for (int64_t k = 1; k < threads; ++k) {
    const Panels<T> part = weight_sums(args, n, sums[k]);
    for (int64_t row = from; row < to; ++row)
      for (int64_t col = 0; col < total.cols; col += Panels<T>::kWide)
        for (int64_t c = 0; c < total.width(col); ++c) total.panel(col, row)[c] += part.panel(col, row)[c];
  }
  for (int64_t row = from; row < to; ++row) store_row(total, row, columns, out.weight + row * columns);
  if (from > 0) return;
  for (int64_t col = 0; col < columns; ++col) {
    T bias = 0, timestep = 0;
    for (int64_t k = 0; k < threads; ++k)
      bias += sums[k][at.bias[n] + col], timestep += sums[k][at.timestep[n] + col];
    if (out.bias) out.bias[col] = bias;
    if (out.timestep) out.timestep[col] = timestep;
  }
}

MDOPS_INSTANTIATE(mlp_scratch_size, mlp_rows, mlp_collect)

}  // namespace mdops::MDOPS_ISA
