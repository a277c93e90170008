// The ops on environments of edges. A device has `run_edge_environment`.
#pragma once

#include <cmath>

#include "common/bind.h"
#include "common/pair_checks.h"
#include "edge_environment/edge_environment.h"

namespace mdops {

struct EdgeEnvironmentInputs {
  static constexpr const char* kFirst = "displacements";
  using Given = Listed<Times<6, const Tensor&>, Times<5, double>>;

  Tensor displacements, slots, edge_of_slot, types, mean, std;
  ScalarType dtype = displacements.scalar_type();
  int64_t atoms = displacements.size(0), width = displacements.size(1), edges = slots.size(0);
  EnvironmentForm<double> form;

  EdgeEnvironmentInputs(const Op& op, const Tensor& displacements_, const Tensor& slots_,
                        const Tensor& edge_of_slot_, const Tensor& types_, const Tensor& mean_,
                        const Tensor& std_, double smooth, double cutoff, double protection, double of_means,
                        double of_turning)
      : displacements(float_input(op, "displacements", displacements_, {kAny, kAny, 3})),
        slots(input(op, "slots", slots_, ScalarType::Int, {kAny})),
        edge_of_slot(input(op, "edge_of_slot", edge_of_slot_, ScalarType::Int,
                           {displacements.size(0), displacements.size(1)})),
        types(input(op, "types", types_, ScalarType::Int, {displacements.size(0)})),
        mean(input(op, "mean", mean_, displacements.scalar_type(), {kAny})),
        std(input(op, "std", std_, displacements.scalar_type(), {mean.size(0), 2})),
        form{smooth, cutoff, protection, of_means, of_turning} {
    if (!(form.smooth < form.cutoff) || !std::isfinite(form.cutoff))
      fail(op, "argument `smooth` is ", form.smooth, " A, expected less than `cutoff`, ", form.cutoff, " A");
    if (!(form.protection >= 0))
      fail(op, "argument `protection` is ", form.protection, " A, expected 0 or more");
    check_range(op, "slots", slots, -1, atoms * width);
    check_range(op, "edge_of_slot", edge_of_slot, -1, edges);
    check_range(op, "types", types, -1, mean.size(0));
  }

  template <class T>
  EdgeEnvironmentArgs<T> args() const {
    EdgeEnvironmentArgs<T> args{};
    args.atoms = atoms, args.width = width, args.edges = edges, args.kinds = mean.size(0);
    args.form = {static_cast<T>(form.smooth), static_cast<T>(form.cutoff), static_cast<T>(form.protection),
                 static_cast<T>(form.of_means), static_cast<T>(form.of_turning)};
    args.displacements = data_of(displacements);
    args.slots = slots.const_data_ptr<int32_t>();
    args.edge_of_slot = edge_of_slot.const_data_ptr<int32_t>();
    args.types = types.const_data_ptr<int32_t>();
    args.mean = data_of(mean), args.std = data_of(std);
    return args;
  }
};

template <class Device>
struct EdgeEnvironmentOps {
  using Call = typename Device::Call;

  static Outputs<5> edge_environment(const Call& op, const EdgeEnvironmentInputs& in) {
    Tensor lengths = empty(op, {in.edges, 1}, in.dtype), vectors = empty(op, {in.edges, 3}, in.dtype);
    Tensor weight = empty(op, {in.edges, 1}, in.dtype), means = empty(op, {in.edges, 1}, in.dtype);
    Tensor turning = empty(op, {in.edges, 3}, in.dtype);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      auto args = in.args<T>();
      args.lengths = data_of(lengths), args.vectors = data_of(vectors);
      args.weight = data_of(weight), args.means = data_of(means);
      args.turning = data_of(turning);
      run_edge_environment(op, args);
    });
    return {lengths, vectors, weight, means, turning};
  }

  static Tensor edge_environment_backward(const Call& op, const EdgeEnvironmentInputs& in,
                                          const Tensor& by_lengths_, const Tensor& by_vectors_,
                                          const Tensor& by_weight_, const Tensor& by_means_,
                                          const Tensor& by_turning_) {
    const Tensor by_lengths = input(op, "by_lengths", by_lengths_, in.dtype, {in.edges, 1});
    const Tensor by_vectors = input(op, "by_vectors", by_vectors_, in.dtype, {in.edges, 3});
    const Tensor by_weight = input(op, "by_weight", by_weight_, in.dtype, {in.edges, 1});
    const Tensor by_means = input(op, "by_means", by_means_, in.dtype, {in.edges, 1});
    const Tensor by_turning = input(op, "by_turning", by_turning_, in.dtype, {in.edges, 3});
    Tensor found = empty(op, {in.atoms, in.width, 3}, in.dtype);
    if (in.atoms * in.width == 0) return found;  // null would tell kernels to go forward
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      auto args = in.args<T>();
      args.by_lengths = data_of(by_lengths), args.by_vectors = data_of(by_vectors);
      args.by_weight = data_of(by_weight), args.by_means = data_of(by_means);
      args.by_turning = data_of(by_turning);
      args.by_displacements = data_of(found);
      run_edge_environment(op, args);
    });
    return found;
  }

  MDOPS_IMPLEMENT(EdgeEnvironmentOps, edge_environment, edge_environment_backward)
};

}  // namespace mdops
