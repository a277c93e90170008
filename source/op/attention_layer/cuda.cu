#include <optional>
#include <string>
#include <tuple>

#include "attention_layer/gpu_loops.h"
#include "attention_layer/inputs.h"
#include "common/cuda.h"

namespace mdops {

namespace {

using Optional = std::optional<Tensor>;

float* numbers(Tensor& tensor) {
  return static_cast<float*>(tensor.mutable_data_ptr());
}
const float* numbers(const Tensor& tensor) {
  return static_cast<const float*>(tensor.const_data_ptr());
}

// Refuses what the kernels do not have.
void check(const CudaOp& op, const LayerInputs& in) {
  if (in.dtype != ScalarType::Float) fail(op, "argument `g` must be of float32 on a GPU");
  const std::string refusal = attention_layer_refusal(in.features, in.width);
  if (!refusal.empty()) fail(op, refusal);
  if (!in.plan) fail(op, "argument `plan` is needed on a GPU");
  if (in.rows > INT32_MAX - kPlanTile) fail(op, "rows must fit into 32-bit indices");
}

AttentionPlan plan_of(const LayerInputs& in, const Tensor& items) {
  return {items.const_data_ptr<int32_t>(), items.size(0) - 1, in.max_length};
}

std::tuple<Tensor, Tensor> attention_layer(
    const Tensor& g, const Tensor& offsets, const Optional& project_weight, const Optional& project_bias,
    const Tensor& out_weight, const Tensor& out_bias, const Tensor& norm_weight, const Tensor& norm_bias,
    const Optional& factors, const Optional& gate, const Optional& switches, const Optional& absent,
    double scale, double shift, double eps, bool normalize, const Optional& plan, int64_t max_length) {
  const CudaOp op("attention_layer", "g", g);
  const LayerInputs in(op, g, offsets, project_weight, project_bias, out_weight, out_bias, norm_weight,
                       norm_bias, factors, gate, switches, absent, plan, max_length);
  check(op, in);
  Tensor result = empty(op, {in.rows, in.features}, in.dtype);
  Tensor saved = empty(op, {in.rows, in.kept(normalize)}, in.dtype);
  AttentionLayerArgs<float> args = in.args<float>(scale, shift, eps, normalize);
  args.saved = numbers(saved);
  const Tensor items = aligned(*in.plan);
  Tensor memory = empty(op, {attention_layer_bytes(args, false)}, ScalarType::Byte);
  run_attention_layer(op, args, plan_of(in, items), memory.mutable_data_ptr(), numbers(result));
  return {result, saved};
}

std::tuple<Tensor, Tensor, Tensor> attention_layer_backward(
    const Tensor& grad, const Tensor& saved, const Tensor& g, const Tensor& offsets,
    const Optional& project_weight, const Optional& project_bias, const Tensor& out_weight,
    const Tensor& out_bias, const Tensor& norm_weight, const Tensor& norm_bias, const Optional& factors,
    const Optional& gate, const Optional& switches, const Optional& absent, double scale, double shift,
    double eps, bool normalize, const Optional& plan, int64_t max_length) {
  const CudaOp op("attention_layer_backward", "g", g);
  const LayerInputs in(op, g, offsets, project_weight, project_bias, out_weight, out_bias, norm_weight,
                       norm_bias, factors, gate, switches, absent, plan, max_length);
  check(op, in);
  const Tensor by = input(op, "grad", grad, in.dtype, {in.rows, in.features});
  const Tensor kept = input(op, "saved", saved, in.dtype, {in.rows, in.kept(normalize)});
  Tensor grad_g = empty(op, {in.rows, in.columns}, in.dtype);
  Tensor grad_gate = in.gate ? empty(op, {in.rows, 3}, in.dtype) : empty(op, {0}, in.dtype);
  Tensor grad_switch = empty(op, {in.switches ? in.rows : 0}, in.dtype);
  AttentionLayerArgs<float> args = in.args<float>(scale, shift, eps, normalize);
  args.saved = const_cast<float*>(numbers(kept));  // which this pass reads alone
  args.grad = numbers(by);
  const Tensor items = aligned(*in.plan);
  Tensor memory = empty(op, {attention_layer_bytes(args, true)}, ScalarType::Byte);
  run_attention_layer_gradients(op, args, plan_of(in, items), memory.mutable_data_ptr(),
                                {numbers(grad_g), in.gate ? numbers(grad_gate) : nullptr,
                                 in.switches ? numbers(grad_switch) : nullptr});
  return {grad_g, grad_gate, grad_switch};
}

}  // namespace

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  m.impl("attention_layer", TORCH_BOX(&mdops::attention_layer));
  m.impl("attention_layer_backward", TORCH_BOX(&mdops::attention_layer_backward));
}
