#include <algorithm>
#include <numeric>
#include <optional>
#include <tuple>
#include <vector>

#include "attention_layer/inputs.h"
#include "common/scratch.h"

namespace mdops {

namespace {

struct AttentionLayerScratch;

using Optional = std::optional<Tensor>;

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

std::tuple<Tensor, Tensor> attention_layer(
    const Tensor& g, const Tensor& offsets, const Optional& project_weight, const Optional& project_bias,
    const Tensor& out_weight, const Tensor& out_bias, const Tensor& norm_weight, const Tensor& norm_bias,
    const Optional& factors, const Optional& gate, const Optional& switches, const Optional& absent,
    double scale, double shift, double eps, bool normalize, const Optional& plan, int64_t max_length) {
  const Op op("attention_layer");
  const LayerInputs in(op, g, offsets, project_weight, project_bias, out_weight, out_bias, norm_weight,
                       norm_bias, factors, gate, switches, absent, plan, max_length);
  Tensor result = empty({in.rows, in.features}, in.dtype);
  Tensor saved = empty({in.rows, in.kept(normalize)}, in.dtype);
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
    const Optional& project_weight, const Optional& project_bias, const Tensor& out_weight,
    const Tensor& out_bias, const Tensor& norm_weight, const Tensor& norm_bias, const Optional& factors,
    const Optional& gate, const Optional& switches, const Optional& absent, double scale, double shift,
    double eps, bool normalize, const Optional& plan, int64_t max_length) {
  const Op op("attention_layer_backward");
  const LayerInputs in(op, g, offsets, project_weight, project_bias, out_weight, out_bias, norm_weight,
                       norm_bias, factors, gate, switches, absent, plan, max_length);
  const Tensor by = input(op, "grad", grad, in.dtype, {in.rows, in.features});
  const Tensor kept = input(op, "saved", saved, in.dtype, {in.rows, in.kept(normalize)});
  Tensor grad_g = empty({in.rows, in.columns}, in.dtype);
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
