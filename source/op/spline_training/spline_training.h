// The step of `spline_potential` with what a loss on its results gives back to the model: the gradients of
// the spline tables and of the fitting nets' weights. docs/training.md, "A step", has the formulas; tanh
// nets.
//
// Two passes over the atoms in blocks: forward (energies and forces), which saves the layers' values, and,
// once the loss is known, backward (the tangents along the loss' gradient of the forces, and the adjoint of
// both). What is a sum over all atoms, the gradients of the weights, is then made by units of some rows of a
// matrix each.
#pragma once

#include "spline_potential/spline_potential.h"

namespace mdops {

// Where the parts of one type's net stand in `nets`: for each hidden layer weight (inputs, outputs), bias and
// timestep (outputs), then the output layer's weight and bias. Without `matrices` the same of what is not a
// matrix.
struct PlainNet {
  int64_t weight[kMaxLayers], bias[kMaxLayers], timestep[kMaxLayers], out_weight, out_bias, size = 0;

  explicit PlainNet(const FittingShape& net, bool matrices = true) {
    int64_t inputs = static_cast<int64_t>(net.width) * net.axis + net.extra;
    for (int n = 0; n < net.layers; ++n) {
      weight[n] = take(matrices ? inputs * net.neurons[n] : 0);
      bias[n] = take(net.neurons[n]);
      timestep[n] = take(net.neurons[n]);
      inputs = net.neurons[n];
    }
    out_weight = take(inputs);
    out_bias = take(1);
  }

 private:
  int64_t take(int64_t elements) {
    size += elements;
    return size - elements;
  }
};

// Atoms of one type that a thread works on together: ids[first, first + count), in the rows [row, row + rows)
// of memory.
struct TrainingBlock {
  int type;
  int64_t thread, first, count, row, rows;
};

// The gradient of the loss by the op's results, for each atom and system.
template <class T>
struct TrainingGradients {
  const double* energy;  // (N,)
  const T* forces;       // (N, 4), the fourth column zero
  const T* virial;       // (S, 3, 3)
};

// What one thread adds up in the backward pass.
template <class T>
struct TrainingShare {
  T* tables;         // (ntypes, ntypes * basis, table_width)
  T* vectors;        // (ntypes, PlainNet(net, false).size)
  int64_t bad_atom;  // the last atom with a neighbour out of range, -1 if none
};

#define MDOPS_TRAINING_KERNELS(T)                                                                            \
  /* Rows of memory for a block of so many atoms. */                                                         \
  MDOPS_DECLARE_KERNEL(int64_t block_rows(int64_t count, T))                                                 \
  /* Elements of what a forward pass saves, of what a backward pass needs beside it, of one thread's memory. \
   */                                                                                                        \
  MDOPS_DECLARE_KERNEL(int64_t saved_size(const PotentialArgs<T>& args, int64_t rows))                       \
  MDOPS_DECLARE_KERNEL(int64_t work_size(const PotentialArgs<T>& args, int64_t rows))                        \
  MDOPS_DECLARE_KERNEL(int64_t training_scratch_size(const PotentialArgs<T>& args))                          \
  /* One block forward; `rows` is the number of all rows. */                                                 \
  MDOPS_DECLARE_KERNEL(void train_forward(const PotentialArgs<T>& args, const TrainingBlock& block,          \
                                          const int32_t* ids, int64_t rows, T* saved, T* scratch,            \
                                          PotentialResults<T>& out))                                         \
  /* One block backward. */                                                                                  \
  MDOPS_DECLARE_KERNEL(void train_backward(                                                                  \
      const PotentialArgs<T>& args, const TrainingBlock& block, const int32_t* ids, int64_t rows,            \
      const TrainingGradients<T>& given, T* saved, T* work, T* scratch, TrainingShare<T>& share))            \
  /* The units of a net's matrices, and one of them, from a type's rows [begin, end), into that type's net.  \
   */                                                                                                        \
  MDOPS_DECLARE_KERNEL(int64_t weight_units(const FittingShape& net, T))                                     \
  MDOPS_DECLARE_KERNEL(void weight_gradient(const PotentialArgs<T>& args, int64_t unit, int64_t begin,       \
                                            int64_t end, int64_t rows, T* saved, T* work, T* scratch,        \
                                            T* net))
MDOPS_TRAINING_KERNELS(float)
MDOPS_TRAINING_KERNELS(double)

}  // namespace mdops
