#include "angle_moment/gpu_loops.h"
#include "angle_moment/gpu_memory.h"
#include "angle_moment/ops.h"
#include "common/cuda.h"

namespace mdops {

using namespace gpu_angle;

namespace {

// work(gate), a constant: none or alone.
void with_gate(bool gated, const auto& work) {
  if (gated)
    work(std::integral_constant<Gate, Gate::alone>{});
  else
    work(std::integral_constant<Gate, Gate::none>{});
}

template <bool Tangents, class T>
void launch_moments(const CudaOp& op, const AngleArgs<T>& args, int64_t atoms, const T* tangent, T* moments,
                    int32_t* within, T* nearest) {
  with_gate(args.gated, [&](auto gate) {
    const WarpMemory m(op.limits(), warp_bytes<Tangents, false, gate()>(args, 0), atoms);
    Tensor memory = empty(op, {m.global()}, ScalarType::Byte);
    op.launch(moment_kernel<gate(), Tangents, T>, m.blocks, kWarp, m.shared, args, atoms, tangent,
              m.of(memory.mutable_data_ptr()), m.bytes, moments, within, nearest);
  });
}

template <bool Second, class T>
void launch_pull(const CudaOp& op, const AngleArgs<T>& args, int64_t atoms, const T* tangent, const T* grad,
                 T* out) {
  with_gate(args.gated, [&](auto gate) {
    const WarpMemory m(op.limits(), warp_bytes<Second, true, gate()>(args, 0), atoms);
    Tensor memory = empty(op, {m.global()}, ScalarType::Byte);
    op.launch(pull_kernel<gate(), Second, T>, m.blocks, kWarp, m.shared, args, atoms, tangent, grad,
              m.of(memory.mutable_data_ptr()), m.bytes, out);
  });
}

}  // namespace

template <class T>
static void run_angle_moments(const CudaOp& op, const AngleArgs<T>& args, int64_t atoms, T* moments,
                              int32_t* within, T* nearest) {
  launch_moments<false>(op, args, atoms, static_cast<const T*>(nullptr), moments, within, nearest);
}

template <class T>
static void run_angle_moment_tangents(const CudaOp& op, const AngleArgs<T>& args, int64_t atoms,
                                      const T* tangent, T* out) {
  launch_moments<true>(op, args, atoms, tangent, out, static_cast<int32_t*>(nullptr),
                       static_cast<T*>(nullptr));
}

template <class T>
static void run_angle_moment_pulls(const CudaOp& op, const AngleArgs<T>& args, int64_t atoms,
                                   const T* tangent, const T* grad, T* out) {
  tangent ? launch_pull<true>(op, args, atoms, tangent, grad, out)
          : launch_pull<false>(op, args, atoms, tangent, grad, out);
}

template <class T>
static void make_angle_features(const CudaOp& op, const AngleArgs<T>& args, const AngleTables<T>& tables,
                                int64_t atoms, T* features, int32_t* within, T* nearest) {
  Tensor memory = empty(op, {angle_features_bytes(op, args, tables, atoms)}, ScalarType::Byte);
  run_angle_features(op, args, tables, atoms, memory.mutable_data_ptr(), features, within, nearest);
}

template <class T>
static void make_angle_gradients(const CudaOp& op, const AngleArgs<T>& args, const AngleTables<T>& tables,
                                 int64_t atoms, const T* grad, T* out) {
  Tensor memory = empty(op, {angle_gradients_bytes(op, args, tables, atoms)}, ScalarType::Byte);
  run_angle_gradients(op, args, tables, atoms, grad, memory.mutable_data_ptr(), out);
}

}  // namespace mdops

MDOPS_ON_GPU(AngleMomentOps, AngleFeatureOps)
