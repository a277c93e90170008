#include "layer_output/ops.h"

namespace mdops {

namespace {

struct LayerOutputOnCpu {
  static Op make(const char* name, const Tensor&) { return Op(name); }

  template <class T>
  static void run(const Op&, const LayerOutputArgs<T>& args) {
    parallel(args.rows, 256,
             [&](int64_t begin, int64_t end) { MDOPS_RUN(layer_output_rows, args, begin, end); });
  }
};

using Ops = LayerOutputOps<LayerOutputOnCpu>;

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(mdops, CPU, m) {
  m.impl("layer_output", TORCH_BOX(&Ops::layer_output));
  m.impl("layer_output_backward", TORCH_BOX(&Ops::layer_output_backward));
  m.impl("layer_output_backward_backward", TORCH_BOX(&Ops::layer_output_backward_backward));
}

}  // namespace mdops
