#include "pair_table/cpu_kernel.h"
#include "gemm/inference.h"
#include "hybrid_potential/hybrid_potential.h"
#include "spline_potential/atoms.h"

namespace mdops::MDOPS_ISA {

namespace {

// A group of features, and its part.
struct PartGroup : Group {
  int part;
};

// All parts' features, as inputs of a net (gemm/layers.h).
template <class T>
struct PartFeatures {
  const HybridArgs<T>& args;
  const T* weights;  // of the first layer

  void each(const auto& work) const {
    int64_t earlier = 0;
    for (int p = 0; p < args.count; ++p) {
      const FittingShape& net = args.parts[p].net;
      each_group(net, kGroup, [&](const Group& group, int64_t before) {
        work(PartGroup{group, p}, earlier + before, weights + (earlier + before) * args.net.neurons[0]);
      });
      earlier += feature_rows(net);
    }
  }
};

// One thread's memory for a part of a block of atoms.
template <class T>
struct PartBlock {
  AtomBlock<T> atoms;
  int64_t rows;                     // of T: four times t_width
  T *t, *grad_t;                    // [atom][4][t_width]
  Panels<T> t_lanes, grad_t_lanes;  // the same, an atom a lane

  PartBlock(const PotentialArgs<T>& part, int64_t lanes, Arena& arena)
      : atoms(part, arena),
        rows(4 * t_width<T>(part.net)),
        t(arena.take<T>(lanes * rows)),
        grad_t(arena.take<T>(lanes * rows)),
        t_lanes(take_panels<T>(arena, rows, lanes)),
        grad_t_lanes(take_panels<T>(arena, rows, lanes)) {}
};

// One thread's memory for a block of atoms.
template <class T>
struct Scratch {
  Arena arena;
  char* parts[kMostParts];  // where the memory of each begins
  int64_t lanes;
  double* energy;
  T* scales;
  Panels<T> grad_extra;
  T* rows;  // [atom][extra]
  NetBlock<T> net;

  Scratch(const HybridArgs<T>& args, T* memory, int64_t lanes_)
      : arena{reinterpret_cast<char*>(memory)},
        lanes(lanes_),
        energy(arena.take<double>(lanes)),
        scales(arena.take<T>(lanes)),
        grad_extra(take_panels<T>(arena, args.net.extra, lanes)),
        rows(arena.take<T>(lanes * args.net.extra)),
        net(args.net, features_at_once(args), lanes, arena) {
    for (int p = 0; p < args.count; ++p) {
      parts[p] = arena.base ? arena.base + arena.used : nullptr;
      PartBlock<T>(args.parts[p], lanes, arena);
    }
  }

  PartBlock<T> part(const HybridArgs<T>& args, int p) const {
    Arena own{parts[p]};
    return PartBlock<T>(args.parts[p], lanes, own);
  }

  int64_t size() const { return arena.used / static_cast<int64_t>(sizeof(T)) + 1; }

