// Neighbour lists in their two forms: rows of fixed capacity, and pairs.
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "common/tensor.h"
#include "neighbor/cpu_loops.h"

namespace mdops {

namespace {

// The inputs, contiguous and checked in all but their values.
struct Inputs {
  Tensor positions, cell, pbc, batch, types;

  Inputs(const char* op, const Tensor& positions_, const Tensor& cell_, const Tensor& pbc_,
         const Tensor& batch_, const Tensor& types_)
      : positions(input(op, "positions", positions_, ScalarType::Double, {kAny, 3})),
        cell(input(op, "cell", cell_, ScalarType::Double, {kAny, 3, 3})),
        pbc(input(op, "pbc", pbc_, ScalarType::Bool, {cell.size(0), 3})),
        batch(input(op, "batch", batch_, ScalarType::Int, {positions.size(0)})),
        types(input(op, "types", types_, ScalarType::Int, {positions.size(0)})) {}

  Atoms atoms(const char* op, double cutoff, int64_t num_types) const {
    if (positions.size(0) > std::numeric_limits<int32_t>::max())
      fail(op, "argument `positions` holds more atoms than 32-bit indices can name");
    if (!(cutoff > 0 && cutoff <= kLargestLength))
      fail(op, "argument `cutoff` is " + std::to_string(cutoff) + ", expected a positive length up to 1e9 A");
    return {op,
            positions.size(0),
            cell.size(0),
            positions.const_data_ptr<double>(),
            cell.const_data_ptr<double>(),
            pbc.const_data_ptr<bool>(),
            batch.const_data_ptr<int32_t>(),
            types.const_data_ptr<int32_t>(),
            cutoff,
            num_types};
  }
};

std::tuple<Tensor, Tensor, Tensor, Tensor> neighbor_matrix(const Tensor& positions, const Tensor& cell,
                                                           const Tensor& pbc, const Tensor& batch,
                                                           const Tensor& types, double cutoff, int64_t ntypes,
                                                           int64_t capacity, bool sort) {
  constexpr const char* op = "neighbor_matrix";
  const Inputs inputs(op, positions, cell, pbc, batch, types);
  if (ntypes < 1) fail(op, "argument `ntypes` is " + std::to_string(ntypes) + ", expected at least 1");
  if (capacity < 0) fail(op, "argument `capacity` is " + std::to_string(capacity) + ", expected at least 0");
  const Atoms atoms = inputs.atoms(op, cutoff, ntypes);
  const Cells cells = sort_into_cells(atoms);

  Tensor neighbors = empty({atoms.size, capacity}, ScalarType::Int),
         images = empty({atoms.size, capacity}, ScalarType::Int);
  Tensor counts = empty({atoms.size, ntypes}, ScalarType::Int), needed = empty({2}, ScalarType::Long);
  const Matrix matrix{capacity, ntypes, neighbors.mutable_data_ptr<int32_t>(),
                      images.mutable_data_ptr<int32_t>(), counts.mutable_data_ptr<int32_t>()};
  const LongestRow longest = write_matrix(atoms, cells, matrix, sort);
  needed.mutable_data_ptr<int64_t>()[0] = longest.size;
  needed.mutable_data_ptr<int64_t>()[1] = longest.atom;
  return {neighbors, images, counts, needed};
}

std::tuple<Tensor, Tensor, Tensor> neighbor_pairs(const Tensor& positions, const Tensor& cell,
                                                  const Tensor& pbc, const Tensor& batch, const Tensor& types,
                                                  double cutoff) {
  constexpr const char* op = "neighbor_pairs";
  const Inputs inputs(op, positions, cell, pbc, batch, types);
  const Atoms atoms = inputs.atoms(op, cutoff, 0);
  const Cells cells = sort_into_cells(atoms);

  // Twice, to count and to write: cheaper than moving the pairs from buffers of the threads.
  const std::vector<int64_t> first = pair_starts(atoms, cells);
  Tensor i = empty({first.back()}, ScalarType::Long), j = empty({first.back()}, ScalarType::Long);
  Tensor shifts = empty({first.back(), 3}, ScalarType::Int);
  write_pairs(atoms, cells, first, i.mutable_data_ptr<int64_t>(), j.mutable_data_ptr<int64_t>(),
              shifts.mutable_data_ptr<int32_t>());
  return {i, j, shifts};
}

}  // namespace

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CPU, m) {
  m.impl("neighbor_matrix", TORCH_BOX(&mdops::neighbor_matrix));
  m.impl("neighbor_pairs", TORCH_BOX(&mdops::neighbor_pairs));
}
