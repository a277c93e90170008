#include "displacements/gpu_loops.h"

#include "displacements/gpu_kernels.h"
#include "displacements/gpu_pair_sums.h"

namespace mdops {

using namespace gpu_displacements;

template <class T>
void run_displacements(const Gpu& gpu, const double* positions, const double* cell, const PairRows& rows,
                       const int32_t* images, T* out) {
  const int64_t components = 3 * rows.rows * rows.width;
  const bool small = components < (int64_t{1} << 31);
  gpu.launch(small ? displacements_kernel<T, uint32_t> : displacements_kernel<T, uint64_t>,
             blocks_for(components, kThreads * kPerThread), kThreads, 0, positions, cell, rows, images, out);
}

template <class T>
int64_t pair_forces_bytes(const Gpu& gpu, const PairRows& rows) {
  return 8 * PairSums<PairForce<T>>{gpu, rows}.words();
}

template <class T>
void run_pair_forces(const Gpu& gpu, const PairRows& rows, const T* grad, const T* displacements,
                     void* memory, double* forces, double* virial, double* of_atoms) {
  PairSums<PairForce<T>>{gpu, rows}.run({grad, displacements}, static_cast<int64_t*>(memory), forces, virial,
                                        of_atoms);
}

#define MDOPS_INSTANTIATE(T)                                                                                 \
  template void run_displacements(const Gpu&, const double*, const double*, const PairRows&, const int32_t*, \
                                  T*);                                                                       \
  template int64_t pair_forces_bytes<T>(const Gpu&, const PairRows&);                                        \
  template void run_pair_forces(const Gpu&, const PairRows&, const T*, const T*, void*, double*, double*,    \
                                double*);
MDOPS_INSTANTIATE(float)
MDOPS_INSTANTIATE(double)
#undef MDOPS_INSTANTIATE

}  // namespace mdops
