#include "attention/gpu_run.h"

namespace mdops::gpu_attention {

MDOPS_FORWARD_PASS(__half)
MDOPS_BACKWARD_PASS(__half)
MDOPS_SECOND_PASS(__half)

}  // namespace mdops::gpu_attention
