// The op's arguments, checked at entry; for the CPU and for GPUs.
#pragma once

#include "hybrid_potential/shape.h"
#include "pair_table/inputs.h"
#include "spline_potential/inputs.h"

namespace mdops {

using Numbers = std::vector<double>;
using Integers = std::vector<int64_t>;

// Of a blend with a pair table.
struct TableBlend {
  NearArgs near;
  TableArgs table;
};

// The lists have an entry a part.
struct HybridInputs {
  std::vector<PotentialInputs> parts;
  Tensors absent;  // (N, ntypes), or of no rows: the places say it
  Tensor nets, weight;
  std::optional<TableBlend> blend;
  NetShape net{};  // `features`: the rows of all parts
  bool atom_virial;

  const PotentialInputs& first() const { return parts[0]; }
  int64_t count() const { return static_cast<int64_t>(parts.size()); }
  int64_t extra() const { return first().extra.size(1); }

  // The part of the longest cutoff.
  int widest() const {
    int found = 0;
    for (int p = 1; p < count(); ++p)
      if (parts[p].cutoff > parts[found].cutoff) found = p;
    return found;
  }
};

HybridInputs take_hybrid(auto& in, Input positions, Input cell, Input batch, Input types, Input neighbors,
                         Input images, Input counts, const Tensors& mean, const Tensors& std,
                         const Tensors& pair_mask, const Tensors& zeroed, const Tensors& sel,
                         const Tensors& padding, const Tensors& absent, const Tensors& tables, Input nets,
                         Input extra, Input weight, Input scale, Input shift, const Numbers& cutoff,
                         const Numbers& cutoff_smooth, const Numbers& protection, const Numbers& s_max,
                         const Numbers& grading, const Integers& width, const Integers& axis,
                         const Integers& gated, const Integers& neurons, const Integers& residual,
                         int64_t activation, double threshold, Input near_mask, double near_cutoff,
                         double decay, double low, double high, Input table_mask, Input coefficients,
                         double table_first, double table_step, double table_cutoff, bool atom_virial) {
  const auto& op = in.op;
  HybridInputs a{};
  a.atom_virial = atom_virial;
  const size_t count = tables.size();
  if (count < 1 || count > kMostParts)
    fail(op, "argument `tables` has ", count, " parts, expected 1 to ", kMostParts);
  for (const size_t size :
       {mean.size(), std.size(), pair_mask.size(), zeroed.size(), sel.size(), padding.size(), absent.size(),
        cutoff.size(), cutoff_smooth.size(), protection.size(), s_max.size(), grading.size(), width.size(),
        axis.size(), gated.size()})
    if (size != count) fail(op, "the lists of arguments, one entry a part, differ in length");
  PotentialInputs atoms{};
  read_atoms(op, positions, cell, batch, types, neighbors, images, atoms);
  std::vector<FittingShape> shapes;
  for (size_t p = 0; p < count; ++p) {
    PotentialInputs part = atoms;
    part.net = fitting_shape(op, width[p], axis[p], neurons, 0);
    read_descriptor(op, counts, mean[p], std[p], pair_mask[p], zeroed[p], sel[p], padding[p], tables[p],
                    cutoff[p], cutoff_smooth[p], protection[p], s_max[p], grading[p], width[p], gated[p] != 0,
                    part);
    if (p && (part.dtype != a.first().dtype || part.ntypes != a.first().ntypes))
      fail(op, "the parts differ in their dtype or their number of types");
    a.absent.push_back(input(op, "absent", absent[p], ScalarType::Int, {kAny, part.ntypes}));
    const int64_t rows = a.absent.back().size(0);
    if (rows && rows != atoms.atoms)
      fail(op, "argument `absent` has " + std::to_string(rows) + " rows, expected none or one for each atom");
    if (rows && part.places.shared && part.net.plain)
      fail(op, "argument `absent` is not for plain sums whose types share places");
    shapes.push_back(part.net);
    a.parts.push_back(part);
  }
  check_atoms(op, a.first());
  const ScalarType dtype = a.first().dtype;
  const int64_t n = atoms.atoms, ntypes = a.first().ntypes;
  const Tensor inputs = input(op, "extra", extra, dtype, {n, kAny});
  if (inputs.size(1) > kMostNumbers) fail(op, "argument `extra` has too many columns");
  FittingShape layers = a.first().net;
  set_layers(op, residual, activation, threshold, layers);
  a.net = net_behind(shapes, layers, inputs.size(1));
  a.nets = input(op, "nets", nets, dtype, {kAny, kAny});
  const int64_t net_count = a.nets.size(0);
  if (net_count != 1 && net_count != ntypes)
    fail(op, "argument `nets` has ", net_count, " nets, expected 1 for all types, or ", ntypes);
  const bool blends = near_mask.size(0) > 0;
  const int64_t of = blends ? ntypes : 0;
  check_input(op, "near_mask", near_mask, ScalarType::Bool, {of, kAny});
  check_input(op, "table_mask", table_mask, ScalarType::Bool, {of, kAny});
  check_input(op, "coefficients", coefficients, ScalarType::Double, {of, kAny, kAny, 4});
  if (blends) {
    const NearArgs near = take_near(in, near_mask, ntypes, near_cutoff, decay, low, high);
    const double reach = a.parts[a.widest()].cutoff;
    if (near.high > reach)
      fail(op, "argument `high` is ", near.high, " A, expected at most the cutoff, ", reach);
    if (weight.size(0)) fail(op, "argument `weight` is given for a blend, which makes the weights");
    a.blend = {near, take_table(in, "table_mask", table_mask, coefficients, ntypes, table_first, table_step,
                                table_cutoff)};
  }
  a.weight = input(op, "weight", weight, ScalarType::Double, {weight.size(0) ? n : 0});
  const Tensor factor = input(op, "scale", scale, ScalarType::Double, {net_count});
  const Tensor offset = input(op, "shift", shift, ScalarType::Double, {ntypes});
  for (PotentialInputs& part : a.parts) {
    part.net_count = net_count;
    part.extra = inputs, part.scale = factor, part.shift = offset;
  }
  return a;
}

// A net to be packed: the layers, and the descriptors whose features its first layer takes, then `extra`
// inputs.
struct HybridNetInputs {
  NetInputs layers;
  std::vector<FittingShape> parts;
  int64_t extra;

