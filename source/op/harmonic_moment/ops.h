// The ops on sums of harmonics.
#pragma once

#include "common/bind.h"
#include "displacements/inputs.h"
#include "harmonic_moment/harmonic_moment.h"
#include "neighbor_rows/inputs.h"

namespace mdops {

template <class Device, class T>
struct HarmonicSumOps {
  struct Given : HarmonicMomentArgs<T> {
    HarmonicSumArgs<T> sums;
    const T *by_first, *by_second;

    int64_t components() const { return components_to(this->degree); }
    void take_gradients(Checked<Device>& in, Input first, Input second) {
      in.take(by_first, "by_first", first, {this->atoms, sums.width()});
      in.take(by_second, "by_second", second, {this->atoms, components(), sums.seconds});
    }
  };

  static Given arguments(Checked<Device>& in, PairTensors pairs, Input pair_mask, Input table, Input rows,
                         Input slopes, Input pieces, double cutoff, int64_t intervals, int64_t degree,
                         int64_t seconds) {
    Given a{};
    const SlotArgs<T> list = take_slots(in, pairs, T{});
    const int64_t ntypes = list.ntypes;
    a.displacements = list.displacements, a.counts = list.counts, a.types = list.types;
    a.atoms = list.atoms, a.width = list.width, a.ntypes = list.ntypes;
    in.take(a.pair_mask, "pair_mask", pair_mask, {ntypes, ntypes});
    check_finite_cutoff(in.op, cutoff);
    if (intervals < 1 || intervals > 100000)
      fail(in.op, "argument `intervals` is ", intervals, ", expected 1 .. 100000");
    if (degree < kLeastMomentDegree || degree > kMostDegrees)
      fail(in.op, "argument `degree` is ", degree, ", expected 2, 3 or 4");
    a.cutoff = static_cast<T>(cutoff), a.degree = static_cast<int>(degree);
    a.grid = {static_cast<T>(intervals / cutoff), static_cast<int>(intervals)};
    a.basis = padded_basis(intervals);
    if (a.row() > INT32_MAX) fail(in.op, "argument `counts` has more types than 32 bits count splines of");
    HarmonicSumArgs<T>& sums = a.sums;
    in.take(sums.table, "table", table, {ntypes, a.row(), kAny});
    sums.firsts = table.size(2), sums.seconds = seconds;
    in.take(sums.rows[0], "rows", rows, {ntypes, sums.firsts, a.row()});
    in.take(sums.rows[1], "slopes", slopes, {ntypes, sums.firsts, a.row()});
    in.take(sums.pieces, "pieces", pieces, {ntypes, ntypes, intervals, kSplineSupport, kAny});
    sums.known = pieces.size(4);
    if (seconds < kLeastSeconds || seconds > kMostSeconds || (seconds & (seconds - 1)))
      fail(in.op, "argument `seconds` is ", seconds, ", expected 4, 8, 16 or 32");
    if (sums.firsts < seconds)
      fail(in.op, "argument `table` has ", sums.firsts, " functions, expected `seconds`, ", seconds,
           ", at least");
    if (sums.known != sums.firsts && sums.known != seconds)
      fail(in.op, "argument `pieces` has ", sums.known,
           " functions, expected those of `table` or `seconds` of them");
    return a;
  }

  static Outputs<4> harmonic_sums(Checked<Device>& in, Given& a) {
    HarmonicSums<T> out;
    Tensor first = in.result(out.first, {a.atoms, a.sums.width()});
    Tensor second = in.result(out.second, {a.atoms, a.components(), a.sums.seconds});
    Tensor within = in.result(out.within, {a.atoms}), nearest = in.result(out.nearest, {a.atoms});
    run_harmonic_sums(in.op, a, a.sums, out);
    return {first, second, within, nearest};
  }

  static Tensor harmonic_sums_backward(Checked<Device>& in, Given& a, Input by_first, Input by_second) {
    a.take_gradients(in, by_first, by_second);
    T* by_d;
    Tensor result = in.result(by_d, {a.atoms, a.width, 3});
    run_harmonic_sum_gradients<T>(in.op, a, a.sums, a.by_first, a.by_second, by_d);
    return result;
  }

  static Outputs<2> harmonic_forces(Checked<Device>& in, Given& a, Input by_first, Input by_second,
                                    Input most, Input nearest, Input batch, Input neighbors,
                                    int64_t num_systems) {
    a.take_gradients(in, by_first, by_second);
    HarmonicForceArgs<T> of{a.by_first, a.by_second};
    in.take(of.most, "most", most, {2, a.sums.firsts});
    in.take(of.nearest, "nearest", nearest, {a.atoms});
    of.rows = take_pairs(in, batch, neighbors, num_systems, a.atoms, a.width);
    Tensor forces = in.sums(of.forces, {a.atoms, 3}), virial = in.sums(of.virial, {num_systems, 3, 3});
    run_harmonic_forces(in.op, a, a.sums, of);
    return {forces, virial};
  }

  MDOPS_IMPLEMENT_FLOATS(HarmonicSumOps, harmonic_sums, harmonic_sums_backward, harmonic_forces)
};

}  // namespace mdops
