// Nets of types for rows of atoms on a GPU, in float32 or float64; any layer may add its input. Their outputs
// are energies, with the gradient of their weighted sum by the rows. Products are those of gemm_fp64, or of
// moment_product in float32. Models have faster nets there (gemm/gpu_run.h), whose first layer adds nothing.
#pragma once

#include "common/gpu.h"
#include "gemm/net.h"

namespace mdops {

// Rows sorted by type, each type's filled up to whole tiles.
constexpr int kTypeTile = 64, kMostNetTypes = 256;
struct TypeRows {
  int64_t rows = 0;
  const int32_t* row_atom = nullptr;   // (rows,): -1 in those that fill up a tile
  const int32_t* tile_type = nullptr;  // (rows / kTypeTile,): -1 where there are no atoms
};

// The rows of atoms with these types, -1 for those without; `memory` of the GPU, with type_rows_bytes()
// bytes, holds them.
int64_t type_rows_bytes(const Gpu& gpu, int64_t atoms, int ntypes);
TypeRows run_type_rows(const Gpu& gpu, const double* positions, const int32_t* types, const int32_t* systems,
                       int64_t atoms, int ntypes, void* memory);

// A layer of all nets: weight (nets, inputs, outputs), its transpose for float32 (null in float64), bias and
// timestep (nets, outputs; none in the output layer).
template <class T>
struct TypeNetLayer {
  const T *weight, *transposed, *bias, *timestep;
};

template <class T>
struct TypeNets {
  NetShape shape;  // of the hidden layers: residual[0] counts, too
  int inputs, nets;
  TypeNetLayer<T> layers[kMaxLayers];  // the output layer last
  const double *scale, *shift;         // (nets,), (ntypes,): e = scale * net + shift
};

// Energies (atoms,), with `shift`, of the rows x (rows, inputs); and the gradients (rows, inputs) of the sum
// of weight[i] e_i; rows without an atom are undefined. `weight` null: 1.
template <class T>
int64_t type_nets_bytes(const TypeNets<T>& nets, const TypeRows& rows);
template <class T>
void run_type_nets(const Gpu& gpu, const TypeNets<T>& nets, const TypeRows& rows, const T* x,
                   const double* weight, void* memory, double* energy, T* grad);

}  // namespace mdops
