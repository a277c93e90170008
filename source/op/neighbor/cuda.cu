// Neighbour lists on a GPU, in their two forms. `neighbor_matrix` never asks the host, so that it can be
// captured in a graph.
#include <array>
#include <cub/device/device_scan.cuh>
#include <string>
#include <tuple>
#include <vector>

#include "common/cuda.h"
#include "neighbor/gpu_rows.h"

namespace mdops {

namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostKinds = 1 << 20;  // that one thread looks through for each system
constexpr int kSearchThreads = gpu_search::kWarps * kWarp;

// The inputs, contiguous and checked in all but their values.
struct Inputs {
  Tensor positions, cell, pbc, batch, types;

  Inputs(const CudaOp& op, const Tensor& positions_, const Tensor& cell_, const Tensor& pbc_,
         const Tensor& batch_, const Tensor& types_)
      : positions(input(op, "positions", positions_, ScalarType::Double, {kAny, 3})),
        cell(input(op, "cell", cell_, ScalarType::Double, {kAny, 3, 3})),
        pbc(input(op, "pbc", pbc_, ScalarType::Bool, {cell.size(0), 3})),
        batch(input(op, "batch", batch_, ScalarType::Int, {positions.size(0)})),
        types(input(op, "types", types_, ScalarType::Int, {positions.size(0)})) {}

  GpuAtoms atoms(const CudaOp& op, double cutoff, int64_t num_types) const {
    if (positions.size(0) > (1 << 29) || cell.size(0) > (1 << 29))
      fail(op, "argument `positions` or `cell` holds more than 2^29 atoms or systems");
    if (!(cutoff > 0 && cutoff <= kLargestLength))
      fail(op, "argument `cutoff` is " + std::to_string(cutoff) + ", expected a positive length up to 1e9 A");
    return {positions.size(0),
            op.int32_of("cell", cell.size(0)),
            op.int32_of("ntypes", num_types),
            positions.const_data_ptr<double>(),
            cell.const_data_ptr<double>(),
            pbc.const_data_ptr<bool>(),
            batch.const_data_ptr<int32_t>(),
            types.const_data_ptr<int32_t>(),
            cutoff,
            positions.size(0)};
  }
};

// The cells of a call, in memory that lives as long as this.
struct Sorted {
  SortedCells sorted;
  Tensor memory;

