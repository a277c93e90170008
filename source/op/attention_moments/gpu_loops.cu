#include "attention_moments/gpu_loops.h"

#include <algorithm>

#include "attention/gpu_passes.h"
#include "attention_moments/gpu_end.h"

namespace mdops {

using namespace gpu_attention_moments;
using gpu_attention::kPrepareBlocks, gpu_attention::TensorArgs;

namespace {

constexpr int kParts = 2;              // of a number, for the accuracy of float32's products
constexpr int kJoinBlocks = 2;         // per multiprocessor, for `join_kernel`
constexpr int kNarrow = 2, kWide = 4;  // units of 16 columns of a layer
using gpu_attention_layer::kGroup, gpu_attention_layer::kMany, gpu_attention_layer::kMost,
    gpu_attention_layer::kRowWarps, gpu_attention_layer::kSome;

// Calls work<I>() for a layer of 16 I columns.
void with_columns_of(int64_t columns, const auto& work) {
  if (columns == 16 * kNarrow) return work.template operator()<kNarrow>();
  work.template operator()<kWide>();
}
void with_features(int64_t features, const auto& work) {
  if (features <= 16 * kSome) return work.template operator()<kSome>();
  if (features <= 16 * kMany) return work.template operator()<kMany>();
  work.template operator()<kMost>();
}

// Memory of a pass.
struct PassMemory {
  int32_t* bad;
  // By o of a layer, by q, k and v of one, and by x of two; the parts of the gradients by gate and switch, of
  // all layers.
  float *by_o, *of_part[3], *by_x[2], *delta, *parts = nullptr;
  TurnedGradient turned;

  PassMemory(Workspace& space, const AttentionMomentsArgs<float>& args, bool backward) {
    const AttentionArgs<float>& a = args.attention;
    bad = space.take<int32_t>(kPrepareBlocks);
    if (!backward) return;
    int64_t widest = 0;
    for (int l = 0; l < args.layers; ++l) widest = std::max(widest, args.layer[l].width);
    by_o = space.take<float>(a.rows * widest), delta = space.take<float>(a.rows);
    const int64_t size = args.layers > 1 ? a.rows * widest : 0;
    for (float*& part : of_part) part = space.take<float>(size);
    by_x[0] = space.take<float>(size), by_x[1] = space.take<float>(args.layers > 2 ? size : 0);
    const JoinedLayer<float>& last = args.layer[args.layers - 1];
    const int64_t columns = last.columns + last.width, operands = a.sequences * columns / kGroup * kWarp;
    turned.of_r = space.take<uint2>(operands), turned.of_u = space.take<uint2>(operands);
    turned.numbers = space.take<float>(kTurnedNumbers * a.sequences);
    turned.square = space.take<float>((columns + 1) * columns);
    if (a.in.gate || a.in.switches) parts = space.take<float>(args.layers * size_of_parts(args));
  }
  // For one layer.
  static int64_t size_of_parts(const AttentionMomentsArgs<float>& args) {
    return 2 * args.attention.rows * (args.attention.gates + 1);
  }
};

class Moments {
 public:
  Moments(const Gpu& gpu, const AttentionMomentsArgs<float>& args, const AttentionPlan& plan,
          const PassMemory& memory)
      : gpu_(gpu),
        args_(args),
        plan_(plan),
        memory_(memory),
        saved_(args, args.saved),
        limits_(gpu.limits()) {
    rows_ = gpu.int32_of("rows", args.attention.rows);
    atoms_ = gpu.int32_of("offsets", args.attention.sequences);
  }

  void forward(float* moments) const {
    for (int l = 0; l < args_.layers; ++l) {
      forward_pass(gpu_, attention(l, l > 0), kParts, memory_.bad, nullptr,
                   {saved_.layer[l].o, saved_.layer[l].logsumexp});
      const JoinArgs p = join_args(l);
      with_columns_of(args_.layer[l].width, [&]<int I>() {
        if (l + 1 == args_.layers)
          return with_features(args_.features, [&]<int F>() {
            gpu_.launch(end_kernel<I, F>, blocks(1, atoms_), kEndThreads, kEndBytes<I, F>, p, moments);
          });
        with_columns_of(p.columns, [&]<int N>() {
          launch(join_kernel<I, N>, kJoinBlocks, kJoinBytes<I, 2 * N> + kProjectBytes<N>, p);
        });
      });
    }
  }

