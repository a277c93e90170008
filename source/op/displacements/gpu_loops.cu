#include "displacements/gpu_loops.h"

#include "common/instantiate.h"
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
int64_t pair_forces_bytes(const Gpu& gpu, const PairRows& rows, bool of_atoms) {
  return 8 * (of_atoms ? PairSums<PairForce<T, true>>{gpu, rows}.words()
                       : PairSums<PairForce<T, false>>{gpu, rows}.words());
}

template <class T>
void run_pair_forces(const Gpu& gpu, const PairRows& rows, const T* grad, const T* displacements,
                     void* memory, double* forces, double* virial, double* of_atoms) {
  int64_t* const words = static_cast<int64_t*>(memory);
  if (of_atoms)
    PairSums<PairForce<T, true>>{gpu, rows}.run({grad, displacements}, words, forces, virial, of_atoms);
  else
    PairSums<PairForce<T, false>>{gpu, rows}.run({grad, displacements}, words, forces, virial, nullptr);
}

MDOPS_INSTANTIATE(run_displacements, pair_forces_bytes, run_pair_forces)

}  // namespace mdops
