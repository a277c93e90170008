#include <limits>

#include "edge_update/ops.h"

namespace mdops {

constexpr int64_t kUpdatedEdges = 1024;  // minimum edges per piece

// Calls number.operator()<kind>(row, column, NaN) for each number of the result.
template <class T, class F>
static void for_edge_numbers(const EdgeUpdateArgs<T>& args, int64_t rows, const F& number) {
  constexpr T none = std::numeric_limits<T>::quiet_NaN();
  parallel(rows, kUpdatedEdges, [&](int64_t begin, int64_t end) {
    with_activation(args.activation, [&]<Activation kind>() {
      for (int64_t n = begin; n < end; ++n)
        for (int64_t k = 0; k < args.width; ++k)
          args.out[n * args.width + k] = number.template operator()<kind>(n, k, none);
    });
  });
}

template <class T>
static void run_edge_update(const Op&, const EdgeUpdateArgs<T>& args) {
  for_edge_numbers(args, args.edges, [&]<Activation kind>(int64_t edge, int64_t k, T none) {
    return updated_edge<kind>(args, edge, k, none);
  });
}

template <class T>
static void run_edge_update_gradients(const Op&, const EdgeUpdateArgs<T>& args) {
  for_edge_numbers(args, args.rows, [&]<Activation kind>(int64_t row, int64_t k, T none) {
    return by_edge_message<kind>(args, row, k, none);
  });
}

}  // namespace mdops

MDOPS_ON_CPU(EdgeUpdateOps)