  void backward(const AttentionMomentsResults<float>& out) const {
    float *by_x = memory_.by_x[0], *of_next = memory_.by_x[1];
    for (int l = args_.layers - 1; l >= 0; --l) {
      BackArgs p = back_args(l, of_next, out);
      p.by_x = l ? by_x : out.rows, p.back_stride = l ? args_.layer[l].columns : args_.columns();
      with_columns_of(args_.layer[l].width, [&]<int I>() {
        if (l + 1 == args_.layers) return end_back<I>(p);
        with_columns_of(p.columns,
                        [&]<int N>() { launch(join_back_kernel<I, N>, 1, kJoinBackBytes<I, N>, p); });
      });
      attend_back(l, out);
      std::swap(by_x, of_next);
    }
  }

 private:
  // `judged`: whether an earlier pass checked offsets and plan.
  TensorArgs<float> attention(int l, bool judged) const {
    const AttentionArgs<float>& a = args_.attention;
    const JoinedLayer<float>& layer = args_.layer[l];
    TensorArgs<float> p{};
    p.q = saved_.layer[l].part[0], p.k = saved_.layer[l].part[1], p.v = saved_.layer[l].part[2];
    p.width = p.value_width = p.key_stride = p.value_stride = static_cast<int>(layer.width);
    if (l == 0) {
      p.q = args_.rows + layer.columns, p.k = p.q + layer.width, p.v = p.k + layer.width;
      p.key_stride = p.value_stride = static_cast<int>(args_.columns());
    }
    p.gate = static_cast<const float*>(a.in.gate), p.absent = a.absent;
    p.switches = static_cast<const float*>(a.in.switches);
    p.offsets = a.offsets, p.plan = plan_.rows, p.bad = judged ? memory_.bad : nullptr;
    p.rows = rows_, p.heads = 1, p.sequences = atoms_, p.gates = static_cast<int>(a.gates);
    p.items = gpu_.int32_of("plan", plan_.items);
    p.max_length = std::min(gpu_.int32_of("max_length", plan_.max_length), rows_);
    p.scale = layer.scale, p.shift = a.shift, p.leaves_rest = true;
    return p;
  }

  JoinArgs join_args(int l) const {
    const JoinedLayer<float>& layer = args_.layer[l];
    JoinArgs p{};
    p.rows = rows_, p.features = static_cast<int>(args_.features);
    p.last = args_.attention.offsets + atoms_, p.bad = memory_.bad;
    p.normalize = args_.normalize, p.eps = args_.eps;
    p.x = l ? saved_.layer[l - 1].x : args_.rows, p.stride = l ? layer.columns : args_.columns();
    p.o = saved_.layer[l].o, p.inner = layer.inner, p.out = layer.out, p.bias = layer.bias;
    p.columns = static_cast<int>(args_.behind(l));
    p.next = saved_.layer[l].x, p.deviation = saved_.layer[l].deviation;
    if (l + 1 == args_.layers) {
      p.atoms = atoms_, p.offsets = args_.attention.offsets, p.environment = args_.environment;
      p.norm = args_.norm, p.norm_bias = args_.norm_bias, p.atom = saved_.atom;
      return p;
    }
    const JoinedLayer<float>& behind = args_.layer[l + 1];
    const JoinedRows<float>& rows = saved_.layer[l + 1];
    p.project = behind.project, p.project_bias = behind.project_bias, p.factors = behind.factors;
    for (int k = 0; k < 3; ++k) p.part[k] = rows.part[k], p.shrink[k] = rows.shrink[k];
    return p;
  }

  BackArgs back_args(int l, const float* of_next, const AttentionMomentsResults<float>& out) const {
    BackArgs p{};
    static_cast<JoinArgs&>(p) = join_args(l);
    p.by_o = memory_.by_o, p.delta = memory_.delta, p.of_next = of_next;
    for (int k = 0; k < 3; ++k) p.of_part[k] = memory_.of_part[k];
    p.grad = args_.grad, p.turned = memory_.turned, p.by_environment = out.environment;
    return p;
  }

  template <int I>
  void end_back(const BackArgs& p) const {
    with_features(args_.features, [&]<int F>() {
      const int64_t groups = blocks_for(atoms_, kGroup / kComponents) + 2 * I + 1;
      gpu_.launch(turn_kernel<I, F>, blocks(1, blocks_for(groups, kRowWarps)), kRowThreads,
                  Factor<F, 4 * I>::kBytes + static_cast<int64_t>(sizeof(BlockNumbers)), p);
    });
    launch<kEndThreads>(end_back_kernel<I>, 1, Factor<2 * I, 4 * I>::kBytes, p);
  }

