// The arguments of the ops on sums behind layers of attention, checked; for the CPU and for GPUs.
#pragma once

#include "attention_moments/attention_moments.h"
#include "common/bind.h"
#include "common/pair_checks.h"

namespace mdops {

// The op's arguments as they come.
struct MomentsGiven {
  const Tensor &rows, &environment, &offsets;
  const std::vector<Tensor>&inner, &out, &bias, &project, &project_bias, &factors;
  const Tensor &norm, &norm_bias;
  const std::optional<Tensor>&gate, &switches, &absent;
  const std::vector<double>& scale;
  double shift, eps;
  bool normalize;
  const std::optional<Tensor>& plan;
  int64_t max_length;
};

struct MomentsInputs {
  static constexpr const char* kFirst = "rows";
  using Given = Listed<Times<3, const Tensor&>, Times<6, std::vector<Tensor>>, Times<2, const Tensor&>,
                       Times<3, const std::optional<Tensor>&>, std::vector<double>, Times<2, double>, bool,
                       const std::optional<Tensor>&, int64_t>;

  Tensor rows, environment, offsets, norm, norm_bias;
  std::vector<Tensor> inner, out, bias, project, project_bias, factors;  // the last three: from layer 1 on
  std::optional<Tensor> gate, switches, absent, plan;
  std::vector<double> scale;
  ScalarType dtype;
  double shift, eps;
  bool normalize;
  int64_t count, columns, features, atoms, max_length;

  template <class... A>
  explicit MomentsInputs(const Op& op, const A&... given) : MomentsInputs(op, MomentsGiven{given...}) {}
  MomentsInputs(const Op& op, const MomentsGiven& given)
      : rows(float_input(op, "rows", given.rows, {kAny, kAny})),
        offsets(input(op, "offsets", given.offsets, ScalarType::Int, {kAny})),
        scale(given.scale),
        dtype(rows.scalar_type()),
        shift(given.shift),
        eps(given.eps),
        normalize(given.normalize),
        count(rows.size(0)),
        columns(rows.size(1)),
        max_length(given.max_length) {
    environment = input(op, "environment", given.environment, dtype, {count, 4});
    norm = input(op, "norm_weight", given.norm, dtype, {kAny}), features = norm.size(0);
    norm_bias = input(op, "norm_bias", given.norm_bias, dtype, {features});
    take_layers(op, given);
    check_offsets(op, offsets, count, "rows");
    atoms = offsets.size(0) - 1;
    if (given.gate) gate = input(op, "gate", *given.gate, dtype, {count, 3});
    if (given.switches) switches = input(op, "switch", *given.switches, dtype, {count});
    if (given.absent) absent = input(op, "absent", *given.absent, dtype, {atoms});
    if (max_length < 0) fail(op, "argument `max_length` is negative");
    if (given.plan) plan = input(op, "plan", *given.plan, ScalarType::Int, {kAny, kPlanColumns});
  }

  int layers() const { return static_cast<int>(inner.size()); }

  template <class T>
  AttentionMomentsArgs<T> args() const {
    AttentionMomentsArgs<T> args{};
    AttentionArgs<T>& a = args.attention;
    a.rows = count, a.heads = 1, a.sequences = atoms, a.gates = gate ? 3 : 0;
    a.offsets = data_of(offsets);
    a.shift = switches ? static_cast<T>(shift) : T(0);
    a.in.gate = data_of(gate);
    a.in.switches = data_of(switches);
    a.absent = data_of(absent);
    args.layers = layers(), args.features = features;
    args.normalize = normalize, args.eps = static_cast<T>(eps);
    for (int l = 0; l < layers(); ++l) {
      JoinedLayer<T>& layer = args.layer[l];
      layer.columns = inner[l].size(0), layer.width = out[l].size(0), layer.scale = static_cast<T>(scale[l]);
      layer.inner = data_of(inner[l]), layer.out = data_of(out[l]);
      layer.bias = data_of(bias[l]);
      if (l == 0) continue;
      layer.project = project[l - 1].const_data_ptr<T>();
      layer.project_bias = project_bias[l - 1].const_data_ptr<T>();
      layer.factors = factors[l - 1].const_data_ptr<T>();
    }
    args.norm = data_of(norm), args.norm_bias = data_of(norm_bias);
    args.rows = data_of(rows), args.environment = data_of(environment);
    return args;
  }

  // Numbers of a row that the forward pass keeps.
  int64_t kept() const { return JoinedSaved<double>(args_of_sizes(), nullptr).columns; }

 private:
  void take_layers(const Op& op, const MomentsGiven& given) {
    const size_t layers = given.inner.size();
    if (layers < 1 || layers > kMostJoinedLayers)
      fail(op, "argument `inner` has ", layers, " layers, expected 1 to ", kMostJoinedLayers);
    const auto check = [&](const char* name, size_t size, size_t expected) {
      if (size != expected) fail(op, "argument `", name, "` has ", size, " entries, expected ", expected);
    };
    check("out", given.out.size(), layers), check("bias", given.bias.size(), layers);
    check("scale", scale.size(), layers), check("project", given.project.size(), layers - 1);
    check("project_bias", given.project_bias.size(), layers - 1);
    check("factors", given.factors.size(), layers - 1);
    int64_t width = kAny;  // of x before the layer
    for (size_t l = 0; l < layers; ++l) {
      const int64_t behind = l + 1 < layers ? kAny : features;
      inner.push_back(input(op, "inner", given.inner[l], dtype, {width, behind}));
      const int64_t to = inner[l].size(1), own = inner[l].size(0);
      out.push_back(input(op, "out", given.out[l], dtype, {kAny, to}));
      bias.push_back(input(op, "bias", given.bias[l], dtype, {to}));
      const int64_t attention = out[l].size(0);
      if (own < 1 || attention < 1 || to < 1) fail(op, "a layer has no columns");
      if (l > 0) {
        project.push_back(input(op, "project", given.project[l - 1], dtype, {own, 3 * attention}));
        project_bias.push_back(input(op, "project_bias", given.project_bias[l - 1], dtype, {3 * attention}));
        factors.push_back(input(op, "factors", given.factors[l - 1], dtype, {attention}));
      }
      width = to;
    }
    const int64_t expected = inner[0].size(0) + 3 * out[0].size(0);
    if (columns != expected) fail(op, "argument `rows` has ", columns, " columns, expected ", expected);
  }

  AttentionMomentsArgs<double> args_of_sizes() const {
    AttentionMomentsArgs<double> args{};
    args.layers = layers(), args.features = features;
    for (int l = 0; l < layers(); ++l)
      args.layer[l].columns = inner[l].size(0), args.layer[l].width = out[l].size(0);
    return args;
  }
};

// What the backward pass gives: by rows and environment, and by gate and switch where there are these.
struct MomentsGradients {
  Tensor rows, environment, gate, switches;

  MomentsGradients(const Op& op, const MomentsInputs& in)
      : rows(empty(op, {in.count, in.columns}, in.dtype)),
        environment(empty(op, {in.count, 4}, in.dtype)),
        gate(in.gate ? empty(op, {in.count, 3}, in.dtype) : empty(op, {0}, in.dtype)),
        switches(empty(op, {in.switches ? in.count : 0}, in.dtype)) {}

  template <class T>
  AttentionMomentsResults<T> results(const MomentsInputs& in) {
    return {data_of(rows), data_of(environment), data_of(in.gate ? &gate : nullptr),
            data_of(in.switches ? &switches : nullptr)};
  }
};

}  // namespace mdops
