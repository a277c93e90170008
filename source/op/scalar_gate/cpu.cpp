#include "scalar_gate/ops.h"

namespace mdops {

constexpr int kChannels = 16;       // side by side
constexpr int64_t kGateAtoms = 16;  // a piece of work, at least

template <class T>
static void run_scalar_gate(const Op&, const ScalarGateArgs<T>& args) {
  parallel_each(args.atoms, kGateAtoms, [&](int64_t n) {
    int64_t c = 0;
    for (; c + kChannels <= args.channels; c += kChannels) pass_channels<1, kChannels>(args, n, c, kChannels);
    if (c < args.channels) pass_channels<1, kChannels>(args, n, c, static_cast<int>(args.channels - c));
  });
}

}  // namespace mdops

MDOPS_ON_CPU(ScalarGateOps, RowGateOps)