  // Attention's gradients of a layer; those by gate and switch as parts, which are summed after the first
  // layer, the last to be done.
  void attend_back(int l, const AttentionMomentsResults<float>& out) const {
    gpu_attention::GradientArgs<float> g{};
    g.grad_out = memory_.by_o, g.logsumexp = saved_.layer[l].logsumexp, g.delta = memory_.delta;
    g.grad_q = memory_.of_part[0], g.grad_k = memory_.of_part[1], g.grad_v = memory_.of_part[2];
    if (l == 0) {
      g.around = {out.rows, args_.columns()};
      g.grad_q = out.rows + args_.layer[0].columns, g.grad_k = g.grad_q + args_.layer[0].width;
      g.grad_v = g.grad_k + args_.layer[0].width;
    }
    g.parts = memory_.parts;
    if (memory_.parts) g.parts += l * PassMemory::size_of_parts(args_);
    backward_pass(gpu_, attention(l, l + 1 < args_.layers), kParts, memory_.bad, nullptr, g, nullptr,
                  nullptr);
    if (l == 0 && memory_.parts)
      gpu_attention::add_gate_parts(gpu_, attention(0, true), memory_.bad, memory_.parts, 2 * args_.layers,
                                    out.gate, out.switches);
  }

  // A kernel that goes row by row.
  template <int Threads = kRowThreads, class Kernel, class... Args>
  void launch(Kernel* kernel, int each, int64_t factors, const Args&... args) const {
    gpu_.launch(kernel, blocks(each, blocks_for(rows_, kGroup * Threads / kWarp)), Threads,
                factors + static_cast<int64_t>(sizeof(BlockNumbers)), args...);
  }
  // As many as there is work for, up to `each` per multiprocessor.
  int64_t blocks(int64_t each, int64_t work) const { return std::min(each * limits_.multiprocessors, work); }

  const Gpu& gpu_;
  const AttentionMomentsArgs<float>& args_;
  const AttentionPlan& plan_;
  const PassMemory& memory_;
  const JoinedSaved<float> saved_;
  GpuLimits limits_;
  int rows_, atoms_;
};

bool is_wide(int64_t columns) {
  return columns == 16 * kNarrow || columns == 16 * kWide;
}

}  // namespace

std::string attention_moments_refusal(const AttentionMomentsArgs<float>& args) {
  for (int l = 0; l < args.layers; ++l)
    if (!is_wide(args.layer[l].columns) || args.layer[l].width != args.layer[l].columns)
      return "layers have " + std::to_string(args.layer[l].columns) + " columns and attention of " +
             std::to_string(args.layer[l].width) + ", expected 32 and 32, or 64 and 64, on a GPU";
  if (args.features % 2 == 0 && args.features <= gpu_attention_layer::kWidestRow) return "";
  return "argument `norm_weight` has " + std::to_string(args.features) +
         " numbers, expected an even number up to " + std::to_string(gpu_attention_layer::kWidestRow) +
         " on a GPU";
}

int64_t attention_moments_bytes(const AttentionMomentsArgs<float>& args, bool backward) {
  return Workspace::bytes([&](Workspace& space) { PassMemory(space, args, backward); });
}

void run_attention_moments(const Gpu& gpu, const AttentionMomentsArgs<float>& args, const AttentionPlan& plan,
                           void* memory, float* moments) {
  if (args.attention.rows == 0)
    return gpu.clear(moments,
                     4 * args.attention.sequences * args.features * static_cast<int64_t>(sizeof(float)));
  Workspace space(static_cast<char*>(memory));
  const PassMemory own(space, args, false);
  Moments(gpu, args, plan, own).forward(moments);
}

void run_attention_moments_gradients(const Gpu& gpu, const AttentionMomentsArgs<float>& args,
                                     const AttentionPlan& plan, void* memory,
                                     const AttentionMomentsResults<float>& out) {
  if (args.attention.rows == 0 || args.attention.sequences == 0) return;
  Workspace space(static_cast<char*>(memory));
  const PassMemory own(space, args, true);
  Moments(gpu, args, plan, own).backward(out);
}

}  // namespace mdops
