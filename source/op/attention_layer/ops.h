// The ops on a layer of attention. A device has `check_layer`, which refuses what its kernels do not have.
#pragma once

#include "attention_layer/attention_layer.h"
#include "attention_layer/inputs.h"
#include "common/bind.h"

namespace mdops {

template <class Device, class T>
struct AttentionLayerOps {
  struct Given : AttentionLayerArgs<T> {
    NeighborAttention over;
  };

  static Given arguments(Checked<Device>& in, Input g, Input offsets, const Optional& project,
                         const Optional& project_bias, Input out, Input out_bias, Input norm, Input norm_bias,
                         const Optional& factors, const Optional& gate, const Optional& switches,
                         const Optional& absent, double scale, double shift, double eps, bool normalize,
                         const Optional& plan, int64_t max_length) {
    AttentionLayerArgs<T> a{};
    in.take(a.g, "g", g, {kAny, kAny});
    in.take(a.out, "out_weight", out, {kAny, kAny});
    const int64_t width = out.size(0), features = out.size(1);
    if (features < 1 || width < 1) fail(in.op, "argument `out_weight` must have rows and columns");
    if (project.has_value() != project_bias.has_value())
      fail(in.op, "expected both of `project_weight` and `project_bias`, or none");
    in.take(a.project, "project_weight", project, {features, 3 * width});
    in.take(a.project_bias, "project_bias", project_bias, {3 * width});
    if (!project && width % kLayerLanes)
      fail(in.op, "without `project_weight`, argument `out_weight` has ", width,
           " rows, expected a multiple of ", kLayerLanes);
    in.take(a.factors, "factors", factors, {width});
    a.features = features, a.columns = g.size(1), a.normalize = normalize, a.eps = static_cast<T>(eps);
    const int64_t least = features + (project ? 0 : 3 * width);
    if (a.columns < least || (project && a.columns > least))
      fail(in.op, "argument `g` has ", a.columns, " columns, expected ", (project ? "" : "at least "), least);
    in.take(a.out_bias, "out_bias", out_bias, {features});
    in.take(a.norm, "norm_weight", norm, {features});
    in.take(a.norm_bias, "norm_bias", norm_bias, {features});
    a.attention.width = a.attention.value_width = width, a.attention.scale = static_cast<T>(scale);
    const NeighborAttention over(in, a.attention, "g", g.size(0), offsets, gate, switches, absent, shift,
                                 plan, max_length);
    check_layer(in.op, a, over);
    return {a, over};
  }

  static Outputs<2> attention_layer(Checked<Device>& in, Given& a) {
    T* to;
    Tensor result = in.result(to, {a.attention.rows, a.features});
    Tensor saved = in.result(a.saved, {a.attention.rows, a.kept()});
    run_layer<T>(in.op, a, a.over, to);
    return {result, saved};
  }

  static Outputs<3> attention_layer_backward(Checked<Device>& in, Given& a, Input grad, Input saved) {
    const int64_t rows = a.attention.rows;
    in.take(a.grad, "grad", grad, {rows, a.features});
    in.take_saved(a.saved, "saved", saved, {rows, a.kept()});
    AttentionLayerResults<T> by;
    Tensor grad_g = in.result(by.g, {rows, a.columns});
    const auto [grad_gate, grad_switch] = a.over.results(in, rows, by.gate, by.switches);
    run_layer_gradients<T>(in.op, a, a.over, by);
    return {grad_g, grad_gate, grad_switch};
  }

  MDOPS_IMPLEMENT_FLOATS(AttentionLayerOps, attention_layer, attention_layer_backward)
};

}  // namespace mdops
