// A pair table's results on a GPU and the call that fills them, for each op that has a table in it.
#pragma once

#include "common/cuda.h"
#include "pair_table/gpu_loops.h"

namespace mdops {

struct GpuTable {
  Tensor energy, forces, virial, of_atoms, within, nearest;

  GpuTable(const CudaOp& op, const ListArgs& list, bool atom_virial)
      : energy(empty(op, {list.atoms}, ScalarType::Double)),
        forces(empty(op, {list.atoms, 3}, ScalarType::Double)),
        virial(empty(op, {list.systems, 3, 3}, ScalarType::Double)),
        of_atoms(empty(op, {atom_virial ? list.atoms : 0, 3, 3}, ScalarType::Double)),
        within(empty(op, {list.atoms, list.ntypes}, ScalarType::Int)),
        nearest(empty(op, {list.atoms}, ScalarType::Double)) {}

  void run(const CudaOp& op, const ListArgs& list, const TableArgs& table, const GpuTableTask& task) {
    const GpuTableResults out{
        energy.mutable_data_ptr<double>(),  forces.mutable_data_ptr<double>(),
        virial.mutable_data_ptr<double>(),  of_atoms.size(0) ? of_atoms.mutable_data_ptr<double>() : nullptr,
        nearest.mutable_data_ptr<double>(), within.mutable_data_ptr<int32_t>()};
    Tensor memory = empty(op, {table_bytes(list, out.of_atoms)}, ScalarType::Byte);
    run_table(op, list, table, task, out, memory.mutable_data_ptr());
  }
};

// Another model's sums; `of_atoms` may be empty.
inline OtherSums other_sums(const Tensor& forces, const Tensor& virial, const Tensor& of_atoms) {
  return {forces.const_data_ptr<double>(), virial.const_data_ptr<double>(),
          of_atoms.size(0) ? of_atoms.const_data_ptr<double>() : nullptr};
}

}  // namespace mdops
