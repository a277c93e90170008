#include "pair_table/cpu_kernel.h"

#include "common/vectors.h"

namespace mdops::MDOPS_ISA {

namespace {

// The least of squared distances; NaN if any is.
struct Least {
  double value;
  bool unordered = false;

  MDOPS_INLINE void take(double r2) {
    value = r2 < value ? r2 : value;
    unordered |= r2 != r2;
  }
  double distance() const { return unordered ? NAN : std::sqrt(value); }
};

// f(type, neighbour, pair vector, its square) for an atom's slots [slot, end) of neighbours of a type.
// Returns false if the list names an atom that does not exist.
MDOPS_INLINE bool each_of_type(const ListArgs& list, int64_t i, int64_t slot, int64_t end, const auto& f) {
  const double *x = list.positions, *xi = x + 3 * i;
  const double* cell = list.cell + 9 * static_cast<int64_t>(list.batch[i]);
  const uint64_t atoms = static_cast<uint64_t>(list.atoms);
  for (; slot < end; ++slot) {
    const uint64_t j = static_cast<uint32_t>(list.neighbors[slot]);
    if (j >= atoms) return false;
    double d[3] = {x[3 * j] - xi[0], x[3 * j + 1] - xi[1], x[3 * j + 2] - xi[2]};
    if (list.images[slot] != 0) displacement(xi, x + 3 * j, cell, list.images[slot], d);
    f(static_cast<int32_t>(j), d, d[0] * d[0] + d[1] * d[1] + d[2] * d[2]);
  }
  return true;
}

// f(type, first slot, end) for an atom; false as soon as f returns false.
MDOPS_INLINE bool each_type(const ListArgs& list, int64_t i, const auto& f) {
  int64_t slot = i * list.list_width;
  for (int t = 0; t < list.ntypes; ++t) {
    const int64_t end = slot + list.counts[i * list.ntypes + t];
    if (!f(t, slot, end)) return false;
    slot = end;
  }
  return true;
}

// The counts of `report` for an atom, and the least distance that is not masked.
bool look(const ListArgs& list, const NearArgs& near, int64_t i, double* least, const NearReport& report) {
  const bool* mask = near.pair_mask + static_cast<int64_t>(list.types[i]) * list.ntypes;
  const double cutoff2 = near.cutoff * near.cutoff;
  Least nearest{cutoff2}, counting{cutoff2};
  const bool is_whole = each_type(list, i, [&](int t, int64_t slot, int64_t end) {
    Least own{cutoff2};
    int32_t within = 0;
    const bool all = each_of_type(list, i, slot, end, [&](int32_t, const double*, double r2) {
      within += !(r2 > cutoff2);
      own.take(r2);
    });
    report.within[i * list.ntypes + t] = within;
    nearest.take(own.value), nearest.unordered |= own.unordered;
    if (!mask[t]) counting.take(own.value);
    return all;
  });
  report.nearest[i] = nearest.distance();
  *least = nearest.unordered ? NAN : counting.distance();
  return is_whole;
}

// Fills the row with an atom's neighbours that are not masked, and reports on all within the cutoff (null: no
// report).
bool gather(const ListArgs& list, const bool* pair_mask, double cutoff, int64_t i, NeighborRow& row,
            const NearReport* report) {
  const bool* mask = pair_mask + static_cast<int64_t>(list.types[i]) * list.ntypes;
  const double cutoff2 = cutoff * cutoff;
  Least least{cutoff2};
  int64_t n = 0;
  const bool is_whole = each_type(list, i, [&](int t, int64_t slot, int64_t end) {
    int32_t inside = 0;
    const int64_t kept = mask[t] ? 0 : 1;
    const bool all = each_of_type(list, i, slot, end, [&](int32_t j, const double* d, double r2) {
      const bool is_inside = !(r2 > cutoff2);
      least.take(r2);
      row.x[n] = d[0], row.y[n] = d[1], row.z[n] = d[2], row.r[n] = r2, row.atom[n] = j, row.type[n] = t;
      n += is_inside ? kept : 0;
      inside += is_inside;
    });
    if (report) report->within[i * list.ntypes + t] = inside;
    return all;
  });
  row.size = n;
  if (report) report->nearest[i] = least.distance();
  double *const r = row.r, *const inverse = row.inverse;
  MDOPS_INDEPENDENT
  for (int64_t k = 0; k < n; ++k) r[k] = std::sqrt(r[k]), inverse[k] = 1 / r[k];
  return is_whole;
}

// Returns t, and writes its gradient times `weight` to the row. The table is a copy, which stores to the row
// cannot change.
double add_table(const TableArgs table, int64_t pairs_of_type, double weight, NeighborRow& row) {
  double energy = 0;
  for (int64_t k = 0; k < row.size; ++k) {
    const PairEnergy pair = pair_energy(table, pairs_of_type + row.type[k], row.r[k]);
    energy += 0.5 * pair.u;
    row.g[k] = pair.slope == 0 ? 0 : 0.5 * weight * pair.slope * row.inverse[k];
  }
  return energy;
}

// Adds to g a blend's other term, beside the parts' weighted forces: the weight's slope times the difference
// of energies.
void add_slopes(const NearArgs& near, double difference, NeighborRow& row) {
  double least = INFINITY;
  for (int64_t k = 0; k < row.size; ++k) least = row.r[k] < least || row.r[k] != row.r[k] ? row.r[k] : least;
  NearSums sums{least, 0, 0};
  const double reach = sums.reach(near.decay);
  for (int64_t k = 0; k < row.size; ++k) {
    row.w[k] = 0;
    if (row.r[k] > reach) continue;
    row.w[k] = sums.weight(row.r[k], near.decay);
    sums.weights += row.w[k], sums.weighted += row.w[k] * row.r[k];
  }
  const double mean = sums.mean(), inverse = 1 / near.decay;
  const double slope = difference * weight_at(near, mean).slope / sums.weights;
  if (slope == 0) return;  // e.g. if the weight is 1
  for (int64_t k = 0; k < row.size; ++k)
    if (row.w[k] != 0) row.g[k] += mean_slope(slope * row.w[k], row.r[k], mean, inverse) * row.inverse[k];
}

// Forces and virial of one atom's pairs.
void add_pairs(const ListArgs& list, int64_t i, const NeighborRow& row, PotentialResults<double>& out) {
  double force[3] = {}, virial[6] = {};         // xx, xy, xz, yy, yz, zz
  const PagedRows<double> forces = out.forces;  // a copy, which stores cannot change
  for (int64_t k = 0; k < row.size; ++k) {
    if (row.g[k] == 0) continue;
    double* const other = forces.row(row.atom[k]);
    const double d[3] = {row.x[k], row.y[k], row.z[k]};
    double f[3];
    for (int a = 0; a < 3; ++a) f[a] = row.g[k] * d[a];
    const double w[6] = {f[0] * d[0], f[0] * d[1], f[0] * d[2], f[1] * d[1], f[1] * d[2], f[2] * d[2]};
    for (int a = 0; a < 3; ++a) force[a] += f[a], other[a] -= f[a];
    for (int m = 0; m < 6; ++m) virial[m] -= w[m];
    if (out.atom_virial) {
      double* const of_other = out.atom_virial.row(row.atom[k]);
      for (int m = 0; m < 9; ++m) of_other[m] -= w[symmetric_place(m)];
    }
  }
  double *const own = forces.row(i), *const all = out.virial.row(list.batch[i]);
  for (int a = 0; a < 3; ++a) own[a] += force[a];
  for (int m = 0; m < 9; ++m) all[m] += virial[symmetric_place(m)];
}

// Whether a table and the weights have the same neighbours, for atoms of a type.
bool same_neighbors(const ListArgs& list, const TableArgs& table, const NearArgs& near, int64_t type) {
  bool same = near.cutoff == table.cutoff;
  for (int t = 0; t < list.ntypes; ++t)
    same &= near.pair_mask[type * list.ntypes + t] == table.pair_mask[type * list.ntypes + t];
  return same;
}

}  // namespace

double atom_weight(const ListArgs& list, const NearArgs& near, int64_t i) {
  const bool* mask = near.pair_mask + static_cast<int64_t>(list.types[i]) * list.ntypes;
  const double cutoff2 = near.cutoff * near.cutoff;
  Least least{INFINITY};
  // Two loops over the neighbours, few of whom are near, need no memory for them.
  const auto each = [&](const auto& f) __attribute__((always_inline)) {
    return each_type(list, i, [&](int t, int64_t slot, int64_t end) {
      return mask[t] || each_of_type(list, i, slot, end, [&](int32_t, const double*, double r2) {
               if (!(r2 > cutoff2)) f(r2);
             });
    });
  };
  if (!each([&](double r2) { least.take(r2); })) return NAN;
  NearSums sums{least.distance(), 0, 0};
  if (sums.least >= near.high) return 0;  // no mean is below the least distance
  const double reach = sums.reach(near.decay), reach2 = reach * reach;
  each([&](double r2) {
    if (r2 > reach2) return;
    const double r = std::sqrt(r2), w = sums.weight(r, near.decay);
    sums.weights += w, sums.weighted += w * r;
  });
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
    // Most atoms need no second loop.
    if (!(least >= near.high)) weight[i] = atom_weight(list, near, i);
  }
  return bad;
}

