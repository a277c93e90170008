#include "pair_table/gpu_loops.h"

#include <algorithm>

#include "pair_table/gpu_kernels.h"

namespace mdops {

namespace {

constexpr int kEndThreads = 512;

TableSums divide(Workspace& space, const ListArgs& list, bool of_atoms) {
  TableSums sums{};
  sums.forces = space.take<int64_t>(2 * kForceColumns * list.atoms);
  if (of_atoms && list.atoms) sums.of_atoms = space.take<int64_t>(18 * list.atoms);
  sums.virial = space.take<int64_t>(18 * list.systems);
  sums.failed = space.take<int32_t>(list.systems);
  return sums;
}

BlendAtoms divide_atoms(Workspace& space, const ListArgs& list) {
  const int64_t blocks = blocks_for(list.atoms, kBlendThreads);
  return {space.take<int32_t>(list.atoms), space.take<int32_t>(blocks), blocks};
}

}  // namespace

int64_t table_bytes(const ListArgs& list, bool of_atoms) {
  return Workspace::bytes(
      [&](Workspace& space) { divide(space, list, of_atoms), divide_atoms(space, list); });
}

void run_table(const Gpu& gpu, const ListArgs& list, const TableArgs& table, const GpuTableTask& task,
               const GpuTableResults& out, void* memory) {
  Workspace space(static_cast<char*>(memory));
  const TableSums sums = divide(space, list, out.of_atoms);
  const int multiprocessors = gpu.limits().multiprocessors;
  if (task.blends) {
    const BlendAtoms busy = divide_atoms(space, list);
    gpu.launch_early(blend_begin_kernel, std::max<int64_t>(busy.blocks, 1), kBlendThreads, 0, list, table,
                     task, sums, busy, out);
    gpu.launch_early(
        blend_kernel,
        std::min(blocks_for(list.atoms, kNearThreads / kWarp), int64_t{kNearBlocks} * multiprocessors),
        kNearThreads, 0, list, table, task, sums, busy, out);
  } else {
    gpu.clear(memory, space.size());
    const int per_block = items_of_block(list.atoms, multiprocessors);
    gpu.launch(table_kernel, blocks_for(list.atoms, per_block), kBusyThreads, 0, list, table, task.weight,
               sums, out, per_block);
  }
  const int64_t numbers = std::max((out.of_atoms ? 9 : 3) * list.atoms, 9 * list.systems);
  gpu.launch_early(table_end_kernel, blocks_for(numbers, kEndThreads), kEndThreads, 0, list, sums, task.sums,
                   out);
}

void run_near(const Gpu& gpu, const ListArgs& list, const NearArgs& near, double* weight, int32_t* within,
              double* nearest) {
  gpu.launch(near_kernel, blocks_for(list.atoms, kBusyThreads / kWarp), kBusyThreads, 0, list, near, weight,
             within, nearest);
}

}  // namespace mdops
