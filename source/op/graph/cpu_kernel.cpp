#include <cstring>

#include "graph/rows.h"

namespace mdops::MDOPS_ISA {

template <class T>
void gather_rows(const GatherArgs<T>& args, int64_t from, int64_t to) {
  const int64_t width = args.width;
  for (int64_t e = from; e < to; ++e) {
    T* __restrict y = args.y + e * width;
    const bool is_none = args.index[e] < 0;
    const T* __restrict x = args.x + (is_none ? 0 : args.index[e] * args.stride);
    if (args.base) {
      std::memcpy(y, args.base + e * width, width * sizeof(T));
      for (int64_t k = 0; !is_none && k < width; ++k) y[k] += x[k];
    } else if (is_none) {
      std::memset(y, 0, width * sizeof(T));
    } else {
      std::memcpy(y, x, width * sizeof(T));
    }
  }
}

template <class T>
void scatter_rows(const ScatterArgs<T>& args, int64_t from, int64_t to) {
  const int64_t width = args.width;
  for (int64_t m = from; m < to; ++m) {
    T* __restrict x = args.x + m * width;
    if (args.base)
      std::memcpy(x, args.base + m * width, width * sizeof(T));
    else
      std::memset(x, 0, width * sizeof(T));
    const T* __restrict more = args.more + m * args.more_stride;
    for (int64_t k = 0; args.more && k < width; ++k) x[k] += more[k];
    for (int64_t p = args.offsets[m]; p < args.offsets[m + 1]; ++p) {
      const T* __restrict y = args.y + (args.order ? args.order[p] : p) * args.stride;
      for (int64_t k = 0; k < args.stride; ++k) x[k] += y[k];
    }
  }
}

template <class T>
void row_products(const ProductArgs<T>& args, int64_t from, int64_t to) {
  const int64_t width = args.width;
  for (int64_t e = from; e < to; ++e) {
    T* __restrict z = args.z + e * width;
    if (args.x.is_none(e) || args.y.is_none(e)) {
      std::memset(z, 0, width * sizeof(T));
      continue;
    }
    const T* __restrict x = args.x.at(e, width), * __restrict y = args.y.at(e, width);
    for (int64_t k = 0; k < width; ++k) z[k] = x[k] * y[k];
  }
}

template <class T>
void weighted_sums(const WeightedSumArgs<T>& args, int64_t from, int64_t to) {
  const int64_t width = args.width;
  for (int64_t m = from; m < to; ++m) {
    T* __restrict z = args.z + m * width;
    std::memset(z, 0, width * sizeof(T));
    for (int64_t p = args.offsets[m]; p < args.offsets[m + 1]; ++p) {
      const int64_t e = args.order ? args.order[p] : p;
      if (args.x.is_none(e)) continue;
      const T* __restrict weight = args.weight + e * width, * __restrict x = args.x.at(e, width);
      for (int64_t k = 0; k < width; ++k) z[k] += weight[k] * x[k];
    }
  }
}

MDOPS_INSTANTIATE(gather_rows, scatter_rows, row_products, weighted_sums)

}  // namespace mdops::MDOPS_ISA
