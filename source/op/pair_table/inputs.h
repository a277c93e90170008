// The ops' arguments, checked at entry; for the CPU and for GPUs.
#pragma once

#include <cmath>

#include "common/pair_checks.h"
#include "pair_table/pair_table.h"

namespace mdops {

struct ListInputs {
  Tensor positions, cell, batch, types, neighbors, images, counts;
  int64_t atoms = positions.size(0), systems = cell.size(0), ntypes = counts.size(1);

  ListInputs(const Op& op, const Tensor& positions_, const Tensor& cell_, const Tensor& batch_,
             const Tensor& types_, const Tensor& neighbors_, const Tensor& images_, const Tensor& counts_)
      : positions(input(op, "positions", positions_, ScalarType::Double, {kAny, 3})),
        cell(input(op, "cell", cell_, ScalarType::Double, {kAny, 3, 3})),
        batch(input(op, "batch", batch_, ScalarType::Int, {positions.size(0)})),
        types(input(op, "types", types_, ScalarType::Int, {positions.size(0)})),
        neighbors(input(op, "neighbors", neighbors_, ScalarType::Int, {positions.size(0), kAny})),
        images(input(op, "images", images_, ScalarType::Int, {positions.size(0), neighbors.size(1)})),
        counts(input(op, "counts", counts_, ScalarType::Int, {positions.size(0), kAny})) {
    check_range(op, "batch", batch, 0, systems);
    check_range(op, "types", types, -1, ntypes);
    check_counts(op, data_of(counts), counts.size(0), counts.size(1), neighbors.size(1));
  }

  ListArgs args() const {
    return {data_of(positions),      data_of(cell),   data_of(batch), data_of(types), data_of(neighbors),
            data_of(images),         data_of(counts), atoms,          systems,        neighbors.size(1),
            static_cast<int>(ntypes)};
  }
};

inline void check_positive(const Op& op, const char* name, double value) {
  if (!(value > 0) || !std::isfinite(value))
    fail(op, "argument `", name, "` is ", value, ", expected more than 0");
}

struct NearInputs {
  Tensor pair_mask;
  double cutoff, decay, low, high;

  NearInputs(const Op& op, const Tensor& pair_mask_, int64_t ntypes, double cutoff_, double decay_,
             double low_, double high_)
      : pair_mask(input(op, "near_mask", pair_mask_, ScalarType::Bool, {ntypes, ntypes})),
        cutoff(cutoff_),
        decay(decay_),
        low(low_),
        high(high_) {
    check_positive(op, "near_cutoff", cutoff);
    check_positive(op, "decay", decay);
    if (!(low < high) || !std::isfinite(low) || !std::isfinite(high))
      fail(op, "arguments `low` and `high` are ", low, " and ", high, " A, expected low < high");
  }

  NearArgs args() const { return {data_of(pair_mask), cutoff, decay, low, high}; }
};

struct TableInputs {
  Tensor pair_mask, coefficients;
  double first, step, cutoff;

  TableInputs(const Op& op, const Tensor& pair_mask_, const Tensor& coefficients_, int64_t ntypes,
              double first_, double step_, double cutoff_)
      : pair_mask(input(op, "pair_mask", pair_mask_, ScalarType::Bool, {ntypes, ntypes})),
        coefficients(input(op, "coefficients", coefficients_, ScalarType::Double, {ntypes, ntypes, kAny, 4})),
        first(first_),
        step(step_),
        cutoff(cutoff_) {
    if (coefficients.size(2) < 1) fail(op, "argument `coefficients` has no intervals");
    if (!(first >= 0) || !std::isfinite(first)) fail(op, "argument `first` must be a distance, 0 or more");
    check_positive(op, "step", step);
    check_positive(op, "cutoff", cutoff);
  }

  TableArgs args() const {
    return {data_of(pair_mask), data_of(coefficients), coefficients.size(2), first, step, cutoff};
  }
};

// Weights and other energies of the atoms, or empty tensors. Other energies come with weights, and with the
// forces and virials of their own weighted sum.
struct BlendInputs {
  Tensor weight, other, forces, virial, of_atoms;

  BlendInputs(const Op& op, const Tensor& weight_, const Tensor& other_, const Tensor& forces_,
              const Tensor& virial_, const Tensor& of_atoms_, int64_t atoms, int64_t systems,
              bool atom_virial)
      : weight(input(op, "weight", weight_, ScalarType::Double, {weight_.size(0) ? atoms : 0})),
        other(input(op, "other", other_, ScalarType::Double, {other_.size(0) ? atoms : 0})) {
    if (blends() && !weight.size(0)) fail(op, "argument `other` is given without `weight`");
    // Where there are no atoms, the sums' shapes alone tell.
    const auto is_there = [&](const Tensor& sum) { return blends() || (atoms == 0 && sum.dim() > 1); };
    const auto none = [&](const char* name, const Tensor& given) {
      return input(op, name, given, ScalarType::Double, {0});
    };
    const int64_t of = atom_virial ? atoms : 0;
    forces = !is_there(forces_) ? none("other_forces", forces_)
                                : input(op, "other_forces", forces_, ScalarType::Double, {atoms, 3});
    virial = !is_there(virial_) ? none("other_virial", virial_)
                                : input(op, "other_virial", virial_, ScalarType::Double, {systems, 3, 3});
    of_atoms = !is_there(of_atoms_)
                   ? none("other_atom_virial", of_atoms_)
                   : input(op, "other_atom_virial", of_atoms_, ScalarType::Double, {of, 3, 3});
  }

  bool blends() const { return other.size(0) > 0; }
  const double* weights() const { return weight.size(0) ? weight.const_data_ptr<double>() : nullptr; }
};

// What a table gives, on any device.
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

  // Null where nobody asks.
  double* atom_virial() { return of_atoms.size(0) ? of_atoms.mutable_data_ptr<double>() : nullptr; }
};

}  // namespace mdops
