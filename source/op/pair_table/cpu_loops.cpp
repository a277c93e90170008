#include "pair_table/cpu_loops.h"

#include <vector>

namespace mdops {

namespace {

// The least of squared distances; NaN once one is.
inline void closer(double r2, double& least) {
  if (!(r2 >= least) && least == least) least = r2;
}

// The neighbours of one atom that are not masked.
struct Neighbors {
  struct One {
    double d[3], r, w, g;  // w: its weight in `sums`; g: along d, of an energy's gradient
    int32_t j;
    int t;
  };
  std::vector<One> all;
  double least2;  // the smallest squared distance; NaN if any is; infinite where there is none

  // Fills in all but r, and what `report` counts unless it is null. Returns false where the list names an
  // atom that is not there.
  bool gather(const ListArgs& list, const bool* pair_mask, double cutoff, int64_t i,
              const NearReport* report) {
    all.clear();
    least2 = INFINITY;
    double nearest2 = cutoff * cutoff;
    int32_t* within = report ? report->within + i * list.ntypes : nullptr;
    int64_t slot = i * list.list_width;
    for (int t = 0; t < list.ntypes; ++t) {
      const bool masked = pair_mask[list.types[i] * list.ntypes + t];
      const int64_t end = slot + list.counts[i * list.ntypes + t];
      const bool whole =
          each_within(list, cutoff, i, slot, end, 1, [&](int64_t at, const double* d, double r2) {
            if (within) ++within[t];
            closer(r2, nearest2);
            if (masked) return;
            closer(r2, least2);
            all.push_back({{d[0], d[1], d[2]}, r2, 0, 0, list.neighbors[at], t});
          });
      if (!whole) return false;
      slot = end;
    }
    if (report) report->nearest[i] = std::sqrt(nearest2);
    return true;
  }

  void take_roots() {
    for (One& one : all) one.r = std::sqrt(one.r);  // squared until now
  }

  // Of the weights, once there are roots.
  NearSums sums(double decay) {
    NearSums found{std::sqrt(least2), 0, 0};
    for (One& one : all) {
      one.w = found.weight(one.r, decay);
      found.weights += one.w, found.weighted += one.w * one.r;
    }
    return found;
  }
};

// The first look at every atom: what `report` counts, and the least distance that is not masked, NaN if any
// is.
bool look(const ListArgs& list, const NearArgs& near, int64_t i, double* least, const NearReport& report) {
  const double *x = list.positions, *xi = x + 3 * i, cutoff2 = near.cutoff * near.cutoff;
  const double* cell = list.cell + 9 * static_cast<int64_t>(list.batch[i]);
  const uint64_t atoms = static_cast<uint64_t>(list.atoms);
  double least2 = cutoff2, nearest2 = cutoff2;
  bool unordered = false;
  int64_t slot = i * list.list_width;
  for (int t = 0; t < list.ntypes; ++t) {
    double own2 = cutoff2;
    int32_t within = 0;
    for (const int64_t end = slot + list.counts[i * list.ntypes + t]; slot < end; ++slot) {
      const uint64_t j = static_cast<uint32_t>(list.neighbors[slot]);
      if (j >= atoms) return false;
      double d[3] = {x[3 * j] - xi[0], x[3 * j + 1] - xi[1], x[3 * j + 2] - xi[2]};
      if (list.images[slot] != 0) displacement(xi, x + 3 * j, cell, list.images[slot], d);
      const double r2 = d[0] * d[0] + d[1] * d[1] + d[2] * d[2];
      within += !(r2 >= cutoff2);
      own2 = r2 < own2 ? r2 : own2;
      unordered |= r2 != r2;
    }
    report.within[i * list.ntypes + t] = within;
    nearest2 = own2 < nearest2 ? own2 : nearest2;
    if (!near.pair_mask[list.types[i] * list.ntypes + t] && own2 < least2) least2 = own2;
  }
  report.nearest[i] = unordered ? NAN : std::sqrt(nearest2);
  *least = unordered ? NAN : std::sqrt(least2);
  return true;
}

// Forces and virial of one atom's pairs.
struct PairSums {
  PotentialResults<double>& out;
  double force[3] = {}, virial[9] = {};

  void add(const Neighbors& around) {
    for (const Neighbors::One& pair : around.all)
      if (pair.g != 0) add(pair);
  }

  void add(const Neighbors::One& pair) {
    double* const other = out.forces + 4 * int64_t{pair.j};
    double f[3], w[9];
    for (int a = 0; a < 3; ++a) f[a] = pair.g * pair.d[a];
    for (int k = 0; k < 9; ++k) w[k] = f[k / 3] * pair.d[k % 3];
    for (int a = 0; a < 3; ++a) force[a] += f[a], other[a] -= f[a];
    for (int k = 0; k < 9; ++k) virial[k] -= w[k];
    if (out.atom_virial)
      for (int k = 0; k < 9; ++k) out.atom_virial[9 * int64_t{pair.j} + k] -= w[k];
  }

