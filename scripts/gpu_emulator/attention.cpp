// Runs attention's GPU kernels on the host.
#include <vector>

#include "attention/gpu_loops.cu"
#include "attention_layer/gpu_rows.h"
#include "attention_moments/gpu_loops.cu"
#include "fibers.h"

// A call of one of the three ops, filled by scripts/emulate_attention.py. Pointers of absent arguments are null.
struct Call {
  void *q, *k, *v, *bias, *gate, *switches, *absent, *offsets, *plan, *out, *logsumexp, *grad_out;
  void *grad_q, *grad_k, *grad_v, *grad_bias, *grad_gate, *grad_switch, *grad_grad_out;
  void *along_q, *along_k, *along_v, *along_bias, *along_gate, *along_switch;
  int64_t rows, heads, width, value_width, sequences, gates, items, max_length, bias_size, parts;
  int64_t shared_bytes, multiprocessors;
  double scale, shift;
};

namespace {

using namespace mdops::gpu_attention;

template <class T>
void run(int derivative, const Call& c) {
  using A = Sums<T>;
  const auto as = [](void* memory) { return static_cast<T*>(memory); };
  const auto as_int = [](int64_t x) { return static_cast<int>(x); };
  TensorArgs<T> p{};
  p.q = as(c.q), p.k = as(c.k), p.v = as(c.v);
  p.bias = as(c.bias), p.gate = as(c.gate), p.switches = as(c.switches);
  p.absent = static_cast<A*>(c.absent);
  p.offsets = static_cast<int32_t*>(c.offsets), p.plan = static_cast<int32_t*>(c.plan);
  p.rows = as_int(c.rows), p.heads = as_int(c.heads), p.width = as_int(c.width);
  p.value_width = as_int(c.value_width), p.sequences = as_int(c.sequences), p.gates = as_int(c.gates);
  p.items = as_int(c.items), p.max_length = as_int(c.max_length), p.bias_size = c.bias_size;
  p.key_stride = p.heads * p.width, p.value_stride = p.heads * p.value_width;
  p.scale = static_cast<A>(c.scale), p.shift = static_cast<A>(c.shift);
  std::vector<int32_t> bad(kPrepareBlocks, -1);
  std::vector<int64_t> bias_at(c.sequences + 1, -1);
  const mdops::Gpu gpu({as_int(c.multiprocessors), 90, as_int(c.shared_bytes)});
  const Attention<T> attention(gpu, p, as_int(c.parts), bad.data(), bias_at.data());
  if (derivative == 0) return attention.forward({as(c.out), static_cast<A*>(c.logsumexp)});
  const auto numbers = [&](int64_t count) { return std::vector<A>(count, static_cast<A>(NAN)); };
  const int64_t rows = c.rows * c.heads;
  auto delta = numbers(rows), mean = numbers(rows), change = numbers(rows),
       parts = numbers(2 * rows * (c.gates + 1));
  GradientArgs<T> g{};
  g.grad_out = as(c.grad_out), g.out = as(c.out), g.logsumexp = static_cast<A*>(c.logsumexp);
  g.grad_q = as(c.grad_q), g.grad_k = as(c.grad_k), g.grad_v = as(c.grad_v), g.grad_bias = as(c.grad_bias);
  g.grad_grad_out = as(c.grad_grad_out), g.parts = parts.data();
  g.delta = delta.data(), g.mean = mean.data(), g.delta_change = change.data();
  if (derivative == 1) {
    std::vector<float> sums(attention.sums_size() + 1, NAN);
    return attention.backward(g, as(c.grad_gate), as(c.grad_switch), sums.data());
  }
  const Directions<T> along{as(c.along_q),    as(c.along_k),    as(c.along_v),
                            as(c.along_bias), as(c.along_gate), as(c.along_switch)};
  std::vector<float> sums(attention.second_sums_size() + 1, NAN);
  attention.backward_backward(g, along, as(c.grad_gate), as(c.grad_switch), sums.data());
}

}  // namespace

extern "C" void run_attention(int derivative, int dtype, const Call* call) {
  if (dtype == 0) return run<float>(derivative, *call);
  if (dtype == 1) return run<double>(derivative, *call);
  if (dtype == 2) return run<__half>(derivative, *call);
  run<__nv_bfloat16>(derivative, *call);
}

// The kernels of a layer's rows, with given o and gradients of q, k and v instead of attention's kernels.
struct LayerCall {
  float *g, *project, *project_bias, *out, *out_bias, *norm, *norm_bias, *o, *grad, *grad_q, *grad_k, *grad_v;
  float *q, *k, *v, *result, *grad_o, *delta, *grad_g;
  int32_t* last;
  int64_t rows, features, width, normalize;
};

