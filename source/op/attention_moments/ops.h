// The ops on sums behind layers of attention. A device has `check_moments`, which refuses what its kernels do
// not have.
#pragma once

#include "attention_layer/inputs.h"
#include "attention_moments/attention_moments.h"
#include "common/bind.h"

namespace mdops {

template <class Device, class T>
struct AttentionMomentsOps {
  struct Given : AttentionMomentsArgs<T> {
    NeighborAttention over;

    // Numbers per row that the forward pass saves.
    int64_t kept() const { return JoinedSaved<T>(*this, nullptr).columns; }
  };

  // `project`, `project_bias` and `factors` start at layer 1.
  static Given arguments(Checked<Device>& in, Input rows, Input environment, Input offsets,
                         const Tensors& inner, const Tensors& out, const Tensors& bias,
                         const Tensors& project, const Tensors& project_bias, const Tensors& factors,
                         Input norm, Input norm_bias, const Optional& gate, const Optional& switches,
                         const Optional& absent, const std::vector<double>& scale, double shift, double eps,
                         bool normalize, const Optional& plan, int64_t max_length) {
    AttentionMomentsArgs<T> a{};
    in.place(a.rows, "rows", rows, {kAny, kAny});
    in.place(a.environment, "environment", environment, {rows.size(0), 4});
    in.take(a.norm, "norm_weight", norm, {kAny});
    a.features = norm.size(0), a.normalize = normalize, a.eps = static_cast<T>(eps);
    in.take(a.norm_bias, "norm_bias", norm_bias, {a.features});
    const size_t layers = inner.size();
    if (layers < 1 || layers > kMostJoinedLayers)
      fail(in.op, "argument `inner` has ", layers, " layers, expected 1 to ", kMostJoinedLayers);
    const auto check = [&](const char* name, size_t size, size_t expected) {
      if (size != expected) fail(in.op, "argument `", name, "` has ", size, " entries, expected ", expected);
    };
    check("out", out.size(), layers), check("bias", bias.size(), layers);
    check("scale", scale.size(), layers), check("project", project.size(), layers - 1);
    check("project_bias", project_bias.size(), layers - 1), check("factors", factors.size(), layers - 1);
    a.layers = static_cast<int>(layers);
    int64_t columns = kAny;  // of x before the layer
    for (size_t l = 0; l < layers; ++l) {
      JoinedLayer<T>& layer = a.layer[l];
      in.take(layer.inner, "inner", inner[l], {columns, l + 1 < layers ? kAny : a.features});
      layer.columns = inner[l].size(0), columns = inner[l].size(1);
      in.take(layer.out, "out", out[l], {kAny, columns});
      layer.width = out[l].size(0), layer.scale = static_cast<T>(scale[l]);
      in.take(layer.bias, "bias", bias[l], {columns});
      if (layer.columns < 1 || layer.width < 1 || columns < 1) fail(in.op, "a layer has no columns");
      if (l == 0) continue;
      in.take(layer.project, "project", project[l - 1], {layer.columns, 3 * layer.width});
      in.take(layer.project_bias, "project_bias", project_bias[l - 1], {3 * layer.width});
      in.take(layer.factors, "factors", factors[l - 1], {layer.width});
    }
    if (rows.size(1) != a.columns())
      fail(in.op, "argument `rows` has ", rows.size(1), " columns, expected ", a.columns());
    const NeighborAttention over(in, a.attention, "rows", rows.size(0), offsets, gate, switches, absent,
                                 shift, plan, max_length);
    check_moments(in.op, a, over);
    return {a, over};
  }

  static Outputs<2> attention_moments(Checked<Device>& in, Given& a) {
    T* to;
    Tensor moments = in.result(to, {a.attention.sequences, 4, a.features});
    Tensor saved = in.result(a.saved, {a.attention.rows, a.kept()});
    run_moments<T>(in.op, a, a.over, to);
    return {moments, saved};
  }

  // By rows and environment, and by gate and switch, if any.
  static Outputs<4> attention_moments_backward(Checked<Device>& in, Given& a, Input grad, Input saved) {
    const int64_t rows = a.attention.rows;
    in.place(a.grad, "grad", grad, {a.attention.sequences, 4, a.features});
    in.take_saved(a.saved, "saved", saved, {rows, a.kept()});
    AttentionMomentsResults<T> by;
    Tensor by_rows = in.result(by.rows, {rows, a.columns()});
    Tensor by_environment = in.result(by.environment, {rows, 4});
    const auto [by_gate, by_switch] = a.over.results(in, rows, by.gate, by.switches);
    run_moments_gradients<T>(in.op, a, a.over, by);
    return {by_rows, by_environment, by_gate, by_switch};
  }

  MDOPS_IMPLEMENT_FLOATS(AttentionMomentsOps, attention_moments, attention_moments_backward)
};

}  // namespace mdops