int64_t table_energies(const ListArgs& list, const TableArgs& table, const double* weight, const int32_t* ids,
                       int64_t count, const NearReport& report, NeighborRow& row,
                       PotentialResults<double>& out) {
  int64_t bad = -1;
  for (int64_t n = 0; n < count; ++n) {
    const int64_t i = ids[n];
    report.nearest[i] = table.cutoff;
    if (list.types[i] < 0) continue;
    if (!gather(list, table.pair_mask, table.cutoff, i, row, &report)) {
      bad = i;
      continue;
    }
    const double own = weight ? weight[i] : 1;
    if (own == 0) continue;
    out.energy[i] = add_table(table, static_cast<int64_t>(list.types[i]) * list.ntypes, own, row);
    add_pairs(list, i, row, out);
  }
  return bad;
}

int64_t blend_energies(const ListArgs& list, const TableArgs& table, const NearArgs& near, const double* c,
                       const int32_t* ids, int64_t count, NeighborRow& row, PotentialResults<double>& out) {
  int64_t bad = -1;
  for (int64_t n = 0; n < count; ++n) {
    const int64_t i = ids[n], pairs_of_type = static_cast<int64_t>(list.types[i]) * list.ntypes;
    if (!gather(list, table.pair_mask, table.cutoff, i, row, nullptr)) {
      bad = i;
      continue;
    }
    const double t = add_table(table, pairs_of_type, c[i], row);
    if (!same_neighbors(list, table, near, list.types[i])) {
      add_pairs(list, i, row, out);
      gather(list, near.pair_mask, near.cutoff, i, row, nullptr);
      for (int64_t k = 0; k < row.size; ++k) row.g[k] = 0;
    }
    add_slopes(near, t - out.energy[i], row);
    add_pairs(list, i, row, out);
    out.energy[i] = (1 - c[i]) * out.energy[i] + c[i] * t;
  }
  return bad;
}

}  // namespace mdops::MDOPS_ISA
