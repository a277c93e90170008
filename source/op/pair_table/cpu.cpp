#include <algorithm>
#include <tuple>

#include "pair_table/cpu_loops.h"
#include "pair_table/inputs.h"

namespace mdops {

namespace {

std::tuple<Tensor, Tensor, Tensor> near_weight(const Tensor& positions, const Tensor& cell,
                                               const Tensor& batch, const Tensor& types,
                                               const Tensor& neighbors, const Tensor& images,
                                               const Tensor& counts, const Tensor& near_mask,
                                               double near_cutoff, double decay, double low, double high) {
  const Op op("near_weight");
  const ListInputs in(op, positions, cell, batch, types, neighbors, images, counts);
  const NearInputs near(op, near_mask, in.ntypes, near_cutoff, decay, low, high);
  Tensor weight = empty({in.atoms}, ScalarType::Double), nearest = empty({in.atoms}, ScalarType::Double);
  Tensor within = zeros({in.atoms, in.ntypes}, ScalarType::Int);
  const NearReport report{within.mutable_data_ptr<int32_t>(), nearest.mutable_data_ptr<double>()};
  near_step(op, in.args(), near.args(), in.atoms, weight.mutable_data_ptr<double>(), report);
  return {weight, within, nearest};
}

// The blend's answers, from the other model's.
void blend_with(const Op& op, const ListArgs& list, const TableArgs& table, const NearArgs& near,
                const BlendInputs& other, const BlendedSums& sums) {
  const auto copy = [](const Tensor& from, double* to) {
    std::copy_n(from.const_data_ptr<double>(), from.numel(), to);
  };
  copy(other.other, sums.energy), copy(other.forces, sums.forces), copy(other.virial, sums.virial);
  if (sums.atom_virial) copy(other.of_atoms, sums.atom_virial);
  blend_step(op, list, table, near, other.weights(), list.atoms, sums);
}

using TableOutputs = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

TableOutputs pair_table(const Tensor& positions, const Tensor& cell, const Tensor& batch, const Tensor& types,
                        const Tensor& neighbors, const Tensor& images, const Tensor& counts,
                        const Tensor& pair_mask, const Tensor& coefficients, const Tensor& weight,
                        const Tensor& other, const Tensor& other_forces, const Tensor& other_virial,
                        const Tensor& other_atom_virial, const Tensor& near_mask, double first, double step,
                        double cutoff, double near_cutoff, double decay, double low, double high,
                        bool atom_virial) {
  const Op op("pair_table");
  const ListInputs in(op, positions, cell, batch, types, neighbors, images, counts);
  const TableInputs table(op, pair_mask, coefficients, in.ntypes, first, step, cutoff);
  const BlendInputs blend(op, weight, other, other_forces, other_virial, other_atom_virial, in.atoms,
                          in.systems, atom_virial);
  const NearInputs near(op, near_mask, in.ntypes, near_cutoff, decay, low, high);
  Tensor energy = zeros({in.atoms}, ScalarType::Double), forces = empty({in.atoms, 3}, ScalarType::Double);
  Tensor virial = zeros({in.systems, 3, 3}, ScalarType::Double);
  Tensor within = zeros({in.atoms, in.ntypes}, ScalarType::Int);
  Tensor nearest = empty({in.atoms}, ScalarType::Double);
  Tensor of_atoms = empty({atom_virial ? in.atoms : 0, 3, 3}, ScalarType::Double);
  const StepResults<double> results{in.atoms,
                                    energy.mutable_data_ptr<double>(),
                                    within.mutable_data_ptr<int32_t>(),
                                    nearest.mutable_data_ptr<double>(),
                                    forces.mutable_data_ptr<double>(),
                                    virial.mutable_data_ptr<double>(),
                                    atom_virial ? of_atoms.mutable_data_ptr<double>() : nullptr};
  if (!blend.blends()) {
    table_step(op, in.args(), table.args(), blend.weights(), results);
  } else {
    std::fill_n(results.nearest, in.atoms, cutoff);
    blend_with(op, in.args(), table.args(), near.args(), blend,
               {results.energy, results.forces, results.virial, results.atom_virial});
  }
  return {energy, forces, virial, within, nearest, of_atoms};
}

}  // namespace

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CPU, m) {
  m.impl("near_weight", TORCH_BOX(&mdops::near_weight));
  m.impl("pair_table", TORCH_BOX(&mdops::pair_table));
}
