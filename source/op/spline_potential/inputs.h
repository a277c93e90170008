// The ops' arguments, checked at entry; for the CPU and for GPUs.
#pragma once

#include "common/bind.h"
#include "gemm/matmul.h"
#include "spline_moment/args.h"
#include "spline_moment/knots.h"
#include "spline_potential/shape.h"

namespace mdops {

// The layers of one fitting net, the output layer last.
struct NetInputs {
  Tensors weights, biases, timesteps;
  FittingShape net;

  NetInputs(const Op& op, Tensors weights_, Tensors biases_, Tensors timesteps_, int64_t width, int64_t axis)
      : weights(std::move(weights_)), biases(std::move(biases_)), timesteps(std::move(timesteps_)) {
    const std::string refusal = shape_refusal(width, axis, {1}, 0);
    if (!refusal.empty()) fail(op, refusal);
    const size_t layers = weights.size();
    if (layers < 2 || biases.size() != layers || timesteps.size() != layers)
      fail(op, "expected weights, biases and timesteps of two layers or more, as many of each");
    std::vector<int64_t> neurons;
    int64_t inputs = weights[0].dim() == 2 ? weights[0].size(0) : 0;
    const int64_t extra = inputs - width * (axis ? axis : 1);
    if (extra < 0) fail(op, "argument `weights[0]` has fewer rows than there are features");
    for (size_t n = 0; n < layers; ++n) {
      weights[n] = float_input(op, "weights", weights[n], {inputs, n + 1 < layers ? kAny : 1});
      inputs = weights[n].size(1);
      biases[n] = input(op, "biases", biases[n], weights[0].scalar_type(), {inputs});
      timesteps[n] = input(op, "timesteps", timesteps[n], weights[0].scalar_type(), {inputs});
      if (n + 1 < layers) neurons.push_back(inputs);
    }
    net = fitting_shape(op, width, axis, neurons, extra);
  }

  template <class T>
  std::vector<DenseLayer<T>> layers() const {
    std::vector<DenseLayer<T>> dense;
    for (size_t n = 0; n < weights.size(); ++n)
      dense.push_back({data_of(weights[n]), data_of(biases[n]), data_of(timesteps[n])});
    return dense;
  }
};

// Everything `spline_potential` takes; ops.md and mdops/ops/spline_potential.py say what it is.
struct PotentialInputs {
  Tensor positions, cell, batch, types, neighbors, images, counts, mean, std, pair_mask, tables, nets, extra,
      scale, shift;
  PlaceInputs places;
  Tensors layers;  // in place of `nets`: each net's, see NetInputs; the output layer has no timestep
  ScalarType dtype;
  int64_t atoms, systems, ntypes, basis, net_count;  // of nets: ntypes, or 1 for all types
  bool gated, atom_virial;                           // whether atomic virials are wanted
  double cutoff, cutoff_smooth, protection, s_max, grading;
  Matmul matmul;
  FittingShape net;

