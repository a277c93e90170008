#include "angle_moment/inputs.h"
#include "common/scratch.h"

namespace mdops {

namespace {

constexpr int64_t kGrain = kAngleBlock;  // atoms a piece of work, at least

struct AngleScratch;

// work(begin, end, scratch) for all atoms, in threads.
template <class T, class Work>
void for_atoms(const Op& op, const AngleArgs<T>& args, int64_t atoms, int channels, const Work& work) {
  const int64_t numbers = MDOPS_RUN(angle_scratch_size, args, channels);
  parallel(atoms, kGrain, [&](int64_t begin, int64_t end) {
    const ScratchMemory<AngleScratch> scratch(op, numbers * static_cast<int64_t>(sizeof(T)));
    work(begin, end, static_cast<T*>(scratch.data()));
  });
}

std::tuple<Tensor, Tensor, Tensor> angle_moment(const Tensor& displacements, const Tensor& counts,
                                                const Tensor& types, const Tensor& std,
                                                const Tensor& pair_mask, double cutoff, double cutoff_smooth,
                                                double protection, int64_t exponent, int64_t octaves,
                                                int64_t fineness, bool gated) {
  constexpr const char* op = "angle_moment";
  const AngleInputs in(op, displacements, counts, types, std, pair_mask, cutoff, cutoff_smooth, protection,
                       exponent, octaves, fineness, gated);
  Tensor moments = empty({in.atoms, in.pairs(), in.pieces(), kAnglePowers}, in.dtype);
  Tensor within = empty({in.atoms, in.ntypes}, ScalarType::Int), nearest = empty({in.atoms}, in.dtype);
  dispatch_float(op, in.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto args = in.args<T>();
    for_atoms(op, args, in.atoms, 0, [&](int64_t begin, int64_t end, T* scratch) {
      MDOPS_RUN(angle_forward, args, begin, end, scratch, moments.mutable_data_ptr<T>(),
                within.mutable_data_ptr<int32_t>(), nearest.mutable_data_ptr<T>());
    });
  });
  return {moments, within, nearest};
}

Tensor angle_moment_backward(const Tensor& grad_, const Tensor& displacements, const Tensor& counts,
                             const Tensor& types, const Tensor& std, const Tensor& pair_mask, double cutoff,
                             double cutoff_smooth, double protection, int64_t exponent, int64_t octaves,
                             int64_t fineness, bool gated) {
  constexpr const char* op = "angle_moment_backward";
  const AngleInputs in(op, displacements, counts, types, std, pair_mask, cutoff, cutoff_smooth, protection,
                       exponent, octaves, fineness, gated);
  const Tensor grad = in.grad(op, grad_);
  Tensor result = empty({in.atoms, in.width, 3}, in.dtype);
  dispatch_float(op, in.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto args = in.args<T>();
    for_atoms(op, args, in.atoms, 0, [&](int64_t begin, int64_t end, T* scratch) {
      MDOPS_RUN(angle_backward, args, grad.const_data_ptr<T>(), begin, end, scratch,
                result.mutable_data_ptr<T>());
    });
  });
  return result;
}

Tensor angle_moment_jvp(const Tensor& tangent_, const Tensor& displacements, const Tensor& counts,
                        const Tensor& types, const Tensor& std, const Tensor& pair_mask, double cutoff,
                        double cutoff_smooth, double protection, int64_t exponent, int64_t octaves,
                        int64_t fineness, bool gated) {
  constexpr const char* op = "angle_moment_jvp";
  const AngleInputs in(op, displacements, counts, types, std, pair_mask, cutoff, cutoff_smooth, protection,
                       exponent, octaves, fineness, gated);
  const Tensor tangent = in.pair_tensor(op, "tangent", tangent_);
  Tensor result = empty({in.atoms, in.pairs(), in.pieces(), kAnglePowers}, in.dtype);
  dispatch_float(op, in.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto args = in.args<T>();
    for_atoms(op, args, in.atoms, 0, [&](int64_t begin, int64_t end, T* scratch) {
      MDOPS_RUN(angle_jvp, args, tangent.const_data_ptr<T>(), begin, end, scratch,
                result.mutable_data_ptr<T>());
    });
  });
  return result;
}

