#include <algorithm>

#include "hybrid_potential/cpu_loops.h"
#include "hybrid_potential/ops.h"
#include "pair_table/cpu_loops.h"
#include "spline_potential/cpu_nets.h"
#include "spline_potential/host.h"

namespace mdops {

namespace {

template <class T>
void step(const Op& op, const HybridInputs& in, const double* places, const StepResults<T>& results,
          int32_t* within, T* grad_extra, double* near_weight) {
  std::vector<PotentialArgs<T>> parts;
  for (int64_t p = 0; p < in.count(); ++p) {
    parts.push_back(arguments<T>(in.parts[p], places));
    if (in.absent[p].size(0)) parts[p].places.absent = data_of(in.absent[p]);
  }
  const double* weight = in.weight.size(0) ? in.weight.const_data_ptr<double>() : nullptr;
  HybridArgs<T> args{parts.data(), static_cast<int>(in.count()), in.widest(), in.net, weight};
  const ListArgs list = list_args(in.first());
  const NearArgs near = in.blend ? in.blend->near : NearArgs{};
  if (in.blend) args.look = {&list, &near, surely_far(near)};
  hybrid_step(op, args, in.nets.const_data_ptr<T>(), results, within, grad_extra,
              static_cast<ComputedInputs<T>*>(nullptr), near_weight);
}

// Each layer's weight, bias and timestep (none in the output layer). The first weight has each pair of equal
// features once, in the order of groups.h.
template <class T>
void pack(const HybridNetInputs& in, T* to) {
  const std::vector<DenseLayer<T>> layers = in.layers.layers<T>();
  int64_t inputs = in.layers.weights[0].size(0);
  for (size_t n = 0; n < layers.size(); ++n) {
    const int64_t outputs = in.layers.weights[n].size(1);
    const T* from = layers[n].weight;
    for (size_t p = 0; n == 0 && p < in.parts.size(); ++p) {
      FittingShape part = in.parts[p];
      part.neurons[0] = static_cast<int>(outputs);
      fold_head(part, from, to);
      to = std::copy(from + int64_t{part.axis} * part.axis * outputs, from + part.features * outputs,
                     to + part.head_rows() * outputs);
      from += part.features * outputs, inputs -= part.features;
    }
    to = std::copy_n(from, inputs * outputs, to);
    to = std::copy_n(layers[n].bias, outputs, to);
    if (n + 1 < layers.size()) to = std::copy_n(layers[n].timestep, outputs, to);
    inputs = outputs;
  }
}

}  // namespace

static HybridOutputs hybrid_answer(const Op& op, const HybridInputs& in) {
  check_packed(op, in.nets, net_size(in.net));
  const PotentialInputs& first = in.first();
  const std::vector<double> places = four_columns(first.positions.const_data_ptr<double>(), first.atoms);
  Answer answer{first};
  Tensor within = zeros({first.atoms, in.count(), first.ntypes}, ScalarType::Int);
  Tensor of_atoms = empty({in.atom_virial ? first.atoms : 0, 3, 3}, ScalarType::Double);
  Tensor grad_extra = zeros({first.atoms, in.extra()}, first.dtype);  // of virtual atoms, too
  Tensor near_weight = zeros({in.blend ? first.atoms : 0}, ScalarType::Double);
  dispatch_float(op, first.dtype, [&]<class T>(T) {
    StepResults<T> results = answer.results<T>();
    if (in.atom_virial) results.atom_virial = data_of(of_atoms);
    step<T>(op, in, places.data(), results, within.mutable_data_ptr<int32_t>(),
            grad_extra.mutable_data_ptr<T>(), near_weight.mutable_data_ptr<double>());
    if (in.blend)
      blend_step(op, list_args(first), in.blend->table, in.blend->near, near_weight.const_data_ptr<double>(),
                 first.atoms, {results.energy, results.forces, results.virial, results.atom_virial});
  });
  return {answer.energy,  answer.forces, answer.virial, within,
          answer.nearest, grad_extra,    of_atoms,      near_weight};
}

static Tensor packed_net(const Op& op, const HybridNetInputs& in) {
  NetShape net{};
  net.layers = in.layers.net.layers, net.extra = static_cast<int>(in.extra);
  for (const FittingShape& part : in.parts) net.features += feature_rows(part);
  for (int n = 0; n < net.layers; ++n) net.neurons[n] = in.layers.net.neurons[n];
  const ScalarType dtype = in.layers.weights[0].scalar_type();
  Tensor packed = empty({net_size(net)}, dtype);
  dispatch_float(op, dtype, [&]<class T>(T) { pack(in, packed.mutable_data_ptr<T>()); });
  return packed;
}

}  // namespace mdops

MDOPS_ON_CPU(HybridOps)
