// The arguments of the three ops of the environment matrix, for both devices.
#pragma once

#include "env_mat/env_mat.h"

namespace mdops {

template <class T>
struct EnvMatArgs {
  const T* displacements;  // (N, width, 3)
  const int32_t* counts;   // (N, ntypes)
  const int32_t* types;    // (N,)
  const T* mean;           // (ntypes,), or null: 0
  const T* std;            // (ntypes, 2)
  const bool* pair_mask;   // (ntypes, ntypes): excluded pairs of types
  Cutoff<T> cutoff;
  int64_t atoms, width;
  int ntypes, columns;  // columns of R: 4, or 1 when radial

  MDOPS_HD Normalisation<T> normalisation(int type) const {
    if (type < 0) return {T(1), T(0), T(1)};
    return normalised(mean ? mean[type] : T(0), std[2 * type], std[2 * type + 1]);
  }
};

}  // namespace mdops
