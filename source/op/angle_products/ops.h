// The ops on products of pairs. A device has `run_angle_products` and `run_angle_gradients`.
#pragma once

#include "angle_products/angle_products.h"
#include "common/bind.h"
#include "graph/row_index.h"

namespace mdops {

struct AngleProductInputs {
  static constexpr const char* kFirst = "u";
  using Given = Listed<Times<4, const Tensor&>, const std::optional<Tensor>&, const Tensor&>;

  Tensor u;
  ScalarType dtype = u.scalar_type();
  RowIndex first, second;

  AngleProductInputs(const Op& op, const Tensor& u_, const Tensor& first_, const Tensor& first_offsets,
                     const Tensor& second_, const std::optional<Tensor>& second_order,
                     const Tensor& second_offsets)
      : u(float_input(op, "u", u_, {kAny, 4})),
        first(op, first_, std::nullopt, first_offsets, first_.dim() == 1 ? first_.size(0) : 0,
              {"first", "", "first_offsets"}),
        second(op, second_, second_order, second_offsets, first.rows,
               {"second", "second_order", "second_offsets"}) {
    check_nodes(op, "u", u, first);
    check_nodes(op, "u", u, second);
  }

  Tensor of_rows(const Op& op, const char* name, const Tensor& t) const {
    return input(op, name, t, dtype, {first.rows});
  }

  template <class T>
  AngleProductArgs<T> args() const {
    AngleProductArgs<T> a{};
    a.u = data_of(u), a.rows = first.rows, a.things = first.targets;
    a.first = data_of(first.index), a.first_offsets = data_of(first.offsets);
    a.second = data_of(second.index), a.second_order = second.order_data();
    a.second_offsets = data_of(second.offsets);
    return a;
  }
};

template <class Device>
struct AngleProductOps {
  using Call = typename Device::Call;

  static Outputs<2> angle_products(const Call& op, const AngleProductInputs& in) {
    return products(op, in, nullptr);
  }

  static Outputs<2> angle_products_along(const Call& op, const AngleProductInputs& in, const Tensor& v) {
    const Tensor along = input(op, "v", v, in.dtype, {in.first.targets, 4});
    return products(op, in, &along);
  }

  // By u, of the gradients by both results.
  static Tensor angle_products_backward(const Call& op, const AngleProductInputs& in,
                                        const Tensor& by_cosines, const Tensor& by_weights) {
    const Tensor cosines = in.of_rows(op, "grad_cosines", by_cosines),
                 weights = in.of_rows(op, "grad_weights", by_weights);
    Tensor by_u = empty(op, {in.first.targets, 4}, in.dtype);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      auto args = in.args<T>();
      args.v = args.u;
      args.by_cosines = data_of(cosines), args.by_weights = data_of(weights), args.by_u = data_of(by_u);
      run_angle_gradients(op, args);
    });
    return by_u;
  }

  MDOPS_IMPLEMENT(AngleProductOps, angle_products, angle_products_along, angle_products_backward)

 private:
  static Outputs<2> products(const Call& op, const AngleProductInputs& in, const Tensor* v) {
    Tensor cosines = empty(op, {in.first.rows}, in.dtype), weights = empty(op, {in.first.rows}, in.dtype);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      auto args = in.args<T>();
      args.v = data_of(v);
      args.cosines = data_of(cosines), args.weights = data_of(weights);
      run_angle_products(op, args);
    });
    return {cosines, weights};
  }
};

}  // namespace mdops
