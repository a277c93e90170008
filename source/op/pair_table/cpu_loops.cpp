#include "pair_table/cpu_loops.h"

namespace mdops {

namespace {

// Distances of what `report` counts, then work(slot, d, r) for neighbours that are not masked.
template <class Work>
bool each_counted(const ListArgs& list, const bool* pair_mask, double cutoff, int64_t i, int32_t* within,
                  double* nearest, const Work& work) {
  *nearest = cutoff;
  bool unordered = false;
  const bool whole = each_neighbor(list, pair_mask, cutoff, i,
                                   [&](int64_t slot, int t, const double* d, double r, bool masked) {
                                     ++within[t];
                                     *nearest = r < *nearest ? r : *nearest;
                                     unordered |= r != r;
                                     if (!masked) work(slot, t, d, r);
                                   });
  if (unordered) *nearest = NAN;
  return whole;
}

NearSums near_sums(const ListArgs& list, const NearArgs& near, int64_t i, double least) {
  NearSums sums{least, 0, 0};
  each_neighbor(list, near.pair_mask, near.cutoff, i,
                [&](int64_t, int, const double*, double r, bool masked) {
                  if (masked) return;
                  const double w = sums.weight(r, near.decay);
                  sums.weights += w, sums.weighted += w * r;
                });
  return sums;
}

// The distance to the nearest neighbour that makes the weight; NaN if any is; infinite where there is none.
double least_of(const ListArgs& list, const NearArgs& near, int64_t i) {
  double least = INFINITY;
  each_neighbor(list, near.pair_mask, near.cutoff, i,
                [&](int64_t, int, const double*, double r, bool masked) {
                  if (!masked && !(r >= least) && least == least) least = r;
                });
  return least;
}

// Adds the pair's part of an energy's gradient, g along d, to forces and virials.
void add_pair(const ListArgs& list, int64_t i, int64_t j, const double* d, double g,
              PotentialResults<double>& out) {
  double* virial = out.virial + 9 * static_cast<int64_t>(list.batch[i]);
  for (int a = 0; a < 3; ++a) {
    out.forces[4 * i + a] += g * d[a];
    out.forces[4 * j + a] -= g * d[a];
    for (int b = 0; b < 3; ++b) {
      virial[3 * a + b] -= g * d[a] * d[b];
      if (out.atom_virial) out.atom_virial[9 * j + 3 * a + b] -= g * d[a] * d[b];
    }
  }
}

}  // namespace

int64_t near_weights(const ListArgs& list, const NearArgs& near, int64_t begin, int64_t end, double* weight,
                     const NearReport& report) {
  int64_t bad = -1;
  for (int64_t i = begin; i < end; ++i) {
    double least = INFINITY;
    weight[i] = 0, report.nearest[i] = near.cutoff;
    if (list.types[i] < 0) continue;
    if (!each_counted(list, near.pair_mask, near.cutoff, i, report.within + i * list.ntypes,
                      report.nearest + i, [&](int64_t, int, const double*, double r) {
                        if (!(r >= least) && least == least) least = r;
                      })) {
      bad = i;
      continue;
    }
    if (!(least >= near.high)) weight[i] = weight_at(near, near_sums(list, near, i, least).mean()).c;
  }
  return bad;
}

int64_t table_energies(const ListArgs& list, const TableArgs& table, const TableTask& task, int64_t begin,
                       int64_t end, const NearReport& report, PotentialResults<double>& out) {
  int64_t bad = -1;
  for (int64_t i = begin; i < end; ++i) {
    report.nearest[i] = table.cutoff;
    if (list.types[i] < 0) continue;
    const double weight = task.weight ? task.weight[i] : 1;
    const int64_t row = static_cast<int64_t>(list.types[i]) * list.ntypes;
    double energy = 0;
    const bool counts = weight != 0;
    if (!each_counted(list, table.pair_mask, table.cutoff, i, report.within + i * list.ntypes,
                      report.nearest + i, [&](int64_t slot, int t, const double* d, double r) {
                        if (!counts) return;
                        const PairEnergy pair = pair_energy(table, row + t, r);
                        energy += 0.5 * pair.u;
                        add_pair(list, i, list.neighbors[slot], d, 0.5 * weight * pair.slope / r, out);
                      })) {
      bad = i;
      continue;
    }
    out.energy[i] = energy;
    if (!task.near || !counts) continue;
    const double least = least_of(list, *task.near, i);
    const NearSums sums = near_sums(list, *task.near, i, least);
    const double difference = (energy - task.other[i]) * weight_at(*task.near, sums.mean()).slope;
    if (difference == 0) continue;  // 0 where the weight is 1
    each_neighbor(list, task.near->pair_mask, task.near->cutoff, i,
                  [&](int64_t slot, int, const double* d, double r, bool masked) {
                    if (!masked)
                      add_pair(list, i, list.neighbors[slot], d,
                               difference * mean_slope(sums, *task.near, r) / r, out);
                  });
  }
  return bad;
}

}  // namespace mdops
