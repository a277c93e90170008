// Channels by whole vectors.
#include <algorithm>

#include "common/activation_lanes.h"
#include "common/some_lanes.h"
#include "scalar_gate/scalar_gate.h"

namespace mdops::MDOPS_ISA {

namespace {

template <class T, bool Whole>
struct GateLanes : SomeLanes<T, Whole> {
  MDOPS_INLINE Vector<T> sigmoid(const Vector<T>& x) const {
    return x == x ? sigmoid_lanes(x) : x;  // sigmoid_lanes loses some NaN
  }
};

}  // namespace

template <class T>
void gate_atoms(const ScalarGateArgs<T>& args, int64_t begin, int64_t end) {
  for (int64_t n = begin; n < end; ++n)
    for (int64_t c = 0; c < args.channels; c += kLanes<T>)
      with_lanes<T>(std::min<int64_t>(kLanes<T>, args.channels - c),
                    [&]<bool Whole>(const SomeLanes<T, Whole>& lanes) {
                      pass_channels<1>(args, n, c, GateLanes<T, Whole>{lanes});
                    });
}

MDOPS_INSTANTIATE(gate_atoms)

}  // namespace mdops::MDOPS_ISA
