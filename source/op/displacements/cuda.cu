#include "common/cuda.h"
#include "displacements/gpu_kernels.h"
#include "displacements/gpu_loops.h"
#include "displacements/gpu_pair_sums.h"
#include "displacements/ops.h"

namespace mdops {

using namespace gpu_displacements;

template <class T>
static void sum_displacement_grads(const CudaOp& op, const PairRows& rows, const int32_t* images,
                                   const T* grad, double* positions, double* cell) {
  const PairSums<PositionGradient<T>> sums{op, rows};
  Tensor memory = empty(op, {sums.words()}, ScalarType::Long);
  sums.run({grad, images}, memory.mutable_data_ptr<int64_t>(), positions, cell, nullptr);
}

template <class T>
static void sum_pair_forces(const CudaOp& op, const PairRows& rows, const T* grad, const T* d, double* forces,
                            double* virial, double* atom_virial) {
  Tensor memory = empty(op, {pair_forces_bytes<T>(op, rows, atom_virial != nullptr)}, ScalarType::Byte);
  run_pair_forces(op, rows, grad, d, memory.mutable_data_ptr(), forces, virial, atom_virial);
}

template <class T>
static void write_pair_force_grads(const CudaOp& op, const PairRows& rows, const PairForceGrads& by,
                                   const T* grad, const T* d, T* grad_grad, T* grad_d) {
  op.launch(pair_forces_backward_kernel<T>, blocks_for(rows.atoms, kThreads / kWarp), kThreads, 0, rows, by,
            grad, d, grad_grad, grad_d);
}

}  // namespace mdops

MDOPS_ON_GPU(DisplacementOps, PairForceOps)
