#include "spline_training/passes.h"
#include "spline_training/weights.h"

namespace mdops {
namespace MDOPS_ISA {

namespace {

// One thread's memory for a block of atoms in either pass, or for a unit of weights.
template <class T>
struct Scratch {
  Arena arena;
  AtomBlock<T> atoms;
  UnitMemory<T> unit;
  int64_t work_stride;
  T* work;
  T* layers[kMaxLayers + 2];
  T* adjoint_t;
  T* tangent_moments;  // [moment_rows][4], one atom's
  T *vx, *vy, *vz;     // [pair_stride], one atom's: the loss' gradient by the pair gradients
  int32_t* within;     // [ntypes]
  T* u;                // [row]
  // [atom][moment_rows][8]: A and its tangent in the active rows
  T* kept;

  Scratch(const PotentialArgs<T>& args, T* memory)
      : arena{reinterpret_cast<char*>(memory)}, atoms(args, arena), unit(args.net, arena) {
    const int64_t layer = (widest_layer<T>(args.net) + 15) / 16 * 16;
    work_stride = group_stride<T>(args.net);
    work = arena.take<T>(kBlock * work_stride);
    for (int n = 0; n < args.net.layers + 2; ++n) layers[n] = arena.take<T>(kBlock * layer);
    adjoint_t = arena.take<T>(kBlock * 4 * (padded<T>(args.net.width) + kLanes<T>));
    tangent_moments = arena.take<T>(4 * atoms.moment_rows);
    vx = arena.take<T>(atoms.pair_stride);
    vy = arena.take<T>(atoms.pair_stride);
    vz = arena.take<T>(atoms.pair_stride);
    within = arena.take<int32_t>(args.ntypes);
    u = arena.take<T>(kBlock);
    kept = arena.take<T>(kBlock * atoms.moment_rows * 8);
  }

