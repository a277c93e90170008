#include <algorithm>

#include "pair_table/cpu_loops.h"
#include "pair_table/ops.h"

namespace mdops {

static void run_near(const Op& op, const ListArgs& list, const NearArgs& near, double* weight,
                     int32_t* within, double* nearest) {
  near_step(op, list, near, list.atoms, weight, {within, nearest});
}

// The blend, from the other model's results.
static void run_table(const Op& op, const ListArgs& list, const TableArgs& table, const BlendArgs& other,
                      const NearArgs& near, TableOutputs& out) {
  const StepResults<double> results{list.atoms,           data_of(out.energy), data_of(out.within),
                                    data_of(out.nearest), data_of(out.forces), data_of(out.virial),
                                    out.atom_virial()};
  if (!other.blends) return table_step(op, list, table, other.weight, results);
  std::fill_n(results.nearest, list.atoms, table.cutoff);
  std::copy_n(other.other, list.atoms, results.energy);
  std::copy_n(other.forces, 3 * list.atoms, results.forces);
  std::copy_n(other.virial, 9 * list.systems, results.virial);
  if (results.atom_virial) std::copy_n(other.of_atoms, 9 * list.atoms, results.atom_virial);
  blend_step(op, list, table, near, other.weight, list.atoms,
             {results.energy, results.forces, results.virial, results.atom_virial});
}

}  // namespace mdops

MDOPS_ON_CPU(PairTableOps)
