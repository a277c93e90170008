#include <algorithm>
#include <numeric>
#include <optional>
#include <tuple>
#include <vector>

#include "attention_layer/attention_layer.h"
#include "common/scratch.h"
#include "common/tensor.h"

namespace mdops {

namespace {

struct AttentionLayerScratch;

using Optional = std::optional<Tensor>;

// The arguments, checked.
struct LayerInputs {
  Tensor g, offsets, project, project_bias, out, out_bias, norm, norm_bias;
  Optional gate, switches, absent;
  ScalarType dtype;
  int64_t rows, features, width, atoms;

  LayerInputs(const Op& op, const Tensor& g_, const Tensor& offsets_, const Tensor& project_,
              const Tensor& project_bias_, const Tensor& out_, const Tensor& out_bias_, const Tensor& norm_,
              const Tensor& norm_bias_, const Optional& gate_, const Optional& switch_,
              const Optional& absent_)
      : g(float_input(op, "g", g_, {kAny, kAny})),
        offsets(input(op, "offsets", offsets_, ScalarType::Int, {kAny})),
        dtype(g.scalar_type()),
        rows(g.size(0)),
        features(g.size(1)) {
    out = input(op, "out_weight", out_, dtype, {kAny, features});
    width = out.size(0);
    if (features < 1 || width < 1) fail(op, "arguments `g` and `out_weight` must have columns and rows");
    project = input(op, "project_weight", project_, dtype, {features, 3 * width});
    project_bias = input(op, "project_bias", project_bias_, dtype, {3 * width});
    out_bias = input(op, "out_bias", out_bias_, dtype, {features});
    norm = input(op, "norm_weight", norm_, dtype, {features});
    norm_bias = input(op, "norm_bias", norm_bias_, dtype, {features});
    if (offsets.size(0) < 1) fail(op, "argument `offsets` is empty, expected one more than there are atoms");
    atoms = offsets.size(0) - 1;
    if (gate_) gate = input(op, "gate", *gate_, dtype, {rows, 3});
    if (switch_) switches = input(op, "switch", *switch_, dtype, {rows});
    if (absent_) absent = input(op, "absent", *absent_, dtype, {atoms});
    const int32_t* o = offsets.const_data_ptr<int32_t>();
    if (o[0] != 0 || o[atoms] != rows)
      fail(op, "argument `offsets` goes from " + std::to_string(o[0]) + " to " + std::to_string(o[atoms]) +
                   ", expected from 0 to the " + std::to_string(rows) + " rows of `g`");
    for (int64_t i = 0; i < atoms; ++i)
      if (o[i + 1] < o[i]) fail(op, "argument `offsets` falls after atom " + std::to_string(i));
  }

  std::vector<int64_t> saved_shape() const { return {rows, attention_layer_saved(features, width)}; }

