// A pair table on a GPU, for each op that has a table in it.
#pragma once

#include "common/cuda.h"
#include "pair_table/gpu_loops.h"
#include "pair_table/inputs.h"

namespace mdops {

inline void run_table(const CudaOp& op, const ListArgs& list, const TableArgs& table,
                      const GpuTableTask& task, TableOutputs& results) {
  const GpuTableResults out{
      results.energy.mutable_data_ptr<double>(),  results.forces.mutable_data_ptr<double>(),
      results.virial.mutable_data_ptr<double>(),  results.atom_virial(),
      results.nearest.mutable_data_ptr<double>(), results.within.mutable_data_ptr<int32_t>()};
  Tensor memory = empty(op, {table_bytes(list, out.of_atoms)}, ScalarType::Byte);
  run_table(op, list, table, task, out, memory.mutable_data_ptr());
}

// Another model's sums; `of_atoms` may be empty.
inline OtherSums other_sums(const Tensor& forces, const Tensor& virial, const Tensor& of_atoms) {
  return {forces.const_data_ptr<double>(), virial.const_data_ptr<double>(),
          of_atoms.size(0) ? of_atoms.const_data_ptr<double>() : nullptr};
}

}  // namespace mdops
