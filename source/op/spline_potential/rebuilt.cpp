// The kernels of the inference step for one model and this machine, as a library of their own: mdops.jit
// compiles it, with the model's sizes (gemm/net.h) and MDOPS_ISA as for the prebuilt ones.
#include "spline_potential/cpu_kernel.cpp"
#include "spline_potential/kernel_table.h"

namespace mdops::MDOPS_ISA {

namespace {

PotentialTable table() {
  PotentialTable table{};
  table.version = kTableVersion, table.size = sizeof(PotentialTable), table.family = PotentialTable::kFamily;
  PotentialArgs<MDOPS_MODEL_FLOAT> sizes{};
  sizes.parts = MDOPS_MODEL_PARTS;
  table.set_sizes(sizes);
  table.kernels<MDOPS_MODEL_FLOAT>() = {scratch_size<MDOPS_MODEL_FLOAT>, potential<MDOPS_MODEL_FLOAT>};
#ifdef MDOPS_PROFILER
  table.stages = kStageNames, table.record = record_stages, table.events = stage_events;
#endif
  return table;
}

}  // namespace

}  // namespace mdops::MDOPS_ISA

MDOPS_EXPORT const mdops::KernelTable* mdops_kernel_table() {
  static const mdops::PotentialTable table = mdops::MDOPS_ISA::table();
  return &table;
}
