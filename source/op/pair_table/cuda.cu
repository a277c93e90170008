#include "pair_table/cuda_call.h"
#include "pair_table/ops.h"

namespace mdops {

static void run_table(const CudaOp& op, const ListArgs& list, const TableArgs& table, const BlendArgs& blend,
                      const NearArgs& near, TableOutputs& out) {
  GpuTableTask task{blend.weight, nullptr, blend.blends, near, {}};
  if (blend.blends)
    task.other = blend.other,
    task.sums = {blend.forces, blend.virial, out.atom_virial() ? blend.of_atoms : nullptr};
  run_table(op, list, table, task, out);
}

}  // namespace mdops

MDOPS_ON_GPU(PairTableOps)