  int64_t size() const { return arena.used / static_cast<int64_t>(sizeof(T)) + 1; }
};

template <class T>
Passes<T> passes(const PotentialArgs<T>& args, const PackedNet<T>& at, const TrainingBlock& block,
                 const TrainingRows<T>& all, const Scratch<T>& s) {
  const int layers = args.net.layers;
  Passes<T> p{args.net,
              at,
              args.nets + block.type * args.net_size,
              all.from(block.row, layers),
              block.rows,
              static_cast<T>(args.scale[block.type]),
              s.work,
              s.work_stride,
              {},
              {s.layers[layers], s.layers[layers + 1]},
              s.adjoint_t};
  for (int n = 0; n < layers; ++n) p.dh[n] = s.layers[n];
  return p;
}

template <class T>
void clear_rows(const RowArray<T>& array, int64_t begin, int64_t end) {
  for (int64_t k = begin * array.width; k < end * array.width; ++k) array.base[k] = 0;
}

// What no pass writes in the arrays that are saved is zero, so that all of them are the same in every run.
template <class T>
void clear_padding(const PotentialArgs<T>& args, const Passes<T>& p, int64_t all_rows, int64_t first_row) {
  const auto beyond = [&](const RowArray<T>& array, int64_t used) {
    for (int64_t row = 0; row < p.rows; ++row)
      for (int64_t k = used; k < array.width; ++k) array.at(row)[k] = 0;
  };
  int64_t features = 0;
  for (int first = 0; first < args.net.axis; first += kGroup) features += group_features(args.net, first);
  beyond(p.r.grad_d, features);
  for (int n = 0; n < args.net.layers; ++n)
    for (const RowArray<T>* array : {&p.r.h[n], &p.r.y[n], &p.r.grad_y[n], &p.r.delta[n]})
      beyond(*array, args.net.neurons[n]);
  if (first_row) return;
  for (int64_t k = 0; k < kSlack; ++k) p.r.delta[args.net.layers - 1].at(all_rows)[k] = 0;
}

template <class T>
const T* type_table(const PotentialArgs<T>& args, int type, const Scratch<T>& s) {
  return args.tables + type * s.atoms.moment_rows * args.table_width;
}

template <class T>
void forward(const PotentialArgs<T>& args, const TrainingBlock& block, const int32_t* ids, int64_t all_rows,
             const TrainingRows<T>& all, const Scratch<T>& s, PotentialResults<T>& out) {
  const PackedNet<T> at(args.net);
  const Passes<T> p = passes(args, at, block, all, s);
  const Centre<T> c = centre(args, block.type);
  const T* table = type_table(args, block.type, s);
  for (int64_t a = 0; a < block.count; ++a) {
    const int64_t i = ids[a];
    int32_t* within = out.within + i * args.ntypes;
    if (!gather(args, i, a, s.atoms, within, out.nearest + i)) out.bad_atom = i;
    atom_moments(args, c, i, a, s.atoms, within);
    contract_moments(args, table, s.atoms.moments, a, s.atoms, p.r.t.at(a), p.r.t_width);
    clear_moments(a, s.atoms.moments, s.atoms);
  }
  clear_rows(p.r.t, block.count, block.rows);
  fill_extra(args, ids, block.count, block.rows, p.r.extra.base, p.r.extra.width);
  pass_forward(p);
  for (int64_t a = 0; a < block.count; ++a)
    out.energy[ids[a]] = args.scale[block.type] * pass_output(p, a) + args.shift[block.type];
  pass_backward(p);
  clear_padding(args, p, all_rows, block.row);
  for (int64_t a = 0; a < block.count; ++a) {
    uncontract_moments(args, table, p.r.grad_t.at(a), p.r.t_width, a, s.atoms);
    scatter_forces(args, c, ids[a], a, s.atoms, out);
    clear_moments(a, s.atoms.moments, s.atoms);
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

// A and its tangent for atom a, kept in the active rows; the tangent of T. Returns what `gather` does.
template <class T>
bool tangents(const PotentialArgs<T>& args, const TrainingGradients<T>& given, const Centre<T>& c,
              const T* table, int64_t i, int64_t a, const Scratch<T>& s, const Passes<T>& p) {
  T nearest;
  const bool found = gather(args, i, a, s.atoms, s.within, &nearest);
  atom_moments(args, c, i, a, s.atoms, s.within);
  pair_tangents(args, given, i, a, s);
  for (int from = 0; from < s.atoms.pairs[a]; from += kChunk) {
    const Pairs<T> pairs = s.atoms.chunk(a, from);
    const Pairs<T> v{s.vx + from, s.vy + from, s.vz + from, pairs.table, pairs.size};
    add_moments_jvp<4>(pairs, v, c, s.tangent_moments);
  }
  contract_moments(args, table, s.tangent_moments, a, s.atoms, p.r.dt.at(a), p.r.t_width);
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

// Adds atom a's part of the tables' gradient, A adjoint_T + dA grad_T.
template <class T>
void add_table_gradient(const PotentialArgs<T>& args, int64_t a, const Scratch<T>& s, const Passes<T>& p,
                        T* tables) {
  using V = Vector<T>;
  const int64_t width = p.r.t_width;
  const T *adjoint = s.adjoint_t + a * 4 * width, *grad = p.r.grad_t.at(a);
  const int16_t* active = s.atoms.active + a * s.atoms.active_stride;
  const T* kept = s.kept + a * s.atoms.moment_rows * 8;
  for (int k = 0; k < s.atoms.actives[a]; ++k) {
    T* out = tables + active[k] * args.table_width;
    const T* m = kept + 8 * k;
    for (int64_t col = 0; col < padded<T>(args.net.width); col += kLanes<T>) {
      V sum = *reinterpret_cast<const V*>(out + col);
      for (int e = 0; e < 4; ++e)
        sum += m[e] * *reinterpret_cast<const V*>(adjoint + e * width + col) +
               m[4 + e] * *reinterpret_cast<const V*>(grad + e * width + col);
      *reinterpret_cast<V*>(out + col) = sum;
    }
  }
}

template <class T>
void backward(const PotentialArgs<T>& args, const TrainingBlock& block, const int32_t* ids,
              const TrainingGradients<T>& given, const TrainingRows<T>& all, const Scratch<T>& s,
              TrainingShare<T>& share) {
  const PackedNet<T> at(args.net);
  const PlainNet vectors(args.net, false);
  const Passes<T> p = passes(args, at, block, all, s);
  const Centre<T> c = centre(args, block.type);
  const T* table = type_table(args, block.type, s);
  for (int64_t a = 0; a < block.rows; ++a) s.u[a] = a < block.count ? T(given.energy[ids[a]]) : T(0);
  for (int64_t a = 0; a < block.count; ++a)
    if (!tangents(args, given, c, table, ids[a], a, s, p)) share.bad_atom = ids[a];
  clear_rows(p.r.dt, block.count, block.rows);
  pass_tangent(p);
  pass_adjoint(p, s.u, vectors, share.vectors + block.type * vectors.size);
  T* tables = share.tables + block.type * s.atoms.moment_rows * args.table_width;
  for (int64_t a = 0; a < block.count; ++a) add_table_gradient(args, a, s, p, tables);
}

template <class T>
Scratch<T> cleared(const PotentialArgs<T>& args, T* memory) {
  Scratch<T> scratch(args, memory);
  scratch.atoms.clear();
  for (int64_t k = 0; k < scratch.atoms.moment_rows * 4; ++k) scratch.tangent_moments[k] = 0;
  return scratch;
}

template <class T>
void one_unit(const FittingShape& net, int64_t unit, int64_t begin, int64_t end, const TrainingRows<T>& r,
              const UnitMemory<T>& m, T* to) {
  const PlainNet plain(net);
  with_unit(
      net, unit, [&](int l) { feature_unit(net, r, l, begin, end, m, to + plain.weight[0]); },
      [&] { extra_unit(net, r, begin, end, m, to + plain.weight[0]); },
      [&](int n, int64_t first) { layer_unit(net, r, n, first, begin, end, m, to + plain.weight[n]); });
}

}  // namespace

#define MDOPS_DEFINE(T)                                                                                      \
  int64_t block_rows(int64_t count, T) {                                                                     \
    return padded_rows(count);                                                                               \
  }                                                                                                          \
  int64_t saved_size(const PotentialArgs<T>& args, int64_t rows) {                                           \
    return TrainingRows<T>(args, rows, nullptr, nullptr).saved;                                              \
  }                                                                                                          \
  int64_t work_size(const PotentialArgs<T>& args, int64_t rows) {                                            \
    return TrainingRows<T>(args, rows, nullptr, nullptr).work;                                               \
  }                                                                                                          \
  int64_t training_scratch_size(const PotentialArgs<T>& args) {                                              \
    return Scratch<T>(args, nullptr).size();                                                                 \
  }                                                                                                          \
  void train_forward(const PotentialArgs<T>& args, const TrainingBlock& block, const int32_t* ids,           \
                     int64_t rows, T* saved, T* scratch, PotentialResults<T>& out) {                         \
    forward(args, block, ids, rows, TrainingRows<T>(args, rows, saved, nullptr), cleared(args, scratch),     \
            out);                                                                                            \
  }                                                                                                          \
  void train_backward(const PotentialArgs<T>& args, const TrainingBlock& block, const int32_t* ids,          \
                      int64_t rows, const TrainingGradients<T>& given, T* saved, T* work, T* scratch,        \
                      TrainingShare<T>& share) {                                                             \
    backward(args, block, ids, given, TrainingRows<T>(args, rows, saved, work), cleared(args, scratch),      \
             share);                                                                                         \
  }                                                                                                          \
  int64_t weight_units(const FittingShape& net, T) {                                                         \
    return with_unit(net, -1, [](int) {}, [] {}, [](int, int64_t) {});                                       \
  }                                                                                                          \
  void weight_gradient(const PotentialArgs<T>& args, int64_t unit, int64_t begin, int64_t end, int64_t rows, \
                       T* saved, T* work, T* scratch, T* net) {                                              \
    const Scratch<T> s(args, scratch);                                                                       \
    one_unit(args.net, unit, begin, end, TrainingRows<T>(args, rows, saved, work), s.unit, net);             \
  }
MDOPS_DEFINE(float)
MDOPS_DEFINE(double)
#undef MDOPS_DEFINE

}  // namespace MDOPS_ISA
}  // namespace mdops
