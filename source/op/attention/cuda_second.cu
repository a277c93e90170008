#include "attention/gpu_run.h"

namespace mdops {
namespace gpu_attention {

MDOPS_SECOND_PASS(float)

}  // namespace gpu_attention
}  // namespace mdops