  template <class T>
  Cutoff<T> cutoff_as() const {
    return {static_cast<T>(cutoff), static_cast<T>(cutoff_smooth), static_cast<T>(protection)};
  }
  template <class T>
  SplineGrid<T> grid_as() const {
    return spline_grid<T>(basis - 5, s_max, grading);
  }
};

inline void read_nets(const Op& op, Input nets, PotentialInputs& in) {
  in.nets = input(op, "nets", nets, in.dtype, {kAny, kAny});
  in.net_count = in.nets.size(0);
}

inline void read_nets(const Op& op, const Tensors& nets, PotentialInputs& in) {
  const size_t of_net = 3 * in.net.layers + 2;
  in.net_count = nets.size() == of_net ? 1 : in.ntypes;
  if (nets.size() != in.net_count * of_net)
    fail(op, "argument `nets` has ", nets.size(), " tensors, expected ", of_net,
         " for all types or for each: weight, bias and timestep of the layers");
  for (size_t k = 0; k < nets.size();) {
    int64_t inputs = in.net.features + in.net.extra;
    for (int n = 0; n <= in.net.layers; ++n) {
      const int64_t outputs = n < in.net.layers ? in.net.neurons[n] : 1;
      in.layers.push_back(input(op, "nets", nets[k++], in.dtype, {inputs, outputs}));
      in.layers.push_back(input(op, "nets", nets[k++], in.dtype, {outputs}));
      if (n < in.net.layers) in.layers.push_back(input(op, "nets", nets[k++], in.dtype, {outputs}));
      inputs = outputs;
    }
  }
}

// The atoms and their neighbours.
inline void read_atoms(const Op& op, Input positions, Input cell, Input batch, Input types, Input neighbors,
                       Input images, PotentialInputs& in) {
  in.positions = input(op, "positions", positions, ScalarType::Double, {kAny, 3});
  in.cell = input(op, "cell", cell, ScalarType::Double, {kAny, 3, 3});
  const int64_t n = in.atoms = in.positions.size(0);
  in.systems = in.cell.size(0);
  in.batch = input(op, "batch", batch, ScalarType::Int, {n});
  in.neighbors = input(op, "neighbors", neighbors, ScalarType::Int, {n, kAny});
  in.images = input(op, "images", images, ScalarType::Int, {n, in.neighbors.size(1)});
  in.types = input(op, "types", types, ScalarType::Int, {n});
}

// A descriptor of these atoms.
inline void read_descriptor(const Op& op, Input counts, Input mean, Input std, Input pair_mask, Input zeroed,
                            Input sel, Input padding, Input tables, double cutoff, double cutoff_smooth,
                            double protection, double s_max, double grading, int64_t width, bool gated,
                            PotentialInputs& in) {
  in.tables = float_input(op, "tables", tables, {kAny, kAny, kAny});
  in.dtype = in.tables.scalar_type();
  const int64_t n = in.atoms, ntypes = in.ntypes = in.tables.size(0);
  const int64_t tables_of_type = ntypes + gated;
  in.gated = gated;
  in.basis = ntypes ? in.tables.size(1) / tables_of_type : 0;
  const std::string refusal = rows_refusal(ntypes ? tables_of_type : 0, in.basis);
  if (!refusal.empty()) fail(op, "argument `tables` has ", refusal);
  if (in.tables.size(1) != tables_of_type * in.basis || in.tables.size(2) != table_width(width))
    fail(op,
         "argument `tables` has a shape that does not fit (ntypes, tables * basis, width padded to 16), with "
         "a table for each type, and one before them if `gated`");
  in.counts = input(op, "counts", counts, ScalarType::Int, {n, ntypes});
  in.mean = input(op, "mean", mean, in.dtype, {ntypes});
  in.std = input(op, "std", std, in.dtype, {ntypes, 2});
  in.pair_mask = input(op, "pair_mask", pair_mask, ScalarType::Bool, {ntypes, ntypes});
  in.places = PlaceInputs(op, zeroed, sel, padding, n, ntypes);
  check_cutoff(op, cutoff, cutoff_smooth, protection);
  check_knots(op, s_max, grading);
  in.cutoff = cutoff, in.cutoff_smooth = cutoff_smooth, in.protection = protection, in.s_max = s_max,
  in.grading = grading;
}

// Refuses invalid indices.
inline void check_atoms(const Op& op, const PotentialInputs& in) {
  check_range(op, "batch", in.batch, 0, in.systems);
  check_range(op, "types", in.types, -1, in.ntypes);
  check_counts(op, data_of(in.counts), in.counts.size(0), in.counts.size(1), in.neighbors.size(1));
}

// A step's inputs without its layers' shapes.
struct StepChoice {
  int64_t activation = static_cast<int64_t>(Activation::tanh);
  double threshold = 0;
  std::string matmul = "float32";
  bool atom_virial = false;
};

// `Nets`: a tensor, packed for the kernels, or the tensors of all layers. `More`: what an op takes of the
// choice.
template <class In, class Nets, class... More>
PotentialInputs take_step(In& in, Input positions, Input cell, Input batch, Input types, Input neighbors,
                          Input images, Input counts, Input mean, Input std, Input pair_mask, Input zeroed,
                          Input sel, Input padding, Input tables, const Nets& nets, Input extra, Input scale,
                          Input shift, double cutoff, double cutoff_smooth, double protection, double s_max,
                          double grading, int64_t width, int64_t axis, const std::vector<int64_t>& neurons,
                          const std::vector<int64_t>& residual, bool gated, More... more) {
  const auto& op = in.op;
  const StepChoice choice{more...};
  PotentialInputs a{};
  const std::string shape = shape_refusal(width, axis, neurons, 0);
  if (!shape.empty()) fail(op, shape);
  read_atoms(op, positions, cell, batch, types, neighbors, images, a);
  read_descriptor(op, counts, mean, std, pair_mask, zeroed, sel, padding, tables, cutoff, cutoff_smooth,
                  protection, s_max, grading, width, gated, a);
  check_atoms(op, a);
  a.extra = input(op, "extra", extra, a.dtype, {a.atoms, kAny});
  a.shift = input(op, "shift", shift, ScalarType::Double, {a.ntypes});
  a.matmul = matmul_of(op, choice.matmul), a.atom_virial = choice.atom_virial;

  a.net = fitting_shape(op, width, axis, neurons, a.extra.size(1));
  set_layers(op, residual, choice.activation, choice.threshold, a.net);
  read_nets(op, nets, a);
  if (a.net_count != 1 && a.net_count != a.ntypes)
    fail(op, "argument `nets` has ", a.net_count, " nets, expected 1 for all types, or ", a.ntypes);
  a.scale = input(op, "scale", scale, ScalarType::Double, {a.net_count});
  return a;
}

// The inputs in the form for kernels. `positions` has the device's layout.
template <class T, class Size>
void fill(const PotentialInputs& in, const double* positions, StepInputs<T, Size>& args) {
  args.positions = positions;
  args.cell = data_of(in.cell);
  args.batch = data_of(in.batch);
  args.types = data_of(in.types);
  args.neighbors = data_of(in.neighbors);
  args.images = data_of(in.images);
  args.counts = data_of(in.counts);
  args.mean = data_of(in.mean);
  args.std = data_of(in.std);
  args.places = in.places.places(data_of(in.pair_mask), in.ntypes);
  args.tables = data_of(in.tables);
  args.extra = data_of(in.extra);
  args.scale = data_of(in.scale);
  args.shift = data_of(in.shift);
  args.atoms = static_cast<Size>(in.atoms);
  args.systems = static_cast<Size>(in.systems);
  args.list_width = static_cast<Size>(in.neighbors.size(1));
  args.table_width = static_cast<Size>(in.tables.size(2));
  args.ntypes = static_cast<int>(in.ntypes);
  args.nets = static_cast<int>(in.net_count);
  args.gated = in.gated;
  args.cutoff = in.cutoff_as<T>();
  args.grid = in.grid_as<T>();
}

// Refuses `nets` of another size than the running kernels read.
inline void check_packed(const Op& op, Input nets, int64_t size) {
  if (nets.size(1) != size)
    fail(op, "argument `nets` was packed for a net of another shape, or another device or instruction set");
}

}  // namespace mdops
