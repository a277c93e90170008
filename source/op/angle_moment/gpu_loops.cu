#include "angle_moment/gpu_loops.h"

#include <type_traits>

#include "angle_moment/gpu_memory.h"

namespace mdops {

using namespace gpu_angle;

namespace {

// work(gate), a constant: none or beside.
auto with_gates(bool gated, const auto& work) {
  if (gated) return work(std::integral_constant<Gate, Gate::beside>{});
  return work(std::integral_constant<Gate, Gate::none>{});
}

template <bool Gradients, class T>
WarpMemory warp_memory(const Gpu& gpu, const AngleArgs<T>& args, const AngleTables<T>& tables,
                       int64_t atoms) {
  return with_gates(tables.gated != nullptr, [&](auto gate) {
    return WarpMemory(gpu.limits(), warp_bytes<false, Gradients, gate()>(args, tables.channels), atoms);
  });
}

}  // namespace

template <class T>
int64_t angle_features_bytes(const Gpu& gpu, const AngleArgs<T>& args, const AngleTables<T>& tables,
                             int64_t atoms) {
  return warp_memory<false>(gpu, args, tables, atoms).global();
}

template <class T>
int64_t angle_gradients_bytes(const Gpu& gpu, const AngleArgs<T>& args, const AngleTables<T>& tables,
                              int64_t atoms) {
  return warp_memory<true>(gpu, args, tables, atoms).global();
}

template <class T>
void run_angle_features(const Gpu& gpu, const AngleArgs<T>& args, const AngleTables<T>& tables, int64_t atoms,
                        void* memory, T* features, int32_t* within, T* nearest) {
  const WarpMemory m = warp_memory<false>(gpu, args, tables, atoms);
  with_gates(tables.gated != nullptr, [&](auto gate) {
    gpu.launch(features_kernel<gate(), T>, m.blocks, kWarp, m.shared, args, tables, atoms, m.of(memory),
               m.bytes, features, within, nearest);
  });
}

template <class T>
void run_angle_gradients(const Gpu& gpu, const AngleArgs<T>& args, const AngleTables<T>& tables,
                         int64_t atoms, const T* grad, void* memory, T* pairs) {
  const WarpMemory m = warp_memory<true>(gpu, args, tables, atoms);
  with_gates(tables.gated != nullptr, [&](auto gate) {
    gpu.launch(features_pull_kernel<gate(), T>, m.blocks, kWarp, m.shared, args, tables, atoms, grad,
               m.of(memory), m.bytes, pairs);
  });
}

MDOPS_INSTANTIATE(angle_features_bytes, angle_gradients_bytes, run_angle_features, run_angle_gradients)

}  // namespace mdops
