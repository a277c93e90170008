#include <algorithm>
#include <string>

#include "add_norm/gpu_kernels.h"
#include "add_norm/ops.h"
#include "common/cuda.h"

namespace mdops {

namespace {

using namespace gpu_add_norm;

constexpr int kBlocksEach = 4;  // of a multiprocessor, at most

struct AddNormOnGpu {
  static CudaOp make(const char* name, const Tensor& x) { return CudaOp(name, "x", x); }
  // One at least, which writes zeros where there are no rows.
  static int64_t runs(const CudaOp& op, int64_t rows) {
    return std::clamp<int64_t>(blocks_for(rows, kWarps), 1, kBlocksEach * op.limits().multiprocessors);
  }

  template <class T>
  static void run(const CudaOp& op, const AddNormArgs<T>& args, const NormSums<T>& sums) {
    const int64_t columns = args.sums * args.width, blocks = runs(op, args.rows);
    with_width(op, args.width, [&]<int N>() {
      op.launch(add_norm_kernel<T, N>, blocks, kThreads, kWarps * columns * static_cast<int64_t>(sizeof(T)),
                args);
    });
    op.launch(add_runs_kernel<T>, blocks_for(columns, kWarps), kThreads, 0, args.partial, blocks, columns,
              args.width, sums.first, sums.second);
  }

 private:
  template <class F>
  static void with_width(const CudaOp& op, int64_t width, const F& f) {
    if (width <= 4 * kWarp) return f.template operator()<4>();
    if (width <= kWidestNorm) return f.template operator()<kWidestNorm / kWarp>();
    fail(op, "argument `x` has " + std::to_string(width) + " columns, expected at most " +
                 std::to_string(kWidestNorm) + " on a GPU");
  }
};

using Ops = AddNormOps<AddNormOnGpu>;

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  m.impl("add_norm", TORCH_BOX(&Ops::add_norm));
  m.impl("add_norm_backward", TORCH_BOX(&Ops::add_norm_backward));
  m.impl("add_norm_backward_backward", TORCH_BOX(&Ops::add_norm_backward_backward));
}

}  // namespace mdops