  Sorted(const CudaOp& op, const GpuAtoms& atoms)
      : sorted(op, atoms), memory(empty(op, {sorted.bytes()}, ScalarType::Byte)) {
    sorted.sort(memory.mutable_data_ptr());
  }
  const GpuCells& cells() const { return sorted.cells(); }
};

using Rows = std::array<Tensor, 2>;  // neighbors, images

Rows sort_matrix(const CudaOp& op, const GpuAtoms& atoms, int64_t capacity, const Rows& rows,
                 const Tensor& counts) {
  const std::vector<int64_t> shape{atoms.size, capacity};
  Tensor distance2 = empty(op, shape, ScalarType::Double);
  Rows sorted{empty(op, shape, ScalarType::Int), empty(op, shape, ScalarType::Int)};
  const int32_t *neighbors = rows[0].const_data_ptr<int32_t>(), *images = rows[1].const_data_ptr<int32_t>();
  op.launch(measure_rows, blocks_for(atoms.size * capacity, kThreads), kThreads, 0, atoms, capacity,
            neighbors, images, distance2.mutable_data_ptr<double>());
  op.launch(sort_rows, capacity > 0 ? blocks_for(atoms.size * kWarp, kThreads) : 0, kThreads, 0, atoms.size,
            capacity, atoms.num_types, counts.const_data_ptr<int32_t>(), distance2.const_data_ptr<double>(),
            neighbors, images, sorted[0].mutable_data_ptr<int32_t>(), sorted[1].mutable_data_ptr<int32_t>());
  return sorted;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> neighbor_matrix(const Tensor& positions, const Tensor& cell,
                                                           const Tensor& pbc, const Tensor& batch,
                                                           const Tensor& types, double cutoff, int64_t ntypes,
                                                           int64_t capacity, bool sort) {
  const CudaOp op("neighbor_matrix", "positions", positions);
  const Inputs inputs(op, positions, cell, pbc, batch, types);
  if (ntypes < 1 || ntypes > kMostKinds)
    fail(op,
         "argument `ntypes` is " + std::to_string(ntypes) + ", expected 1 to " + std::to_string(kMostKinds));
  if (capacity < 0) fail(op, "argument `capacity` is " + std::to_string(capacity) + ", expected at least 0");
  const GpuAtoms atoms = inputs.atoms(op, cutoff, ntypes);
  Rows rows{empty(op, {atoms.size, capacity}, ScalarType::Int),
            empty(op, {atoms.size, capacity}, ScalarType::Int)};
  Tensor counts = zeros(op, {atoms.size, ntypes}, ScalarType::Int), needed = empty(op, {2}, ScalarType::Long);
  Tensor longest = zeros(op, {1}, ScalarType::Long);
  Word* most = reinterpret_cast<Word*>(longest.mutable_data_ptr<int64_t>());
  const MatrixWriter writer{capacity,
                            atoms.num_types,
                            rows[0].mutable_data_ptr<int32_t>(),
                            rows[1].mutable_data_ptr<int32_t>(),
                            counts.mutable_data_ptr<int32_t>(),
                            most};
  // What is cleared is cleared before: kernels one after the other may be early.
  const Sorted sorted(op, atoms);
  op.launch_early(gpu_search::search<MatrixWriter>, blocks_for(atoms.size, gpu_search::kWarps),
                  kSearchThreads, 0, atoms, sorted.cells(), writer);
  if (sort) rows = sort_matrix(op, atoms, capacity, rows, counts);
  op.launch_early(write_needed, 1, 1, 0, most, sorted.cells().status, needed.mutable_data_ptr<int64_t>());
  return {rows[0], rows[1], counts, needed};
}

// The number of pairs, once `after` holds the sums of `size`: this waits for the GPU.
int64_t count_pairs(const CudaOp& op, const GpuAtoms& atoms, const Word* status, const int64_t* after) {
  Word refused = kAllIsWell;
  int64_t pairs = 0;
  op.check(cudaMemcpyAsync(&refused, status, sizeof refused, cudaMemcpyDeviceToHost, op.stream()));
  if (atoms.size > 0)
    op.check(
        cudaMemcpyAsync(&pairs, after + atoms.size - 1, sizeof pairs, cudaMemcpyDeviceToHost, op.stream()));
  op.check(cudaStreamSynchronize(op.stream()));
  // Python's `neighbor_list` has the CPU op say it, with the values.
  if (refused != kAllIsWell) fail(op, refusal_of(refused));
  return pairs;
}

std::tuple<Tensor, Tensor, Tensor> neighbor_pairs(const Tensor& positions, const Tensor& cell,
                                                  const Tensor& pbc, const Tensor& batch, const Tensor& types,
                                                  double cutoff) {
  const CudaOp op("neighbor_pairs", "positions", positions);
  const Inputs inputs(op, positions, cell, pbc, batch, types);
  const GpuAtoms atoms = inputs.atoms(op, cutoff, 0);
  const Sorted sorted(op, atoms);
  const auto search = [&](const PairWriter& writer) {
    op.launch(gpu_search::search<PairWriter>, blocks_for(atoms.size, gpu_search::kWarps), kSearchThreads, 0,
              atoms, sorted.cells(), writer);
  };

  // Twice, to count and to write.
  Tensor sizes = empty(op, {atoms.size}, ScalarType::Long), ends = empty(op, {atoms.size}, ScalarType::Long);
  int64_t *size = sizes.mutable_data_ptr<int64_t>(), *after = ends.mutable_data_ptr<int64_t>();
  search({size, after, nullptr, nullptr, nullptr});
  size_t bytes = 0;
  op.check(cub::DeviceScan::InclusiveSum(nullptr, bytes, size, after, atoms.size, op.stream()));
  Tensor workspace = empty(op, {static_cast<int64_t>(bytes)}, ScalarType::Byte);
  if (atoms.size > 0)
    op.check(cub::DeviceScan::InclusiveSum(workspace.mutable_data_ptr(), bytes, size, after, atoms.size,
                                           op.stream()));
  const int64_t pairs = count_pairs(op, atoms, sorted.cells().status, after);
  Tensor i = empty(op, {pairs}, ScalarType::Long), j = empty(op, {pairs}, ScalarType::Long);
  Tensor shifts = empty(op, {pairs, 3}, ScalarType::Int);
  if (pairs > 0)
    search({size, after, i.mutable_data_ptr<int64_t>(), j.mutable_data_ptr<int64_t>(),
            shifts.mutable_data_ptr<int32_t>()});
  return {i, j, shifts};
}

}  // namespace

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  m.impl("neighbor_matrix", TORCH_BOX(&mdops::neighbor_matrix));
  m.impl("neighbor_pairs", TORCH_BOX(&mdops::neighbor_pairs));
}
