#include "common/isa.h"

#include <cstdlib>
#include <stdexcept>
#include <string>

#include "common/tensor.h"

namespace mdops {

namespace {

Isa best() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("x86-64-v4")) return Isa::v4;
  if (__builtin_cpu_supports("x86-64-v3")) return Isa::v3;
  return Isa::v2;
#else
  return Isa::portable;
#endif
}

Isa choose() {
  const char* wanted = std::getenv("MDOPS_CPU_ISA");
  if (wanted == nullptr || *wanted == '\0') return best();
  for (Isa level : {Isa::portable, Isa::v2, Isa::v3, Isa::v4})
    if (std::string(wanted) == isa_name(level) && level <= best() &&
        (level == Isa::portable) == (best() == Isa::portable))
      return level;
  throw std::runtime_error(std::string("mdops: MDOPS_CPU_ISA=") + wanted +
                           " is not an instruction set of this processor, whose best is " + isa_name(best()));
}

}  // namespace

Isa isa() {
  static const Isa level = choose();
  return level;
}

const char* isa_name(Isa level) {
  constexpr const char* names[] = {"portable", "v2", "v3", "v4"};
  return names[static_cast<int>(level)];
}

std::string cpu_isa() {
  return isa_name(isa());
}

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CompositeExplicitAutograd, m) {
  m.impl("cpu_isa", TORCH_BOX(&mdops::cpu_isa));
}
