#include "unit/ops.h"

namespace mdops {

namespace {

struct UnitOnCpu {
  static Op make(const char* name, const Tensor&) { return Op(name); }
  static Tensor placed(const Tensor& tensor) { return tensor; }

  template <class T>
  static void run(const Op&, const UnitArgs<T>& args) {
    parallel(args.rows, 256, [&](int64_t begin, int64_t end) { MDOPS_RUN(unit_rows, args, begin, end); });
  }
};

using Ops = UnitOps<UnitOnCpu>;

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(mdops, CPU, m) {
  m.impl("unit", TORCH_BOX(&Ops::unit));
  m.impl("unit_backward", TORCH_BOX(&Ops::unit_backward));
  m.impl("unit_backward_backward", TORCH_BOX(&Ops::unit_backward_backward));
  m.impl("unit_three", TORCH_BOX(&Ops::unit_three));
  m.impl("unit_three_backward", TORCH_BOX(&Ops::unit_three_backward));
  m.impl("unit_three_backward_backward", TORCH_BOX(&Ops::unit_three_backward_backward));
}

}  // namespace mdops
