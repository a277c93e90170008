// The arguments of the ops on a layer of attention, checked; for the CPU and for GPUs.
#pragma once

#include "attention_layer/attention_layer.h"
#include "common/bind.h"
#include "common/pair_checks.h"

namespace mdops {

// The arguments, checked at entry.
struct LayerInputs {
  static constexpr const char* kFirst = "g";
  using Given = Listed<Times<2, const Tensor&>, Times<2, const std::optional<Tensor>&>,
                       Times<4, const Tensor&>, Times<4, const std::optional<Tensor>&>, Times<3, double>,
                       bool, const std::optional<Tensor>&, int64_t>;

  Tensor g, offsets, out, out_bias, norm, norm_bias;
  std::optional<Tensor> project, project_bias, factors, gate, switches, absent, plan;
  ScalarType dtype = g.scalar_type();
  double scale, shift, eps;
  bool normalize;
  int64_t rows = g.size(0), columns = g.size(1), features, width, atoms, max_length;

  LayerInputs(const Op& op, const Tensor& g_, const Tensor& offsets_, const std::optional<Tensor>& project_,
              const std::optional<Tensor>& project_bias_, const Tensor& out_, const Tensor& out_bias_,
              const Tensor& norm_, const Tensor& norm_bias_, const std::optional<Tensor>& factors_,
              const std::optional<Tensor>& gate_, const std::optional<Tensor>& switch_,
              const std::optional<Tensor>& absent_, double scale_, double shift_, double eps_,
              bool normalize_, const std::optional<Tensor>& plan_, int64_t max_length_)
      : g(float_input(op, "g", g_, {kAny, kAny})),
        offsets(input(op, "offsets", offsets_, ScalarType::Int, {kAny})),
        scale(scale_),
        shift(shift_),
        eps(eps_),
        normalize(normalize_),
        max_length(max_length_) {
    out = input(op, "out_weight", out_, dtype, {kAny, kAny});
    width = out.size(0), features = out.size(1);
    if (features < 1 || width < 1) fail(op, "argument `out_weight` must have rows and columns");
    if (project_.has_value() != project_bias_.has_value())
      fail(op, "expected both of `project_weight` and `project_bias`, or none");
    if (project_) {
      project = input(op, "project_weight", *project_, dtype, {features, 3 * width});
      project_bias = input(op, "project_bias", *project_bias_, dtype, {3 * width});
    } else if (width % kLayerLanes) {
      fail(op, "without `project_weight`, argument `out_weight` has ", width,
           " rows, expected a multiple of ", kLayerLanes);
    }
    if (factors_) factors = input(op, "factors", *factors_, dtype, {width});
    const int64_t least = features + (project ? 0 : 3 * width);
    if (columns < least || (project && columns > least))
      fail(op, "argument `g` has ", columns, " columns, expected ", (project ? "" : "at least "), least);
    out_bias = input(op, "out_bias", out_bias_, dtype, {features});
    norm = input(op, "norm_weight", norm_, dtype, {features});
    norm_bias = input(op, "norm_bias", norm_bias_, dtype, {features});
    check_offsets(op, offsets, rows, "g");
    atoms = offsets.size(0) - 1;
    if (gate_) gate = input(op, "gate", *gate_, dtype, {rows, 3});
    if (switch_) switches = input(op, "switch", *switch_, dtype, {rows});
    if (absent_) absent = input(op, "absent", *absent_, dtype, {atoms});
    if (max_length < 0) fail(op, "argument `max_length` is negative");
    if (plan_) plan = input(op, "plan", *plan_, ScalarType::Int, {kAny, kPlanColumns});
  }

  int64_t kept() const {
    const int parts = attention_layer_parts(project.has_value(), factors.has_value(), normalize);
    return attention_layer_saved(features, width, parts);
  }

  template <class T>
  AttentionLayerArgs<T> args() const {
    AttentionLayerArgs<T> args{};
    args.attention.rows = rows, args.attention.heads = 1, args.attention.sequences = atoms;
    args.attention.width = args.attention.value_width = width, args.attention.gates = gate ? 3 : 0;
    args.attention.offsets = data_of(offsets);
    args.attention.scale = static_cast<T>(scale),
    args.attention.shift = switches ? static_cast<T>(shift) : T(0);
    args.attention.in.gate = data_of(gate);
    args.attention.in.switches = data_of(switches);
    args.attention.absent = data_of(absent);
    args.features = features, args.columns = columns, args.normalize = normalize,
    args.eps = static_cast<T>(eps);
    args.project = data_of(project);
    args.project_bias = data_of(project_bias);
    args.factors = data_of(factors);
    args.out = data_of(out), args.out_bias = data_of(out_bias);
    args.norm = data_of(norm), args.norm_bias = data_of(norm_bias);
    args.g = data_of(g);
    return args;
  }
};

}  // namespace mdops
