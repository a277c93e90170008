#include "common/cuda.h"
#include "common/pair_checks.h"
#include "displacements/displacements.h"
#include "displacements/pair_sums.h"

namespace mdops {

namespace {

constexpr int kThreads = 192;  // a multiple of 3 and of 32

// A thread a component, in the order of the result: the three of a pair read one stretch of memory each.
// Blocks begin at whole slots; the row of a slot follows by 32-bit division from the block's first.
constexpr int kSlots = kThreads / 3;

template <class T>
__global__ void displacements_kernel(const double* x, const double* cell, const int32_t* batch,
                                     const int32_t* neighbors, const int32_t* images, int64_t atoms,
                                     uint32_t width, int32_t systems, T* out) {
  const uint32_t k = threadIdx.x / 3, axis = threadIdx.x - 3 * k;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kSlots, row = first / width, slot = first + k;
  if (slot >= atoms * width) return;
  const int64_t i = row + (static_cast<uint32_t>(first - row * width) + k) / width;
  const int32_t j = neighbors[slot];
  double d = 0;
  if (j != -1) {
    const int32_t system = batch[i];
    if (j >= 0 && j < atoms && system >= 0 && system < systems)
      d = displacement_component(x[3 * i + axis], x[3 * static_cast<int64_t>(j) + axis],
                                 cell + 9 * static_cast<int64_t>(system), images[slot], axis);
    else
      d = not_a_number<double>();
  }
  out[3 * slot + axis] = static_cast<T>(d);
}

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
    op.launch(displacements_kernel<T>, blocks_for(pairs.atoms * pairs.width, kSlots), kThreads, 0,
              positions.const_data_ptr<double>(), cell.const_data_ptr<double>(),
              pairs.batch.const_data_ptr<int32_t>(), pairs.neighbors.const_data_ptr<int32_t>(),
              images.const_data_ptr<int32_t>(), pairs.atoms, pairs.width, cell.size(0),
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
    sum_pairs(op, pairs, terms, num_systems, grad_positions.mutable_data_ptr<double>(),
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
    const PairForce<T> terms{grad.const_data_ptr<T>(), d.const_data_ptr<T>()};
    sum_pairs(op, pairs, terms, num_systems, forces.mutable_data_ptr<double>(),
              virial.mutable_data_ptr<double>(), atom_virial.mutable_data_ptr<double>());
  });
  return {forces, virial, atom_virial};
}

}  // namespace

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  m.impl("displacements", TORCH_BOX(&mdops::displacements));
  m.impl("displacements_backward", TORCH_BOX(&mdops::displacements_backward));
  m.impl("pair_forces", TORCH_BOX(&mdops::pair_forces));
}