  template <class T>
  AttentionLayerArgs<T> args(double scale, double shift, double eps, bool normalize) const {
    AttentionLayerArgs<T> args{};
    args.attention.rows = rows, args.attention.heads = 1, args.attention.sequences = atoms;
    args.attention.width = args.attention.value_width = width, args.attention.gates = gate ? 3 : 0;
    args.attention.offsets = offsets.const_data_ptr<int32_t>();
    args.attention.scale = static_cast<T>(scale),
    args.attention.shift = switches ? static_cast<T>(shift) : T(0);
    args.attention.in.gate = gate ? gate->const_data_ptr() : nullptr;
    args.attention.in.switches = switches ? switches->const_data_ptr() : nullptr;
    args.attention.absent = absent ? absent->const_data_ptr<T>() : nullptr;
    args.features = features, args.normalize = normalize, args.eps = static_cast<T>(eps);
    args.project = project.const_data_ptr<T>(), args.project_bias = project_bias.const_data_ptr<T>();
    args.out = out.const_data_ptr<T>(), args.out_bias = out_bias.const_data_ptr<T>();
    args.norm = norm.const_data_ptr<T>(), args.norm_bias = norm_bias.const_data_ptr<T>();
    args.g = g.const_data_ptr<T>();
    return args;
  }
};

// work(atom, scratch) for all atoms, each thread a part of equal cost.
template <class T, class Work>
void each_atom(const Op& op, const LayerInputs& in, AttentionLayerArgs<T> args, bool backward,
               const Work& work) {
  if (in.rows == 0) return;
  std::vector<T> packed(MDOPS_RUN(attention_layer_packed_size, args));
  MDOPS_RUN(attention_layer_pack, args, backward, packed.data());
  args.packed = packed.data();
  std::vector<int64_t> cost(in.atoms);
  int64_t most = 0;
  for (int64_t i = 0; i < in.atoms; ++i) {
    const int64_t n = args.attention.length(i);
    most = std::max(most, n), cost[i] = n * (n + in.features);
  }
  std::partial_sum(cost.begin(), cost.end(), cost.begin());
  const int64_t bytes = MDOPS_RUN(attention_layer_scratch_size, args, backward, most);
  const int64_t threads = std::min<int64_t>(thread_count(), in.atoms);
  const auto place = [&](int64_t thread) -> int64_t {
    if (thread == 0 || thread == threads) return thread ? in.atoms : 0;
    return std::upper_bound(cost.begin(), cost.end(), cost.back() * thread / threads) - cost.begin();
  };
  parallel(threads, 1, [&](int64_t begin, int64_t end) {
    const ScratchMemory<AttentionLayerScratch> memory(op, bytes);
    for (int64_t atom = place(begin); atom < place(end); ++atom)
      if (args.attention.length(atom)) work(args, atom, memory.data());
  });
}

std::tuple<Tensor, Tensor> attention_layer(const Tensor& g, const Tensor& offsets,
                                           const Tensor& project_weight, const Tensor& project_bias,
                                           const Tensor& out_weight, const Tensor& out_bias,
                                           const Tensor& norm_weight, const Tensor& norm_bias, Optional gate,
                                           Optional switches, Optional absent, double scale, double shift,
                                           double eps, bool normalize) {
  const Op op("attention_layer");
  const LayerInputs in(op, g, offsets, project_weight, project_bias, out_weight, out_bias, norm_weight,
                       norm_bias, gate, switches, absent);
  Tensor result = empty({in.rows, in.features}, in.dtype), saved = empty(in.saved_shape(), in.dtype);
  dispatch_float(op, in.dtype, [&](auto zero) {
    using T = decltype(zero);
    AttentionLayerArgs<T> args = in.args<T>(scale, shift, eps, normalize);
    args.saved = saved.mutable_data_ptr<T>();
    T* out = result.mutable_data_ptr<T>();
    each_atom<T>(op, in, args, false, [&](const AttentionLayerArgs<T>& all, int64_t atom, void* scratch) {
      MDOPS_RUN(attention_layer_forward, all, atom, out, scratch);
    });
  });
  return {result, saved};
}

std::tuple<Tensor, Tensor, Tensor> attention_layer_backward(
    const Tensor& grad, const Tensor& saved, const Tensor& g, const Tensor& offsets,
    const Tensor& project_weight, const Tensor& project_bias, const Tensor& out_weight,
    const Tensor& out_bias, const Tensor& norm_weight, const Tensor& norm_bias, Optional gate,
    Optional switches, Optional absent, double scale, double shift, double eps, bool normalize) {
  const Op op("attention_layer_backward");
  const LayerInputs in(op, g, offsets, project_weight, project_bias, out_weight, out_bias, norm_weight,
                       norm_bias, gate, switches, absent);
  const Tensor by = input(op, "grad", grad, in.dtype, {in.rows, in.features});
  const Tensor kept =
      input(op, "saved", saved, in.dtype, {in.rows, attention_layer_saved(in.features, in.width)});
  Tensor grad_g = empty({in.rows, in.features}, in.dtype);
  Tensor grad_gate = in.gate ? empty({in.rows, 3}, in.dtype) : empty({0}, in.dtype);
  Tensor grad_switch = in.switches ? empty({in.rows}, in.dtype) : empty({0}, in.dtype);
  dispatch_float(op, in.dtype, [&](auto zero) {
    using T = decltype(zero);
    AttentionLayerArgs<T> args = in.args<T>(scale, shift, eps, normalize);
    args.saved = const_cast<T*>(kept.const_data_ptr<T>());  // which this pass reads alone
    args.grad = by.const_data_ptr<T>();
    const AttentionLayerResults<T> results{grad_g.mutable_data_ptr<T>(),
                                           in.gate ? grad_gate.mutable_data_ptr<T>() : nullptr,
                                           in.switches ? grad_switch.mutable_data_ptr<T>() : nullptr};
    each_atom<T>(op, in, args, true, [&](const AttentionLayerArgs<T>& all, int64_t atom, void* scratch) {
      MDOPS_RUN(attention_layer_backward, all, atom, results, scratch);
    });
  });
  return {grad_g, grad_gate, grad_switch};
}

}  // namespace

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CPU, m) {
  m.impl("attention_layer", TORCH_BOX(&mdops::attention_layer));
  m.impl("attention_layer_backward", TORCH_BOX(&mdops::attention_layer_backward));
}
