// The ops on environments of edges, their arguments checked at entry. What a device does are overloads of
// `run_edge_environment` on the call of an op.
#pragma once

#include <cmath>
#include <string>
#include <tuple>

#include "common/bind.h"
#include "common/pair_checks.h"
#include "common/tensor.h"
#include "edge_environment/edge_environment.h"

namespace mdops {

struct EdgeEnvironmentInputs {
  static constexpr const char* kFirst = "displacements";
  using Given = Listed<Times<6, const Tensor&>, Times<5, double>>;

  Tensor displacements, slots, edge_of_slot, types, mean, std;
  ScalarType dtype;
  int64_t atoms, width, edges;
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
        dtype(displacements.scalar_type()),
        atoms(displacements.size(0)),
        width(displacements.size(1)),
        edges(slots.size(0)),
        form{smooth, cutoff, protection, of_means, of_turning} {
    if (!(form.smooth < form.cutoff) || !std::isfinite(form.cutoff))
      fail(op, "argument `smooth` is " + std::to_string(form.smooth) + " A, expected less than `cutoff`, " +
                   std::to_string(form.cutoff) + " A");
    if (!(form.protection >= 0))
      fail(op, "argument `protection` is " + std::to_string(form.protection) + " A, expected 0 or more");
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
    args.displacements = displacements.const_data_ptr<T>();
    args.slots = slots.const_data_ptr<int32_t>();
    args.edge_of_slot = edge_of_slot.const_data_ptr<int32_t>();
    args.types = types.const_data_ptr<int32_t>();
    args.mean = mean.const_data_ptr<T>(), args.std = std.const_data_ptr<T>();
    return args;
  }
};

template <class Device>
struct EdgeEnvironmentOps {
  using Call = typename Device::Call;
  using Five = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

  static Five edge_environment(const Call& op, const EdgeEnvironmentInputs& in) {
    Tensor lengths = empty(op, {in.edges, 1}, in.dtype), vectors = empty(op, {in.edges, 3}, in.dtype);
    Tensor weight = empty(op, {in.edges, 1}, in.dtype), means = empty(op, {in.edges, 1}, in.dtype);
    Tensor turning = empty(op, {in.edges, 3}, in.dtype);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      auto args = in.args<T>();
      args.lengths = lengths.mutable_data_ptr<T>(), args.vectors = vectors.mutable_data_ptr<T>();
      args.weight = weight.mutable_data_ptr<T>(), args.means = means.mutable_data_ptr<T>();
      args.turning = turning.mutable_data_ptr<T>();
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
      args.by_lengths = by_lengths.const_data_ptr<T>(), args.by_vectors = by_vectors.const_data_ptr<T>();
      args.by_weight = by_weight.const_data_ptr<T>(), args.by_means = by_means.const_data_ptr<T>();
      args.by_turning = by_turning.const_data_ptr<T>();
      args.by_displacements = found.mutable_data_ptr<T>();
      run_edge_environment(op, args);
    });
    return found;
  }

  MDOPS_IMPLEMENT(EdgeEnvironmentOps, edge_environment, edge_environment_backward)
};

}  // namespace mdops
