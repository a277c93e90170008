// The inputs and outputs of the kernels of the inference step on a GPU, for them and their callers.
#pragma once

#include "gemm/gpu_shape.h"
#include "spline_potential/args.h"

namespace mdops {

// Forces and virials are summed as integers, so that no result depends on the order of the additions: in
// units of 2^-36 eV/A (1.5e-11) and 2^-32 eV. An atom's force has 2^27 eV/A of room: a pair's beyond 2^17, or
// beyond what as many pairs as a row holds could add up to from both sides, is refused. An atom's virial is
// refused from 2^30 eV on; if atoms' virials are wanted, as sums over the pairs that point to them, a pair's
// is from 2^30 eV over a row's places on. A system's is summed in two integers, neither of which can
// overflow.
constexpr double kForceUnit = 1.0 / (1LL << 36), kVirialUnit = 1.0 / (1LL << 32);
constexpr float kMostForce = 131072.0f, kMostForceOfRow = 1 << 26;
constexpr double kMostVirial = 1 << 30;

// The integers of a system's virial: nine sums of high parts, in 2^32 units, and nine of the low 32 bits.
constexpr int kVirialSums = 18;

MDOPS_HD int64_t virial_part(int64_t value, int part) {
  return part < 9 ? value >> 32 : value & 0xffffffff;
}

MDOPS_HD double virial_sum(int64_t high, int64_t low) {
  high += low >> 32, low &= 0xffffffff;
  if (high >= -(int64_t{1} << 30) && high < int64_t{1} << 30)  // one integer holds it: rounded once
    return static_cast<double>(high * (int64_t{1} << 32) + low) * kVirialUnit;
  return static_cast<double>(high) + static_cast<double>(low) * kVirialUnit;
}

// A position on 32 bytes: one sector of memory.
struct alignas(32) Place {
  double x[3], unused;
};

// D[l][k] for l < M2 and k >= l as the net's input: row after row of l, k from 4 floor(l / 4) on, so that
// every row starts and ends on four numbers. The entries k < l have no weight. Then come the `extra` inputs,
// then zeros.
struct Features {
  int width, axis;  // M rounded up to 4, and M2

  MDOPS_HD Features(int m, int m2) : width(round_up(m, 4)), axis(m2) {}
  static MDOPS_HD int first(int l) { return l & ~3; }
  // Where D[l][k = 0] would stand: the row's numbers are at row(l) + k.
  MDOPS_HD int row(int l) const {
    const int g = l / 4;
    return 4 * (g * width - 2 * g * (g - 1)) + (l % 4) * (width - 4 * g) - 4 * g;
  }
  MDOPS_HD int count() const { return row(axis - 1) + width; }
};

// Sizes of the descriptor. `plain`: D = T's first row, T_< being (1, 0, 0, 0), and axis 1.
struct CalledStepSizes {
  int extra_size, width, axis;
  bool plain;
};
// In a library rebuilt for a model, constants hide them, like those of the tables.
struct StepSizes : CalledStepSizes {
#ifdef MDOPS_MODEL_EXTRA
  static constexpr int extra_size = MDOPS_MODEL_EXTRA;
#endif
#ifdef MDOPS_MODEL_WIDTH
  static constexpr int width = MDOPS_MODEL_WIDTH, axis = MDOPS_MODEL_AXIS;
  static constexpr bool plain = MDOPS_MODEL_PLAIN;
#endif
};

// Atoms with a near neighbour, listed by a descriptor's kernel: those of a chunk from its first row on.
struct NearAtoms {
  double* c;        // (N,), which is cleared; null: not wanted
  double far;       // a nearest distance from which on c is 0
  int32_t* atoms;   // (rows,)
  int32_t* counts;  // of the chunks
};

// The arguments of all kernels of a step. The results are the op's (ops.md).
struct StepArgs : StepInputs<float, int>, StepSizes {
  float most_force, most_virial;  // of a pair

  double* energy;
  double* forces;
  double* virial;
  double* atom_virial;  // null: not wanted
  int32_t* within;
  float* nearest;

  // For the whole call.
  Place* at;             // (atoms,)
  int64_t* atom_sums;    // (atoms, atom_numbers()): the force, in kForceUnit, and the virial, in kVirialUnit
  int64_t* virial_sums;  // (systems, kVirialSums)
  int32_t* type_counts;  // (blocks of kOrderBlock atoms, ntypes)
  int32_t* row_atom;     // (rows,): -1 in the rows that fill up a tile
  int32_t* atom_row;     // (atoms,), of those with a type, if `by_atom`
  int32_t* tile_net;     // (tiles,): -1 where there are no atoms
  int32_t* failed;       // (systems,)
  int rows, tile_rows;

  // For the chunk of rows [first_row, first_row + net.rows): row after row.
  int first_row, output_parts;
  // Or, `by_atom`, atom after atom: before the atoms' rows are known (gpu_teams.h).
  bool by_atom;
  float4* pairs;      // (net.rows, list_width): pair vector, and the neighbour's index as an integer
  uint32_t* touched;  // (net.rows, words): first rows of the moments that neighbours add to, a bit each
  float* t;           // (net.rows, 4, table_width)
  NetArgs net;        // its input is D and the extra inputs
  int64_t out_bias;   // of a packed net
  NearAtoms near;
  float* grad_extra;  // (N, extra), zero for virtual atoms; null: not wanted

  // A sector of memory each: the force, and the rows of the virial, if wanted. The last of four is unused.
  MDOPS_HD int atom_numbers() const { return atom_virial ? 16 : 4; }
  MDOPS_HD Features features() const { return {width, axis}; }
  MDOPS_HD int words() const { return (moment_rows() + 31) / 32; }
  MDOPS_HD Normalisation<float> normalisation(int type) const {
    if (plain) return ones(mean[type], std[2 * type], std[2 * type + 1]);
    return normalised(mean[type], std[2 * type], std[2 * type + 1]);
  }
};

}  // namespace mdops
