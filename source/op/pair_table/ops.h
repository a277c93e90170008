// The ops on pair tables.
#pragma once

#include "common/bind.h"
#include "pair_table/inputs.h"

namespace mdops {

template <class Device>
struct PairTableOps {
  static Outputs<3> near_weight(const Tensor& positions, const Tensor& cell, const Tensor& batch,
                                const Tensor& types, const Tensor& neighbors, const Tensor& images,
                                const Tensor& counts, const Tensor& near_mask, double near_cutoff,
                                double decay, double low, double high) {
    const auto op = Device::make("near_weight", "positions", positions);
    const ListInputs in(op, positions, cell, batch, types, neighbors, images, counts);
    const NearInputs near(op, near_mask, in.ntypes, near_cutoff, decay, low, high);
    Tensor weight = empty(op, {in.atoms}, ScalarType::Double),
           nearest = empty(op, {in.atoms}, ScalarType::Double);
    Tensor within = Device::summed(op, {in.atoms, in.ntypes}, ScalarType::Int);
    run_near(op, in.args(), near.args(), weight.mutable_data_ptr<double>(),
             within.mutable_data_ptr<int32_t>(), nearest.mutable_data_ptr<double>());
    return {weight, within, nearest};
  }

  static Outputs<6> pair_table(const Tensor& positions, const Tensor& cell, const Tensor& batch,
                               const Tensor& types, const Tensor& neighbors, const Tensor& images,
                               const Tensor& counts, const Tensor& pair_mask, const Tensor& coefficients,
                               const Tensor& weight, const Tensor& other, const Tensor& other_forces,
                               const Tensor& other_virial, const Tensor& other_atom_virial,
                               const Tensor& near_mask, double first, double step, double cutoff,
                               double near_cutoff, double decay, double low, double high, bool atom_virial) {
    const auto op = Device::make("pair_table", "positions", positions);
    const ListInputs in(op, positions, cell, batch, types, neighbors, images, counts);
    const TableInputs table(op, pair_mask, coefficients, in.ntypes, first, step, cutoff);
    const BlendInputs blend(op, weight, other, other_forces, other_virial, other_atom_virial, in.atoms,
                            in.systems, atom_virial);
    const NearInputs near(op, near_mask, in.ntypes, near_cutoff, decay, low, high);
    TableOutputs out(Device(), op, in.args(), atom_virial);
    run_table(op, in.args(), table.args(), blend, near.args(), out);
    return {out.energy, out.forces, out.virial, out.within, out.nearest, out.of_atoms};
  }

  MDOPS_IMPLEMENT(PairTableOps, near_weight, pair_table)
};

}  // namespace mdops
