// The whole inference step of a model with splines, a block of atoms at a time: moments, T, D and the fitting
// net forward, then backward to forces. Everything between the positions and the forces stays in cache.
#pragma once

#include "common/isa.h"
#include "gemm/bf16.h"
#include "gemm/net.h"
#include "spline_potential/args.h"
#include "spline_potential/paged_rows.h"

namespace mdops {

// Atoms at once on the CPU, whole vectors of any instruction set; twice as many with products by bfloat16
// units, which are so fast that reading the weights takes the time.
constexpr int kBlock = 64;
constexpr int kTablePad = 16;  // rows of the tables are padded to whole vectors of any instruction set

// A fitting net on the width * axis features of the descriptor, D = T^T T_<. For a plain sum, D = T's first
// row, T_< is (1, 0, 0, 0), and axis 1.
struct CalledFittingShape : NetShape {
  int width, axis;  // M and M2
  bool plain;
};
struct FittingShape : CalledFittingShape {
#ifdef MDOPS_MODEL_WIDTH
  static constexpr int width = MDOPS_MODEL_WIDTH, axis = MDOPS_MODEL_AXIS;
  static constexpr bool plain = MDOPS_MODEL_PLAIN;
#endif

  // Features in row k of D as a net on the CPU sees them (features.h).
  MDOPS_HD int64_t row_features(int k) const { return k < axis ? k + 1 : axis; }
  MDOPS_HD int64_t head_rows() const { return static_cast<int64_t>(axis) * (axis + 1) / 2; }
};

// A net's weights as the kernels of the CPU read them.
template <class T>
struct NetWeights {
  const T*
      head;  // (head_rows, neurons[0]): those of the features (k, l), l <= k < axis, the two equal ones added
  DenseLayer<T> layer[kMaxLayers];  // the last one is the output layer
  Bf16Net bf16;                     // its `units` null: not wanted
};

// The arguments of kernels of the CPU.
template <class T>
struct PotentialArgs : StepInputs<T, int64_t> {
  int block = kBlock;  // atoms at once
  int parts = 0;       // of products by bfloat16 units
  FittingShape net;
};

template <class T>
struct PotentialResults {
  double* energy;            // (N,)
  int32_t* within;           // (N, ntypes)
  T* nearest;                // (N,)
  PagedRows<T> forces;       // (N, 4), this thread's own, added to
  PagedRows<double> virial;  // (S, 3, 3), this thread's own, added to
  int64_t bad_atom;          // the last atom with a neighbour out of range, -1 if none
  PagedRows<T> atom_virial;  // (N, 3, 3), this thread's own, added to: a pair's on the neighbour
};

// Calls work(from, to) for the blocks of `count` atoms. They have one size, whole vectors of most instruction
// sets, as a short last one would read all weights for a few atoms.
inline void each_block(int64_t count, int64_t block, const auto& work) {
  const int64_t blocks = (count + block - 1) / block;
  const int64_t size = blocks ? ((count + blocks - 1) / blocks + 7) / 8 * 8 : 0;
  for (int64_t from = 0; from < count; from += size) work(from, from + size < count ? from + size : count);
}

// Elements of the scratch memory one thread needs.
MDOPS_DECLARE_KERNELS(int64_t scratch_size(const PotentialArgs<T>& args))
// The atoms `ids`, all of one net.
MDOPS_DECLARE_KERNELS(void potential(const PotentialArgs<T>& args, const NetWeights<T>& weights,
                                     const int32_t* ids, int64_t count, T* scratch, PotentialResults<T>& out))

}  // namespace mdops
