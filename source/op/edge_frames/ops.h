// The ops on frames of edges. A device has `run_frames`.
#pragma once

#include "common/bind.h"
#include "common/instantiate.h"
#include "edge_frames/edge_frames.h"
#include "edge_frames/frames.h"

namespace mdops {

struct FrameInputs {
  static constexpr const char* kFirst = "vectors";
  using Given = Listed<const Tensor&, Times<2, int64_t>>;

  Tensor vectors;
  ScalarType dtype = vectors.scalar_type();
  FrameShape shape;
  int64_t degree, edges = shape.edges, rows, columns;

  FrameInputs(const Op& op, const Tensor& vectors_, int64_t degree_, int64_t order)
      : vectors(float_input(op, "vectors", vectors_, {kAny, 3})),
        shape{vectors.size(0), static_cast<int>(order)},
        degree(degree_) {
    if (degree < 0 || degree > kMostDegree)
      fail(op, "argument `degree` is ", degree, ", expected 0 to ", kMostDegree);
    if (order < -1 || order > 1) fail(op, "argument `order` is ", order, ", expected -1, 0 or 1");
    rows = frame_rows(static_cast<int>(degree), shape.order), columns = (degree + 1) * (degree + 1);
  }

  Tensor of_harmonics(const Op& op, const Tensor& t) const {
    return input(op, "by_harmonics", t, dtype, {edges, columns});
  }
  Tensor of_turn(const Op& op, const Tensor& t) const {
    return input(op, "by_turn", t, dtype, {edges, rows, columns});
  }
};

template <class Device>
struct EdgeFrameOps {
  using Call = typename Device::Call;

  static Outputs<2> edge_frames(const Call& op, const FrameInputs& in) {
    Tensor harmonics = empty(op, {in.edges, in.columns}, in.dtype);
    Tensor turn = empty(op, {in.edges, in.rows, in.columns}, in.dtype);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      const FrameArgs<T> args{in.shape, data_of(in.vectors), data_of(harmonics), data_of(turn)};
      make_frames(op, args, in.degree);
    });
    return {harmonics, turn};
  }

  static Tensor edge_frames_backward(const Call& op, const FrameInputs& in, const Tensor& by_harmonics_,
                                     const Tensor& by_turn_) {
    const Tensor by_harmonics = in.of_harmonics(op, by_harmonics_), by_turn = in.of_turn(op, by_turn_);
    Tensor by_vectors = empty(op, {in.edges, 3}, in.dtype);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      const FrameBackwardArgs<T> args{in.shape, data_of(in.vectors), data_of(by_harmonics), data_of(by_turn),
                                      data_of(by_vectors)};
      make_frames(op, args, in.degree);
    });
    return by_vectors;
  }

  static Outputs<3> edge_frames_backward_backward(const Call& op, const FrameInputs& in,
                                                  const Tensor& changes_, const Tensor& by_harmonics_,
                                                  const Tensor& by_turn_) {
    const Tensor changes = input(op, "changes", changes_, in.dtype, {in.edges, 3});
    const Tensor by_harmonics = in.of_harmonics(op, by_harmonics_), by_turn = in.of_turn(op, by_turn_);
    Tensor harmonics = empty(op, {in.edges, in.columns}, in.dtype);
    Tensor turn = empty(op, {in.edges, in.rows, in.columns}, in.dtype);
    Tensor by_vectors = empty(op, {in.edges, 3}, in.dtype);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      const FrameTwiceArgs<T> args{
          in.shape,         data_of(in.vectors), data_of(changes), data_of(by_harmonics),
          data_of(by_turn), data_of(harmonics),  data_of(turn),    data_of(by_vectors)};
      make_frames(op, args, in.degree);
    });
    return {harmonics, turn, by_vectors};
  }

  MDOPS_IMPLEMENT(EdgeFrameOps, edge_frames, edge_frames_backward, edge_frames_backward_backward)
};

template <class Call, class Args>
void make_frames(const Call& op, const Args& args, int64_t degree) {
  with_degree(degree, [&]<int kDegree>() { run_frames<kDegree>(op, args); });
}

}  // namespace mdops
