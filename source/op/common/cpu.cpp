// Information about the CPU library.

#include "common/isa.h"
#include "common/tensor.h"

namespace mdops {

namespace {

std::string cpu_isa() {
  return isa_name(isa());
}

}  // namespace

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CompositeExplicitAutograd, m) {
  m.impl("cpu_isa", TORCH_BOX(&mdops::cpu_isa));
}
