// What the ops on pair tables launch on a GPU, for PyTorch and for callers without PyTorch.
#pragma once

#include "common/gpu.h"
#include "pair_table/pair_table.h"

namespace mdops {

// The other model's sums, of its weighted energies.
struct OtherSums {
  const double *forces, *virial, *of_atoms;
};

// Energies and forces of a table: atoms' weights, or null; for a blend also the other energies, the
// neighbours of the weights, and the other sums, if the results are to be the blend's.
struct GpuTableTask {
  const double *weight, *other;
  bool blends;  // whether there are other energies
  NearArgs near;
  OtherSums sums{};
};

// Energy, nearest (N,), forces (N, 3), virial (S, 3, 3), of_atoms (N, 3, 3) or null, within (N, ntypes).
struct GpuTableResults {
  double *energy, *forces, *virial, *of_atoms, *nearest;
  int32_t* within;
};

// `memory` of the GPU has table_bytes() bytes.
int64_t table_bytes(const ListArgs& list, bool of_atoms);
void run_table(const Gpu& gpu, const ListArgs& list, const TableArgs& table, const GpuTableTask& task,
               const GpuTableResults& out, void* memory);

// The weights (N,), and the results on the neighbours that make them.
void run_near(const Gpu& gpu, const ListArgs& list, const NearArgs& near, double* weight, int32_t* within,
              double* nearest);

}  // namespace mdops
