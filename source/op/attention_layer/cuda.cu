#include <algorithm>
#include <optional>
#include <tuple>

#include "attention/gpu_passes.h"
#include "attention_layer/gpu_rows.h"
#include "attention_layer/inputs.h"
#include "common/cuda.h"

namespace mdops {

namespace {

using namespace gpu_attention_layer;
using gpu_attention::kPrepareBlocks;
using gpu_attention::TensorArgs;
using Optional = std::optional<Tensor>;

constexpr int kParts = 2;  // of a number, for the accuracy of float32's products

// f<F, W>(), the widths in units of 16.
template <class F>
auto with_widths(const RowArgs& p, const F& f) {
  if (p.width <= 64 && p.features <= 64) return f.template operator()<4, 4>();
  if (p.features <= 112) return f.template operator()<7, 8>();
  return f.template operator()<8, 8>();
}

float* numbers(Tensor& tensor) {
  return static_cast<float*>(tensor.mutable_data_ptr());
}
const float* numbers(const Tensor& tensor) {
  return static_cast<const float*>(tensor.const_data_ptr());
}
const float* numbers(const Optional& tensor) {
  return tensor ? numbers(*tensor) : nullptr;
}

class Layer {
 public:
  // `saved` is written by the forward pass.
  Layer(const CudaOp& op, const LayerInputs& in, float* saved, double scale, double shift, double eps,
        bool normalize)
      : op_(op), plan_(aligned(*in.plan)), limits_(op.limits()) {
    r_.rows = op.int32_of("g", in.rows), r_.features = static_cast<int>(in.features);
    r_.width = static_cast<int>(in.width), r_.normalize = normalize, r_.eps = static_cast<float>(eps);
    r_.project = numbers(in.project), r_.project_bias = numbers(in.project_bias);
    r_.out = numbers(in.out), r_.out_bias = numbers(in.out_bias);
    r_.norm = numbers(in.norm), r_.norm_bias = numbers(in.norm_bias), r_.g = numbers(in.g);
    const auto take = [&](int64_t count) {
      float* const piece = saved;
      saved += count;
      return piece;
    };
    for (float*& part : r_.part) part = take(in.rows * in.width);
    r_.o_out = take(in.rows * in.features);
    for (float*& shrink : r_.shrink) shrink = take(in.rows);
    r_.deviation = take(in.rows), r_.mean = take(in.rows), logsumexp_ = take(in.rows);
    rest_ = saved;
    rest_size_ = in.rows * (attention_layer_saved(in.features, in.width) - 3 * in.width - in.features - 6);
    a_.q = r_.part[0], a_.k = r_.part[1], a_.v = r_.part[2];
    a_.gate = numbers(in.gate), a_.switches = numbers(in.switches), a_.absent = numbers(in.absent);
    r_.last = in.offsets.const_data_ptr<int32_t>() + in.atoms;
    a_.offsets = in.offsets.const_data_ptr<int32_t>(), a_.plan = plan_.const_data_ptr<int32_t>();
    a_.rows = r_.rows, a_.heads = 1, a_.width = a_.value_width = r_.width;
    a_.sequences = op.int32_of("offsets", in.atoms), a_.gates = in.gate ? 3 : 0;
    a_.items = op.int32_of("plan", plan_.size(0) - 1);
    a_.max_length = std::min(op.int32_of("max_length", in.max_length), r_.rows);
    a_.leaves_rest = true;
    a_.scale = static_cast<float>(scale), a_.shift = in.switches ? static_cast<float>(shift) : 0.0f;
  }

  void forward(float* result) {
    int32_t* bad = nullptr;
    float* o = nullptr;
    const Tensor memory = with_memory([&](Workspace& space) {
      bad = space.take<int32_t>(kPrepareBlocks), o = space.take<float>(numbers_of(r_.width));
    });
    r_.bad = bad;
    op_.Gpu::clear(rest_, rest_size_ * static_cast<int64_t>(sizeof(float)));
    with_widths(r_, [&]<int F, int W>() {
      each_part(Factor<F, 2 * W>::kBytes, [&](int64_t bytes) { launch(project_kernel<F, W>, bytes); });
      forward_pass(op_, a_, kParts, bad, {o, logsumexp_});
      launch(finish_kernel<F, W>, Factor<W, 2 * F>::kBytes, o, result);
    });
  }

  // `grad_gate` and `grad_switch` null where there are none.
  void backward(const float* grad, float* grad_g, float* grad_gate, float* grad_switch) {
    int32_t* bad = nullptr;
    float *dh = nullptr, *grad_o = nullptr;
    gpu_attention::GradientArgs<float> g{};
    const Tensor memory = with_memory([&](Workspace& space) {
      bad = space.take<int32_t>(kPrepareBlocks), dh = space.take<float>(numbers_of(r_.features));
      grad_o = space.take<float>(numbers_of(r_.width)), g.delta = space.take<float>(r_.rows);
      g.grad_q = space.take<float>(numbers_of(r_.width)), g.grad_k = space.take<float>(numbers_of(r_.width));
      g.grad_v = space.take<float>(numbers_of(r_.width));
      if (a_.gate || a_.switches) g.parts = space.take<float>(2 * numbers_of(a_.gates + 1));
    });
    g.grad_out = grad_o, g.logsumexp = logsumexp_, r_.bad = bad;
    with_widths(r_, [&]<int F, int W>() {
      launch(begin_kernel<F, W>, Factor<F, 2 * W>::kBytes, grad, dh, grad_o, g.delta);
      backward_pass(op_, a_, kParts, bad, g, grad_gate, grad_switch);
      const float* from = dh;
      each_part(Factor<W, 2 * F>::kBytes, [&](int64_t bytes) {
        launch(collect_kernel<F, W>, bytes, PartGradients{g.grad_q, g.grad_k, g.grad_v}, from, grad_g);
        from = grad_g;
      });
    });
  }

