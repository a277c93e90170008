#include "attention/gpu_passes.h"
#include "attention/ops.h"
#include "common/cuda.h"

namespace mdops {

namespace {

using namespace gpu_attention;
using MaybeTensor = Optional;

// Calls f(T{}) with T the C++ type of the tensors.
void dispatch(ScalarType dtype, const auto& f) {
  if (dtype == ScalarType::Float) return f(float{});
  if (dtype == ScalarType::Double) return f(double{});
  if (dtype == ScalarType::Half) return f(__half{});
  f(__nv_bfloat16{});
}

template <class T>
const T* data(Input tensor) {
  return static_cast<const T*>(tensor.const_data_ptr());
}
template <class T>
const T* data(const MaybeTensor& tensor) {
  return tensor ? data<T>(*tensor) : nullptr;
}
template <class T>
T* data(Tensor& tensor) {
  return static_cast<T*>(tensor.mutable_data_ptr());
}
// Null if not requested.
template <class T>
T* data_if(bool asked, Tensor& tensor) {
  return asked ? data<T>(tensor) : nullptr;
}

// A tensor for a pass, if requested.
SumsMemory memory_in(const CudaOp& op, Tensor& sums) {
  return [&](int64_t count) {
    sums = empty(op, {count}, ScalarType::Float);
    return data<float>(sums);
  };
}

template <class T>
TensorArgs<T> args_of(const CudaOp& op, const AttentionInputs& in, Input plan) {
  TensorArgs<T> p{};
  p.q = data<T>(in.q), p.k = data<T>(in.k), p.v = data<T>(in.v);
  p.bias = data<T>(in.bias), p.gate = data<T>(in.gate), p.switches = data<T>(in.switches);
  p.absent = data<Sums<T>>(in.absent);
  p.offsets = data<int32_t>(in.offsets), p.plan = data<int32_t>(plan);
  p.rows = op.int32_of("q", in.rows), p.heads = op.int32_of("q", in.heads);
  p.width = static_cast<int>(in.width), p.value_width = static_cast<int>(in.value_width);
  p.key_stride = op.int32_of("q", in.heads * in.width);
  p.value_stride = op.int32_of("v", in.heads * in.value_width);
  p.sequences = op.int32_of("offsets", in.sequences), p.gates = static_cast<int>(in.gates);
  p.items = op.int32_of("plan", plan.size(0) - 1);
  const int longest = op.int32_of("max_length", in.max_length);
  p.max_length = longest < p.rows ? longest : p.rows;
  p.bias_size = in.bias ? in.bias->size(1) : 0;
  p.scale = static_cast<Sums<T>>(in.scale), p.shift = static_cast<Sums<T>>(in.shift);
  return p;
}

// Rows as bfloat16 kernels of warpgroups read them, 16 bytes at once.
AttentionInputs aligned_rows(AttentionInputs in) {
  if (in.dtype == ScalarType::BFloat16) in.q = aligned(in.q), in.k = aligned(in.k), in.v = aligned(in.v);
  return in;
}
AttentionSaved aligned_rows(AttentionSaved saved) {
  saved.grad_out = aligned(saved.grad_out), saved.out = aligned(saved.out);
  return saved;
}

// The number of 16-bit parts in the tensor cores' products.
int parts_of(const AttentionInputs& in) {
  return in.matmul == Matmul::tf32 || in.matmul == Matmul::bf16 ? 1 : 2;
}

Tensor like(const CudaOp& op, const AttentionInputs& in, const MaybeTensor& tensor) {
  if (!tensor) return empty(op, {0}, in.dtype);
  if (tensor->dim() == 1) return empty(op, {tensor->size(0)}, in.dtype);
  return empty(op, {tensor->size(0), tensor->size(1)}, in.dtype);
}

// The gradients of q, k, v, bias, gate and switch.
struct Gradients {
  Tensor q, k, v, bias, gate, switches;

