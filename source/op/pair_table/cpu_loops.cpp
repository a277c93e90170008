#include "pair_table/cpu_loops.h"

#include <vector>

namespace mdops {

namespace {

// The least of squared distances; NaN once one is.
inline void closer(double r2, double& least) {
  if (!(r2 >= least) && least == least) least = r2;
}

// The vectors to all of an atom's neighbours.
struct RowVectors {
  std::vector<double> x, y, z, r2;

  // Returns false where the list names an atom that is not there.
  bool find(const ListArgs& list, int64_t i) {
    const int64_t first = i * list.list_width;
    int64_t size = 0;
    for (int t = 0; t < list.ntypes; ++t) size += list.counts[i * list.ntypes + t];
    if (static_cast<int64_t>(x.size()) < size)
      for (std::vector<double>* of : {&x, &y, &z, &r2}) of->resize(size);
    const double *at = list.positions, *xi = at + 3 * i;
    const double* cell = list.cell + 9 * static_cast<int64_t>(list.batch[i]);
    const uint64_t atoms = static_cast<uint64_t>(list.atoms);
    double *dx = x.data(), *dy = y.data(), *dz = z.data(), *squared = r2.data();
    for (int64_t k = 0; k < size; ++k) {
      const uint64_t j = static_cast<uint32_t>(list.neighbors[first + k]);
      if (j >= atoms) return false;
      double d[3] = {at[3 * j] - xi[0], at[3 * j + 1] - xi[1], at[3 * j + 2] - xi[2]};
      if (list.images[first + k] != 0) displacement(xi, at + 3 * j, cell, list.images[first + k], d);
      dx[k] = d[0], dy[k] = d[1], dz[k] = d[2];
      squared[k] = d[0] * d[0] + d[1] * d[1] + d[2] * d[2];
    }
    return true;
  }
};

// The neighbours of one atom that are not masked.
struct Neighbors {
  struct One {
    double d[3], r, w, g;  // w: its weight in `sums`; g: along d, of an energy's gradient
    int32_t j;
    int t;
  };
  RowVectors row;
  std::vector<One> all;
  double least2;  // the smallest squared distance; NaN if any is; infinite where there is none

  // Fills in all but w and g, and what `report` counts unless it is null. Returns false where the list names
  // an atom that is not there.
  bool gather(const ListArgs& list, const bool* pair_mask, double cutoff, int64_t i,
              const NearReport* report) {
    all.clear();
    least2 = INFINITY;
    if (!row.find(list, i)) return false;
    double nearest2 = cutoff * cutoff;
    const double cutoff2 = nearest2;
    const int32_t* others = list.neighbors + i * list.list_width;
    int64_t k = 0;
    for (int t = 0; t < list.ntypes; ++t) {
      const bool masked = pair_mask[list.types[i] * list.ntypes + t];
      int32_t within = 0;
      for (const int64_t end = k + list.counts[i * list.ntypes + t]; k < end; ++k) {
        const double r2 = row.r2[k];
        if (r2 >= cutoff2) continue;
        ++within;
        closer(r2, nearest2);
        if (masked) continue;
        closer(r2, least2);
        all.push_back({{row.x[k], row.y[k], row.z[k]}, std::sqrt(r2), 0, 0, others[k], t});
      }
      if (report) report->within[i * list.ntypes + t] = within;
    }
    if (report) report->nearest[i] = std::sqrt(nearest2);
    return true;
  }

  // Of the weights.
  NearSums sums(double decay) {
    NearSums found{std::sqrt(least2), 0, 0};
    const double reach = found.reach(decay);
    for (One& one : all) {
      one.w = 0;
      if (one.r > reach) continue;
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
  double force[3] = {}, virial[6] = {};  // xx, xy, xz, yy, yz, zz

  void add(const Neighbors& around) {
    for (const Neighbors::One& pair : around.all)
      if (pair.g != 0) add(pair);
  }

  void add(const Neighbors::One& pair) {
    double* const other = out.forces + 4 * int64_t{pair.j};
    const double* d = pair.d;
    double f[3];
    for (int a = 0; a < 3; ++a) f[a] = pair.g * d[a];
    const double w[6] = {f[0] * d[0], f[0] * d[1], f[0] * d[2], f[1] * d[1], f[1] * d[2], f[2] * d[2]};
    for (int a = 0; a < 3; ++a) force[a] += f[a], other[a] -= f[a];
    for (int k = 0; k < 6; ++k) virial[k] -= w[k];
    if (out.atom_virial)
      for (int k = 0; k < 9; ++k) out.atom_virial[9 * int64_t{pair.j} + k] -= w[symmetric_place(k)];
  }

  void finish(const ListArgs& list, int64_t i) const {
    for (int a = 0; a < 3; ++a) out.forces[4 * i + a] += force[a];
    for (int k = 0; k < 9; ++k)
      out.virial[9 * static_cast<int64_t>(list.batch[i]) + k] += virial[symmetric_place(k)];
  }
};

// Adds to g what a blend has beside the parts' weighted forces: the weight's slope times the difference of
// energies.
void add_slopes(const NearArgs& near, double difference, Neighbors& around) {
  const NearSums sums = around.sums(near.decay);
  const double mean = sums.mean(), inverse = 1 / near.decay;
  const double slope = difference * weight_at(near, mean).slope / sums.weights;
  if (slope == 0) return;  // as where the weight is 1
  for (Neighbors::One& one : around.all)
    if (one.w != 0) one.g += mean_slope(slope * one.w, one.r, mean, inverse) / one.r;
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
  static thread_local RowVectors row;
  if (!row.find(list, i)) return NAN;
  const double cutoff2 = near.cutoff * near.cutoff;
  double least2 = INFINITY;
  int64_t k = 0, kept = 0;
  for (int t = 0; t < list.ntypes; ++t) {
    const int64_t end = k + list.counts[i * list.ntypes + t];
    const bool masked = near.pair_mask[list.types[i] * list.ntypes + t];
    for (; k < end; ++k) {
      const double r2 = row.r2[k];
      if (masked || r2 >= cutoff2) continue;
      closer(r2, least2);
      row.r2[kept++] = r2;
    }
  }
  NearSums sums{std::sqrt(least2), 0, 0};
  if (sums.least >= near.high) return 0;  // no mean is below the least distance
  const double reach = sums.reach(near.decay), reach2 = reach * reach;
  for (k = 0; k < kept; ++k) {
    const double r2 = row.r2[k];
    if (r2 > reach2) continue;
    const double x = std::sqrt(r2), w = sums.weight(x, near.decay);
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

int64_t table_energies(const ListArgs& list, const TableArgs& table_, const TableTask& task, int64_t begin,
                       int64_t end, const NearReport& report, PotentialResults<double>& out) {
  const TableArgs table = table_;  // which no store to the results can change
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
