// Basics for formulas that CPU and CUDA kernels share.
#pragma once

// An actual call would be a symbol shared between instruction sets.
#define MDOPS_INLINE inline __attribute__((always_inline))

#ifdef __CUDACC__
#define MDOPS_HD __host__ __device__ __forceinline__
#else
#define MDOPS_HD MDOPS_INLINE
#endif

// On GPUs alone.
#define MDOPS_D __device__ __forceinline__
