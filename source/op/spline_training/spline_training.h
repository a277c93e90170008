// The step of `spline_potential` with the gradients of a loss on its results: by the spline tables and by the
// fitting nets' weights. training.md, "A step", has the formulas; tanh
// nets.
//
// Two passes over the atoms in blocks: forward (energies and forces), which saves the layers' values, and,
// once the loss is known, backward (the tangents along the loss' gradient of the forces, and the adjoint of
// both). Then the gradients of the weights, sums over all atoms, are computed in units of some rows of a
// matrix.
#pragma once

#include "gemm/training_block.h"
#include "spline_potential/spline_potential.h"

namespace mdops {

// Atoms of one net that a thread works on together: ids[first, first + count).
struct TrainingBlock : LaneBlock {
  int net;
  int64_t thread, first;
};

// The gradient of the loss by the op's results, for each atom and system.
template <class T>
struct TrainingGradients {
  const double* energy;  // (N,)
  const T* forces;       // (N, 4), the fourth column zero
  const T* virial;       // (S, 3, 3)
};

// One thread's sums in the backward pass.
template <class T>
struct TrainingShare {
  T* tables;         // (ntypes, moment_rows, table_width)
  T* vectors;        // (nets, NetVectors.size)
  int64_t bad_atom;  // the last atom with a neighbour out of range, -1 if none
};

// The memory of a step, for blocks of so many lanes in all.
template <class T>
struct TrainingMemory {
  int64_t lanes;
  T *saved, *work;  // from the forward pass on; in the backward pass
};

// Elements saved by a forward pass, of a backward pass' other memory, and of one thread's memory.
MDOPS_DECLARE_KERNELS(int64_t saved_size(const PotentialArgs<T>& args, int64_t lanes))
MDOPS_DECLARE_KERNELS(int64_t work_size(const PotentialArgs<T>& args, int64_t lanes))
MDOPS_DECLARE_KERNELS(int64_t training_scratch_size(const PotentialArgs<T>& args))
// One block forward, with its net.
MDOPS_DECLARE_KERNELS(void train_forward(const PotentialArgs<T>& args, const NetWeights<T>& weights,
                                         const TrainingBlock& block, const int32_t* ids,
                                         const TrainingMemory<T>& memory, T* scratch,
                                         PotentialResults<T>& out))
// One block backward.
MDOPS_DECLARE_KERNELS(void train_backward(const PotentialArgs<T>& args, const NetWeights<T>& weights,
                                          const TrainingBlock& block, const int32_t* ids,
                                          const TrainingGradients<T>& given, const TrainingMemory<T>& memory,
                                          T* scratch, TrainingShare<T>& share))
// The number of units of a net's matrices; and one of them, summed over the net's blocks, for its layers.
MDOPS_DECLARE_KERNELS(int64_t weight_units(const FittingShape& net, T))
MDOPS_DECLARE_KERNELS(void weight_gradient(const PotentialArgs<T>& args, int64_t unit,
                                           const TrainingBlock* blocks, int64_t count,
                                           const TrainingMemory<T>& memory, T* scratch, T* const* matrices))

}  // namespace mdops
