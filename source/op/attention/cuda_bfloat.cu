#include "attention/gpu_run.h"

namespace mdops::gpu_attention {

MDOPS_FORWARD_PASS(__nv_bfloat16)
MDOPS_BACKWARD_PASS(__nv_bfloat16)
MDOPS_SECOND_PASS(__nv_bfloat16)

}  // namespace mdops::gpu_attention
