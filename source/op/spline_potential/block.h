// A block of atoms in a step, for one instruction set: its memory, T from positions, and forces from the
// gradient of T.
#pragma once

#include "common/profiler.h"
#include "gemm/inference.h"
#include "spline_potential/atoms.h"

namespace mdops::MDOPS_ISA {

// One thread's memory for a block of atoms.
template <class T>
struct StepBlock {
  Arena arena;
  AtomBlock<T> atoms;
  T *t, *grad_t;                    // [atom][4][t_width]
  Panels<T> t_lanes, grad_t_lanes;  // the same, an atom a lane
  double* energy;
  NetBlock<T> net;

  // For `lanes` atoms: `args.block` gives the size of the memory.
  StepBlock(const PotentialArgs<T>& args, T* memory, int64_t lanes)
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

// Computes T of the atoms `ids` from positions, with the nets' other inputs.
template <class T>
inline void form_block(const PotentialArgs<T>& args, const int32_t* ids, int64_t count, const StepBlock<T>& s,
                       PotentialResults<T>& out) {
  const int64_t t_rows = s.t_lanes.rows, lanes = s.t_lanes.cols;
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
}

// Computes forces from the gradient of T.
template <class T>
inline void spread_block(const PotentialArgs<T>& args, const int32_t* ids, int64_t count,
                         const StepBlock<T>& s, PotentialResults<T>& out) {
  const int64_t t_rows = s.t_lanes.rows;
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

}  // namespace mdops::MDOPS_ISA
