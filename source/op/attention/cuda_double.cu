#include "attention/gpu_run.h"

namespace mdops {
namespace gpu_attention {

MDOPS_FORWARD_PASS(double)
MDOPS_BACKWARD_PASS(double)
MDOPS_SECOND_PASS(double)

}  // namespace gpu_attention
}  // namespace mdops
