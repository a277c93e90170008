// The arguments of an inference step on both devices. Each adds its kernels' own: PotentialArgs
// (spline_potential.h) and StepArgs (gpu_args.h).
#pragma once

#include "env_mat/env_mat.h"
#include "spline_moment/places.h"
#include "spline_moment/spline.h"

namespace mdops {

// Sizes of the tables, for each call.
template <class Size>
struct CalledTableSizes {
  Size table_width;
  int ntypes;
  bool gated;  // whether the tables of the types are of moments with a gate, beside a plain one
};

// In a library rebuilt for one model (jit.md), constants hide the sizes that it knows. A call's arguments
// have the same layout in all libraries.
template <class Size>
struct TableSizes : CalledTableSizes<Size> {
#ifdef MDOPS_MODEL_WIDTH
  static constexpr Size table_width = (MDOPS_MODEL_WIDTH + 15) / 16 * 16;
#endif
#ifdef MDOPS_MODEL_TYPES
  static constexpr int ntypes = MDOPS_MODEL_TYPES;
#endif
#ifdef MDOPS_MODEL_GATED
  static constexpr bool gated = MDOPS_MODEL_GATED;
#endif
};

// A GPU counts with 32 bits: Size is int there.
template <class T, class Size>
struct StepInputs : TableSizes<Size> {
  using TableSizes<Size>::ntypes;
  using TableSizes<Size>::gated;

  const double* positions;   // (N, 3); on the CPU (N, 4), the fourth unused: one vector load an atom
  const double* cell;        // (S, 3, 3)
  const int32_t* batch;      // (N,)
  const int32_t* types;      // (N,)
  const int32_t* neighbors;  // (N, list_width)
  const int32_t* images;     // (N, list_width)
  const int32_t* counts;     // (N, ntypes)
  const T* mean;             // (ntypes,)
  const T* std;              // (ntypes, 2)
  Places places;             // for neighbours
  const T* tables;           // (ntypes, moment_rows, table_width): spline coefficients / N_sel
  const T* extra;            // (N, extra): normalised parameters
  const double* scale;       // (nets,): e = scale * net + shift
  const double* shift;       // (ntypes,)
  Size atoms, systems, list_width;
  int nets;  // one a type, or one for all
  Cutoff<T> cutoff;
  SplineGrid<T> grid;

#ifdef MDOPS_MODEL_INTERVALS
  MDOPS_HD int basis() const { return MDOPS_MODEL_INTERVALS + 5; }
#else
  MDOPS_HD int basis() const { return grid.intervals + 5; }
#endif
  MDOPS_HD Size moment_rows() const { return static_cast<Size>(ntypes + gated) * basis(); }
  // The first row of the moments with neighbours of type t.
  MDOPS_HD int table_row(int t) const { return (t + gated) * basis(); }
  MDOPS_HD int net_of(int type) const { return nets == 1 ? 0 : type; }
};

}  // namespace mdops
