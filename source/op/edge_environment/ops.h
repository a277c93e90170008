// The ops on environments of edges. A device has `run_edge_environment`.
#pragma once

#include <cmath>

#include "common/bind.h"
#include "edge_environment/edge_environment.h"

namespace mdops {

template <class Device, class T>
struct EdgeEnvironmentOps {
  static EdgeEnvironmentArgs<T> arguments(Checked<Device>& in, Input displacements, Input slots,
                                          Input edge_of_slot, Input types, Input mean, Input std,
                                          double smooth, double cutoff, double protection, double of_means,
                                          double of_turning) {
    EdgeEnvironmentArgs<T> a{};
    in.take(a.displacements, "displacements", displacements, {kAny, kAny, 3});
    a.atoms = displacements.size(0), a.width = displacements.size(1);
    in.take_range(a.slots, "slots", slots, {kAny}, -1, a.atoms * a.width);
    a.edges = slots.size(0);
    in.take_range(a.edge_of_slot, "edge_of_slot", edge_of_slot, {a.atoms, a.width}, -1, a.edges);
    in.take(a.mean, "mean", mean, {kAny});
    a.kinds = mean.size(0);
    in.take_range(a.types, "types", types, {a.atoms}, -1, a.kinds);
    in.take(a.std, "std", std, {a.kinds, 2});
    a.form = {static_cast<T>(smooth), static_cast<T>(cutoff), static_cast<T>(protection),
              static_cast<T>(of_means), static_cast<T>(of_turning)};
    if (!(smooth < cutoff) || !std::isfinite(cutoff))
      fail(in.op, "argument `smooth` is ", smooth, " A, expected less than `cutoff`, ", cutoff, " A");
    if (!(protection >= 0)) fail(in.op, "argument `protection` is ", protection, " A, expected 0 or more");
    return a;
  }

  static Outputs<5> edge_environment(Checked<Device>& in, EdgeEnvironmentArgs<T>& a) {
    Tensor lengths = in.result(a.lengths, {a.edges, 1}), vectors = in.result(a.vectors, {a.edges, 3});
    Tensor weight = in.result(a.weight, {a.edges, 1}), means = in.result(a.means, {a.edges, 1});
    Tensor turning = in.result(a.turning, {a.edges, 3});
    run_edge_environment(in.op, a);
    return {lengths, vectors, weight, means, turning};
  }

  static Tensor edge_environment_backward(Checked<Device>& in, EdgeEnvironmentArgs<T>& a, Input by_lengths,
                                          Input by_vectors, Input by_weight, Input by_means,
                                          Input by_turning) {
    in.take(a.by_lengths, "by_lengths", by_lengths, {a.edges, 1});
    in.take(a.by_vectors, "by_vectors", by_vectors, {a.edges, 3});
    in.take(a.by_weight, "by_weight", by_weight, {a.edges, 1});
    in.take(a.by_means, "by_means", by_means, {a.edges, 1});
    in.take(a.by_turning, "by_turning", by_turning, {a.edges, 3});
    Tensor found = in.result(a.by_displacements, {a.atoms, a.width, 3});
    if (a.atoms * a.width == 0) return found;  // null would select the forward pass
    run_edge_environment(in.op, a);
    return found;
  }

  MDOPS_IMPLEMENT_FLOATS(EdgeEnvironmentOps, edge_environment, edge_environment_backward)
};

}  // namespace mdops
