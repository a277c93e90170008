// A pair table on a GPU, for each op that has a table in it.
#pragma once

#include "common/cuda.h"
#include "pair_table/gpu_loops.h"
#include "pair_table/inputs.h"

namespace mdops {

inline void run_table(const CudaOp& op, const ListArgs& list, const TableArgs& table,
                      const GpuTableTask& task, TableOutputs& results) {
  const GpuTableResults out{data_of(results.energy), data_of(results.forces),  data_of(results.virial),
                            results.atom_virial(),   data_of(results.nearest), data_of(results.within)};
  Tensor memory = empty(op, {table_bytes(list, out.of_atoms)}, ScalarType::Byte);
  run_table(op, list, table, task, out, memory.mutable_data_ptr());
}

// Another model's sums; `of_atoms` may be empty.
inline OtherSums other_sums(Input forces, Input virial, Input of_atoms) {
  return {data_of(forces), data_of(virial), data_of(of_atoms.size(0) ? &of_atoms : nullptr)};
}

}  // namespace mdops