 private:
  static int64_t features_at_once(const HybridArgs<T>& args) {
    int64_t most = 0;
    for (int p = 0; p < args.count; ++p) {
      const int64_t own = most_features(args.parts[p].net, kGroup);
      if (own > most) most = own;
    }
    return most;
  }
};

// From positions to T of a part.
template <class T>
void form_t(const HybridArgs<T>& args, int p, const int32_t* ids, int64_t count, int64_t lanes,
            const PartBlock<T>& s, HybridResults<T>& out) {
  const PotentialArgs<T>& part = args.parts[p];
  for (int64_t a = 0; a < count; ++a) {
    const int64_t i = ids[a];
    int32_t* within = out.within + (i * args.count + p) * part.ntypes;
    T nearest = 0;
    if (!gather(part, i, a, s.atoms, within, &nearest)) out.sums.bad_atom = i;
    if (p == args.widest) out.sums.nearest[i] = nearest;
    atom_moments(part, centre(part, part.types[i]), i, a, s.atoms, within);
    contract_moments(part, tables_of(part, part.types[i]), s.atoms.moments, a, s.atoms, s.t + a * s.rows);
    clear_moments(a, s.atoms.moments, s.atoms);
  }
  for (int64_t k = count * s.rows; k < lanes * s.rows; ++k) s.t[k] = 0;  // lanes without an atom
  to_lanes(s.t, s.rows, s.t_lanes);
}

// From the gradient of T of a part to forces.
template <class T>
void spread_forces(const PotentialArgs<T>& part, const int32_t* ids, int64_t count, const PartBlock<T>& s,
                   HybridResults<T>& out) {
  from_lanes(s.grad_t_lanes, s.grad_t, s.rows);
  for (int64_t a = 0; a < count; ++a) {
    const int type = part.types[ids[a]];
    uncontract_moments(part, tables_of(part, type), s.grad_t + a * s.rows, a, s.atoms);
    scatter_forces(part, centre(part, type), ids[a], a, s.atoms, out.sums);
    clear_moments(a, s.atoms.moments, s.atoms);
  }
}

// What forces need of an atom's energy.
template <class T>
double weight_of(const HybridArgs<T>& args, int64_t i, HybridResults<T>& out) {
  const double weight = args.weight ? args.weight[i] : 1;
  const NearLook& look = args.look;
  if (!look.near || static_cast<double>(out.sums.nearest[i]) >= look.far || out.sums.bad_atom >= 0)
    return weight;
  const double c = out.near_weight[i] = atom_weight(*look.list, *look.near, i);
  return weight * (1 - c);
}

template <class T>
void block(const HybridArgs<T>& args, const DenseLayer<T>* layers, const int32_t* ids, int64_t count,
           T* memory, HybridResults<T>& out) {
  const int64_t lanes = padded<T>(count), extra = args.net.extra;
  const Scratch<T> s(args, memory, lanes);
  const PotentialArgs<T>& first = args.first();
  const double scale = first.scale[first.net_of(first.types[ids[0]])];
  const Net<T> net{args.net, layers, nullptr, nullptr, Net<T>::few_of(count)};
  const PartFeatures<T> features{args, layers[0].weight};
  for (int p = 0; p < args.count; ++p) form_t(args, p, ids, count, lanes, s.part(args, p), out);
  for (int64_t a = 0; a < count; ++a)
    for (int64_t k = 0; k < extra; ++k) s.rows[a * extra + k] = first.extra[ids[a] * extra + k];
  rows_to_lanes(s.rows, extra, count, extra, s.net.extra);
  if (!args.count) clear_from(s.net.value[0], 0);  // to which the products are added
  net_forward(net, s.net, features, [&](const PartGroup& group, const Panels<T>& to) {
    form_group(args.parts[group.part].net, s.part(args, group.part).t_lanes, group, to);
  });
  net_output(net, s.net.value[net.last()], s.energy);
  for (int64_t a = 0; a < lanes; ++a) {
    const double weight = a < count ? weight_of(args, ids[a], out) : 1;
    s.scales[a] = static_cast<T>(scale * weight);
  }
  for (int64_t a = 0; a < count; ++a)
    out.sums.energy[ids[a]] = scale * s.energy[a] + first.shift[first.types[ids[a]]];
  for (int p = 0; p < args.count; ++p) clear_from(s.part(args, p).grad_t_lanes, 0);
  net_backward(net, s.net, static_cast<const T*>(s.scales), features,
               [&](const PartGroup& group, int64_t, const Panels<T>& grad) {
                 const PartBlock<T> part = s.part(args, group.part);
                 unform_group(args.parts[group.part].net, part.t_lanes, group, grad, part.grad_t_lanes);
               });
  if (extra) {
    const int64_t cols = net.neurons(0);
    product(net, nullptr, extra, ByRow<T>{layers[0].weight + args.net.features * cols, cols},
            Right<T>(net, s.net.slope[0], cols), s.grad_extra, false);
    each_added(args.net, s.net.value[0], s.grad_extra,
               [](const T* grad, T* to) { store(to, vector_at(to) + vector_at(grad)); });
    lanes_to_rows(s.grad_extra, count, extra, s.rows, extra);
    for (int64_t a = 0; a < count; ++a)
      for (int64_t k = 0; k < extra; ++k) out.grad_extra[ids[a] * extra + k] = s.rows[a * extra + k];
  }
  for (int p = 0; p < args.count; ++p) spread_forces(args.parts[p], ids, count, s.part(args, p), out);
}

}  // namespace

template <class T>
int64_t hybrid_scratch_size(const HybridArgs<T>& args) {
  return Scratch<T>(args, nullptr, kBlock).size();
}

template <class T>
void hybrid_potential(const HybridArgs<T>& args, const DenseLayer<T>* layers, const int32_t* ids,
                      int64_t count, T* scratch, HybridResults<T>& out) {
  each_block(count, kBlock, [&](int64_t from, int64_t to) {
    const Scratch<T> s(args, scratch, padded<T>(to - from));
    for (int p = 0; p < args.count; ++p) s.part(args, p).atoms.clear();
    block(args, layers, ids + from, to - from, scratch, out);
  });
}

MDOPS_INSTANTIATE(hybrid_scratch_size, hybrid_potential)

}  // namespace mdops::MDOPS_ISA
