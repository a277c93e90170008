// The fused step, and its net, with one part of a number: TF32's accuracy.
#include "gemm/gpu_net.h"
#include "spline_potential/gpu_fused.h"

namespace mdops {

extern template void launch_forces<>(const Gpu&, int64_t, const StepArgs&);  // gpu_loops.cu has it
extern template void NetCall<1>::chain() const;
extern template void NetCall<1>::blocks() const;
template void run_net<1>(const Gpu&, const NetArgs&, const NetMemory&, int64_t, NetKernel::Kind);
template struct FusedStep<1>;

}  // namespace mdops