Tensor angle_moment_hvp(const Tensor& tangent_, const Tensor& grad_, const Tensor& displacements,
                        const Tensor& counts, const Tensor& types, const Tensor& std, const Tensor& pair_mask,
                        double cutoff, double cutoff_smooth, double protection, int64_t exponent,
                        int64_t octaves, int64_t fineness, bool gated) {
  constexpr const char* op = "angle_moment_hvp";
  const AngleInputs in(op, displacements, counts, types, std, pair_mask, cutoff, cutoff_smooth, protection,
                       exponent, octaves, fineness, gated);
  const Tensor tangent = in.pair_tensor(op, "tangent", tangent_), grad = in.grad(op, grad_);
  Tensor result = empty({in.atoms, in.width, 3}, in.dtype);
  dispatch_float(op, in.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto args = in.args<T>();
    for_atoms(op, args, in.atoms, 0, [&](int64_t begin, int64_t end, T* scratch) {
      MDOPS_RUN(angle_hvp, args, tangent.const_data_ptr<T>(), grad.const_data_ptr<T>(), begin, end, scratch,
                result.mutable_data_ptr<T>());
    });
  });
  return result;
}

std::tuple<Tensor, Tensor, Tensor> angle_features(const Tensor& displacements, const Tensor& counts,
                                                  const Tensor& types, const Tensor& std,
                                                  const Tensor& pair_mask, const Tensor& tables_,
                                                  const Tensor& gates, double cutoff, double cutoff_smooth,
                                                  double protection, int64_t exponent, int64_t octaves,
                                                  int64_t fineness) {
  constexpr const char* op = "angle_features";
  const AngleInputs in(op, displacements, counts, types, std, pair_mask, cutoff, cutoff_smooth, protection,
                       exponent, octaves, fineness, false);
  const AngleTableInputs tables(op, in, tables_, gates);
  Tensor features = empty({in.atoms, tables.channels}, in.dtype);
  Tensor within = empty({in.atoms, in.ntypes}, ScalarType::Int), nearest = empty({in.atoms}, in.dtype);
  dispatch_float(op, in.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto args = in.args<T>();
    const auto functions = tables.as<T>();
    for_atoms(op, args, in.atoms, functions.channels, [&](int64_t begin, int64_t end, T* scratch) {
      MDOPS_RUN(angle_features, args, functions, begin, end, scratch, features.mutable_data_ptr<T>(),
                within.mutable_data_ptr<int32_t>(), nearest.mutable_data_ptr<T>());
    });
  });
  return {features, within, nearest};
}

Tensor angle_features_backward(const Tensor& grad_, const Tensor& displacements, const Tensor& counts,
                               const Tensor& types, const Tensor& std, const Tensor& pair_mask,
                               const Tensor& tables_, const Tensor& gates, double cutoff,
                               double cutoff_smooth, double protection, int64_t exponent, int64_t octaves,
                               int64_t fineness) {
  constexpr const char* op = "angle_features_backward";
  const AngleInputs in(op, displacements, counts, types, std, pair_mask, cutoff, cutoff_smooth, protection,
                       exponent, octaves, fineness, false);
  const AngleTableInputs tables(op, in, tables_, gates);
  const Tensor grad = input(op, "grad", grad_, in.dtype, {in.atoms, tables.channels});
  Tensor result = empty({in.atoms, in.width, 3}, in.dtype);
  dispatch_float(op, in.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto args = in.args<T>();
    const auto functions = tables.as<T>();
    for_atoms(op, args, in.atoms, functions.channels, [&](int64_t begin, int64_t end, T* scratch) {
      MDOPS_RUN(angle_features_backward, args, functions, grad.const_data_ptr<T>(), begin, end, scratch,
                result.mutable_data_ptr<T>());
    });
  });
  return result;
}

}  // namespace

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CPU, m) {
  m.impl("angle_moment", TORCH_BOX(&mdops::angle_moment));
  m.impl("angle_moment_backward", TORCH_BOX(&mdops::angle_moment_backward));
  m.impl("angle_moment_jvp", TORCH_BOX(&mdops::angle_moment_jvp));
  m.impl("angle_moment_hvp", TORCH_BOX(&mdops::angle_moment_hvp));
  m.impl("angle_features", TORCH_BOX(&mdops::angle_features));
  m.impl("angle_features_backward", TORCH_BOX(&mdops::angle_features_backward));
}
