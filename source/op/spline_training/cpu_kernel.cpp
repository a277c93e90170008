#include "gemm/training.h"
#include "gemm/weights.h"
#include "spline_potential/atoms.h"
#include "spline_training/spline_training.h"

namespace mdops::MDOPS_ISA {

namespace {

// Features of D in all groups.
int64_t all_features(const FittingShape& net) {
  int64_t features = 0;
  each_group(net, kGroup, [&](const Group& group, int64_t before) { features = before + group.features; });
  return features;
}

// What passes over a block of atoms leave for later ones, an atom a lane. Those of the forward pass are
// saved, the others last as long as the backward pass.
template <class T>
struct TrainingArrays {
  BlockArray<T> t;       // T, four times t_width rows
  BlockArray<T> grad_t;  // its gradient of the energy, [atom][4][t_width]
  BlockArray<T> grad_d;  // the features' gradient of the energy
  BlockArray<T> dt;      // tangents of T
  NetArrays<T> net;
  int64_t saved, work;

  TrainingArrays(const FittingShape& shape, const TrainingMemory<T>& memory)
      : TrainingArrays(shape, {{reinterpret_cast<char*>(memory.saved)}, memory.lanes},
                       {{reinterpret_cast<char*>(memory.work)}, memory.lanes}) {}

 private:
  TrainingArrays(const FittingShape& shape, BlockArena<T> kept, BlockArena<T> used)
      : t(kept.take(4 * t_width<T>(shape))),
        grad_t(kept.take(4 * t_width<T>(shape))),
        grad_d(kept.take(all_features(shape))),
        dt(used.take(4 * t_width<T>(shape))),
        net(shape, kept, used),
        saved(kept.size()),
        work(used.size()) {}
};

// One thread's memory for a block of atoms in either pass, or for a unit of weights.
template <class T>
struct Scratch {
  Arena arena;
  AtomBlock<T> atoms;
  UnitMemory<T> unit;
  NetMemory<T> net;
  T *rows, *t_lanes;   // [atom][4][t_width]; as many lanes
  double* energy;      // [atom]
  T* tangent_moments;  // [moment_rows][4], one atom's
  T *vx, *vy, *vz;     // [pair_stride], one atom's: the loss' gradient by the pair gradients
  int32_t* within;     // [ntypes]
  T* kept;             // [atom][moment_rows][8]: A and its tangent in the active rows

  Scratch(const PotentialArgs<T>& args, T* memory)
      : arena{reinterpret_cast<char*>(memory)},
        atoms(args, arena),
        unit(args.net, most_features(args.net, kUnitFeatures), kBlock, arena),
        net(args.net, most_features(args.net, kGroup), kBlock, arena) {
    rows = arena.take<T>(4 * t_width<T>(args.net) * kBlock);
    t_lanes = arena.take<T>(4 * t_width<T>(args.net) * kBlock);
    energy = arena.take<double>(kBlock);
    tangent_moments = arena.take<T>(4 * atoms.moment_rows);
    vx = arena.take<T>(atoms.pair_stride);
    vy = arena.take<T>(atoms.pair_stride);
    vz = arena.take<T>(atoms.pair_stride);
    within = arena.take<int32_t>(args.ntypes);
    kept = arena.take<T>(kBlock * atoms.moment_rows * 8);
  }

  int64_t size() const { return arena.used / static_cast<int64_t>(sizeof(T)) + 1; }
};

// A block in either pass.
template <class T>
struct Work {
  const PotentialArgs<T>& args;
  const TrainingBlock& block;
  const int32_t* ids;
  const Scratch<T>& s;
  const TrainingArrays<T>& r;
  const FittingShape& shape;
  Features<T> features;
  NetPasses<T> p;
  Panels<T> t, t_lanes;  // T; its gradient of the energy or of the loss
  int64_t t_rows;

  Work(const PotentialArgs<T>& args_, const NetWeights<T>& weights, const TrainingBlock& block_,
       const int32_t* ids_, const TrainingArrays<T>& arrays, const Scratch<T>& s_)
      : args(args_),
        block(block_),
        ids(ids_),
        s(s_),
        r(arrays),
        shape(args.net),
        features{shape, weights},
        p({shape, weights.layer}, r.net, s.net, block, static_cast<T>(args.scale[block.net])),
        t(r.t.of(block)),
        t_lanes{s.t_lanes, r.t.rows, block.lanes},
        t_rows(arrays.t.rows) {}

