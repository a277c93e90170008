// The halves of a step on the CPU.
#include <algorithm>

#include "common/parallel.h"
#include "dynamics/ops.h"

namespace mdops {

constexpr int64_t kStepGrain = 4096;  // minimum atoms per piece

static bool occupied(const SortedAtoms& s, int64_t system) {
  return std::binary_search(s.batch, s.batch + s.atoms, static_cast<int32_t>(system));
}

template <int Links>
static void begin_systems(const Op&, const FirstHalfArgs& a, const Thermostats<Links>& bath) {
  const SortedAtoms& s = a.sorted;
  std::vector<double> factor(s.systems);
  for (int64_t k = 0; k < s.systems; ++k) {
    if (occupied(s, k))
      factor[k] = a.scale[k] * bath.advance(k, a.kinetic[k], true);
    else
      bath.keep(k);
  }
  parallel_each(s.atoms, kStepGrain, [&](int64_t i) { a.move(i, factor[s.batch[i]]); });
}

static void begin_cells(const Op&, const SortedAtoms& s, const auto& start, const CellFirstHalf& half) {
  for (int64_t k = 0; k < s.systems; ++k) {
    const bool real = occupied(s, k);
    const double of_atoms = real ? start.factor(0, k) : 1, of_cell = real ? start.factor(1, k) : 1;
    for (int which = 0; which < 2; ++which)
      real ? start.set(which, k, of_atoms, of_cell) : start.keep(which, k);
  }
  parallel_each(s.atoms, kStepGrain, [&](int64_t i) { half.move(i, s.batch[i]); });
}

// The second half of a step: the measures of each system's atoms go into its results.
template <class Half, class Finish>
static void end_systems(const Op&, const SortedAtoms& s, const Half& half, const Finish& finish) {
  using Measured = typename Half::Measured;
  std::vector<Measured> measures(s.systems, Measured::none());
  for (int64_t i = 0; i < s.atoms; ++i) measures[s.batch[i]].add(half.kick(i));
  for (int64_t k = 0; k < s.systems; ++k)
    for (int which = 0; which < Finish::kThreads; ++which) finish.set(which, k, measures[k], occupied(s, k));
}

template <class Half, class Finish, int Links>
static void end_and_begin(const Op& op, const SortedAtoms& s, const Half& half, const Finish& finish,
                          const FirstHalfArgs& args, const Thermostats<Links>& bath) {
  end_systems(op, s, half, finish);
  begin_systems(op, args, bath);
}

}  // namespace mdops

MDOPS_ON_CPU(DynamicsOps)
