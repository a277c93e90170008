#include <algorithm>
#include <tuple>

#include "pair_table/cpu_loops.h"
#include "pair_table/inputs.h"
#include "spline_potential/cpu_loops.h"

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
  double* const weights = weight.mutable_data_ptr<double>();
  parallel(in.atoms, 16, [&](int64_t begin, int64_t end) {
    const int64_t bad = near_weights(in.args(), near.args(), begin, end, weights, report);
    if (bad >= 0) fail_neighbors(op, bad);
  });
  return {weight, within, nearest};
}

using TableOutputs = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

TableOutputs pair_table(const Tensor& positions, const Tensor& cell, const Tensor& batch, const Tensor& types,
                        const Tensor& neighbors, const Tensor& images, const Tensor& counts,
                        const Tensor& pair_mask, const Tensor& coefficients, const Tensor& weight,
                        const Tensor& other, const Tensor& near_mask, double first, double step,
                        double cutoff, double near_cutoff, double decay, double low, double high,
                        bool atom_virial) {
  const Op op("pair_table");
  const ListInputs in(op, positions, cell, batch, types, neighbors, images, counts);
  const TableInputs table(op, pair_mask, coefficients, in.ntypes, first, step, cutoff);
  const BlendInputs blend(op, weight, other, in.atoms);
  const NearInputs near(op, near_mask, in.ntypes, near_cutoff, decay, low, high);
  Tensor energy = zeros({in.atoms}, ScalarType::Double), forces = empty({in.atoms, 3}, ScalarType::Double);
  Tensor virial = zeros({in.systems, 3, 3}, ScalarType::Double);
  Tensor within = zeros({in.atoms, in.ntypes}, ScalarType::Int);
  Tensor nearest = empty({in.atoms}, ScalarType::Double);
  Tensor of_atoms = empty({atom_virial ? in.atoms : 0, 3, 3}, ScalarType::Double);
  StepResults<double> results{in.atoms,
                              energy.mutable_data_ptr<double>(),
                              nullptr,
                              nearest.mutable_data_ptr<double>(),
                              forces.mutable_data_ptr<double>(),
                              virial.mutable_data_ptr<double>(),
                              atom_virial ? of_atoms.mutable_data_ptr<double>() : nullptr};
  PotentialArgs<double> sizes{};
  sizes.types = in.types.const_data_ptr<int32_t>();
  sizes.atoms = in.atoms, sizes.systems = in.systems, sizes.cutoff.cutoff = cutoff;
  const NearArgs of_weights = near.args();
  const TableTask task{blend.weights(), blend.blends() ? blend.other.const_data_ptr<double>() : nullptr,
                       blend.blends() ? &of_weights : nullptr};
  const NearReport report{within.mutable_data_ptr<int32_t>(), nearest.mutable_data_ptr<double>()};
  const int64_t threads = useful_threads(in.atoms);
  std::vector<Share<double>> shares(threads);
  parallel(threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t thread = begin; thread < end; ++thread) {
      PotentialResults<double> out = results.of_thread(sizes, shares[thread]);
      shares[thread].bad_atom = table_energies(in.args(), table.args(), task, in.atoms * thread / threads,
                                               in.atoms * (thread + 1) / threads, report, out);
    }
  });
  results.finish(op, sizes, shares);
  return {energy, forces, virial, within, nearest, of_atoms};
}

}  // namespace

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CPU, m) {
  m.impl("near_weight", TORCH_BOX(&mdops::near_weight));
  m.impl("pair_table", TORCH_BOX(&mdops::pair_table));
}
