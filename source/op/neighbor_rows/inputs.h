// The arguments of the ops on rows of neighbours, checked at entry; for the CPU and for GPUs.
#pragma once

#include <cmath>

#include "common/bind.h"
#include "common/descriptor_args.h"
#include "graph/row_index.h"
#include "neighbor_rows/harmonics.h"
#include "spline_moment/knots.h"

namespace mdops {

// A pair list whose slots are ordered by type.
template <class T>
SlotArgs<T> take_slots(auto& in, const PairTensors& pairs, T) {
  SlotArgs<T> list{};
  in.take(list.displacements, "displacements", pairs.displacements, {kAny, kAny, 3});
  list.atoms = pairs.displacements.size(0), list.width = pairs.displacements.size(1);
  in.take(list.counts, "counts", pairs.counts, {list.atoms, kAny});
  list.ntypes = static_cast<int>(pairs.counts.size(1));
  if (list.atoms * list.width > INT32_MAX)
    fail(in.op, "argument `displacements` has more slots than 32 bits count");
  in.take_range(list.types, "types", pairs.types, {list.atoms}, -1, list.ntypes);
  check_counts(in.op, list.counts, list.atoms, list.ntypes, list.width);
  return list;
}

inline void check_finite_cutoff(const Op& op, double cutoff) {
  if (!(cutoff > 0) || !std::isfinite(cutoff))
    fail(op, "argument `cutoff` is ", cutoff, " A, expected a finite number > 0");
}

template <class T>
RowListArgs<T> take_row_list(auto& in, const PairTensors& pairs, Input pair_mask, Input zeroed,
                             double cutoff) {
  const T c = static_cast<T>(cutoff);
  RowListArgs<T> a{take_slots(in, pairs, T{}), nullptr, nullptr, c * c};
  in.take(a.pair_mask, "pair_mask", pair_mask, {a.list.ntypes, a.list.ntypes});
  in.take(a.zeroed, "zeroed", zeroed, {a.list.ntypes, a.list.ntypes});
  check_finite_cutoff(in.op, cutoff);
  return a;
}

// Slots that are rows, and constants of their numbers.
struct RowTensors {
  const Tensor &displacements, &slots, &counts, &types, &mean, &std;
  using Parts = TensorParts<6>;
  operator Input() const { return displacements; }
};
template <class T>
EnvironmentRowsArgs<T> take_environment_rows(auto& in, const RowTensors& of, const CutoffNumbers& cutoff,
                                             int64_t rows) {
  EnvironmentRowsArgs<T> a{take_slots(in, PairTensors{of.displacements, of.counts, of.types}, T{})};
  const int64_t all = a.list.atoms * a.list.width;
  in.take(a.slots, "slots", of.slots, {all});
  in.take(a.mean, "mean", of.mean, {a.list.ntypes});
  in.take(a.std, "std", of.std, {a.list.ntypes, 2});
  cutoff.take(in.op, a.cutoff);
  a.rows = rows;
  if (rows < 0 || rows > all) fail(in.op, "argument `rows` is ", rows, ", expected 0 to the number of slots");
  for (int64_t k = 0; in.op.on_cpu() && k < rows; ++k)
    if (a.slots[k] < -1 || a.slots[k] >= all)
      fail(in.op, "argument `slots` holds ", a.slots[k], ", expected -1 or a slot");
  return a;
}

// The results of environments of rows, and gradients by them.
template <class T>
Outputs<3> row_results(auto& in, int64_t rows, EnvironmentRows<T>& out) {
  return {in.result(out.environment, {rows, 4}), in.result(out.switches, {rows}),
          in.result(out.directions, {rows, 3})};
}
template <class T>
void take_row_gradients(auto& in, int64_t rows, EnvironmentRows<T, const T*>& grad, Input environment,
                        Input switches, Input directions) {
  in.take(grad.environment, "grad_environment", environment, {rows, 4});
  in.take(grad.switches, "grad_switch", switches, {rows});
  in.take(grad.directions, "grad_directions", directions, {rows, 3});
}

}  // namespace mdops
