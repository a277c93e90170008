// The ops on nodes after messages. A device has `run_node_update` and `run_node_update_gradients`.
#pragma once

#include "common/activation_code.h"
#include "common/bind.h"
#include "node_update/node_update.h"

namespace mdops {

template <class Device>
struct NodeUpdateOps {
  static Tensor node_update(const Tensor& x_, const Tensor& z_, const Tensor& u_, const Tensor& m_,
                            const Tensor& weights, int64_t activation, double threshold) {
    const auto op = Device::make("node_update", "x", x_);
    const Inputs in(op, z_, u_, weights, activation, threshold);
    const Tensor x = input(op, "x", x_, in.dtype, {in.rows, in.width});
    const Tensor m = input(op, "m", m_, in.dtype, {in.rows, in.width});
    Tensor y = empty(op, {in.rows, in.width}, in.dtype);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      auto args = in.template args<T>();
      args.x = data_of(x), args.m = data_of(m), args.y = data_of(y);
      run_node_update(op, args);
    });
    return y;
  }

  // By z, u and m.
  static Outputs<3> node_update_backward(const Tensor& grad_, const Tensor& z_, const Tensor& u_,
                                         const Tensor& weights, int64_t activation, double threshold) {
    const auto op = Device::make("node_update_backward", "grad", grad_);
    const Inputs in(op, z_, u_, weights, activation, threshold);
    const Tensor grad = input(op, "grad", grad_, in.dtype, {in.rows, in.width});
    const auto rows = [&] { return empty(op, {in.rows, in.width}, in.dtype); };
    Tensor by_z = rows(), by_u = rows(), by_m = rows();
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      auto args = in.template args<T>();
      args.grad = data_of(grad);
      args.by_z = data_of(by_z), args.by_u = data_of(by_u), args.by_m = data_of(by_m);
      run_node_update_gradients(op, args);
    });
    return {by_z, by_u, by_m};
  }

  MDOPS_IMPLEMENT(NodeUpdateOps, node_update, node_update_backward)

 private:
  struct Inputs {
    Tensor z;
    ScalarType dtype = z.scalar_type();
    int64_t rows = z.size(0), width = z.size(1);
    Tensor u, weights;
    Activation activation;
    double threshold;

    Inputs(const Op& op, const Tensor& z_, const Tensor& u_, const Tensor& weights_, int64_t activation_,
           double threshold_)
        : z(float_input(op, "z", z_, {kAny, kAny})),
          u(input(op, "u", u_, dtype, {rows, width})),
          weights(input(op, "weights", weights_, dtype, {3, width})),
          activation(activation_of(op, activation_)),
          threshold(threshold_) {}

    template <class T>
    NodeUpdateArgs<T> args() const {
      NodeUpdateArgs<T> a{};
      a.z = data_of(z), a.u = data_of(u), a.weights = data_of(weights);
      a.numbers = rows * width, a.width = width;
      a.activation = activation, a.threshold = static_cast<T>(threshold);
      return a;
    }
  };
};

}  // namespace mdops
