#include "attention/gpu_run.h"

namespace mdops::gpu_attention {

MDOPS_FORWARD_PASS(double)
MDOPS_BACKWARD_PASS(double)
MDOPS_SECOND_PASS(double)

}  // namespace mdops::gpu_attention
