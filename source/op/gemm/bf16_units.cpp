// Which bfloat16 units the products take (bf16.h).
#include "gemm/bf16.h"

#include <cstdlib>
#include <stdexcept>
#include <string>

#include "common/isa.h"

namespace mdops {

namespace {

enum class Units { none, avx512_bf16, amx };
constexpr const char* kNames[] = {"none", "avx512_bf16", "amx"};

Units best() {
#if defined(MDOPS_TILES_EMULATED)
  return Units::amx;
#endif
  return isa_has_amx_bf16() ? Units::amx : isa_has_bf16() ? Units::avx512_bf16 : Units::none;
}

Units choose() {
  const char* wanted = std::getenv("MDOPS_CPU_BF16");
  if (wanted == nullptr || *wanted == '\0') return best();
  for (const Units units : {Units::none, Units::avx512_bf16, Units::amx})
    if (std::string(wanted) == kNames[static_cast<int>(units)] && units <= best()) return units;
  throw std::runtime_error(std::string("mdops: MDOPS_CPU_BF16=") + wanted +
                           " is none of the bfloat16 units that may be used (MDOPS_CPU_ISA, where it is set, "
                           "allows none), the best of which are " +
                           kNames[static_cast<int>(best())]);
}

Units units() {
  static const Units chosen = choose();
  return chosen;
}

}  // namespace

const Bf16Units* bf16_units() {
#if defined(__x86_64__)
  if (units() == Units::amx) return &isa_amx::bf16_units;
  if (units() == Units::avx512_bf16) return &isa_avx512_bf16::bf16_units;
#endif
  return nullptr;
}

}  // namespace mdops
