#include "common/cuda.h"
#include "common/rows.h"
#include "displacements/displacements.h"
#include "displacements/inputs.h"
#include "displacements/pair_sums.h"

namespace mdops {

namespace {

constexpr int kThreads = 256;

constexpr int kPerThread = 4;  // components, so that several loads are on their way at once

// Components in the order of the result: the three of a pair read one stretch of memory each. `Index` counts
// them; 32 bits where they suffice, because the divisions that find slot and row cost less then.
template <class T, class Index>
__global__ void displacements_kernel(const double* x, const double* cell, const int32_t* batch,
                                     const int32_t* neighbors, const int32_t* images, int32_t atoms,
                                     int32_t width, int32_t systems, T* out) {
  const Index begin = static_cast<Index>(blockIdx.x) * (kThreads * kPerThread) + threadIdx.x;
  const Index slots = static_cast<Index>(atoms) * static_cast<Index>(width);
  int32_t found[kPerThread], image[kPerThread];
#pragma unroll
  for (int u = 0; u < kPerThread; ++u) {
    const Index slot = (begin + u * kThreads) / 3;
    found[u] = slot < slots ? neighbors[slot] : -1;
    image[u] = slot < slots ? images[slot] : 0;
  }
#pragma unroll
  for (int u = 0; u < kPerThread; ++u) {
    const Index component = begin + u * kThreads, slot = component / 3, i = slot / static_cast<Index>(width);
    if (slot >= slots) return;
    const int axis = static_cast<int>(component - 3 * slot);
    const int32_t j = found[u], system = batch[i];
    double d = 0;
    if (j >= 0 && j < atoms && system >= 0 && system < systems)
      d = displacement_component(x[3 * static_cast<int64_t>(i) + axis], x[3 * static_cast<int64_t>(j) + axis],
                                 cell + 9 * static_cast<int64_t>(system), image[u], axis);
    else if (j != -1)
      d = not_a_number<double>();
    out[component] = static_cast<T>(d);
  }
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
    const int64_t components = 3 * pairs.atoms * pairs.width;
    const bool small = components < (int64_t{1} << 31);
    op.launch(small ? displacements_kernel<T, uint32_t> : displacements_kernel<T, uint64_t>,
              blocks_for(components, kThreads * kPerThread), kThreads, 0, positions.const_data_ptr<double>(),
              cell.const_data_ptr<double>(), pairs.batch.const_data_ptr<int32_t>(),
              pairs.neighbors.const_data_ptr<int32_t>(), images.const_data_ptr<int32_t>(), pairs.atoms,
              pairs.width, cell.size(0), result.mutable_data_ptr<T>());
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

// A warp a row, a lane a slot.
template <class T>
__global__ void pair_forces_backward_kernel(const double* grad_forces, const double* grad_virial,
                                            const double* grad_atom_virial, const T* grad,
                                            const T* displacements, const int32_t* batch,
                                            const int32_t* neighbors, int32_t atoms, int32_t width,
                                            int32_t systems, T* grad_grad, T* grad_displacements) {
  __shared__ T buffer[3 * kThreads];
  T* own = buffer + 3 * kWarp * (threadIdx.x / kWarp);
  const int64_t i = static_cast<int64_t>(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (i >= atoms) return;
  const int32_t system = batch[i];
  for (int32_t first = 0; first < width; first += kWarp) {
    const int32_t slot = first + lane_index();
    const int64_t p = i * width + slot;
    const int32_t j = slot < width ? neighbors[p] : -1;
    T by_g[3] = {0, 0, 0}, by_d[3] = {0, 0, 0};
    if (j >= 0 && j < atoms && system >= 0 && system < systems)
      pair_force_gradient(grad_forces + 3 * i, grad_forces + 3 * static_cast<int64_t>(j),
                          grad_virial + 9 * static_cast<int64_t>(system),
                          grad_atom_virial + 9 * static_cast<int64_t>(j), grad + 3 * p, displacements + 3 * p,
                          by_g, by_d);
    else if (j != -1)
      for (int a = 0; a < 3; ++a) by_g[a] = by_d[a] = not_a_number<T>();
    const int lanes = width - first < kWarp ? width - first : kWarp;
    store_triples(by_g, own, grad_grad + 3 * (i * width + first), lanes);
    store_triples(by_d, own, grad_displacements + 3 * (i * width + first), lanes);
  }
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
              in.grad_forces.const_data_ptr<double>(), in.grad_virial.const_data_ptr<double>(),
              in.grad_atom_virial.const_data_ptr<double>(), in.grad.const_data_ptr<T>(),
              in.displacements.const_data_ptr<T>(), pairs.batch.const_data_ptr<int32_t>(),
              pairs.neighbors.const_data_ptr<int32_t>(), pairs.atoms, pairs.width, in.grad_virial.size(0),
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
