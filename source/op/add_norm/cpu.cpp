#include <algorithm>
#include <vector>

#include "add_norm/ops.h"

namespace mdops {

namespace {

constexpr int64_t kRun = 256;  // rows, whatever the number of threads

struct AddNormOnCpu {
  static Op make(const char* name, const Tensor&) { return Op(name); }
  static int64_t runs(const Op&, int64_t rows) { return (rows + kRun - 1) / kRun; }

  template <class T>
  static void run(const Op&, const AddNormArgs<T>& args, const NormSums<T>& sums) {
    const int64_t runs = (args.rows + kRun - 1) / kRun;
    parallel(runs, 1, [&](int64_t begin, int64_t end) {
      std::vector<T> memory(4 * args.width);
      for (int64_t k = begin; k < end; ++k)
        MDOPS_RUN(add_norm_rows, args, k * kRun, std::min(args.rows, (k + 1) * kRun), k, memory.data());
    });
    T* const to[] = {sums.first, sums.second};
    for (int which = 0; which < 2; ++which)
      for (int64_t k = 0; to[which] && k < args.width; ++k) {
        T sum = 0;
        for (int64_t r = 0; r < runs; ++r) sum += args.partial[(r * args.sums + which) * args.width + k];
        to[which][k] = sum;
      }
  }
};

using Ops = AddNormOps<AddNormOnCpu>;

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(mdops, CPU, m) {
  m.impl("add_norm", TORCH_BOX(&Ops::add_norm));
  m.impl("add_norm_backward", TORCH_BOX(&Ops::add_norm_backward));
  m.impl("add_norm_backward_backward", TORCH_BOX(&Ops::add_norm_backward_backward));
}

}  // namespace mdops
