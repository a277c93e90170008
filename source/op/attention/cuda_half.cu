#include "attention/gpu_run.h"

namespace mdops {
namespace gpu_attention {

MDOPS_FORWARD_PASS(__half)
MDOPS_BACKWARD_PASS(__half)
MDOPS_SECOND_PASS(__half)

}  // namespace gpu_attention
}  // namespace mdops
