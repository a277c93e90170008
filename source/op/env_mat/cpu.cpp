#include "common/descriptor_args.h"

namespace mdops {

namespace {

constexpr int64_t kGrain = 32;  // atoms a piece of work, at least

// Calls work(i, slot, type) for every slot of every row; type is -1 where the slot has no neighbour that
// counts.
template <class T, class Work>
void for_slots(const DescriptorInputs& in, const Work& work) {
  const int32_t *counts = in.counts.const_data_ptr<int32_t>(), *types = in.types.const_data_ptr<int32_t>();
  const bool* mask = in.pair_mask.const_data_ptr<bool>();
  const T* d = in.displacements.const_data_ptr<T>();
  const T cutoff2 = static_cast<T>(in.cutoff * in.cutoff);
  parallel(in.atoms, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      int64_t slot = i * in.width;
      const auto row = [&](int64_t count, bool present) {
        for (int64_t last = slot + count; slot < last; ++slot) {
          work(i, slot, present && within_cutoff(squared_length(d + 3 * slot), cutoff2));
        }
      };
      for (int64_t t = 0; types[i] >= 0 && t < in.ntypes; ++t)
        row(counts[i * in.ntypes + t], !mask[types[i] * in.ntypes + t]);
      row((i + 1) * in.width - slot, false);
    }
  });
}

template <class T>
Normalisation<T> normalisation(const DescriptorInputs& in, const T* mean, int64_t atom) {
  const int32_t type = in.types.const_data_ptr<int32_t>()[atom];
  if (type < 0) return {0, 1, 1};
  const T* std = in.std.const_data_ptr<T>() + 2 * type;
  return {mean ? mean[type] : T(0), T(1) / std[0], T(1) / std[1]};
}

Tensor env_mat(const Tensor& displacements, const Tensor& counts, const Tensor& types, const Tensor& mean_,
               const Tensor& std, const Tensor& pair_mask, double cutoff, double cutoff_smooth,
               double protection, bool radial) {
  constexpr const char* op = "env_mat";
  const DescriptorInputs in(op, displacements, counts, types, std, pair_mask, cutoff, cutoff_smooth,
                            protection);
  const Tensor mean = input(op, "mean", mean_, in.dtype, {in.ntypes});
  const int columns = radial ? 1 : 4;
  Tensor result = empty({in.atoms, in.width, columns}, in.dtype);
  dispatch_float(op, in.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T *d = in.displacements.const_data_ptr<T>(), *m = mean.const_data_ptr<T>();
    T* out = result.mutable_data_ptr<T>();
    for_slots<T>(in, [&](int64_t i, int64_t slot, bool present) {
      const Normalisation<T> norm = normalisation(in, m, i);
      T row[4];
      env_slot(d + 3 * slot, present, in.cutoff_as<T>(), norm, row);
      for (int a = 0; a < columns; ++a) out[columns * slot + a] = row[a];
    });
  });
  return result;
}

Tensor env_mat_backward(const Tensor& grad_, const Tensor& displacements, const Tensor& counts,
                        const Tensor& types, const Tensor& std, const Tensor& pair_mask, double cutoff,
                        double cutoff_smooth, double protection, bool radial) {
  constexpr const char* op = "env_mat_backward";
  const DescriptorInputs in(op, displacements, counts, types, std, pair_mask, cutoff, cutoff_smooth,
                            protection);
  const int columns = radial ? 1 : 4;
  const Tensor grad = input(op, "grad", grad_, in.dtype, {in.atoms, in.width, columns});
  Tensor result = zeros({in.atoms, in.width, 3}, in.dtype);
  dispatch_float(op, in.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T *d = in.displacements.const_data_ptr<T>(), *g = grad.const_data_ptr<T>();
    T* out = result.mutable_data_ptr<T>();
    for_slots<T>(in, [&](int64_t i, int64_t slot, bool present) {
      if (present)
        env_slot_backward(g + columns * slot, columns, d + 3 * slot, in.cutoff_as<T>(),
                          normalisation<T>(in, nullptr, i), out + 3 * slot);
    });
  });
  return result;
}

std::tuple<Tensor, Tensor> env_mat_backward_backward(const Tensor& tangent_, const Tensor& grad_,
                                                     const Tensor& displacements, const Tensor& counts,
                                                     const Tensor& types, const Tensor& std,
                                                     const Tensor& pair_mask, double cutoff,
                                                     double cutoff_smooth, double protection, bool radial) {
  constexpr const char* op = "env_mat_backward_backward";
  const DescriptorInputs in(op, displacements, counts, types, std, pair_mask, cutoff, cutoff_smooth,
                            protection);
  const int columns = radial ? 1 : 4;
  const Tensor grad = input(op, "grad", grad_, in.dtype, {in.atoms, in.width, columns});
  const Tensor tangent = input(op, "tangent", tangent_, in.dtype, {in.atoms, in.width, 3});
  Tensor grad_grad = zeros({in.atoms, in.width, columns}, in.dtype);
  Tensor grad_d = zeros({in.atoms, in.width, 3}, in.dtype);
  dispatch_float(op, in.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T *d = in.displacements.const_data_ptr<T>(), *g = grad.const_data_ptr<T>(),
            *tangents = tangent.const_data_ptr<T>();
    T *out_grad = grad_grad.mutable_data_ptr<T>(), *out_d = grad_d.mutable_data_ptr<T>();
    for_slots<T>(in, [&](int64_t i, int64_t slot, bool present) {
      if (!present) return;
      T row[4];
      env_slot_second(tangents + 3 * slot, g + columns * slot, columns, d + 3 * slot, in.cutoff_as<T>(),
                      normalisation<T>(in, nullptr, i), row, out_d + 3 * slot);
      for (int a = 0; a < columns; ++a) out_grad[columns * slot + a] = row[a];
    });
  });
  return {grad_grad, grad_d};
}

}  // namespace

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CPU, m) {
  m.impl("env_mat", TORCH_BOX(&mdops::env_mat));
  m.impl("env_mat_backward", TORCH_BOX(&mdops::env_mat_backward));
  m.impl("env_mat_backward_backward", TORCH_BOX(&mdops::env_mat_backward_backward));
}
