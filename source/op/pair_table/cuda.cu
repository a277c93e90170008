#include <algorithm>
#include <tuple>

#include "common/cuda.h"
#include "pair_table/gpu_kernels.h"
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
  op.launch(near_kernel, blocks_for(in.atoms, kTableThreads / kWarp), kTableThreads, 0, in.args(),
            near.args(), weight.mutable_data_ptr<double>(), within.mutable_data_ptr<int32_t>(),
            nearest.mutable_data_ptr<double>());
  return {weight, within, nearest};
}

using TableOutputs = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

TableOutputs pair_table(const Tensor& positions, const Tensor& cell, const Tensor& batch, const Tensor& types,
                        const Tensor& neighbors, const Tensor& images, const Tensor& counts,
                        const Tensor& pair_mask, const Tensor& coefficients, const Tensor& weight,
                        const Tensor& other, const Tensor& near_mask, double first, double step,
                        double cutoff, double near_cutoff, double decay, double low, double high,
                        bool atom_virial) {
  const CudaOp op("pair_table", "positions", positions);
  const ListInputs in(op, positions, cell, batch, types, neighbors, images, counts);
  const TableInputs table(op, pair_mask, coefficients, in.ntypes, first, step, cutoff);
  const BlendInputs blend(op, weight, other, in.atoms);
  const NearInputs near(op, near_mask, in.ntypes, near_cutoff, decay, low, high);
  const int64_t n = in.atoms;
  Tensor energy = empty(op, {n}, ScalarType::Double), forces = empty(op, {n, 3}, ScalarType::Double);
  Tensor virial = empty(op, {in.systems, 3, 3}, ScalarType::Double);
  Tensor within = empty(op, {n, in.ntypes}, ScalarType::Int);
  Tensor nearest = empty(op, {n}, ScalarType::Double);
  Tensor of_atoms = empty(op, {atom_virial ? n : 0, 3, 3}, ScalarType::Double);
  TableSums sums{};
  const auto divide = [&](Workspace& space) {
    sums.forces = space.take<int64_t>(6 * n);
    const bool asked = atom_virial && n;
    if (asked) sums.of_atoms = space.take<int64_t>(18 * n);
    sums.virial = space.take<int64_t>(18 * in.systems);
    sums.failed = space.take<int32_t>(in.systems);
    return space.size();
  };
  Workspace counted(nullptr);
  Tensor memory = empty(op, {divide(counted)}, ScalarType::Byte);
  op.clear(memory);
  sums = {};
  Workspace space(static_cast<char*>(memory.mutable_data_ptr()));
  divide(space);
  const GpuTableResults out{
      energy.mutable_data_ptr<double>(),  forces.mutable_data_ptr<double>(),
      virial.mutable_data_ptr<double>(),  sums.of_atoms ? of_atoms.mutable_data_ptr<double>() : nullptr,
      nearest.mutable_data_ptr<double>(), within.mutable_data_ptr<int32_t>()};
  const GpuTableTask task{blend.weights(), blend.blends() ? blend.other.const_data_ptr<double>() : nullptr,
                          blend.blends(), near.args()};
  op.launch(table_kernel, blocks_for(n, kTableThreads / kWarp), kTableThreads, 0, in.args(), table.args(),
            task, sums, out);
  op.launch(table_end_kernel, blocks_for(std::max((atom_virial ? 9 : 3) * n, 9 * in.systems), 256), 256, 0,
            in.args(), sums, out);
  return {energy, forces, virial, within, nearest, of_atoms};
}

}  // namespace

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  m.impl("near_weight", TORCH_BOX(&mdops::near_weight));
  m.impl("pair_table", TORCH_BOX(&mdops::pair_table));
}
