#include "pair_table/gpu_loops.h"

#include <algorithm>

#include "pair_table/gpu_kernels.h"

namespace mdops {

namespace {

TableSums divide(Workspace& space, const ListArgs& list, bool of_atoms) {
  TableSums sums{};
  sums.forces = space.take<int64_t>(6 * list.atoms);
  if (of_atoms && list.atoms) sums.of_atoms = space.take<int64_t>(18 * list.atoms);
  sums.virial = space.take<int64_t>(18 * list.systems);
  sums.failed = space.take<int32_t>(list.systems);
  return sums;
}

}  // namespace

int64_t table_bytes(const ListArgs& list, bool of_atoms) {
  Workspace counted(nullptr);
  divide(counted, list, of_atoms);
  return counted.size();
}

void run_table(const Gpu& gpu, const ListArgs& list, const TableArgs& table, const GpuTableTask& task,
               const GpuTableResults& out, void* memory) {
  gpu.clear(memory, table_bytes(list, out.of_atoms));
  Workspace space(static_cast<char*>(memory));
  const TableSums sums = divide(space, list, out.of_atoms);
  const int per_block = items_of_block(list.atoms, gpu.limits().multiprocessors);
  gpu.launch(task.blends ? table_kernel<true> : table_kernel<false>, blocks_for(list.atoms, per_block),
             kBusyThreads, 0, list, table, task, sums, out, per_block);
  const int64_t numbers = std::max((out.of_atoms ? 9 : 3) * list.atoms, 9 * list.systems);
  gpu.launch(table_end_kernel, blocks_for(numbers, 256), 256, 0, list, sums, task.sums, out);
}

void run_near(const Gpu& gpu, const ListArgs& list, const NearArgs& near, double* weight, int32_t* within,
              double* nearest) {
  gpu.launch(near_kernel, blocks_for(list.atoms, kBusyThreads / kWarp), kBusyThreads, 0, list, near, weight,
             within, nearest);
}

}  // namespace mdops
