#include "attention/gpu_run.h"

namespace mdops::gpu_attention {

MDOPS_BACKWARD_PASS(float)

}  // namespace mdops::gpu_attention
