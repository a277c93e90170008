// The ops on pair tables.
#pragma once

#include "common/bind.h"
#include "pair_table/inputs.h"

namespace mdops {

template <class Device>
struct PairTableOps {
  static Outputs<3> near_weight(Checked<Device>& in, Input positions, Input cell, Input batch, Input types,
                                Input neighbors, Input images, Input counts, Input near_mask,
                                double near_cutoff, double decay, double low, double high) {
    const ListArgs list = take_list(in, positions, cell, batch, types, neighbors, images, counts);
    const NearArgs near = take_near(in, near_mask, list.ntypes, near_cutoff, decay, low, high);
    double *to_weight, *to_nearest;
    int32_t* to_within;
    Tensor weight = in.result(to_weight, {list.atoms}), nearest = in.result(to_nearest, {list.atoms});
    Tensor within = in.sums(to_within, {list.atoms, list.ntypes});
    run_near(in.op, list, near, to_weight, to_within, to_nearest);
    return {weight, within, nearest};
  }

  static Outputs<6> pair_table(Checked<Device>& in, Input positions, Input cell, Input batch, Input types,
                               Input neighbors, Input images, Input counts, Input pair_mask,
                               Input coefficients, Input weight, Input other, Input other_forces,
                               Input other_virial, Input other_atom_virial, Input near_mask, double first,
                               double step, double cutoff, double near_cutoff, double decay, double low,
                               double high, bool atom_virial) {
    const ListArgs list = take_list(in, positions, cell, batch, types, neighbors, images, counts);
    const TableArgs table =
        take_table(in, "pair_mask", pair_mask, coefficients, list.ntypes, first, step, cutoff);
    const BlendArgs blend =
        take_blend(in, list, weight, other, other_forces, other_virial, other_atom_virial, atom_virial);
    const NearArgs near = take_near(in, near_mask, list.ntypes, near_cutoff, decay, low, high);
    TableOutputs out(Device(), in.op, list, atom_virial);
    run_table(in.op, list, table, blend, near, out);
    return {out.energy, out.forces, out.virial, out.within, out.nearest, out.of_atoms};
  }

  MDOPS_IMPLEMENT(PairTableOps, near_weight, pair_table)
};

}  // namespace mdops
