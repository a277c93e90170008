#include "moment_product/inputs.h"

namespace mdops {

namespace {

constexpr int64_t kRows = 16;  // that a thread takes at once

template <bool Back>
Tensor run(const Op& op, const MomentProductInputs& in) {
  Tensor out = zeros(op, in.shape(), in.dtype);
  dispatch_float(op, in.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto p = in.args<T>(in.tables.const_data_ptr<T>(), out);
    parallel(in.count, kRows, [&](int64_t begin, int64_t end) {
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
  });
  return out;
}

Tensor moment_product(const Tensor& moments, const Tensor& tables, const Tensor& rows, const Tensor& kinds) {
  const Op op("moment_product");
  return run<false>(op, MomentProductInputs(op, "moments", moments, tables, rows, kinds, false));
}

Tensor moment_product_backward(const Tensor& grad, const Tensor& tables, const Tensor& rows,
                               const Tensor& kinds) {
  const Op op("moment_product_backward");
  return run<true>(op, MomentProductInputs(op, "grad", grad, tables, rows, kinds, true));
}

}  // namespace

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CPU, m) {
  m.impl("moment_product", TORCH_BOX(&mdops::moment_product));
  m.impl("moment_product_backward", TORCH_BOX(&mdops::moment_product_backward));
}
