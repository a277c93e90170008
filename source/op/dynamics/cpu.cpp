#include "dynamics/cpu_loops.h"
#include "dynamics/ops.h"

namespace mdops {

template <int Links>
static void begin_systems(const Op&, const FirstHalfArgs& args, const Thermostats<Links>& bath) {
  move_atoms(args, bath);
}

template <class Half, class Finish>
static void end_systems(const Op&, const SortedAtoms& s, const Half& half, const Finish& finish) {
  end_systems(s, half, finish);
}

template <class Half, class Finish, int Links>
static void end_and_begin(const Op&, const SortedAtoms& s, const Half& half, const Finish& finish,
                          const FirstHalfArgs& args, const Thermostats<Links>& bath) {
  end_systems(s, half, finish);
  move_atoms(args, bath);
}

template <class Start, class Half>
static void begin_cells(const Op&, const SortedAtoms& s, const Start& start, const Half& half) {
  move_cells(s, start, half);
}

}  // namespace mdops

MDOPS_ON_CPU(DynamicsOps)
