// Building blocks of warpgroup products (wgmma), which only Hopper has (sm_90a): operands in shared memory,
// fences, registers of sums. Elsewhere it compiles to nothing, and nothing calls it.
#pragma once

#include "common/gpu_copy.h"
#include "common/gpu_warp.h"

namespace mdops {

constexpr int kGroupThreads = 128, kGroupWarps = 4;  // of a warpgroup

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define MDOPS_ON_HOPPER(...) asm volatile(__VA_ARGS__)
#else
#define MDOPS_ON_HOPPER(...) static_cast<void>(0)
#endif

// The matrix whose rows of 128 or 64 bytes begin at `shared`, with pieces of 16 bytes swizzled: piece c of
// row n is at c ^ n % 8, or for 64 bytes at c ^ n / 2 % 4. A matrix `bytes` further is `bytes / 16` more. If
// it has several blocks, they are `block_bytes` apart.
template <int RowBytes>
MDOPS_D uint64_t matrix_of_rows(uint32_t shared, int block_bytes = 8 * RowBytes) {
  static_assert(RowBytes == 128 || RowBytes == 64);
  constexpr uint64_t eight_rows = RowBytes / 2, swizzle = RowBytes == 128 ? 1 : 2;
  return swizzle << 62 | eight_rows << 32 | static_cast<uint64_t>(block_bytes / 16) << 16 |
         (shared & 0x3ffff) >> 4;
}
template <int RowBytes>
MDOPS_D uint64_t matrix_of_rows(const void* shared, int block_bytes = 8 * RowBytes) {
  return matrix_of_rows<RowBytes>(shared_address(shared), block_bytes);
}
// For one block of rows of 128 bytes.
MDOPS_D uint64_t wide_matrix(uint32_t shared) {
  return matrix_of_rows<128>(shared, 16);
}

// Makes earlier stores to shared memory visible to products after it and a barrier.
MDOPS_D void fence_shared() {
  MDOPS_ON_HOPPER("fence.proxy.async.shared::cta;" :: : "memory");
}

// Before the first product, and after registers of operands and sums have changed.
MDOPS_D void begin_products() {
  MDOPS_ON_HOPPER("wgmma.fence.sync.aligned;" :: : "memory");
}
// The products so far are one group.
MDOPS_D void commit_products() {
  MDOPS_ON_HOPPER("wgmma.commit_group.sync.aligned;" :: : "memory");
}
// All groups but the last `Pending` are done.
template <int Pending>
MDOPS_D void wait_for_products() {
  MDOPS_ON_HOPPER("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}
// Sums of completed products: the compiler does not read them earlier.
MDOPS_D void fence_operands(float& x) {
  MDOPS_ON_HOPPER("" : "+f"(x)::"memory");
}
MDOPS_D void fence_operands(int& x) {
  MDOPS_ON_HOPPER("" : "+r"(x)::"memory");
}
template <class T, int Size>
MDOPS_D void fence_operands(T (&d)[Size]) {
#pragma unroll
  for (int k = 0; k < Size; ++k) fence_operands(d[k]);
}

// Gives registers of a warpgroup that needs few to those that multiply.
template <int Registers>
MDOPS_D void keep_registers() {
  MDOPS_ON_HOPPER("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}
template <int Registers>
MDOPS_D void take_registers() {
  MDOPS_ON_HOPPER("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}

// For the instructions: numbers x[i], x[i + 1], ... as operands of a kind, "+f" or "+r", those of d[n], and
// so many registers' names.
#define MDOPS_NUMBERS_4(kind, x, i) kind(x[i]), kind(x[i + 1]), kind(x[i + 2]), kind(x[i + 3])
#define MDOPS_NUMBERS_8(kind, x, i) MDOPS_NUMBERS_4(kind, x, i), MDOPS_NUMBERS_4(kind, x, i + 4)
#define MDOPS_NUMBERS_16(kind, x, i) MDOPS_NUMBERS_8(kind, x, i), MDOPS_NUMBERS_8(kind, x, i + 8)
#define MDOPS_NUMBERS_32(kind, x, i) MDOPS_NUMBERS_16(kind, x, i), MDOPS_NUMBERS_16(kind, x, i + 16)
#define MDOPS_NUMBERS_64(kind, x, i) MDOPS_NUMBERS_32(kind, x, i), MDOPS_NUMBERS_32(kind, x, i + 32)
#define MDOPS_NUMBERS_128(kind, x, i) MDOPS_NUMBERS_64(kind, x, i), MDOPS_NUMBERS_64(kind, x, i + 64)
#define MDOPS_UNIT(n) MDOPS_NUMBERS_4("+f", d[n], 0)
#define MDOPS_4_UNITS(n) MDOPS_UNIT(n), MDOPS_UNIT(n + 1), MDOPS_UNIT(n + 2), MDOPS_UNIT(n + 3)

#define MDOPS_REGISTERS_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define MDOPS_REGISTERS_16 MDOPS_REGISTERS_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define MDOPS_REGISTERS_24 MDOPS_REGISTERS_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define MDOPS_REGISTERS_28 MDOPS_REGISTERS_24 ", %24, %25, %26, %27"
#define MDOPS_REGISTERS_32 MDOPS_REGISTERS_24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define MDOPS_REGISTERS_48 \
  MDOPS_REGISTERS_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define MDOPS_REGISTERS_60 MDOPS_REGISTERS_48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59"
#define MDOPS_REGISTERS_64 \
  MDOPS_REGISTERS_48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define MDOPS_REGISTERS_128                                                                      \
  MDOPS_REGISTERS_64                                                                             \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"             \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"             \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

}  // namespace mdops
