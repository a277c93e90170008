// The kernels of the inference step for one model and one chip, as a library of their own: mdops.jit compiles
// it.
#include "gemm/gpu_net.h"
#include "spline_potential/gpu_run.h"
#include "spline_potential/gpu_table.h"

namespace mdops {

namespace {

// work(), or `otherwise` and the exception's text.
template <class T, class Work>
T guarded(CallError* why, T otherwise, const Work& work) {
  try {
    return work();
  } catch (const std::exception& error) {
    std::strncpy(why->text, error.what(), sizeof(why->text) - 1);
    why->text[sizeof(why->text) - 1] = '\0';
    return otherwise;
  }
}

Gpu gpu_of(const GpuPlace& place) {
  return Gpu(place.op, place.index, place.stream);
}

int64_t step_bytes(const GpuPlace& place, const StepArgs& args, CallError* why) {
  return guarded<int64_t>(why, -1, [&] {
    const Gpu gpu = gpu_of(place);
    return StepCall<MDOPS_MODEL_PARTS>(gpu, args).bytes();
  });
}

int run_step(const GpuPlace& place, const StepArgs& args, void* memory, CallError* why) {
  return guarded(why, 1, [&] {
    const Gpu gpu = gpu_of(place);
    StepCall<MDOPS_MODEL_PARTS>(gpu, args).run(memory);
    return 0;
  });
}

StepTable table() {
  constexpr int neurons[] = {MDOPS_MODEL_NEURONS}, residual[] = {MDOPS_MODEL_RESIDUAL};
  StepTable table{};
  table.version = kTableVersion, table.size = sizeof(StepTable), table.family = StepTable::kFamily;
  table.arguments = sizeof(StepArgs), table.capability = MDOPS_MODEL_CAPABILITY;
  table.parts = MDOPS_MODEL_PARTS;
  table.ntypes = table.basis = table.extra = kAnySize;
#ifdef MDOPS_MODEL_TYPES
  table.ntypes = MDOPS_MODEL_TYPES;
#endif
#ifdef MDOPS_MODEL_INTERVALS
  table.basis = MDOPS_MODEL_INTERVALS + 5;
#endif
#ifdef MDOPS_MODEL_EXTRA
  table.extra = MDOPS_MODEL_EXTRA;
#endif
  table.width = StepSizes::width, table.axis = StepSizes::axis, table.plain = StepSizes::plain;
  table.gated = StepArgs::gated, table.activation = MDOPS_MODEL_ACTIVATION;
  table.threshold = static_cast<float>(MDOPS_MODEL_THRESHOLD), table.layers = sizeof(neurons) / sizeof(int);
  for (int n = 0; n < table.layers; ++n) table.neurons[n] = neurons[n], table.residual[n] = residual[n];
  table.bytes = step_bytes, table.run = run_step;
#ifdef MDOPS_PROFILER
  table.stages = kStageNames, table.record = record_stages, table.events = stage_events;
#endif
  return table;
}

}  // namespace

}  // namespace mdops

MDOPS_EXPORT const mdops::KernelTable* mdops_kernel_table() {
  static const mdops::StepTable table = mdops::table();
  return &table;
}
