// Nets on a GPU. A value and its gradient in float32 use the kernels of whole models' nets (gpu_own_rows.h)
// if these take the net and are faster. Everything else, of any shape, float32 and float64, every derivative,
// uses products of layers (linear/cuda_call.h) with a kernel after each.

#include "common/cuda.h"
#include "gemm/gpu_mlp.h"
#include "gemm/gpu_own_rows.h"
#include "gemm/ops.h"
#include "linear/cuda_call.h"
#include "linear/ops.h"

namespace mdops {

namespace {

using Lists = Tensors;

// The rows' arrays of all layers; undefined tensors if there is none.
struct MlpArrays {
  Lists y, slope, curve, f, df, dz, dy;
};

template <class T>
T* data(Tensor& tensor) {
  return tensor.numel() ? tensor.mutable_data_ptr<T>() : nullptr;
}
template <class T>
const T* data(Input tensor) {
  return tensor.numel() ? tensor.const_data_ptr<T>() : nullptr;
}

// The derivatives of a call.
struct MlpWanted {
  bool slopes = false, second = false, weights = false;
};

template <class T>
class MlpCall {
 public:
  MlpCall(const CudaOp& op, const MlpInputs& in, MlpWanted wanted)
      : op_(op), in_(in), wanted_(wanted), nothing_(empty(op, {0}, in.dtype)) {}

  int last() const { return in_.shape.layers - 1; }
  const Tensor& value() const { return arrays_.y.back(); }
  const Tensor& tangent() const { return arrays_.dy.back(); }

  void forward() {
    for (int n = 0; n <= last(); ++n) {
      const Tensor& x = n ? arrays_.y[n - 1] : in_.x;
      Tensor y = layer_product(op_, ProductForm::plain, x, in_.weights[n]);
      const bool timed = wanted_.weights && in_.has_timestep(n);
      Tensor slope = like(y, wanted_.slopes), curve = like(y, wanted_.second), f = like(y, timed),
             df = like(y, timed && wanted_.second);
      const MlpValues<T> v{data<T>(y), data<T>(slope), data<T>(curve), data<T>(f), data<T>(df), data<T>(x)};
      with_activation(in_.shape.activation[n], [&]<Activation kind>() {
        op_.launch(mlp_value_kernel<T, kind>, blocks(n), kMlpThreads, 0, layer(n), v);
      });
      arrays_.y.push_back(y), arrays_.slope.push_back(slope), arrays_.curve.push_back(curve);
      arrays_.f.push_back(f), arrays_.df.push_back(df);
    }
  }

  void tangents(Input direction) {
    direction_ = &direction;
    for (int n = 0; n <= last(); ++n) {
      const Tensor& dx = n ? arrays_.dy[n - 1] : direction;
      Tensor dz = layer_product(op_, ProductForm::plain, dx, in_.weights[n]), dy = like(dz, true);
      op_.launch(mlp_tangent_kernel<T>, blocks(n), kMlpThreads, 0, layer(n), data<T>(dz),
                 data<T>(arrays_.slope[n]), data<T>(dx), data<T>(dy));
      arrays_.dz.push_back(dz), arrays_.dy.push_back(dy);
    }
  }

  // The gradient by x, from those by y and, with tangents, by dy.
  Tensor backward(Input by_value, Input by_tangent, MlpGradients& grads) {
    Tensor grad = by_value, grad_dy = by_tangent;
    for (int n = last(); n >= 0; --n) {
      const bool timed = wanted_.weights && in_.has_timestep(n), second = wanted_.second;
      Tensor delta = like(grad, true), delta_dz = like(grad, second), steps = like(grad, timed);
      const MlpDeltas<T> v{data<T>(std::as_const(grad)),
                           second ? data<T>(std::as_const(grad_dy)) : nullptr,
                           data<T>(std::as_const(arrays_.slope[n])),
                           data<T>(std::as_const(arrays_.curve[n])),
                           second ? data<T>(std::as_const(arrays_.dz[n])) : nullptr,
                           data<T>(std::as_const(arrays_.f[n])),
                           data<T>(std::as_const(arrays_.df[n])),
                           data<T>(delta),
                           data<T>(delta_dz),
                           data<T>(steps)};
      op_.launch(mlp_delta_kernel<T>, blocks(n), kMlpThreads, 0, layer(n), v);
      if (wanted_.weights) weight_gradients(n, delta, delta_dz, steps, grads);
      grad = input_gradient(n, delta, grad);
      if (second && n > 0) grad_dy = input_gradient(n, delta_dz, grad_dy);
    }
    return grad;
  }

 private:
  Tensor like(Input tensor, bool wanted) const {
    return wanted ? empty(op_, {tensor.size(0), tensor.size(1)}, in_.dtype) : nothing_;
  }
  int64_t blocks(int n) const { return (in_.rows * in_.shape.neurons[n] + kMlpThreads - 1) / kMlpThreads; }
  int64_t inputs(int n) const { return n ? in_.shape.neurons[n - 1] : in_.shape.features; }

  MlpLayerArgs<T> layer(int n) const {
    return {in_.rows * in_.shape.neurons[n], in_.shape.neurons[n],     op_.int32_of("x", inputs(n)),
            in_.shape.residual[n],           in_.shape.activation[n],  static_cast<T>(in_.shape.threshold[n]),
            data<T>(in_.biases[n]),          data<T>(in_.timesteps[n])};
  }

