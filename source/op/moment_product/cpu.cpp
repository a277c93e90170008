#include "moment_product/ops.h"

namespace mdops {

constexpr int64_t kMomentRows = 16;  // that a thread takes at once

// The arguments by value: the compiler would else take stores for changes of them.
template <bool Back, class T>
static void multiply_rows(const MomentProductArgs<T> p) {
  parallel(p.rows, kMomentRows, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const T* const table = p.table + p.kind_of(r) * int64_t{p.depth} * p.width;
      for (int c = 0; c < p.columns; ++c)
        if constexpr (Back) {
          for (int n = 0; n < p.width; ++n) {
            T sum = 0;
            for (int d = 0; d < p.depth; ++d)
              sum += p.in[p.template in_at<true>(r, d, c)] * table[int64_t{n} * p.depth + d];
            p.out[p.template out_at<true>(r, n, c)] = sum;
          }
        } else {
          T* const to = p.out + p.template out_at<false>(r, 0, c);
          for (int d = 0; d < p.depth; ++d) {
            const T factor = p.in[p.template in_at<false>(r, d, c)];
            for (int n = 0; n < p.width; ++n) to[n] += factor * table[int64_t{d} * p.width + n];
          }
        }
    }
  });
}

template <class T>
static void run_moment_product(const Op&, const MomentProductArgs<T>& args) {
  multiply_rows<false>(args);
}

template <class T>
static void run_moment_gradients(const Op&, const MomentProductArgs<T>& args) {
  multiply_rows<true>(args);
}

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CPU, m) {
  mdops::MomentProductOps<mdops::OnCpu>::implement(m);
}
