#include <algorithm>

#include "scalar_gate/ops.h"

namespace mdops {

namespace {

constexpr int kChannels = 16;       // side by side
constexpr int64_t kGateAtoms = 16;  // a piece of work, at least

}  // namespace

template <class T>
static void run_scalar_gate(const Op&, const ScalarGateArgs<T>& args) {
  parallel(args.atoms, kGateAtoms, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      int64_t c = 0;
      for (; c + kChannels <= args.channels; c += kChannels)
        pass_channels<1, kChannels>(args, n, c, kChannels);
      if (c < args.channels) pass_channels<1, kChannels>(args, n, c, static_cast<int>(args.channels - c));
    }
  });
}

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CPU, m) {
  mdops::ScalarGateOps<mdops::OnCpu>::implement(m);
}
