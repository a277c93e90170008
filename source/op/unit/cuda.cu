#include "common/cuda.h"
#include "unit/gpu_kernels.h"
#include "unit/ops.h"

namespace mdops {

namespace {

struct UnitOnGpu {
  static CudaOp make(const char* name, const Tensor& x) { return CudaOp(name, "x", x); }
  static Tensor placed(const Tensor& tensor) { return aligned(tensor); }

  template <class T>
  static void run(const CudaOp& op, const UnitArgs<T>& args) {
    using gpu_unit::Pass;
    if (args.direction)
      in_pass<T, Pass::second>(op, args);
    else if (args.grad[0])
      in_pass<T, Pass::backward>(op, args);
    else
      in_pass<T, Pass::forward>(op, args);
  }

 private:
  template <class T, gpu_unit::Pass pass>
  static void in_pass(const CudaOp& op, const UnitArgs<T>& args) {
    using namespace gpu_unit;
    with_vector<T>(args.width, [&]<int size>() {
      op.launch(unit_kernel<T, pass, size>, blocks_for(args.rows, kWarps), kWarps * kWarp, 0, args);
    });
  }
};

using Ops = UnitOps<UnitOnGpu>;

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  m.impl("unit", TORCH_BOX(&Ops::unit));
  m.impl("unit_backward", TORCH_BOX(&Ops::unit_backward));
  m.impl("unit_backward_backward", TORCH_BOX(&Ops::unit_backward_backward));
  m.impl("unit_three", TORCH_BOX(&Ops::unit_three));
  m.impl("unit_three_backward", TORCH_BOX(&Ops::unit_three_backward));
  m.impl("unit_three_backward_backward", TORCH_BOX(&Ops::unit_three_backward_backward));
}

}  // namespace mdops