  Gradients(const CudaOp& op, const AttentionInputs& in)
      : q(empty(op, {in.rows, in.heads, in.width}, in.dtype)),
        k(empty(op, {in.rows, in.heads, in.width}, in.dtype)),
        v(empty(op, {in.rows, in.heads, in.value_width}, in.dtype)),
        bias(like(op, in, in.bias)),
        gate(like(op, in, in.gate)),
        switches(like(op, in, in.switches)) {
    if (in.bias) op.clear(bias);
    if (in.rows == 0 && in.gate) op.clear(gate);
  }
};

// Calls f(arguments, bad, bias_at, gradient arguments) with memory for data between kernels.
template <class T, class F>
void with_memory(const CudaOp& op, const AttentionInputs& in, const AttentionSaved& saved, Gradients& to,
                 bool second, const F& f) {
  using A = Sums<T>;
  const Tensor items = aligned(in.plan);
  const TensorArgs<T> p = args_of<T>(op, in, items);
  GradientArgs<T> g{};
  g.grad_out = data<T>(saved.grad_out), g.out = data<T>(saved.out), g.logsumexp = data<A>(saved.logsumexp);
  g.grad_q = data<T>(to.q), g.grad_k = data<T>(to.k), g.grad_v = data<T>(to.v);
  g.grad_bias = data_if<T>(in.bias.has_value(), to.bias);
  const int64_t rows = in.rows * in.heads;
  int32_t* bad = nullptr;
  int64_t* bias_at = nullptr;
  const auto take = [&](char* memory) {
    Workspace space(memory);
    bad = space.take<int32_t>(kPrepareBlocks);
    bias_at = space.take<int64_t>(in.bias ? in.sequences : 0);
    g.delta = space.take<A>(rows);
    if (second) g.mean = space.take<A>(rows), g.delta_change = space.take<A>(rows);
    if (in.gate || in.switches) g.parts = space.take<A>(2 * rows * (in.gates + 1));
    return space.size();
  };
  Tensor memory = empty(op, {take(nullptr)}, ScalarType::Byte);
  take(data<char>(memory));
  f(p, bad, bias_at, g);
}

}  // namespace

static Outputs<2> attend(const CudaOp& op, const AttentionInputs& given) {
  const AttentionInputs in = aligned_rows(given);
  Tensor out = empty(op, {in.rows, in.heads, in.value_width}, in.dtype);
  Tensor logsumexp = empty(op, {in.rows, in.heads}, in.sums);
  if (in.rows == 0) return {out, logsumexp};
  const Tensor items = aligned(in.plan);
  Tensor bad = empty(op, {kPrepareBlocks}, ScalarType::Int);
  Tensor bias_at = empty(op, {in.bias ? in.sequences : 0}, ScalarType::Long);
  dispatch(in.dtype, [&]<class T>(T) {
    const TensorArgs<T> p = args_of<T>(op, in, items);
    const ForwardResults<T> results{data<T>(out), data<Sums<T>>(logsumexp)};
    forward_pass(op, p, parts_of(in), data<int32_t>(bad), data<int64_t>(bias_at), results);
  });
  return {out, logsumexp};
}

static AttentionGradients attention_gradients(const CudaOp& op, const AttentionInputs& given,
                                              const AttentionSaved& given_saved) {
  const AttentionInputs in = aligned_rows(given);
  const AttentionSaved saved = aligned_rows(given_saved);
  Gradients to(op, in);
  if (in.rows > 0)
    dispatch(in.dtype, [&]<class T>(T) {
      with_memory<T>(op, in, saved, to, false,
                     [&](const TensorArgs<T>& p, int32_t* bad, int64_t* bias_at, const GradientArgs<T>& g) {
                       T* const gate = data_if<T>(in.gate.has_value(), to.gate);
                       T* const switches = data_if<T>(in.switches.has_value(), to.switches);
                       Tensor sums;
                       backward_pass(op, p, parts_of(in), bad, bias_at, g, gate, switches,
                                     memory_in(op, sums));
                     });
    });
  return {to.q, to.k, to.v, to.bias, to.gate, to.switches};
}

static Outputs<7> attention_seconds(const CudaOp& op, const AttentionInputs& in, const AttentionSaved& saved,
                                    const AttentionDirections& along) {
  Gradients to(op, in);
  Tensor grad_grad_out = empty(op, {in.rows, in.heads, in.value_width}, in.dtype);
  if (in.rows > 0)
    dispatch(in.dtype, [&]<class T>(T) {
      const Directions<T> u{data<T>(along.q),    data<T>(along.k),    data<T>(along.v),
                            data<T>(along.bias), data<T>(along.gate), data<T>(along.switches)};
      with_memory<T>(op, in, saved, to, true,
                     [&](const TensorArgs<T>& p, int32_t* bad, int64_t* bias_at, GradientArgs<T> g) {
                       g.grad_grad_out = data<T>(grad_grad_out);
                       Tensor sums;
                       second_pass(op, p, parts_of(in), bad, bias_at, g, u,
                                   data_if<T>(in.gate.has_value(), to.gate),
                                   data_if<T>(in.switches.has_value(), to.switches), memory_in(op, sums));
                     });
    });
  return {grad_grad_out, to.q, to.k, to.v, to.bias, to.gate, to.switches};
}

}  // namespace mdops

MDOPS_ON_GPU(AttentionOps)