  // Of atom a.
  int type(int64_t a) const { return args.types[ids[a]]; }
  Centre<T> centre_of(int64_t a) const { return centre(args, type(a)); }
  const T* tables(int64_t a) const { return tables_of(args, type(a)); }

  // T or its tangent of all atoms from s.rows into lanes, zero where there is no atom.
  void rows_to(const BlockArray<T>& array) const {
    for (int64_t k = block.count * t_rows; k < block.lanes * t_rows; ++k) s.rows[k] = 0;
    to_lanes(s.rows, t_rows, array.of(block));
  }
};

template <class T>
void forward(const Work<T>& w, PotentialResults<T>& out) {
  const PotentialArgs<T>& args = w.args;
  const AtomBlock<T>& atoms = w.s.atoms;
  for (int64_t a = 0; a < w.block.count; ++a) {
    const int64_t i = w.ids[a];
    int32_t* within = out.within + i * args.ntypes;
    if (!gather(args, i, a, atoms, within, out.nearest + i)) out.bad_atom = i;
    atom_moments(args, w.centre_of(a), i, a, atoms, within);
    contract_moments(args, w.tables(a), atoms.moments, a, atoms, w.s.rows + a * w.t_rows);
    clear_moments(a, atoms.moments, atoms);
  }
  w.rows_to(w.r.t);
  fill_extra(args, w.ids, w.block.count, w.r.net.extra.of(w.block));
  net_pass_forward(w.p, w.features,
                   [&](const Group& group, const Panels<T>& out) { form_group(w.shape, w.t, group, out); });
  net_output(w.p.net, w.p.y[w.p.net.last()], w.s.energy);
  for (int64_t a = 0; a < w.block.count; ++a)
    out.energy[w.ids[a]] = args.scale[w.block.net] * w.s.energy[a] + args.shift[w.type(a)];
  const Panels<T> grad_d = w.r.grad_d.of(w.block);
  clear_from(w.t_lanes, 0);
  net_pass_backward(
      w.p, w.features, [&](const Group&, int64_t before) { return grad_d.from(before); },
      [&](const Group& group, int64_t, const Panels<T>& grad) {
        unform_group(w.shape, w.t, group, grad, w.t_lanes);
      });
  T* grad_t = w.r.grad_t.at(w.block);
  from_lanes(w.t_lanes, grad_t, w.t_rows);
  for (int64_t a = 0; a < w.block.count; ++a) {
    uncontract_moments(args, w.tables(a), grad_t + a * w.t_rows, a, atoms);
    scatter_forces(args, w.centre_of(a), w.ids[a], a, atoms, out);
    clear_moments(a, atoms.moments, atoms);
  }
}

// The loss' gradient by the pair gradients g of atom a: g is added to the force of i and taken from that of
// j, and -d_b g_c is added to the virial.
template <class T>
void pair_tangents(const PotentialArgs<T>& args, const TrainingGradients<T>& given, int64_t i, int64_t a,
                   const Scratch<T>& s) {
  const T *own = given.forces + 4 * i, *w = given.virial + 9 * static_cast<int64_t>(args.batch[i]);
  const int64_t at = a * s.atoms.pair_stride;
  for (int k = 0; k < s.atoms.pairs[a]; ++k) {
    const T* other = given.forces + 4 * static_cast<int64_t>(s.atoms.other[at + k]);
    const T d[3] = {s.atoms.x[at + k], s.atoms.y[at + k], s.atoms.z[at + k]};
    T v[3];
    for (int e = 0; e < 3; ++e) v[e] = own[e] - other[e] - (d[0] * w[e] + d[1] * w[3 + e] + d[2] * w[6 + e]);
    s.vx[k] = v[0], s.vy[k] = v[1], s.vz[k] = v[2];
  }
}

// A and its tangent for atom a, stored for the active rows; the tangent of T. Returns the result of `gather`.
template <class T>
bool tangents(const Work<T>& w, const TrainingGradients<T>& given, int64_t a) {
  const PotentialArgs<T>& args = w.args;
  const Scratch<T>& s = w.s;
  const int64_t i = w.ids[a];
  T nearest;
  const bool found = gather(args, i, a, s.atoms, s.within, &nearest);
  const Centre<T> c = w.centre_of(a);
  atom_moments(args, c, i, a, s.atoms, s.within);
  pair_tangents(args, given, i, a, s);
  for (int from = 0; from < s.atoms.pairs[a]; from += kChunk) {
    const Pairs<T> pairs = s.atoms.chunk(a, from);
    const Pairs<T> v{s.vx + from, s.vy + from, s.vz + from, pairs.table, pairs.size};
    args.gated ? add_moments_jvp<4, Gate::beside>(pairs, v, c, s.tangent_moments)
               : add_moments_jvp<4, Gate::none>(pairs, v, c, s.tangent_moments);
  }
  contract_moments(args, w.tables(a), s.tangent_moments, a, s.atoms, s.rows + a * w.t_rows);
  const int16_t* active = s.atoms.active + a * s.atoms.active_stride;
  T* kept = s.kept + a * s.atoms.moment_rows * 8;
  for (int k = 0; k < s.atoms.actives[a]; ++k)
    for (int e = 0; e < 4; ++e) {
      kept[8 * k + e] = s.atoms.moments[4 * active[k] + e];
      kept[8 * k + 4 + e] = s.tangent_moments[4 * active[k] + e];
    }
  clear_moments(a, s.atoms.moments, s.atoms);
  clear_moments(a, s.tangent_moments, s.atoms);
  return found;
}

// Adds atom a's part of the gradient of its type's tables, A adjoint_T + dA grad_T, for adjoint_T in s.rows.
template <class T>
void add_table_gradient(const Work<T>& w, int64_t a, T* tables) {
  using V = Vector<T>;
  const AtomBlock<T>& atoms = w.s.atoms;
  const int64_t width = w.t_rows / 4;
  const T *adjoint = w.s.rows + a * w.t_rows, *grad = w.r.grad_t.at(w.block) + a * w.t_rows;
  const int16_t* active = atoms.active + a * atoms.active_stride;
  const T* kept = w.s.kept + a * atoms.moment_rows * 8;
  for (int k = 0; k < atoms.actives[a]; ++k) {
    T* out = tables + active[k] * w.args.table_width;
    const T* m = kept + 8 * k;
    for (int64_t col = 0; col < width; col += kLanes<T>) {
      V sum = vector_at(out + col);
      for (int e = 0; e < 4; ++e)
        sum += m[e] * vector_at(adjoint + e * width + col) + m[4 + e] * vector_at(grad + e * width + col);
      store(out + col, sum);
    }
  }
}

template <class T>
void backward(const Work<T>& w, const TrainingGradients<T>& given, TrainingShare<T>& share) {
  const NetVectors vectors(w.args.net);
  const int64_t count = w.block.count;
  for (int64_t a = 0; a < w.block.lanes; ++a)
    w.s.net.u[a] = a < count ? static_cast<T>(given.energy[w.ids[a]]) : T(0);
  for (int64_t a = 0; a < count; ++a)
    if (!tangents(w, given, a)) share.bad_atom = w.ids[a];
  w.rows_to(w.r.dt);
  const Panels<T> dt = w.r.dt.of(w.block), grad_d = w.r.grad_d.of(w.block);
  net_pass_tangent(w.p, w.features, [&](const Group& group, const Panels<T>& out) {
    form_tangent(w.shape, w.t, dt, group, out);
  });
  clear_from(w.t_lanes, 0);
  net_pass_adjoint(w.p, w.features, vectors, share.vectors + w.block.net * vectors.size,
                   [&](const Group& group, int64_t before, const Panels<T>& grad) {
                     unform_group(w.shape, w.t, group, grad, w.t_lanes);
                     if (!w.shape.plain)  // D has no second derivative then
                       unform_group(w.shape, dt, group, grad_d.from(before), w.t_lanes);
                   });
  from_lanes(w.t_lanes, w.s.rows, w.t_rows);
  for (int64_t a = 0; a < count; ++a)
    add_table_gradient(w, a, share.tables + w.type(a) * w.s.atoms.moment_rows * w.args.table_width);
}

// The rows of the first matrix for a group of features, both of equal ones.
template <class T>
void feature_unit(const WeightSums<T, TrainingBlock>& sums, const TrainingArrays<T>& r,
                  const FittingShape& net, const Group& group, T* weight) {
  const Panels<T> sum = feature_sum(
      sums, group.features,
      [&](const TrainingBlock& block, const Panels<T>& out) { form_group(net, r.t.of(block), group, out); },
      [&](const TrainingBlock& block, const Panels<T>& out) {
        form_tangent(net, r.t.of(block), r.dt.of(block), group, out);
      });
  const int64_t cols = net.neurons[0];
  int64_t row = 0;
  for (int k = group.first; k < group.last; ++k)
    for (int l = 0; l < net.row_features(k); ++l, ++row) {
      store_row(sum, row, cols, weight + (k * net.axis + l) * cols);
      if (k < net.axis && l < k) store_row(sum, row, cols, weight + (l * net.axis + k) * cols);
    }
}

// with_unit (gemm/weights.h) over the groups of D.
int64_t unit_of(const FittingShape& net, int64_t unit, const auto& feature, const auto& extra,
                const auto& layer) {
  const auto groups = [&](const auto& work) { each_group(net, kUnitFeatures, work); };
  return with_unit(net, unit, groups, feature, extra, layer);
}

template <class T>
Scratch<T> cleared(const PotentialArgs<T>& args, T* memory) {
  Scratch<T> scratch(args, memory);
  scratch.atoms.clear();
  for (int64_t k = 0; k < scratch.atoms.moment_rows * 4; ++k) scratch.tangent_moments[k] = 0;
  return scratch;
}

}  // namespace

template <class T>
int64_t saved_size(const PotentialArgs<T>& args, int64_t lanes) {
  return TrainingArrays<T>(args.net, {lanes, nullptr, nullptr}).saved;
}

template <class T>
int64_t work_size(const PotentialArgs<T>& args, int64_t lanes) {
  return TrainingArrays<T>(args.net, {lanes, nullptr, nullptr}).work;
}

template <class T>
int64_t training_scratch_size(const PotentialArgs<T>& args) {
  return Scratch<T>(args, nullptr).size();
}

template <class T>
void train_forward(const PotentialArgs<T>& args, const NetWeights<T>& weights, const TrainingBlock& block,
                   const int32_t* ids, const TrainingMemory<T>& memory, T* scratch,
                   PotentialResults<T>& out) {
  const TrainingArrays<T> arrays(args.net, memory);
  const Scratch<T> s = cleared(args, scratch);
  forward(Work<T>(args, weights, block, ids, arrays, s), out);
}

template <class T>
void train_backward(const PotentialArgs<T>& args, const NetWeights<T>& weights, const TrainingBlock& block,
                    const int32_t* ids, const TrainingGradients<T>& given, const TrainingMemory<T>& memory,
                    T* scratch, TrainingShare<T>& share) {
  const TrainingArrays<T> arrays(args.net, memory);
  const Scratch<T> s = cleared(args, scratch);
  backward(Work<T>(args, weights, block, ids, arrays, s), given, share);
}

template <class T>
int64_t weight_units(const FittingShape& net, T) {
  return unit_of(net, -1, [](const Group&) {}, [] {}, [](int, int64_t) {});
}

template <class T>
void weight_gradient(const PotentialArgs<T>& args, int64_t unit, const TrainingBlock* blocks, int64_t count,
                     const TrainingMemory<T>& memory, T* scratch, T* const* matrices) {
  const TrainingArrays<T> arrays(args.net, memory);
  const WeightSums<T, TrainingBlock> sums{args.net, arrays.net, blocks, count,
                                          Scratch<T>(args, scratch).unit};
  unit_of(
      args.net, unit, [&](const Group& group) { feature_unit(sums, arrays, args.net, group, matrices[0]); },
      [&] { extra_unit(sums, matrices[0]); },
      [&](int n, int64_t first) { layer_unit(sums, n, first, matrices[n]); });
}

MDOPS_INSTANTIATE(saved_size, work_size, training_scratch_size, train_forward, train_backward, weight_units,
                  weight_gradient)

}  // namespace mdops::MDOPS_ISA
