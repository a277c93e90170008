#include "attention_layer/gpu_loops.h"

#include <algorithm>

#include "attention/gpu_passes.h"
#include "attention_layer/gpu_rows.h"

namespace mdops {

using namespace gpu_attention_layer;
using gpu_attention::kPrepareBlocks, gpu_attention::TensorArgs;

namespace {

constexpr int kParts = 2;  // of a number, for the accuracy of float32's products

// Calls work<Even, F, W>(), with widths in units of 16 (`FeatureRows`); coordinates are often few. Odd rows,
// which are rare, all use the widest kernels.
auto with_widths(const RowArgs& p, bool even, const auto& work) {
  if (!even) return work.template operator()<false, kMost, kMost>();
  const auto of_features = [&]<int F>() {
    if (!p.project && p.width <= 16 * kFew) return work.template operator()<true, F, kFew>();
    if (p.width <= 16 * kSome) return work.template operator()<true, F, kSome>();
    return work.template operator()<true, F, kMost>();
  };
  if (p.features <= 16 * kSome) return of_features.template operator()<kSome>();
  return p.features <= 16 * kMany ? of_features.template operator()<kMany>()
                                  : of_features.template operator()<kMost>();
}

// Memory of a pass.
struct PassMemory {
  int32_t* bad;
  float *dh, *grad_o;
  gpu_attention::GradientArgs<float> grads{};

  PassMemory(Workspace& space, const AttentionLayerArgs<float>& args, bool backward) {
    const AttentionArgs<float>& a = args.attention;
    bad = space.take<int32_t>(kPrepareBlocks);
    if (!backward) return;
    dh = args.project ? space.take<float>(a.rows * args.features) : nullptr;
    grad_o = space.take<float>(a.rows * a.width), grads.delta = space.take<float>(a.rows);
    if (!args.in_place()) {
      grads.grad_q = space.take<float>(a.rows * a.width), grads.grad_k = space.take<float>(a.rows * a.width);
      grads.grad_v = space.take<float>(a.rows * a.width);
    }
    if (a.in.gate || a.in.switches) grads.parts = space.take<float>(2 * a.rows * (a.gates + 1));
  }
};

class Layer {
 public:
  Layer(const Gpu& gpu, const AttentionLayerArgs<float>& args, const AttentionPlan& plan)
      : gpu_(gpu), limits_(gpu.limits()) {
    const AttentionArgs<float>& a = args.attention;
    r_.rows = gpu.int32_of("g", a.rows), r_.features = static_cast<int>(args.features);
    r_.columns = static_cast<int>(args.columns);
    r_.parts_begin = static_cast<int>(args.parts_begin());
    r_.width = static_cast<int>(a.width), r_.normalize = args.normalize, r_.eps = args.eps;
    r_.in_place = args.in_place();
    r_.project = args.project, r_.project_bias = args.project_bias;
    r_.factors = args.factors, r_.out = args.out, r_.out_bias = args.out_bias;
    r_.norm = args.norm, r_.norm_bias = args.norm_bias, r_.g = args.g;
    float* saved = args.saved;
    const auto take = [&](int64_t count) {
      float* const piece = saved;
      saved += count;
      return piece;
    };
    if (!args.in_place())
      for (float*& part : r_.part) part = take(a.rows * a.width);
    if (args.factors) r_.unit_q = take(a.rows * a.width);
    r_.o = take(a.rows * a.width), r_.normed = take(a.rows * args.features);
    if (!args.in_place())
      for (float*& shrink : r_.shrink) shrink = take(a.rows);
    r_.deviation = take(a.rows), logsumexp_ = take(a.rows);
    rest_ = saved;
    rest_size_ = a.rows * args.kept() - (rest_ - args.saved);
    a_.q = r_.part[0], a_.k = r_.part[1], a_.v = r_.part[2];
    a_.key_stride = a_.value_stride = r_.width;
    if (r_.in_place) {
      a_.q = r_.g + r_.parts_begin, a_.k = a_.q + r_.width, a_.v = a_.k + r_.width;
      a_.key_stride = a_.value_stride = r_.columns;
    }
    a_.gate = static_cast<const float*>(a.in.gate), a_.absent = a.absent;
    a_.switches = static_cast<const float*>(a.in.switches);
    r_.last = a.offsets + a.sequences;
    a_.offsets = a.offsets, a_.plan = plan.rows;
    a_.rows = r_.rows, a_.heads = 1, a_.width = a_.value_width = r_.width;
    a_.sequences = gpu.int32_of("offsets", a.sequences), a_.gates = static_cast<int>(a.gates);
    a_.items = gpu.int32_of("plan", plan.items);
    a_.max_length = std::min(gpu.int32_of("max_length", plan.max_length), r_.rows);
    a_.leaves_rest = true;
    a_.scale = a.scale, a_.shift = a.shift;
  }

  void forward(const PassMemory& m, float* result) {
    r_.bad = m.bad;
    gpu_.clear(rest_, rest_size_ * static_cast<int64_t>(sizeof(float)));
    with_widths(r_, is_even({result}), [&]<bool Even, int F, int W>() {
      if (!r_.project && !r_.in_place) launch(take_kernel<Even, W>, 0);
      if constexpr (W > kFew)
        if (r_.project)
          each_part(Factor<F, 2 * W>::kBytes,
                    [&](int64_t bytes) { launch(project_kernel<Even, F, W>, bytes); });
      forward_pass(gpu_, a_, kParts, m.bad, nullptr, {r_.o, logsumexp_});
      launch(finish_kernel<Even, F, W>, Factor<W, 2 * F>::kBytes, result);
    });
  }

