#include "common/isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace mdops {

namespace {

#if defined(__x86_64__)
// The features of x86-64-v3 and -v4 (the psABI's table): compilers before GCC 12 and Clang 15 do not know the
// levels by name, nor all of these features.
bool has_v3() {
  unsigned a, b, c, d;
  const bool moves = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_MOVBE) && (c & bit_F16C);
  const bool counts = __get_cpuid(0x80000001, &a, &b, &c, &d) && (c & bit_LZCNT);
  return moves && counts && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
}

bool has_v4() {
  return has_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}
#endif

// Whether a bit of register a, c or d is set, of leaf 7 and one of its parts.
bool has_feature(unsigned part, char from, int bit) {
#if defined(__x86_64__)
  unsigned a, b, c, d;
  if (!__get_cpuid_count(7, part, &a, &b, &c, &d)) return false;
  return (from == 'a' ? a : from == 'c' ? c : d) >> bit & 1;
#else
  return static_cast<void>(part), static_cast<void>(from), static_cast<void>(bit), false;
#endif
}

bool is_level_named() {
  const char* wanted = std::getenv("MDOPS_CPU_ISA");
  return wanted != nullptr && *wanted != '\0';
}

Isa best() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return has_v4() ? Isa::v4 : has_v3() ? Isa::v3 : Isa::v2;
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

// Whether features beyond x86-64-v4 may be used.
bool beyond_v4() {
  return isa() == Isa::v4 && !is_level_named();
}

// Whether AMX's tiles exist, and the system permits them; the request counts for all threads.
bool has_tiles() {
#if defined(__x86_64__) && defined(SYS_arch_prctl)
  constexpr int kRequest = 0x1023, kTiles = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  static const bool has = has_feature(0, 'd', 24) && syscall(SYS_arch_prctl, kRequest, kTiles) == 0;
  return has;
#else
  return false;
#endif
}

}  // namespace

Isa isa() {
  static const Isa level = choose();
  return level;
}

bool isa_has_vnni() {
  static const bool has = beyond_v4() && has_feature(0, 'c', 11);
  return has;
}

bool isa_has_bf16() {
  static const bool has = beyond_v4() && has_feature(1, 'a', 5);
  return has;
}

bool isa_has_amx() {
  static const bool has = isa_has_vnni() && has_tiles() && has_feature(0, 'd', 25);
  return has;
}

bool isa_has_amx_bf16() {
  static const bool has = isa_has_bf16() && has_tiles() && has_feature(0, 'd', 22);
  return has;
}

const char* isa_name(Isa level) {
  constexpr const char* names[] = {"portable", "v2", "v3", "v4"};
  return names[static_cast<int>(level)];
}

}  // namespace mdops
