#include "pair_table/cpu_loops.h"

#include <vector>

namespace mdops {

namespace {

struct TableScratch;  // a thread's row of neighbours

SpatialOrder order_of(const ListArgs& list, int64_t centers) {
  const AtomsToOrder atoms{list.positions,  3,           list.cell,  list.batch,
                           list.neighbors,  list.counts, list.atoms, list.systems,
                           list.list_width, list.ntypes, centers};
  return {atoms, useful_threads(centers)};
}

// What sums over threads need of the atoms.
PotentialArgs<double> sizes_of(const ListArgs& list, double cutoff) {
  PotentialArgs<double> sizes{};
  sizes.types = list.types, sizes.atoms = list.atoms, sizes.systems = list.systems;
  sizes.cutoff.cutoff = cutoff;
  return sizes;
}

// work(first, end, row, the thread's sums) for pieces of [0, count), in as many threads as there are shares;
// it returns an atom with an invalid list, or -1.
void in_threads(const Op& op, const ListArgs& list, const SpatialOrder& space, int64_t count,
                const StepResults<double>& results, std::vector<Share<double>>& shares, const auto& work) {
  const PotentialArgs<double> sizes = sizes_of(list, 0);
  const int64_t threads = static_cast<int64_t>(shares.size());
  parallel(threads, 1, [&](int64_t begin, int64_t end) {
    const ScratchMemory<TableScratch> memory(op, NeighborRow::bytes(list.list_width));
    NeighborRow row(memory.data(), list.list_width);
    for (int64_t thread = begin; thread < end; ++thread) {
      PotentialResults<double> out = results.of_thread(sizes, space, shares[thread]);
      shares[thread].bad_atom = work(count * thread / threads, count * (thread + 1) / threads, row, out);
    }
  });
}

}  // namespace

void near_step(const Op& op, const ListArgs& list, const NearArgs& near, int64_t atoms, double* weight,
               const NearReport& report) {
  parallel(atoms, 16, [&](int64_t begin, int64_t end) {
    const int64_t bad = MDOPS_RUN(near_weights, list, near, begin, end, weight, report);
    if (bad >= 0) fail_neighbors(op, bad);
  });
}

void table_step(const Op& op, const ListArgs& list, const TableArgs& table, const double* weight,
                const StepResults<double>& results) {
  const NearReport report{results.within, results.nearest};
  const SpatialOrder space = order_of(list, results.centers);
  const std::vector<int32_t> ids = space.atoms_below(results.centers);
  std::vector<Share<double>> shares(useful_threads(results.centers));
  in_threads(op, list, space, results.centers, results, shares,
             [&](int64_t begin, int64_t end, NeighborRow& row, PotentialResults<double>& out) {
               return MDOPS_RUN(table_energies, list, table, weight, ids.data() + begin, end - begin, report,
                                row, out);
             });
  results.finish(op, sizes_of(list, table.cutoff), space, shares);
}

void blend_step(const Op& op, const ListArgs& list, const TableArgs& table, const NearArgs& near,
                const double* c, int64_t atoms, const BlendedSums& sums) {
  const SpatialOrder space = order_of(list, atoms);
  std::vector<int32_t> ids;
  for (int32_t i : space.atoms_below(atoms))
    if (c[i] != 0 && list.types[i] >= 0) ids.push_back(i);
  if (ids.empty()) return;
  const int64_t count = static_cast<int64_t>(ids.size());
  StepResults<double> results{};
  results.energy = sums.energy, results.atom_virial = sums.atom_virial;
  std::vector<Share<double>> shares(useful_threads(count));
  in_threads(op, list, space, count, results, shares,
             [&](int64_t begin, int64_t end, NeighborRow& row, PotentialResults<double>& out) {
               return MDOPS_RUN(blend_energies, list, table, near, c, ids.data() + begin, end - begin, row,
                                out);
             });
  for (const Share<double>& share : shares)
    if (share.bad_atom >= 0) fail_neighbors(op, share.bad_atom);
  add_forces(shares, list.atoms, space, sums.forces);
  add_virials(shares, list.systems, sums.virial);
  if (sums.atom_virial) add_atom_virials(shares, list.atoms, space, sums.atom_virial);
}

}  // namespace mdops
