#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "attention_moments/gpu_loops.h"
#include "attention_moments/inputs.h"
#include "common/cuda.h"

namespace mdops {

namespace {

using Optional = std::optional<Tensor>;
using Tensors = std::vector<Tensor>;

// The arguments of a pass, all arrays of rows on 16 bytes.
struct Pass {
  Tensor rows, environment, items;
  AttentionMomentsArgs<float> args;

  Pass(const CudaOp& op, const MomentsInputs& in)
      : rows(aligned(in.rows)), environment(aligned(in.environment)) {
    if (in.dtype != ScalarType::Float) fail(op, "argument `rows` must be of float32 on a GPU");
    if (!in.plan) fail(op, "argument `plan` is needed on a GPU");
    if (in.count > INT32_MAX - kPlanTile) fail(op, "rows must fit into 32-bit indices");
    items = aligned(*in.plan), args = in.args<float>();
    const std::string refusal = attention_moments_refusal(args);
    if (!refusal.empty()) fail(op, refusal);
    args.rows = static_cast<const float*>(rows.const_data_ptr());
    args.environment = static_cast<const float*>(environment.const_data_ptr());
  }

  AttentionPlan plan(const MomentsInputs& in) const {
    return {items.const_data_ptr<int32_t>(), items.size(0) - 1, in.max_length};
  }
};

std::tuple<Tensor, Tensor> attention_moments(const Tensor& rows, const Tensor& environment,
                                             const Tensor& offsets, Tensors inner, Tensors out, Tensors bias,
                                             Tensors project, Tensors project_bias, Tensors factors,
                                             const Tensor& norm_weight, const Tensor& norm_bias,
                                             const Optional& gate, const Optional& switches,
                                             const Optional& absent, std::vector<double> scale, double shift,
                                             double eps, bool normalize, const Optional& plan,
                                             int64_t max_length) {
  const CudaOp op("attention_moments", "rows", rows);
  const MomentsInputs in(op, {rows,         environment, offsets,     inner,     out,  bias,      project,
                              project_bias, factors,     norm_weight, norm_bias, gate, switches,  absent,
                              scale,        shift,       eps,         normalize, plan, max_length});
  Pass pass(op, in);
  Tensor moments = empty(op, {in.atoms, 4, in.features}, in.dtype);
  Tensor saved = empty(op, {in.count, in.kept()}, in.dtype);
  pass.args.saved = static_cast<float*>(saved.mutable_data_ptr());
  Tensor memory = empty(op, {attention_moments_bytes(pass.args, false)}, ScalarType::Byte);
  run_attention_moments(op, pass.args, pass.plan(in), memory.mutable_data_ptr(),
                        static_cast<float*>(moments.mutable_data_ptr()));
  return {moments, saved};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> attention_moments_backward(
    const Tensor& grad, const Tensor& saved, const Tensor& rows, const Tensor& environment,
    const Tensor& offsets, Tensors inner, Tensors out, Tensors bias, Tensors project, Tensors project_bias,
    Tensors factors, const Tensor& norm_weight, const Tensor& norm_bias, const Optional& gate,
    const Optional& switches, const Optional& absent, std::vector<double> scale, double shift, double eps,
    bool normalize, const Optional& plan, int64_t max_length) {
  const CudaOp op("attention_moments_backward", "rows", rows);
  const MomentsInputs in(op, {rows,         environment, offsets,     inner,     out,  bias,      project,
                              project_bias, factors,     norm_weight, norm_bias, gate, switches,  absent,
                              scale,        shift,       eps,         normalize, plan, max_length});
  Pass pass(op, in);
  const Tensor by = aligned(input(op, "grad", grad, in.dtype, {in.atoms, 4, in.features}));
  const Tensor kept = aligned(input(op, "saved", saved, in.dtype, {in.count, in.kept()}));
  MomentsGradients found{empty(op, {in.count, in.columns}, in.dtype), empty(op, {in.count, 4}, in.dtype),
                         in.gate ? empty(op, {in.count, 3}, in.dtype) : empty(op, {0}, in.dtype),
                         empty(op, {in.switches ? in.count : 0}, in.dtype)};
  pass.args.saved = const_cast<float*>(static_cast<const float*>(kept.const_data_ptr()));  // read alone
  pass.args.grad = static_cast<const float*>(by.const_data_ptr());
  Tensor memory = empty(op, {attention_moments_bytes(pass.args, true)}, ScalarType::Byte);
  run_attention_moments_gradients(op, pass.args, pass.plan(in), memory.mutable_data_ptr(),
                                  found.results<float>(in));
  return {found.rows, found.environment, found.gate, found.switches};
}

}  // namespace

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  m.impl("attention_moments", TORCH_BOX(&mdops::attention_moments));
  m.impl("attention_moments_backward", TORCH_BOX(&mdops::attention_moments_backward));
}
