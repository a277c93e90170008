// Which of the compiled kernels this processor runs: x86-64-v2, -v3 or -v4, or the portable ones.
#pragma once

#include <cstdint>

#include "common/instantiate.h"

namespace mdops {

enum class Isa { portable, v2, v3, v4 };

// The best level of the processor, or MDOPS_CPU_ISA=v2|v3|v4; read once. Throws if the variable names an
// unknown level or one that the processor lacks.
Isa isa();
const char* isa_name(Isa level);

// Features beyond x86-64-v4: products of bytes (AVX512-VNNI) and of bfloat16 (AVX512-BF16), and of tiles of
// both (AMX-INT8, AMX-BF16, if the system permits them). All are false if MDOPS_CPU_ISA names a level, which
// is then the limit.
bool isa_has_vnni();
bool isa_has_bf16();
bool isa_has_amx();
bool isa_has_amx_bf16();

// Bytes that some kernels need: of the packed weights, and of a thread's memory.
struct PackedSizes {
  int64_t packed, scratch;
};

}  // namespace mdops

// Declares a kernel for every instruction set; MDOPS_RUN(name, arguments...) runs the one that fits.
#if defined(__x86_64__)
#define MDOPS_DECLARE_KERNEL(...) \
  namespace isa_v2 {              \
  __VA_ARGS__;                    \
  }                               \
  namespace isa_v3 {              \
  __VA_ARGS__;                    \
  }                               \
  namespace isa_v4 {              \
  __VA_ARGS__;                    \
  }
#define MDOPS_RUN(name, ...)                      \
  (isa() == Isa::v4   ? isa_v4::name(__VA_ARGS__) \
   : isa() == Isa::v3 ? isa_v3::name(__VA_ARGS__) \
                      : isa_v2::name(__VA_ARGS__))
#else
#define MDOPS_DECLARE_KERNEL(...) \
  namespace isa_portable {        \
  __VA_ARGS__;                    \
  }
#define MDOPS_RUN(name, ...) isa_portable::name(__VA_ARGS__)
#endif
// The same for a kernel that is a template over float and double.
#define MDOPS_DECLARE_KERNELS(...) MDOPS_DECLARE_KERNEL(template <class T> __VA_ARGS__)
