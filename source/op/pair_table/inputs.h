// The ops' arguments, checked at entry; for the CPU and for GPUs.
#pragma once

#include <cmath>

#include "common/checked.h"
#include "pair_table/pair_table.h"

namespace mdops {

inline ListArgs take_list(auto& in, Input positions, Input cell, Input batch, Input types, Input neighbors,
                          Input images, Input counts) {
  ListArgs a{};
  in.take(a.positions, "positions", positions, {kAny, 3});
  in.take(a.cell, "cell", cell, {kAny, 3, 3});
  a.atoms = positions.size(0), a.systems = cell.size(0);
  in.take_range(a.batch, "batch", batch, {a.atoms}, 0, a.systems);
  in.take(a.neighbors, "neighbors", neighbors, {a.atoms, kAny});
  a.list_width = neighbors.size(1);
  in.take(a.images, "images", images, {a.atoms, a.list_width});
  in.take(a.counts, "counts", counts, {a.atoms, kAny});
  a.ntypes = static_cast<int>(counts.size(1));
  in.take_range(a.types, "types", types, {a.atoms}, -1, a.ntypes);
  check_counts(in.op, a.counts, a.atoms, a.ntypes, a.list_width);
  return a;
}

inline NearArgs take_near(auto& in, Input pair_mask, int64_t ntypes, double cutoff, double decay, double low,
                          double high) {
  NearArgs a{nullptr, cutoff, decay, low, high};
  in.take(a.pair_mask, "near_mask", pair_mask, {ntypes, ntypes});
  check_positive(in.op, "near_cutoff", cutoff);
  check_positive(in.op, "decay", decay);
  if (!(low < high) || !std::isfinite(low) || !std::isfinite(high))
    fail(in.op, "arguments `low` and `high` are ", low, " and ", high, " A, expected low < high");
  return a;
}

inline TableArgs take_table(auto& in, const char* mask_name, Input pair_mask, Input coefficients,
                            int64_t ntypes, double first, double step, double cutoff) {
  TableArgs a{};
  in.take(a.pair_mask, mask_name, pair_mask, {ntypes, ntypes});
  in.take(a.coefficients, "coefficients", coefficients, {ntypes, ntypes, kAny, 4});
  a.intervals = coefficients.size(2), a.first = first, a.step = step, a.cutoff = cutoff;
  if (a.intervals < 1) fail(in.op, "argument `coefficients` has no intervals");
  if (!(first >= 0) || !std::isfinite(first)) fail(in.op, "argument `first` must be a distance, 0 or more");
  check_positive(in.op, "step", step);
  check_positive(in.op, "cutoff", cutoff);
  return a;
}

// Weights and other energies of the atoms, or null. Other energies need weights, and the forces and virials
// of their own weighted sum.
struct BlendArgs {
  const double *weight, *other, *forces, *virial, *of_atoms;
  bool blends;
};

inline BlendArgs take_blend(auto& in, const ListArgs& list, Input weight, Input other, Input forces,
                            Input virial, Input of_atoms, bool atom_virial) {
  BlendArgs a{};
  const int64_t atoms = list.atoms, of = atom_virial ? atoms : 0;
  in.take(a.weight, "weight", weight, {weight.size(0) ? atoms : 0});
  in.take(a.other, "other", other, {other.size(0) ? atoms : 0});
  a.blends = other.size(0) > 0;
  if (!weight.size(0)) a.weight = nullptr;
  if (a.blends && !a.weight) fail(in.op, "argument `other` is given without `weight`");
  // Without atoms, the sums' shapes tell whether they are given.
  const auto is_there = [&](Input sum) { return a.blends || (atoms == 0 && sum.dim() > 1); };
  const auto take = [&](const double*& to, const char* name, Input sum,
                        std::initializer_list<int64_t> shape) {
    in.take(to, name, sum, is_there(sum) ? shape : std::initializer_list<int64_t>{0});
  };
  take(a.forces, "other_forces", forces, {atoms, 3});
  take(a.virial, "other_virial", virial, {list.systems, 3, 3});
  take(a.of_atoms, "other_atom_virial", of_atoms, {of, 3, 3});
  return a;
}

// The results of a table, on any device.
struct TableOutputs {
  Tensor energy, forces, virial, of_atoms, within, nearest;

  template <class Device>
  TableOutputs(Device, const Op& op, const ListArgs& list, bool atom_virial)
      : energy(Device::summed(op, {list.atoms}, ScalarType::Double)),
        forces(empty(op, {list.atoms, 3}, ScalarType::Double)),
        virial(Device::summed(op, {list.systems, 3, 3}, ScalarType::Double)),
        of_atoms(empty(op, {atom_virial ? list.atoms : 0, 3, 3}, ScalarType::Double)),
        within(Device::summed(op, {list.atoms, list.ntypes}, ScalarType::Int)),
        nearest(empty(op, {list.atoms}, ScalarType::Double)) {}

  // Null if not wanted.
  double* atom_virial() { return of_atoms.size(0) ? of_atoms.mutable_data_ptr<double>() : nullptr; }
};

}  // namespace mdops
