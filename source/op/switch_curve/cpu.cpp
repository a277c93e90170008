#include "switch_curve/ops.h"

namespace mdops {

namespace {

struct SwitchOnCpu {
  static Op make(const char* name, const Tensor&) { return Op(name); }

  template <class T>
  static void run(const Op&, const SwitchArgs<T>& args) {
    parallel(args.count, 4096, [&](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k) args.run(k);
    });
  }
};

}  // namespace

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CPU, m) {
  m.impl("switch_curve", TORCH_BOX(&mdops::switch_curve<mdops::SwitchOnCpu>));
}
