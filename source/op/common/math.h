// Basics for formulas that CPU and CUDA kernels share.
#pragma once

#ifdef __CUDACC__
#define MDOPS_HD __host__ __device__ __forceinline__
#else
// Always inlined: an actual call would be a symbol shared between instruction sets.
#define MDOPS_HD inline __attribute__((always_inline))
#endif