 private:
  int64_t numbers_of(int columns) const { return static_cast<int64_t>(r_.rows) * columns; }

  template <class F>
  Tensor with_memory(const F& take) const {
    Workspace counted(nullptr);
    take(counted);
    Tensor memory = empty(op_, {counted.size()}, ScalarType::Byte);
    Workspace space(static_cast<char*>(memory.mutable_data_ptr()));
    take(space);
    return memory;
  }

  // Launches for the weights of q, k and v: all three at once where shared memory holds them, else one by
  // one.
  template <class F>
  void each_part(int64_t bytes, const F& f) {
    const int at_once =
        3 * bytes + static_cast<int64_t>(sizeof(BlockNumbers)) <= limits_.shared_bytes ? 3 : 1;
    for (r_.begin = 0; r_.begin < 3; r_.begin += at_once) {
      r_.end = r_.begin + at_once;
      f(at_once * bytes);
    }
  }

  template <class Kernel, class... Args>
  void launch(Kernel* kernel, int64_t shared, const Args&... args) const {
    const int64_t blocks =
        std::min<int64_t>(limits_.multiprocessors, blocks_for(r_.rows, kGroup * kRowWarps));
    op_.launch(kernel, blocks, kRowThreads, shared + sizeof(BlockNumbers), r_, args...);
  }

  const CudaOp& op_;
  const Tensor plan_;
  GpuLimits limits_;
  RowArgs r_{};
  TensorArgs<float> a_{};
  float *logsumexp_, *rest_;
  int64_t rest_size_;  // of what is kept, that nothing is in
};

// Refuses what the kernels do not have.
void check(const CudaOp& op, const LayerInputs& in) {
  if (in.dtype != ScalarType::Float) fail(op, "argument `g` must be of float32 on a GPU");
  if (in.features > kWidestRow || in.width > kWidestRow)
    fail(op, "arguments `g` and `out_weight` have " + std::to_string(in.features) + " and " +
                 std::to_string(in.width) + " columns, expected at most " + std::to_string(kWidestRow) +
                 " on a GPU");
  if (!in.plan) fail(op, "argument `plan` is needed on a GPU");
  if (in.rows > INT32_MAX - kPlanTile) fail(op, "rows must fit into 32-bit indices");
}

std::tuple<Tensor, Tensor> attention_layer(const Tensor& g, const Tensor& offsets,
                                           const Tensor& project_weight, const Tensor& project_bias,
                                           const Tensor& out_weight, const Tensor& out_bias,
                                           const Tensor& norm_weight, const Tensor& norm_bias,
                                           const Optional& gate, const Optional& switches,
                                           const Optional& absent, double scale, double shift, double eps,
                                           bool normalize, const Optional& plan, int64_t max_length) {
  const CudaOp op("attention_layer", "g", g);
  const LayerInputs in(op, g, offsets, project_weight, project_bias, out_weight, out_bias, norm_weight,
                       norm_bias, gate, switches, absent, plan, max_length);
  check(op, in);
  Tensor result = empty(op, {in.rows, in.features}, in.dtype), saved = empty(op, in.saved_shape(), in.dtype);
  if (in.rows > 0) Layer(op, in, numbers(saved), scale, shift, eps, normalize).forward(numbers(result));
  return {result, saved};
}

std::tuple<Tensor, Tensor, Tensor> attention_layer_backward(
    const Tensor& grad, const Tensor& saved, const Tensor& g, const Tensor& offsets,
    const Tensor& project_weight, const Tensor& project_bias, const Tensor& out_weight,
    const Tensor& out_bias, const Tensor& norm_weight, const Tensor& norm_bias, const Optional& gate,
    const Optional& switches, const Optional& absent, double scale, double shift, double eps, bool normalize,
    const Optional& plan, int64_t max_length) {
  const CudaOp op("attention_layer_backward", "g", g);
  const LayerInputs in(op, g, offsets, project_weight, project_bias, out_weight, out_bias, norm_weight,
                       norm_bias, gate, switches, absent, plan, max_length);
  check(op, in);
  const Tensor by = input(op, "grad", grad, in.dtype, {in.rows, in.features});
  const Tensor kept =
      input(op, "saved", saved, in.dtype, {in.rows, attention_layer_saved(in.features, in.width)});
  Tensor grad_g = empty(op, {in.rows, in.features}, in.dtype);
  Tensor grad_gate = in.gate ? empty(op, {in.rows, 3}, in.dtype) : empty(op, {0}, in.dtype);
  Tensor grad_switch = empty(op, {in.switches ? in.rows : 0}, in.dtype);
  if (in.rows > 0)
    Layer(op, in, const_cast<float*>(numbers(kept)), scale, shift, eps,
          normalize)  // which this pass reads alone
        .backward(numbers(by), numbers(grad_g), in.gate ? numbers(grad_gate) : nullptr,
                  in.switches ? numbers(grad_switch) : nullptr);
  return {grad_g, grad_gate, grad_switch};
}

}  // namespace

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  m.impl("attention_layer", TORCH_BOX(&mdops::attention_layer));
  m.impl("attention_layer_backward", TORCH_BOX(&mdops::attention_layer_backward));
}
