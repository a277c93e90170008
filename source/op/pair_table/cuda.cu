#include "pair_table/cuda_call.h"
#include "pair_table/ops.h"

namespace mdops {

static void run_table(const CudaOp& op, const ListArgs& list, const TableArgs& table,
                      const BlendInputs& blend, const NearArgs& near, TableOutputs& out) {
  GpuTableTask task{blend.weights(), nullptr, blend.blends(), near, {}};
  if (blend.blends()) {
    task.other = data_of(blend.other);
    task.sums = other_sums(blend.forces, blend.virial, blend.of_atoms);
  }
  run_table(op, list, table, task, out);
}

}  // namespace mdops

MDOPS_ON_GPU(PairTableOps)
