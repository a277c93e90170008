// The arguments that every descriptor op takes, checked at entry.
#pragma once

#include "common/bind.h"
#include "common/cutoff.h"
#include "common/pair_checks.h"
#include "env_mat/env_mat.h"

namespace mdops {

struct DescriptorInputs {
  static constexpr const char* kFirst = "displacements";
  using Given = Listed<Times<5, const Tensor&>, Times<3, double>>;

  Tensor displacements, counts, types, std, pair_mask;
  ScalarType dtype;
  int64_t atoms, width, ntypes;
  double cutoff, cutoff_smooth, protection;

  DescriptorInputs(const Op& op, const Tensor& displacements, const Tensor& counts, const Tensor& types,
                   const Tensor& std, const Tensor& pair_mask, double cutoff, double cutoff_smooth,
                   double protection);

  // One that has numbers of each pair vector.
  Tensor pair_tensor(const Op& op, const char* name, const Tensor& tensor) const {
    return input(op, name, tensor, dtype, {atoms, width, 3});
  }

  template <class T>
  Cutoff<T> cutoff_as() const {
    return {static_cast<T>(cutoff), static_cast<T>(cutoff_smooth), static_cast<T>(protection)};
  }
};

}  // namespace mdops