extern "C" void run_layer(const LayerCall* c) {
  using namespace mdops::gpu_attention_layer;
  std::vector<int32_t> bad(kPrepareBlocks, 0);
  std::vector<float> shrink[3], deviation(c->rows), normed(c->rows * c->features), dh(c->rows * c->features);
  RowArgs p{};
  p.rows = static_cast<int>(c->rows), p.features = p.columns = static_cast<int>(c->features);
  p.width = static_cast<int>(c->width), p.begin = 0, p.end = 3, p.last = c->last, p.bad = bad.data();
  p.normalize = c->normalize != 0, p.eps = 1e-5f;
  p.project = c->project, p.project_bias = c->project_bias, p.out = c->out, p.out_bias = c->out_bias;
  p.norm = c->norm, p.norm_bias = c->norm_bias, p.g = c->g;
  float* const parts[] = {c->q, c->k, c->v};
  for (int part = 0; part < 3; ++part) {
    shrink[part].resize(c->rows);
    p.part[part] = parts[part], p.shrink[part] = shrink[part].data();
  }
  p.o = c->o, p.normed = normed.data(), p.deviation = deviation.data();
  const mdops::Gpu gpu({2, 90, 232448});
  const auto run = [&]<bool Even, int F, int W>() {
    gpu.launch(project_kernel<Even, F, W>, 2, kRowThreads,
               3 * Factor<F, 2 * W>::kBytes + static_cast<int>(sizeof(BlockNumbers)), p);
    gpu.launch(finish_kernel<Even, F, W>, 2, kRowThreads,
               Factor<W, 2 * F>::kBytes + static_cast<int>(sizeof(BlockNumbers)), p, c->result);
    gpu.launch(begin_kernel<Even, F, W>, 2, kRowThreads,
               Factor<F, 2 * W>::kBytes + static_cast<int>(sizeof(BlockNumbers)), p, c->grad, dh.data(),
               p.columns, c->grad_o, c->delta);
    gpu.launch(collect_kernel<Even, F, W>, 2, kRowThreads,
               3 * Factor<W, 2 * F>::kBytes + static_cast<int>(sizeof(BlockNumbers)), p,
               PartGradients{c->grad_q, c->grad_k, c->grad_v}, dh.data(), c->grad_g);
  };
  if (c->width % 2 || c->features % 2) return run.template operator()<false, 8, 8>();
  if (c->width <= 64 && c->features <= 64) return run.template operator()<true, 4, 4>();
  if (c->features <= 112) return run.template operator()<true, 7, 8>();
  run.template operator()<true, 8, 8>();
}

// A call of the op for sums after layers, and of its gradients.
struct MomentsCall {
  float *rows, *environment, *norm, *norm_bias, *gate, *switches, *absent, *grad;
  float *inner[2], *out[2], *bias[2], *project, *project_bias, *factors;
  int32_t *offsets, *plan;
  float *moments, *saved, *grad_rows, *grad_environment, *grad_gate, *grad_switch;
  int64_t count, atoms, layers, features, width[2], normalize, items, max_length;
};

extern "C" void run_moments(const MomentsCall* c) {
  mdops::AttentionMomentsArgs<float> args{};
  mdops::AttentionArgs<float>& a = args.attention;
  a.rows = c->count, a.heads = 1, a.sequences = c->atoms, a.gates = c->gate ? 3 : 0;
  a.offsets = c->offsets, a.shift = c->switches ? 20.0f : 0.0f;
  a.in.gate = c->gate, a.in.switches = c->switches, a.absent = c->absent;
  args.layers = static_cast<int>(c->layers), args.features = c->features, args.normalize = c->normalize != 0;
  args.eps = 1e-5f, args.norm = c->norm, args.norm_bias = c->norm_bias, args.rows = c->rows;
  args.environment = c->environment, args.saved = c->saved, args.grad = c->grad;
  for (int l = 0; l < args.layers; ++l)
    args.layer[l] = {c->width[l],
                     c->width[l],
                     0.7f,
                     c->inner[l],
                     c->out[l],
                     c->bias[l],
                     l ? c->project : nullptr,
                     l ? c->project_bias : nullptr,
                     l ? c->factors : nullptr};
  const mdops::Gpu gpu({2, 90, 232448});
  const mdops::AttentionPlan plan{c->plan, c->items, c->max_length};
  const auto memory = [&](bool backward) {
    return std::vector<char>(mdops::attention_moments_bytes(args, backward) + 256, '\xff');
  };
  const auto begin = [](std::vector<char>& bytes) {
    return bytes.data() + 256 - reinterpret_cast<uintptr_t>(bytes.data()) % 256;
  };
  std::vector<char> forward = memory(false), backward = memory(true);
  mdops::run_attention_moments(gpu, args, plan, begin(forward), c->moments);
  mdops::run_attention_moments_gradients(gpu, args, plan, begin(backward),
                                         {c->grad_rows, c->grad_environment, c->grad_gate, c->grad_switch});
}
