#include "common/cuda.h"
#include "displacements/gpu_kernels.h"
#include "displacements/gpu_loops.h"
#include "displacements/gpu_pair_sums.h"
#include "displacements/inputs.h"

namespace mdops {

namespace {

using namespace gpu_displacements;

Tensor displacements(const Tensor& positions_, const Tensor& cell_, const Tensor& batch_,
                     const Tensor& neighbors_, const Tensor& images_, ScalarType dtype) {
  const CudaOp op("displacements", "positions", positions_);
  const Tensor cell = input(op, "cell", cell_, ScalarType::Double, {kAny, 3, 3});
  const PairList pairs(op, batch_, neighbors_, cell.size(0));
  const Tensor images = input(op, "images", images_, ScalarType::Int, {pairs.atoms, pairs.width});
  const Tensor positions = input(op, "positions", positions_, ScalarType::Double, {pairs.atoms, 3});
  Tensor result = empty(op, {pairs.atoms, pairs.width, 3}, dtype);
  dispatch_float(op, dtype, [&](auto zero) {
    using T = decltype(zero);
    run_displacements(op, positions.const_data_ptr<double>(), cell.const_data_ptr<double>(),
                      pair_rows(pairs, cell.size(0)), images.const_data_ptr<int32_t>(),
                      result.mutable_data_ptr<T>());
  });
  return result;
}

std::tuple<Tensor, Tensor> displacements_backward(const Tensor& grad_, const Tensor& batch_,
                                                  const Tensor& neighbors_, const Tensor& images_,
                                                  int64_t num_systems) {
  const CudaOp op("displacements_backward", "grad", grad_);
  const PairList pairs(op, batch_, neighbors_, num_systems);
  const Tensor images = input(op, "images", images_, ScalarType::Int, {pairs.atoms, pairs.width});
  const Tensor grad = float_input(op, "grad", grad_, {pairs.atoms, pairs.width, 3});
  Tensor grad_positions = empty(op, {pairs.atoms, 3}, ScalarType::Double);
  Tensor grad_cell = empty(op, {num_systems, 3, 3}, ScalarType::Double);
  dispatch_float(op, grad.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const PositionGradient<T> terms{grad.const_data_ptr<T>(), images.const_data_ptr<int32_t>()};
    const PairSums<PositionGradient<T>> sums{op, pair_rows(pairs, num_systems)};
    Tensor memory = empty(op, {sums.words()}, ScalarType::Long);
    sums.run(terms, memory.mutable_data_ptr<int64_t>(), grad_positions.mutable_data_ptr<double>(),
             grad_cell.mutable_data_ptr<double>(), nullptr);
  });
  return {grad_positions, grad_cell};
}

std::tuple<Tensor, Tensor, Tensor> pair_forces(const Tensor& grad_, const Tensor& displacements_,
                                               const Tensor& batch_, const Tensor& neighbors_,
                                               int64_t num_systems) {
  const CudaOp op("pair_forces", "grad", grad_);
  const PairList pairs(op, batch_, neighbors_, num_systems);
  const Tensor grad = float_input(op, "grad", grad_, {pairs.atoms, pairs.width, 3});
  const Tensor d =
      input(op, "displacements", displacements_, grad.scalar_type(), {pairs.atoms, pairs.width, 3});
  Tensor forces = empty(op, {pairs.atoms, 3}, ScalarType::Double);
  Tensor virial = empty(op, {num_systems, 3, 3}, ScalarType::Double);
  Tensor atom_virial = empty(op, {pairs.atoms, 3, 3}, ScalarType::Double);
  dispatch_float(op, grad.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const PairRows rows = pair_rows(pairs, num_systems);
    Tensor memory = empty(op, {pair_forces_bytes<T>(op, rows)}, ScalarType::Byte);
    run_pair_forces(op, rows, grad.const_data_ptr<T>(), d.const_data_ptr<T>(), memory.mutable_data_ptr(),
                    forces.mutable_data_ptr<double>(), virial.mutable_data_ptr<double>(),
                    atom_virial.mutable_data_ptr<double>());
  });
  return {forces, virial, atom_virial};
}

std::tuple<Tensor, Tensor> pair_forces_backward(const Tensor& grad_forces_, const Tensor& grad_virial_,
                                                const Tensor& grad_atom_virial_, const Tensor& grad_,
                                                const Tensor& displacements_, const Tensor& batch_,
                                                const Tensor& neighbors_) {
  const CudaOp op("pair_forces_backward", "grad", grad_);
  const PairForcesBackward in(op, grad_forces_, grad_virial_, grad_atom_virial_, grad_, displacements_,
                              batch_, neighbors_);
  const PairList& pairs = in.pairs;
  const ScalarType dtype = in.grad.scalar_type();
  Tensor grad_grad = empty(op, {pairs.atoms, pairs.width, 3}, dtype);
  Tensor grad_displacements = empty(op, {pairs.atoms, pairs.width, 3}, dtype);
  dispatch_float(op, dtype, [&](auto zero) {
    using T = decltype(zero);
    op.launch(pair_forces_backward_kernel<T>, blocks_for(pairs.atoms, kThreads / kWarp), kThreads, 0,
              in.rows(), in.of_results(), in.grad.const_data_ptr<T>(), in.displacements.const_data_ptr<T>(),
              grad_grad.mutable_data_ptr<T>(), grad_displacements.mutable_data_ptr<T>());
  });
  return {grad_grad, grad_displacements};
}

}  // namespace

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  m.impl("displacements", TORCH_BOX(&mdops::displacements));
  m.impl("displacements_backward", TORCH_BOX(&mdops::displacements_backward));
  m.impl("pair_forces", TORCH_BOX(&mdops::pair_forces));
  m.impl("pair_forces_backward", TORCH_BOX(&mdops::pair_forces_backward));
}