  Tensor input_gradient(int n, Input delta, Input grad) const {
    Tensor to = layer_product(op_, ProductForm::b_transposed, delta, in_.weights[n]);
    const int64_t numbers = in_.rows * inputs(n);
    if (in_.shape.residual[n])
      op_.launch(mlp_around_kernel<T>, (numbers + kMlpThreads - 1) / kMlpThreads, kMlpThreads, 0, layer(n),
                 numbers, data<T>(grad), data<T>(to));
    return to;
  }

  void weight_gradients(int n, Input delta, Input delta_dz, Input steps, MlpGradients& grads) {
    const Tensor& x = n ? arrays_.y[n - 1] : in_.x;
    Tensor* const sums = in_.biases[n].numel() ? &grads.biases[n] : nullptr;
    grads.weights[n] = layer_product(op_, ProductForm::a_transposed, x, delta, nullptr, sums);
    if (wanted_.second) {
      const Tensor& dx = n ? arrays_.dy[n - 1] : *direction_;
      const Tensor other = layer_product(op_, ProductForm::a_transposed, dx, delta_dz);
      const int64_t count = other.numel();
      op_.launch(mlp_sum_kernel<T>, (count + kMlpThreads - 1) / kMlpThreads, kMlpThreads, 0, count,
                 data<T>(other), data<T>(grads.weights[n]));
    }
    if (in_.has_timestep(n)) grads.timesteps[n] = column_sums(steps);
  }

  const CudaOp& op_;
  const MlpInputs& in_;
  const MlpWanted wanted_;
  const Tensor nothing_;
  const Tensor* direction_ = nullptr;
  MlpArrays arrays_;
};

auto for_dtype(const CudaOp& op, const MlpInputs& in, MlpWanted wanted, const auto& f) {
  return dispatch_float(op, in.dtype, [&]<class T>(T) {
    MlpCall<T> call(op, in, wanted);
    call.forward();
    return f(call);
  });
}

using ValueAndGradient = Outputs<2>;

// Uses the kernels of models' nets, if they run and are faster.
template <int Parts>
std::optional<ValueAndGradient> by_models_kernels(const CudaOp& op, const MlpInputs& in,
                                                  const GpuNetShape& net) {
  if (!own_rows_pay(net, in.shape.features, in.rows, Parts)) return std::nullopt;
  Tensor value = empty(op, {in.rows, 1}, in.dtype),
         gradient = empty(op, {in.rows, in.shape.features}, in.dtype);
  OwnRows rows{};
  rows.x = data<float>(in.x), rows.rows = in.rows, rows.columns = static_cast<int>(in.shape.features);
  rows.value = data<float>(value), rows.gradient = data<float>(gradient);
  OwnRowsCall<Parts> call(op, net, rows);
  if (!call.runs()) return std::nullopt;
  std::vector<LayerWeights> layers;
  for (size_t n = 0; n < in.weights.size(); ++n)
    layers.push_back({data<float>(in.weights[n]), data<float>(in.biases[n]), data<float>(in.timesteps[n])});
  Tensor memory = empty(op, {call.bytes()}, ScalarType::Byte);
  call.run(layers, memory.mutable_data_ptr());
  return ValueAndGradient(value, gradient);
}

std::optional<ValueAndGradient> by_models_kernels(const CudaOp& op, const MlpInputs& in) {
  if (in.dtype != ScalarType::Float || in.rows == 0) return std::nullopt;
  const std::optional<GpuNetShape> net = own_net(in.shape);
  if (!net) return std::nullopt;
  const bool one_part = in.matmul == Matmul::tf32 || in.matmul == Matmul::bf16;
  return one_part ? by_models_kernels<1>(op, in, *net) : by_models_kernels<2>(op, in, *net);
}

}  // namespace

static Tensor mlp_values(const CudaOp& op, const MlpInputs& in) {
  return for_dtype(op, in, {}, [](auto& call) { return call.value(); });
}

static ValueAndGradient mlp_values_and_gradients(const CudaOp& op, const MlpInputs& in) {
  if (const auto found = by_models_kernels(op, in)) return *found;
  Tensor first = zeros(op, {in.rows, in.outputs}, in.dtype);
  Tensor column = torch::stable::narrow(first, 1, 0, 1);
  torch::stable::fill_(column, 1.0);
  return for_dtype(op, in, {.slopes = true}, [&](auto& call) -> ValueAndGradient {
    MlpGradients none(op, in, false);
    const Tensor gradient = call.backward(first, first, none);
    return {call.value(), gradient};
  });
}

static Tensor mlp_gradients(const CudaOp& op, const MlpInputs& in, Input a, bool with_weights,
                            MlpGradients& grads) {
  return for_dtype(op, in, {.slopes = true, .weights = with_weights},
                   [&](auto& call) { return call.backward(a, a, grads); });
}

static Outputs<2> mlp_seconds(const CudaOp& op, const MlpInputs& in, Input u, Input b, Input a,
                              bool with_weights, MlpGradients& grads) {
  const MlpWanted wanted{.slopes = true, .second = true, .weights = with_weights};
  return for_dtype(op, in, wanted, [&](auto& call) -> Outputs<2> {
    call.tangents(u);
    const Tensor by_x = call.backward(a, b, grads);
    return {call.tangent(), by_x};
  });
}

}  // namespace mdops

MDOPS_ON_GPU(MlpOps)