  void finish(const ListArgs& list, int64_t i) const {
    for (int a = 0; a < 3; ++a) out.forces[4 * i + a] += force[a];
    for (int k = 0; k < 9; ++k) out.virial[9 * static_cast<int64_t>(list.batch[i]) + k] += virial[k];
  }
};

// Adds to g what a blend has beside the parts' weighted forces: the weight's slope times the difference of
// energies.
void add_slopes(const NearArgs& near, double difference, Neighbors& around) {
  const NearSums sums = around.sums(near.decay);
  const double slope = difference * weight_at(near, sums.mean()).slope;
  if (slope == 0) return;  // as where the weight is 1
  for (Neighbors::One& one : around.all)
    if (one.w != 0) one.g += slope * mean_slope(sums, near, one.w, one.r) / one.r;
}

// Whether a table and the weights are of the same neighbours of atoms of a type.
bool same_neighbors(const ListArgs& list, const TableArgs& table, const NearArgs& near, int type) {
  bool same = near.cutoff == table.cutoff;
  for (int t = 0; t < list.ntypes; ++t)
    same &= near.pair_mask[type * list.ntypes + t] == table.pair_mask[type * list.ntypes + t];
  return same;
}

}  // namespace

double atom_weight(const ListArgs& list, const NearArgs& near, int64_t i) {
  std::vector<double> r;
  r.reserve(list.list_width);
  double least2 = INFINITY;
  int64_t slot = i * list.list_width;
  for (int t = 0; t < list.ntypes; ++t) {
    const int64_t end = slot + list.counts[i * list.ntypes + t];
    if (!near.pair_mask[list.types[i] * list.ntypes + t])
      each_within(list, near.cutoff, i, slot, end, 1, [&](int64_t, const double*, double r2) {
        closer(r2, least2);
        r.push_back(r2);
      });
    slot = end;
  }
  NearSums sums{std::sqrt(least2), 0, 0};
  if (sums.least >= near.high) return 0;  // no mean is below the least distance
  for (double& x : r) x = std::sqrt(x);
  for (const double x : r) {
    const double w = sums.weight(x, near.decay);
    sums.weights += w, sums.weighted += w * x;
  }
  return weight_at(near, sums.mean()).c;
}

int64_t near_weights(const ListArgs& list, const NearArgs& near, int64_t begin, int64_t end, double* weight,
                     const NearReport& report) {
  int64_t bad = -1;
  for (int64_t i = begin; i < end; ++i) {
    weight[i] = 0, report.nearest[i] = near.cutoff;
    if (list.types[i] < 0) continue;
    double least = 0;
    if (!look(list, near, i, &least, report)) {
      bad = i;
      continue;
    }
    // Most atoms need not be looked at again.
    if (least >= near.high) continue;
    weight[i] = atom_weight(list, near, i);
  }
  return bad;
}

int64_t table_energies(const ListArgs& list, const TableArgs& table, const TableTask& task, int64_t begin,
                       int64_t end, const NearReport& report, PotentialResults<double>& out) {
  int64_t bad = -1;
  Neighbors around;
  for (int64_t i = begin; i < end; ++i) {
    report.nearest[i] = table.cutoff;
    const double weight = task.weight ? task.weight[i] : 1;
    if (list.types[i] < 0 || (weight == 0 && task.near)) continue;
    if (!around.gather(list, table.pair_mask, table.cutoff, i, task.near ? nullptr : &report)) {
      bad = i;
      continue;
    }
    if (weight == 0) continue;
    around.take_roots();
    const int64_t row = static_cast<int64_t>(list.types[i]) * list.ntypes;
    PairSums sums{out};
    double energy = 0;
    for (Neighbors::One& one : around.all) {
      const PairEnergy pair = pair_energy(table, row + one.t, one.r);
      energy += 0.5 * pair.u;
      if (pair.slope != 0) one.g = 0.5 * weight * pair.slope / one.r;
    }
    out.energy[i] = energy;
    if (task.near) {
      if (!same_neighbors(list, table, *task.near, list.types[i])) {
        sums.add(around);
        around.gather(list, task.near->pair_mask, task.near->cutoff, i, nullptr);
        around.take_roots();
      }
      add_slopes(*task.near, energy - task.other[i], around);
    }
    sums.add(around);
    sums.finish(list, i);
  }
  return bad;
}

void near_step(const Op& op, const ListArgs& list, const NearArgs& near, int64_t atoms, double* weight,
               const NearReport& report) {
  parallel(atoms, 16, [&](int64_t begin, int64_t end) {
    const int64_t bad = near_weights(list, near, begin, end, weight, report);
    if (bad >= 0) fail_neighbors(op, bad);
  });
}

void table_step(const Op& op, const ListArgs& list, const TableArgs& table, const TableTask& task,
                const StepResults<double>& results) {
  PotentialArgs<double> sizes{};
  sizes.types = list.types, sizes.atoms = list.atoms, sizes.systems = list.systems;
  sizes.cutoff.cutoff = table.cutoff;
  const NearReport report{results.within, results.nearest};
  const int64_t atoms = results.centers, threads = useful_threads(atoms);
  std::vector<Share<double>> shares(threads);
  parallel(threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t thread = begin; thread < end; ++thread) {
      PotentialResults<double> out = results.of_thread(sizes, shares[thread]);
      shares[thread].bad_atom = table_energies(list, table, task, atoms * thread / threads,
                                               atoms * (thread + 1) / threads, report, out);
    }
  });
  results.finish(op, sizes, shares);
}

}  // namespace mdops
