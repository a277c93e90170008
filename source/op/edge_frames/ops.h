// The ops on frames of edges, their arguments checked at entry. What a device does are overloads of
// `run_frames` on the call of an op.
#pragma once

#include <string>
#include <tuple>

#include "common/bind.h"
#include "common/tensor.h"
#include "edge_frames/edge_frames.h"

namespace mdops {

template <class Device>
struct EdgeFrameOps {
  static std::tuple<Tensor, Tensor> edge_frames(const Tensor& vectors_, int64_t degree, int64_t order) {
    const auto op = Device::make("edge_frames", "vectors", vectors_);
    const Tensor vectors = float_input(op, "vectors", vectors_, {kAny, 3});
    const FrameShape shape = shape_of(op, vectors, degree, order);
    const ScalarType dtype = vectors.scalar_type();
    const int64_t edges = shape.edges, columns = (degree + 1) * (degree + 1);
    Tensor harmonics = empty(op, {edges, columns}, dtype);
    Tensor turn = empty(op, {edges, rows_of(degree, order), columns}, dtype);
    dispatch_float(op, dtype, [&](auto zero) {
      using T = decltype(zero);
      const FrameArgs<T> args{shape, data_of(vectors), data_of(harmonics), data_of(turn)};
      with_degree(degree, [&]<int kDegree>() { run_frames<kDegree>(op, args); });
    });
    return {harmonics, turn};
  }

  static Tensor edge_frames_backward(const Tensor& by_harmonics_, const Tensor& by_turn_,
                                     const Tensor& vectors_, int64_t degree, int64_t order) {
    const auto op = Device::make("edge_frames_backward", "vectors", vectors_);
    const Tensor vectors = float_input(op, "vectors", vectors_, {kAny, 3});
    const FrameShape shape = shape_of(op, vectors, degree, order);
    const ScalarType dtype = vectors.scalar_type();
    const int64_t edges = shape.edges, columns = (degree + 1) * (degree + 1);
    const Tensor by_harmonics = input(op, "by_harmonics", by_harmonics_, dtype, {edges, columns});
    const Tensor by_turn = input(op, "by_turn", by_turn_, dtype, {edges, rows_of(degree, order), columns});
    Tensor by_vectors = empty(op, {edges, 3}, dtype);
    dispatch_float(op, dtype, [&](auto zero) {
      using T = decltype(zero);
      const FrameBackwardArgs<T> args{shape, data_of(vectors), data_of(by_harmonics), data_of(by_turn),
                                      data_of(by_vectors)};
      with_degree(degree, [&]<int kDegree>() { run_frames<kDegree>(op, args); });
    });
    return by_vectors;
  }

  static std::tuple<Tensor, Tensor, Tensor> edge_frames_backward_backward(const Tensor& changes_,
                                                                          const Tensor& by_harmonics_,
                                                                          const Tensor& by_turn_,
                                                                          const Tensor& vectors_,
                                                                          int64_t degree, int64_t order) {
    const auto op = Device::make("edge_frames_backward_backward", "vectors", vectors_);
    const Tensor vectors = float_input(op, "vectors", vectors_, {kAny, 3});
    const FrameShape shape = shape_of(op, vectors, degree, order);
    const ScalarType dtype = vectors.scalar_type();
    const int64_t edges = shape.edges, columns = (degree + 1) * (degree + 1);
    const int64_t rows = rows_of(degree, order);
    const Tensor changes = input(op, "changes", changes_, dtype, {edges, 3});
    const Tensor by_harmonics = input(op, "by_harmonics", by_harmonics_, dtype, {edges, columns});
    const Tensor by_turn = input(op, "by_turn", by_turn_, dtype, {edges, rows, columns});
    Tensor harmonics = empty(op, {edges, columns}, dtype), turn = empty(op, {edges, rows, columns}, dtype);
    Tensor by_vectors = empty(op, {edges, 3}, dtype);
    dispatch_float(op, dtype, [&](auto zero) {
      using T = decltype(zero);
      const FrameTwiceArgs<T> args{shape,
                                   vectors.const_data_ptr<T>(),
                                   changes.const_data_ptr<T>(),
                                   by_harmonics.const_data_ptr<T>(),
                                   by_turn.const_data_ptr<T>(),
                                   harmonics.mutable_data_ptr<T>(),
                                   turn.mutable_data_ptr<T>(),
                                   by_vectors.mutable_data_ptr<T>()};
      with_degree(degree, [&]<int kDegree>() { run_frames<kDegree>(op, args); });
    });
    return {harmonics, turn, by_vectors};
  }

  MDOPS_IMPLEMENT(EdgeFrameOps, edge_frames, edge_frames_backward, edge_frames_backward_backward)

 private:
  static FrameShape shape_of(const Op& op, const Tensor& vectors, int64_t degree, int64_t order) {
    if (degree < 0 || degree > kMostDegree)
      fail(op, "argument `degree` is " + std::to_string(degree) + ", expected 0 to " +
                   std::to_string(kMostDegree));
    if (order < -1 || order > 1)
      fail(op, "argument `order` is " + std::to_string(order) + ", expected -1, 0 or 1");
    return {vectors.size(0), static_cast<int>(order)};
  }
  static int64_t rows_of(int64_t degree, int64_t order) {
    return frame_rows(static_cast<int>(degree), static_cast<int>(order));
  }
};

}  // namespace mdops
