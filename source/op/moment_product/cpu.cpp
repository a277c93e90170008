#include "moment_product/ops.h"

namespace mdops {

// work(row, table of its kind) for all rows.
template <class T, class Work>
static void each_row(const MomentProductArgs<T>& p, const Work& work) {
  constexpr int64_t rows = 16;  // that a thread takes at once
  parallel(p.rows, rows, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) work(r, p.table + p.kind_of(r) * int64_t{p.depth} * p.width);
  });
}

template <class T>
static void run_moment_product(const Op&, const MomentProductArgs<T>& p) {
  each_row(p, [&](int64_t r, const T* table) {
    for (int c = 0; c < p.columns; ++c) {
      T* const to = p.out + p.template out_at<false>(r, 0, c);
      for (int d = 0; d < p.depth; ++d) {
        const T factor = p.in[p.template in_at<false>(r, d, c)];
        for (int n = 0; n < p.width; ++n) to[n] += factor * table[int64_t{d} * p.width + n];
      }
    }
  });
}

template <class T>
static void run_moment_gradients(const Op&, const MomentProductArgs<T>& p) {
  each_row(p, [&](int64_t r, const T* table) {
    for (int c = 0; c < p.columns; ++c)
      for (int n = 0; n < p.width; ++n) {
        T sum = 0;
        for (int d = 0; d < p.depth; ++d)
          sum += p.in[p.template in_at<true>(r, d, c)] * table[int64_t{n} * p.depth + d];
        p.out[p.template out_at<true>(r, n, c)] = sum;
      }
  });
}

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CPU, m) {
  mdops::MomentProductOps<mdops::OnCpu>::implement(m);
}