  HybridNetInputs(const Op& op, Tensors weights, Tensors biases, Tensors timesteps, const Integers& width,
                  const Integers& axis)
      : layers(op, std::move(weights), std::move(biases), std::move(timesteps), 1, 0),
        extra(layers.weights[0].size(0)) {
    if (width.size() > kMostParts || width.size() != axis.size())
      fail(op, "arguments `width` and `axis` have ", width.size(), " and ", axis.size(),
           " numbers, expected as many, ", kMostParts, " at most");
    for (size_t p = 0; p < width.size(); ++p) {
      parts.push_back(fitting_shape(op, width[p], axis[p], {1}, 0));
      extra -= parts.back().features;
    }
    if (extra < 0 || (parts.empty() && extra == 0))
      fail(op, "argument `weights[0]` has fewer rows than there are features, or none");
  }
};

// The atoms and their list, in the form for the weights.
inline ListArgs list_args(const PotentialInputs& in) {
  ListArgs list{};
  list.positions = data_of(in.positions), list.cell = data_of(in.cell), list.batch = data_of(in.batch);
  list.types = data_of(in.types), list.neighbors = data_of(in.neighbors), list.images = data_of(in.images);
  list.counts = data_of(in.counts), list.atoms = in.atoms, list.systems = in.systems;
  list.list_width = in.neighbors.size(1), list.ntypes = static_cast<int>(in.ntypes);
  return list;
}

}  // namespace mdops
