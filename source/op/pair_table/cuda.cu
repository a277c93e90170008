#include <tuple>

#include "pair_table/cuda_call.h"
#include "pair_table/inputs.h"

namespace mdops {

namespace {

std::tuple<Tensor, Tensor, Tensor> near_weight(const Tensor& positions, const Tensor& cell,
                                               const Tensor& batch, const Tensor& types,
                                               const Tensor& neighbors, const Tensor& images,
                                               const Tensor& counts, const Tensor& near_mask,
                                               double near_cutoff, double decay, double low, double high) {
  const CudaOp op("near_weight", "positions", positions);
  const ListInputs in(op, positions, cell, batch, types, neighbors, images, counts);
  const NearInputs near(op, near_mask, in.ntypes, near_cutoff, decay, low, high);
  Tensor weight = empty(op, {in.atoms}, ScalarType::Double),
         nearest = empty(op, {in.atoms}, ScalarType::Double);
  Tensor within = empty(op, {in.atoms, in.ntypes}, ScalarType::Int);
  run_near(op, in.args(), near.args(), weight.mutable_data_ptr<double>(), within.mutable_data_ptr<int32_t>(),
           nearest.mutable_data_ptr<double>());
  return {weight, within, nearest};
}

using TableOutputs = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

TableOutputs pair_table(const Tensor& positions, const Tensor& cell, const Tensor& batch, const Tensor& types,
                        const Tensor& neighbors, const Tensor& images, const Tensor& counts,
                        const Tensor& pair_mask, const Tensor& coefficients, const Tensor& weight,
                        const Tensor& other, const Tensor& other_forces, const Tensor& other_virial,
                        const Tensor& other_atom_virial, const Tensor& near_mask, double first, double step,
                        double cutoff, double near_cutoff, double decay, double low, double high,
                        bool atom_virial) {
  const CudaOp op("pair_table", "positions", positions);
  const ListInputs in(op, positions, cell, batch, types, neighbors, images, counts);
  const TableInputs table(op, pair_mask, coefficients, in.ntypes, first, step, cutoff);
  const BlendInputs blend(op, weight, other, other_forces, other_virial, other_atom_virial, in.atoms,
                          in.systems, atom_virial);
  const NearInputs near(op, near_mask, in.ntypes, near_cutoff, decay, low, high);
  GpuTableTask task{blend.weights(), nullptr, blend.blends(), near.args(), {}};
  if (blend.blends()) {
    task.other = blend.other.const_data_ptr<double>();
    task.sums = other_sums(blend.forces, blend.virial, blend.of_atoms);
  }
  GpuTable out(op, in.args(), atom_virial);
  out.run(op, in.args(), table.args(), task);
  return {out.energy, out.forces, out.virial, out.within, out.nearest, out.of_atoms};
}

}  // namespace

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  m.impl("near_weight", TORCH_BOX(&mdops::near_weight));
  m.impl("pair_table", TORCH_BOX(&mdops::pair_table));
}
