// The ops on frames of edges. A device has `run_frames`.
#pragma once

#include "common/bind.h"
#include "edge_frames/frames.h"

namespace mdops {

template <class Device, class T>
struct EdgeFrameOps {
  static Outputs<2> edge_frames(Checked<Device>& in, Input vectors, int64_t degree, int64_t order) {
    FrameArgs<T> a{};
    const auto [rows, columns] = take_vectors(in, a, vectors, degree, order);
    Tensor harmonics = in.result(a.harmonics, {a.shape.edges, columns});
    Tensor turn = in.result(a.turn, {a.shape.edges, rows, columns});
    make_frames(in.op, a, degree);
    return {harmonics, turn};
  }

  static Tensor edge_frames_backward(Checked<Device>& in, Input by_harmonics, Input by_turn, Input vectors,
                                     int64_t degree, int64_t order) {
    FrameBackwardArgs<T> a{};
    const auto [rows, columns] = take_vectors(in, a, vectors, degree, order);
    in.take(a.by_harmonics, "by_harmonics", by_harmonics, {a.shape.edges, columns});
    in.take(a.by_turn, "by_turn", by_turn, {a.shape.edges, rows, columns});
    Tensor by_vectors = in.result(a.by_vectors, {a.shape.edges, 3});
    make_frames(in.op, a, degree);
    return by_vectors;
  }

  static Outputs<3> edge_frames_backward_backward(Checked<Device>& in, Input changes, Input by_harmonics,
                                                  Input by_turn, Input vectors, int64_t degree,
                                                  int64_t order) {
    FrameTwiceArgs<T> a{};
    const auto [rows, columns] = take_vectors(in, a, vectors, degree, order);
    in.take(a.changes, "changes", changes, {a.shape.edges, 3});
    in.take(a.by_harmonics, "by_harmonics", by_harmonics, {a.shape.edges, columns});
    in.take(a.by_turn, "by_turn", by_turn, {a.shape.edges, rows, columns});
    Tensor harmonics = in.result(a.harmonics, {a.shape.edges, columns});
    Tensor turn = in.result(a.turn, {a.shape.edges, rows, columns});
    Tensor by_vectors = in.result(a.by_vectors, {a.shape.edges, 3});
    make_frames(in.op, a, degree);
    return {harmonics, turn, by_vectors};
  }

  MDOPS_IMPLEMENT_FLOATS(EdgeFrameOps, edge_frames, edge_frames_backward, edge_frames_backward_backward)

 private:
  // Returns the numbers of rows and columns of an edge's matrix.
  static std::pair<int64_t, int64_t> take_vectors(Checked<Device>& in, auto& a, Input vectors, int64_t degree,
                                                  int64_t order) {
    in.take(a.vectors, "vectors", vectors, {kAny, 3});
    if (degree < 0 || degree > kMostDegree)
      fail(in.op, "argument `degree` is ", degree, ", expected 0 to ", kMostDegree);
    if (order < -1 || order > 1) fail(in.op, "argument `order` is ", order, ", expected -1, 0 or 1");
    a.shape = {vectors.size(0), static_cast<int>(order)};
    return {frame_rows(static_cast<int>(degree), a.shape.order), (degree + 1) * (degree + 1)};
  }
};

template <class Call, class Args>
void make_frames(const Call& op, const Args& args, int64_t degree) {
  with_degree(degree, [&]<int kDegree>() { run_frames<kDegree>(op, args); });
}

}  // namespace mdops
