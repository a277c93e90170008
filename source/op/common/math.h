// What the formulas shared by the CPU and CUDA kernels are written in.
#pragma once

#ifdef __CUDACC__
#define MDOPS_HD __host__ __device__ __forceinline__
#else
// Always inlined: a call left standing would be a symbol shared between instruction sets.
#define MDOPS_HD inline __attribute__((always_inline))
#endif
