// The op on products at points, its arguments checked at entry. What a device does are overloads of
// `run_grid` on the call of an op.
#pragma once

#include "common/bind.h"
#include "common/tensor.h"
#include "grid_product/grid_product.h"

namespace mdops {

template <class Device>
struct GridOps {
  static Tensor grid_product(const Tensor& a_, const Tensor& b_, const Tensor& out_, const Tensor& u_,
                             const Tensor& v_, bool by_angles) {
    const auto op = Device::make("grid_product", "u", u_);
    const Tensor u = Device::placed(float_input(op, "u", u_, {kAny, kAny, kAny}));
    const ScalarType dtype = u.scalar_type();
    const Tensor v = Device::placed(input(op, "v", v_, dtype, {u.size(0), kAny, u.size(2)}));
    const Tensor a = input(op, "a", a_, dtype, {kAny, u.size(1)});
    const Tensor b = input(op, "b", b_, dtype, {a.size(0), v.size(1)});
    const Tensor out = input(op, "out", out_, dtype, {a.size(0), kAny});
    Tensor y = empty(op, {u.size(0), out.size(1), u.size(2)}, dtype);
    dispatch_float(op, dtype, [&]<class T>(T) {
      run_grid(op,
               GridArgs<T>{a.size(0), a.size(1), b.size(1), out.size(1), u.size(0), u.size(2),
                           a.const_data_ptr<T>(), b.const_data_ptr<T>(), out.const_data_ptr<T>(),
                           u.const_data_ptr<T>(), v.const_data_ptr<T>(), y.mutable_data_ptr<T>(), by_angles});
    });
    return y;
  }

  MDOPS_IMPLEMENT(GridOps, grid_product)
};

}  // namespace mdops