  void backward(const PassMemory& m, const float* grad, const AttentionLayerResults<float>& out) {
    gpu_attention::GradientArgs<float> g = m.grads;
    g.grad_out = m.grad_o, g.logsumexp = logsumexp_, r_.bad = m.bad;
    if (r_.in_place) {
      g.around = {out.g, r_.columns};
      g.grad_q = out.g + r_.parts_begin, g.grad_k = g.grad_q + r_.width, g.grad_v = g.grad_k + r_.width;
    }
    with_widths(r_, is_even({grad, out.g}), [&]<bool Even, int F, int W>() {
      float* const dh = r_.project ? m.dh : out.g;
      launch(begin_kernel<Even, F, W>, Factor<F, 2 * W>::kBytes, grad, dh, r_.columns, m.grad_o, g.delta);
      backward_pass(gpu_, a_, kParts, m.bad, nullptr, g, out.gate, out.switches);
      const PartGradients parts{g.grad_q, g.grad_k, g.grad_v};
      if (!r_.project && !r_.in_place) launch(give_kernel<Even, W>, 0, parts, out.g);
      if constexpr (W > kFew) {
        const float* from = dh;
        if (r_.project)
          each_part(Factor<W, 2 * F>::kBytes, [&](int64_t bytes) {
            launch(collect_kernel<Even, F, W>, bytes, parts, from, out.g);
            from = out.g;
          });
      }
    });
  }

 private:
  // Whether rows of g, of saved data, of the result and of the gradients are aligned to 8 bytes; this layer's
  // own memory is if numbers of columns are even.
  bool is_even(std::initializer_list<const float*> tensors) const {
    uintptr_t places = reinterpret_cast<uintptr_t>(r_.g) | reinterpret_cast<uintptr_t>(r_.normed);
    for (const float* tensor : tensors) places |= reinterpret_cast<uintptr_t>(tensor);
    return places % 8 == 0 && (r_.features | r_.width | r_.columns) % 2 == 0;
  }

  // Launches for the weights of q, k and v: all three at once if they fit into shared memory, else one by
  // one.
  void each_part(int64_t bytes, const auto& f) {
    const int at_once =
        3 * bytes + static_cast<int64_t>(sizeof(BlockNumbers)) <= limits_.shared_bytes ? 3 : 1;
    for (r_.begin = 0; r_.begin < 3; r_.begin += at_once) {
      r_.end = r_.begin + at_once;
      f(at_once * bytes);
    }
  }

  // Blocks with factors are persistent; without, several share a multiprocessor.
  template <class Kernel, class... Args>
  void launch(Kernel* kernel, int64_t factors, const Args&... args) const {
    const int64_t places = limits_.multiprocessors * (factors ? 1 : kLightBlocks);
    const int64_t blocks = std::min<int64_t>(places, blocks_for(r_.rows, kGroup * kRowWarps));
    gpu_.launch(kernel, blocks, kRowThreads, factors + sizeof(BlockNumbers), r_, args...);
  }

  const Gpu& gpu_;
  GpuLimits limits_;
  RowArgs r_{};
  TensorArgs<float> a_{};
  float *logsumexp_, *rest_;
  int64_t rest_size_;  // size of the unused rest of the saved data
};

}  // namespace

std::vector<int32_t> attention_plan(const int32_t* offsets, int64_t sequences) {
  std::vector<int32_t> plan(kPlanColumns, 0);
  for (int64_t b = 0; b < sequences; ++b)
    for (int32_t first = 0; first < offsets[b + 1] - offsets[b]; first += kPlanTile)
      plan.insert(plan.end(), {static_cast<int32_t>(b), first, 0, 0});
  plan[0] = static_cast<int32_t>(plan.size() / kPlanColumns - 1);
  return plan;
}

std::string attention_layer_refusal(int64_t features, int64_t width) {
  if (features <= kWidestRow && width <= kWidestRow) return "";
  return "arguments `g` and `out_weight` have " + std::to_string(features) + " and " + std::to_string(width) +
         " columns, expected at most " + std::to_string(kWidestRow) + " on a GPU";
}

int64_t attention_layer_bytes(const AttentionLayerArgs<float>& args, bool backward) {
  return Workspace::bytes([&](Workspace& space) { PassMemory(space, args, backward); });
}

void run_attention_layer(const Gpu& gpu, const AttentionLayerArgs<float>& args, const AttentionPlan& plan,
                         void* memory, float* result) {
  if (args.attention.rows == 0) return;
  Workspace space(static_cast<char*>(memory));
  Layer(gpu, args, plan).forward(PassMemory(space, args, false), result);
}

void run_attention_layer_gradients(const Gpu& gpu, const AttentionLayerArgs<float>& args,
                                   const AttentionPlan& plan, void* memory,
                                   const AttentionLayerResults<float>& out) {
  if (args.attention.rows == 0) return;
  Workspace space(static_cast<char*>(memory));
  Layer(gpu, args, plan).backward(PassMemory(space, args, true), args.grad, out);
}

}  // namespace mdops
