#include "own_message/ops.h"

namespace mdops {

template <class T>
static void run_own_message(const Op&, const OwnMessageArgs<T>& args) {
  constexpr int64_t kRows = 32;  // a piece of work, at least
  with_activation(args.activation, [&]<Activation kind>() {
    parallel(args.rows, kRows, [&](int64_t begin, int64_t end) {
      std::vector<T> by_z(args.width);
      for (int64_t row = begin; row < end; ++row) {
        T* const to = args.out + row * args.width;
        if (args.grad) {
          for (int64_t c = 0; c < args.width; ++c) by_z[c] = args.template by_product<kind>(row, c);
          for (int64_t k = 0; k < args.width; ++k) to[k] = args.gradient(row, k, by_z.data());
        } else {
          for (int64_t c = 0; c < args.width; ++c) to[c] = args.template value<kind>(row, c);
        }
      }
    });
  });
}

}  // namespace mdops

MDOPS_ON_CPU(OwnMessageOps)
