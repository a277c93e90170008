// The ops on coefficients in the frames of edges, their arguments checked at entry. What a device does are
// overloads of `run_rotation` on the call of an op and a kernel's arguments.
#pragma once

#include <optional>
#include <string>
#include <tuple>

#include "common/bind.h"
#include "common/instantiate.h"
#include "common/tensor.h"
#include "edge_rotation/edge_rotation.h"
#include "edge_rotation/rotate.h"
#include "graph/row_index.h"

namespace mdops {

template <class Device>
struct EdgeRotationOps {
  using Call = typename Device::Call;

  // Terms with weights.
  struct Weighted {
    static constexpr const char* kFirst = "turn";
    using Given = Listed<Times<4, const Tensor&>, const std::optional<Tensor>&, const Tensor&>;

    Tensor turn, y, weight;
    RowIndex of;
    RotationShape shape;

    Weighted(const Op& op, const Tensor& turn_, const Tensor& y_, const Tensor& weight_, const Tensor& index,
             const std::optional<Tensor>& order, const Tensor& offsets)
        : turn(Device::placed(float_input(op, "turn", turn_, {kAny, kAny, kAny}))),
          y(Device::placed(input(op, "y", y_, turn.scalar_type(), {turn.size(0), turn.size(1), kAny}))),
          weight(input(op, "weight", weight_, turn.scalar_type(), {turn.size(0), 1})),
          of(op, index, order, offsets, turn.size(0)),
          shape{turn.size(0), of.targets, turn.size(1), turn.size(2), y.size(2)} {
      check_columns(op, shape.columns);
    }
  };

  static Tensor edge_rotate(const Tensor& turn_, const Tensor& x_, const Tensor& index,
                            const std::optional<Tensor>& order, const Tensor& offsets) {
    const auto op = Device::make("edge_rotate", "turn", turn_);
    const Tensor turn = Device::placed(float_input(op, "turn", turn_, {kAny, kAny, kAny}));
    const Tensor x = Device::placed(input(op, "x", x_, turn.scalar_type(), {kAny, turn.size(2), kAny}));
    const RowIndex of(op, index, order, offsets, turn.size(0));
    const RotationShape shape = shape_of(op, of, x, turn.size(1));
    Tensor y = empty(op, {shape.edges, shape.rows, shape.channels}, x.scalar_type());
    dispatch_float(op, x.scalar_type(), [&]<class T>(T) {
      run_rotation(op, RotateArgs<T>{shape, data_of(turn), rows<T>(x, of), data_of(y)});
    });
    return y;
  }

  static Tensor edge_rotate_sum(const Tensor& turn_, const Tensor& y_, const Tensor& index,
                                const std::optional<Tensor>& order, const Tensor& offsets) {
    const auto op = Device::make("edge_rotate_sum", "turn", turn_);
    const Tensor turn = Device::placed(float_input(op, "turn", turn_, {kAny, kAny, kAny}));
    const int64_t edges = turn.size(0), columns = turn.size(2);
    const Tensor y = Device::placed(input(op, "y", y_, turn.scalar_type(), {edges, turn.size(1), kAny}));
    const RowIndex of(op, index, order, offsets, edges);
    check_columns(op, columns);
    Tensor x = empty(op, {of.targets, columns, y.size(2)}, y.scalar_type());
    const RotationShape shape{edges, of.targets, y.size(1), columns, y.size(2)};
    dispatch_float(op, y.scalar_type(), [&]<class T>(T) {
      run_rotation(op, RotateSumArgs<T>{shape, data_of(turn), data_of(y), data_of(of.index), of.order_data(),
                                        data_of(of.offsets), data_of(x)});
    });
    return x;
  }

  static Tensor edge_rotate_back(const Call& op, const Weighted& in) {
    Tensor x = empty(op, {in.shape.nodes, in.shape.columns, in.shape.channels}, in.y.scalar_type());
    dispatch_float(op, in.y.scalar_type(), [&]<class T>(T) {
      run_rotation(op, RotateSumArgs<T>{in.shape, in.turn.template const_data_ptr<T>(),
                                        in.y.template const_data_ptr<T>(),
                                        in.of.index.template const_data_ptr<int32_t>(), in.of.order_data(),
                                        in.of.offsets.template const_data_ptr<int32_t>(),
                                        x.mutable_data_ptr<T>(), in.weight.template const_data_ptr<T>()});
    });
    return x;
  }

  static std::tuple<Tensor, Tensor, Tensor> edge_rotate_back_backward(const Call& op, const Weighted& in,
                                                                      const Tensor& grad_) {
    const auto [edges, nodes, rows_, columns, channels] = in.shape;
    const ScalarType dtype = in.y.scalar_type();
    const Tensor grad = Device::placed(input(op, "grad", grad_, dtype, {nodes, columns, channels}));
    Tensor by_turn = empty(op, {edges, rows_, columns}, dtype),
           by_y = empty(op, {edges, rows_, channels}, dtype);
    Tensor by_weight = empty(op, {edges, 1}, dtype);
    dispatch_float(op, dtype, [&]<class T>(T) {
      const T *const turn = in.turn.template const_data_ptr<T>(), *const weight =
                                                                      in.weight.template const_data_ptr<T>();
      run_rotation(op,
                   RotateArgs<T>{in.shape, turn, rows<T>(grad, in.of), by_y.mutable_data_ptr<T>(), weight});
      run_rotation(op, RotateOuterArgs<T>{in.shape, in.y.template const_data_ptr<T>(), rows<T>(grad, in.of),
                                          by_turn.mutable_data_ptr<T>(), weight, turn,
                                          by_weight.mutable_data_ptr<T>()});
    });
    return {by_turn, by_y, by_weight};
  }

  static Tensor edge_rotate_outer(const Tensor& y_, const Tensor& x_, const Tensor& index,
                                  const std::optional<Tensor>& order, const Tensor& offsets) {
    const auto op = Device::make("edge_rotate_outer", "y", y_);
    const Tensor y = Device::placed(float_input(op, "y", y_, {kAny, kAny, kAny}));
    const Tensor x = Device::placed(input(op, "x", x_, y.scalar_type(), {kAny, kAny, y.size(2)}));
    const RowIndex of(op, index, order, offsets, y.size(0));
    const RotationShape shape = shape_of(op, of, x, y.size(1));
    Tensor turn = empty(op, {shape.edges, shape.rows, shape.columns}, x.scalar_type());
    dispatch_float(op, x.scalar_type(), [&]<class T>(T) {
      run_rotation(op, RotateOuterArgs<T>{shape, data_of(y), rows<T>(x, of), data_of(turn)});
    });
    return turn;
  }

  MDOPS_IMPLEMENT(EdgeRotationOps, edge_rotate, edge_rotate_sum, edge_rotate_outer, edge_rotate_back,
                  edge_rotate_back_backward)

 private:
  static RotationShape shape_of(const Op& op, const RowIndex& of, const Tensor& x, int64_t rows) {
    check_rotation(op, of, x);
    return {of.rows, x.size(0), rows, x.size(1), x.size(2)};
  }

  template <class T>
  static NodeRows<T> rows(const Tensor& x, const RowIndex& of) {
    return {data_of(x), data_of(of.index), x.size(0)};
  }
};

template <class Call, class Args>
void rotate(const Call& op, const Args& args) {
  run_rotation(op, args);
}

}  // namespace mdops
