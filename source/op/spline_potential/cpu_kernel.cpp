#include "common/profiler.h"
#include "gemm/inference.h"
#include "spline_potential/atoms.h"

namespace mdops {
namespace MDOPS_ISA {

namespace {

// One thread's memory for a block of atoms.
template <class T>
struct Scratch {
  Arena arena;
  AtomBlock<T> atoms;
  T *t, *grad_t;                    // [atom][4][t_width]
  Panels<T> t_lanes, grad_t_lanes;  // the same, an atom a lane
  double* energy;
  NetBlock<T> net;

  // For `lanes` atoms: as many as `args.block` say how much memory there must be.
  Scratch(const PotentialArgs<T>& args, T* memory, int64_t lanes)
      : arena{reinterpret_cast<char*>(memory)},
        atoms(args, arena),
        t(arena.take<T>(lanes * t_rows(args))),
        grad_t(arena.take<T>(lanes * t_rows(args))),
        t_lanes(take_panels<T>(arena, t_rows(args), lanes)),
        grad_t_lanes(take_panels<T>(arena, t_rows(args), lanes)),
        energy(arena.take<double>(lanes)),
        net(args.net, most_features(args.net, kGroup), lanes, arena, args.parts) {}

  static int64_t t_rows(const PotentialArgs<T>& args) { return 4 * t_width<T>(args.net); }

  int64_t size() const { return arena.used / static_cast<int64_t>(sizeof(T)) + 1; }
};

template <class T>
void block(const PotentialArgs<T>& args, const NetWeights<T>& weights, const int32_t* ids, int64_t count,
           T* memory, PotentialResults<T>& out) {
  const int64_t lanes = padded<T>(count);
  const Scratch<T> s(args, memory, lanes);
  const double scale = args.scale[args.net_of(args.types[ids[0]])];
  const int64_t t_rows = s.t_lanes.rows;
  const FittingShape& shape = args.net;
  const Net<T> net{shape, weights.layer, weights.bf16.units ? &weights.bf16 : nullptr, s.net.split};
  const Features<T> features{shape, weights};
  for (int64_t a = 0; a < count; ++a) {
    const int64_t i = ids[a];
    int32_t* within = out.within + i * args.ntypes;
    {
      MDOPS_STAGE(pairs);
      if (!gather(args, i, a, s.atoms, within, out.nearest + i)) out.bad_atom = i;
    }
    {
      MDOPS_STAGE(moments);
      atom_moments(args, centre(args, args.types[i]), i, a, s.atoms, within);
    }
    MDOPS_STAGE(contract);
    contract_moments(args, tables_of(args, args.types[i]), s.atoms.moments, a, s.atoms, s.t + a * t_rows);
    clear_moments(a, s.atoms.moments, s.atoms);
  }
  {
    MDOPS_STAGE(features);
    for (int64_t k = count * t_rows; k < lanes * t_rows; ++k) s.t[k] = 0;  // lanes without an atom
    to_lanes(s.t, t_rows, s.t_lanes);
    fill_extra(args, ids, count, s.net.extra);
  }
  {
    MDOPS_STAGE(net_up);
    net_forward(net, s.net, features, [&](const Group& group, const Panels<T>& out) {
      MDOPS_STAGE(features);
      form_group(shape, s.t_lanes, group, out);
    });
    net_output(net, s.net.value[net.last()], s.energy);
  }
  for (int64_t a = 0; a < count; ++a)
    out.energy[ids[a]] = scale * s.energy[a] + args.shift[args.types[ids[a]]];
  {
    MDOPS_STAGE(net_down);
    clear_from(s.grad_t_lanes, 0);
    net_backward(net, s.net, static_cast<T>(scale), features,
                 [&](const Group& group, int64_t, const Panels<T>& grad) {
                   MDOPS_STAGE(feature_gradient);
                   unform_group(shape, s.t_lanes, group, grad, s.grad_t_lanes);
                 });
  }
  {
    MDOPS_STAGE(feature_gradient);
    from_lanes(s.grad_t_lanes, s.grad_t, t_rows);
  }
  for (int64_t a = 0; a < count; ++a) {
    const int type = args.types[ids[a]];
    {
      MDOPS_STAGE(uncontract);
      uncontract_moments(args, tables_of(args, type), s.grad_t + a * t_rows, a, s.atoms);
    }
    MDOPS_STAGE(forces);
    scatter_forces(args, centre(args, type), ids[a], a, s.atoms, out);
    clear_moments(a, s.atoms.moments, s.atoms);
  }
}

}  // namespace

#define MDOPS_DEFINE(T)                                                                          \
  int64_t scratch_size(const PotentialArgs<T>& args) {                                           \
    return Scratch<T>(args, nullptr, args.block).size();                                         \
  }                                                                                              \
  void potential(const PotentialArgs<T>& args, const NetWeights<T>& weights, const int32_t* ids, \
                 int64_t count, T* scratch, PotentialResults<T>& out) {                          \
    Scratch<T>(args, scratch, args.block).atoms.clear();                                         \
    each_block(count, args.block, [&](int64_t from, int64_t to) {                                \
      block(args, weights, ids + from, to - from, scratch, out);                                 \
    });                                                                                          \
  }
#ifdef MDOPS_MODEL_FLOAT
MDOPS_DEFINE(MDOPS_MODEL_FLOAT)
#else
MDOPS_DEFINE(float)
MDOPS_DEFINE(double)
#endif
#undef MDOPS_DEFINE

}  // namespace MDOPS_ISA
}  // namespace mdops
