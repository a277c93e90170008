// The ops on layers of edges, their arguments checked at entry. What a device does are overloads of `run_so2`
// on the call of an op.
#pragma once

#include <string>

#include "common/bind.h"
#include "common/given.h"
#include "common/tensor.h"
#include "gemm/matmul.h"
#include "so2_layer/so2_layer.h"

namespace mdops {

struct So2Inputs {
  Tensor x;
  ScalarType dtype;
  int64_t rows, channels, degrees;
  Tensor weight, both, gate;
  Matmul matmul;

  template <class Device>
  So2Inputs(const Op& op, Device, const Tensor& x_, const Tensor& weight_, const Tensor& both_,
            const Tensor& gate_, const std::string& matmul_)
      : x(Device::placed(float_input(op, "x", x_, {kAny, kAny, kAny}))),
        dtype(x.scalar_type()),
        rows(x.size(1)),
        channels(x.size(2)),
        degrees((rows - 1) / 3),
        weight(Device::placed(
            input(op, "weight", weight_, dtype, {(degrees + 1) * channels, (degrees + 1) * channels}))),
        both(Device::placed(input(op, "both", both_, dtype, {degrees * channels, 2 * degrees * channels}))),
        gate(Device::placed(input(op, "gate", gate_, dtype,
                                  {gate_.numel() ? channels : 0, gate_.numel() ? degrees * channels : 0}))),
        matmul(matmul_of(op, matmul_)) {
    if (rows < 1 || rows != 3 * degrees + 1 || channels < 1)
      fail(op, "argument `x` has " + std::to_string(rows) + " rows of " + std::to_string(channels) +
                   " channels, expected 3 L + 1 rows and 1 channel or more");
    if (op.on_cpu()) refuse_tf32(op, matmul);
  }

  template <class T>
  So2Args<T> args(Tensor& y) const {
    const T* const gated = gate.numel() ? gate.const_data_ptr<T>() : nullptr;
    return {x.size(0),
            degrees,
            channels,
            x.const_data_ptr<T>(),
            weight.const_data_ptr<T>(),
            both.const_data_ptr<T>(),
            gated,
            nullptr,
            nullptr,
            y.mutable_data_ptr<T>(),
            matmul == Matmul::tf32 || matmul == Matmul::bf16 ? 1 : 2};
  }
};

template <class Device>
struct So2Ops {
  static Tensor so2_layer(const Tensor& x, const Tensor& weight, const Tensor& both, const Tensor& gate,
                          std::string matmul) {
    const auto op = Device::make("so2_layer", "x", x);
    const So2Inputs in(op, Device{}, x, weight, both, gate, matmul);
    Tensor y = empty(op, {in.x.size(0), in.rows, in.channels}, in.dtype);
    dispatch_float(op, in.dtype, [&](auto zero) { run_so2(op, in.args<decltype(zero)>(y)); });
    return y;
  }

  static Tensor so2_layer_backward(const Tensor& grad_, const Tensor& x, const Tensor& weight,
                                   const Tensor& both, const Tensor& gate, std::string matmul,
                                   const Tensor& result_) {
    const auto op = Device::make("so2_layer_backward", "x", x);
    const So2Inputs in(op, Device{}, x, weight, both, gate, matmul);
    const auto placed = [&](const char* name, const Tensor& given) {
      return Device::placed(input(op, name, given, in.dtype, {in.x.size(0), in.rows, in.channels}));
    };
    const Tensor grad = placed("grad", grad_), result = placed("result", result_);
    Tensor by_x = empty(op, {in.x.size(0), in.rows, in.channels}, in.dtype);
    dispatch_float(op, in.dtype, [&](auto zero) {
      using T = decltype(zero);
      auto args = in.args<T>(by_x);
      args.grad = given<T>(grad), args.result = result.const_data_ptr<T>();
      run_so2(op, args);
    });
    return by_x;
  }

  MDOPS_IMPLEMENT(So2Ops, so2_layer, so2_layer_backward)
};

}  // namespace mdops
