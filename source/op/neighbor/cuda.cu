// Neighbour lists on a GPU, in their two forms. `neighbor_matrix` never waits for the host, so that a graph
// can capture it.
#include <array>

#include "common/cuda.h"
#include "neighbor/gpu_rows.h"
#include "neighbor/ops.h"

namespace mdops {

namespace {

constexpr int kSearchBlock = 256;
constexpr int64_t kMostKinds = 1 << 20;  // that one thread checks for each system
constexpr int kSearchThreads = gpu_search::kWarps * kWarp;

GpuAtoms atoms_of(const CudaOp& op, const NeighborArgs& given, int64_t num_types) {
  if (given.atoms > (1 << 29) || given.systems > (1 << 29))
    fail(op, "argument `positions` or `cell` holds more than 2^29 atoms or systems");
  GpuAtoms a{};
  a.size = given.atoms, a.num_systems = op.int32_of("cell", given.systems);
  a.num_types = op.int32_of("ntypes", num_types), a.positions = given.positions;
  a.cell = given.cell, a.pbc = given.pbc, a.batch = given.batch;
  a.types = given.types, a.cutoff = given.cutoff, a.centers = given.atoms;
  return a;
}

// The cells of a call, with their memory.
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

Rows sort_matrix(const CudaOp& op, const GpuAtoms& atoms, int64_t capacity, const Rows& rows, Input counts) {
  const std::vector<int64_t> shape{atoms.size, capacity};
  Tensor distance2 = empty(op, shape, ScalarType::Double);
  Rows sorted{empty(op, shape, ScalarType::Int), empty(op, shape, ScalarType::Int)};
  const int32_t *neighbors = rows[0].const_data_ptr<int32_t>(), *images = rows[1].const_data_ptr<int32_t>();
  op.launch_for(atoms.size * capacity, kSearchBlock, measure_rows, atoms, capacity, neighbors, images,
                distance2.mutable_data_ptr<double>());
  op.launch(sort_rows, capacity > 0 ? blocks_for(atoms.size * kWarp, kSearchBlock) : 0, kSearchBlock, 0,
            atoms.size, capacity, atoms.num_types, counts.const_data_ptr<int32_t>(),
            distance2.const_data_ptr<double>(), neighbors, images, sorted[0].mutable_data_ptr<int32_t>(),
            sorted[1].mutable_data_ptr<int32_t>());
  return sorted;
}

// The number of pairs, once `after` holds the sums of `size`: waits for the GPU.
int64_t count_pairs(const CudaOp& op, const GpuAtoms& atoms, const Word* status, const int64_t* after) {
  Word refused = kAllIsWell;
  int64_t pairs = 0;
  op.check(cudaMemcpyAsync(&refused, status, sizeof refused, cudaMemcpyDeviceToHost, op.stream()));
  if (atoms.size > 0)
    op.check(
        cudaMemcpyAsync(&pairs, after + atoms.size - 1, sizeof pairs, cudaMemcpyDeviceToHost, op.stream()));
  op.check(cudaStreamSynchronize(op.stream()));
  // Python's `neighbor_list` runs the CPU op for the error, with the values.
  if (refused != kAllIsWell) fail(op, refusal_of(refused));
  return pairs;
}

}  // namespace

static Outputs<4> search_matrix(const CudaOp& op, const NeighborArgs& given, int64_t ntypes, int64_t capacity,
                                bool sort) {
  if (ntypes < 1 || ntypes > kMostKinds)
    fail(op,
         "argument `ntypes` is " + std::to_string(ntypes) + ", expected 1 to " + std::to_string(kMostKinds));
  const GpuAtoms atoms = atoms_of(op, given, ntypes);
  Rows rows{empty(op, {atoms.size, capacity}, ScalarType::Int),
            empty(op, {atoms.size, capacity}, ScalarType::Int)};
  Tensor counts = zeros(op, {atoms.size, ntypes}, ScalarType::Int), needed = empty(op, {2}, ScalarType::Long);
  Tensor longest = zeros(op, {1}, ScalarType::Long);
  Word* most = reinterpret_cast<Word*>(longest.mutable_data_ptr<int64_t>());
  const MatrixWriter writer{capacity,         atoms.num_types, data_of(rows[0]),
                            data_of(rows[1]), data_of(counts), most};
  // Memory is cleared first: kernels one after the other may begin early.
  const Sorted sorted(op, atoms);
  op.launch_early(gpu_search::search<MatrixWriter>, blocks_for(atoms.size, gpu_search::kWarps),
                  kSearchThreads, 0, atoms, sorted.cells(), writer);
  if (sort) rows = sort_matrix(op, atoms, capacity, rows, counts);
  op.launch_early(write_needed, 1, 1, 0, most, sorted.cells().status, needed.mutable_data_ptr<int64_t>());
  return {rows[0], rows[1], counts, needed};
}

static Outputs<3> search_pairs(const CudaOp& op, const NeighborArgs& given) {
  const GpuAtoms atoms = atoms_of(op, given, 0);
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
  op.check(sum_up(nullptr, bytes, size, after, atoms.size, op.stream()));
  Tensor workspace = empty(op, {static_cast<int64_t>(bytes)}, ScalarType::Byte);
  if (atoms.size > 0)
    op.check(sum_up(workspace.mutable_data_ptr(), bytes, size, after, atoms.size, op.stream()));
  const int64_t pairs = count_pairs(op, atoms, sorted.cells().status, after);
  Tensor i = empty(op, {pairs}, ScalarType::Long), j = empty(op, {pairs}, ScalarType::Long);
  Tensor shifts = empty(op, {pairs, 3}, ScalarType::Int);
  if (pairs > 0) search({size, after, data_of(i), data_of(j), data_of(shifts)});
  return {i, j, shifts};
}

}  // namespace mdops

MDOPS_ON_GPU(NeighborOps)
