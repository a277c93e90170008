#include <limits>

#include "edge_update/ops.h"

namespace mdops {

constexpr int64_t kUpdatedEdges = 1024;  // minimum edges per piece

template <class T>
static void run_edge_update(const Op&, const EdgeUpdateArgs<T>& args) {
  constexpr T none = std::numeric_limits<T>::quiet_NaN();
  const bool back = args.grad;
  parallel(back ? args.rows : args.edges, kUpdatedEdges, [&](int64_t begin, int64_t end) {
    with_activation(args.activation, [&]<Activation kind>() {
      for (int64_t n = begin; n < end; ++n)
        for (int64_t k = 0; k < args.width; ++k)
          args.out[n * args.width + k] =
              back ? by_edge_message<kind>(args, n, k, none) : updated_edge<kind>(args, n, k, none);
    });
  });
}

}  // namespace mdops

MDOPS_ON_CPU(EdgeUpdateOps)
