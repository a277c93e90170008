// Products of warpgroups (wgmma), which Hopper alone has (sm_90a), of operands in shared memory and in
// registers. Elsewhere they compile to nothing, and nothing calls them.
#pragma once

#include <cstdint>

namespace mdops {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define MDOPS_ON_HOPPER(...) asm volatile(__VA_ARGS__)
#else
#define MDOPS_ON_HOPPER(...) static_cast<void>(0)
#endif

// The matrix whose rows of 128 or 64 bytes begin at `shared`, their pieces of 16 bytes swizzled: piece c of
// row n stands at c ^ n % 8, or of 64 bytes at c ^ n / 2 % 4. Another matrix `bytes` on is `bytes / 16` more.
// If it is of more than one block, the next one is so many bytes on.
template <int RowBytes>
__device__ __forceinline__ uint64_t matrix_of_rows(const void* shared, int block_bytes = 8 * RowBytes) {
  static_assert(RowBytes == 128 || RowBytes == 64);
  constexpr uint64_t eight_rows = RowBytes / 2, swizzle = RowBytes == 128 ? 1 : 2;
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  return swizzle << 62 | eight_rows << 32 | static_cast<uint64_t>(block_bytes / 16) << 16 |
         (address & 0x3ffff) >> 4;
}

// Ordinary stores to shared memory before it are seen by products after it and a barrier.
__device__ __forceinline__ void fence_shared() {
  MDOPS_ON_HOPPER("fence.proxy.async.shared::cta;" :: : "memory");
}

// Before the first product, and after registers of operands and sums have changed.
__device__ __forceinline__ void begin_products() {
  MDOPS_ON_HOPPER("wgmma.fence.sync.aligned;" :: : "memory");
}
// The products so far are one group.
__device__ __forceinline__ void commit_products() {
  MDOPS_ON_HOPPER("wgmma.commit_group.sync.aligned;" :: : "memory");
}
// All groups but the last `Pending` are done.
template <int Pending>
__device__ __forceinline__ void wait_for_products() {
  MDOPS_ON_HOPPER("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}
// Sums of products that were waited for: the compiler looks at them no earlier.
template <int Units>
__device__ __forceinline__ void settle(float (&d)[Units][4]) {
#pragma unroll
  for (int n = 0; n < Units; ++n)
#pragma unroll
    for (int k = 0; k < 4; ++k) MDOPS_ON_HOPPER("" : "+f"(d[n][k])::"memory");
}

// For the instructions: d[n][0] .. d[n][3] as operands, and so many registers' names.
#define MDOPS_UNIT(n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define MDOPS_4_UNITS(n) MDOPS_UNIT(n), MDOPS_UNIT(n + 1), MDOPS_UNIT(n + 2), MDOPS_UNIT(n + 3)

#define MDOPS_REGISTERS_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define MDOPS_REGISTERS_32 \
  MDOPS_REGISTERS_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define MDOPS_REGISTERS_64                                                                                 \
  MDOPS_REGISTERS_32                                                                                       \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, " \
  "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

}  // namespace mdops
