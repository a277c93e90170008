// The tensors of the three ops of the environment matrix, checked at entry.
#pragma once

#include "common/descriptor_args.h"
#include "env_mat/args.h"

namespace mdops {

struct EnvMatInputs : DescriptorInputs {
  using Given = Listed<DescriptorInputs::Given, bool>;

  int columns;

  EnvMatInputs(const Op& op, const Tensor& displacements, const Tensor& counts, const Tensor& types,
               const Tensor& std, const Tensor& pair_mask, double cutoff, double cutoff_smooth,
               double protection, bool radial)
      : DescriptorInputs(op, displacements, counts, types, std, pair_mask, cutoff, cutoff_smooth, protection),
        columns(radial ? 1 : 4) {}

  Tensor grad(const Op& op, const Tensor& tensor) const {
    return input(op, "grad", tensor, dtype, {atoms, width, columns});
  }

  // `mean` may be null: 0.
  template <class T>
  EnvMatArgs<T> args(const T* mean) const {
    EnvMatArgs<T> a{};
    a.displacements = data_of(displacements), a.counts = data_of(counts), a.types = data_of(types);
    a.mean = mean, a.std = data_of(std), a.pair_mask = data_of(pair_mask), a.cutoff = cutoff_as<T>();
    a.atoms = atoms, a.width = width, a.ntypes = static_cast<int>(ntypes), a.columns = columns;
    return a;
  }
};

}  // namespace mdops
