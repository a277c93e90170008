// Neighbour lists in their two forms: rows of fixed capacity, and pairs.
#include <algorithm>
#include <atomic>
#include <limits>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "common/tensor.h"
#include "neighbor/search.h"

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

struct Neighbor {
  double distance2;
  int32_t atom, image;
  bool operator<(const Neighbor& other) const {
    return std::tie(distance2, atom, image) < std::tie(other.distance2, other.atom, other.image);
  }
};

// Orders a row by distance inside each type.
void sort_row(const Atoms& atoms, const Row& row, std::vector<Neighbor>& scratch) {
  scratch.resize(row.size);
  for (int64_t k = 0; k < row.size; ++k) {
    double d[3];
    displacement(atoms.positions + 3 * static_cast<int64_t>(row.center),
                 atoms.positions + 3 * static_cast<int64_t>(row.atoms[k]), atoms.cell + 9 * row.system->index,
                 row.images[k], d);
    scratch[k] = {dot(d, d), row.atoms[k], row.images[k]};
  }
  auto first = scratch.begin();
  for (size_t slot = 0; slot < row.system->types.size(); ++slot) {
    std::sort(first, first + row.sizes[slot]);
    first += row.sizes[slot];
  }
  for (int64_t k = 0; k < row.size; ++k) {
    row.atoms[k] = scratch[k].atom;
    row.images[k] = scratch[k].image;
  }
}

// The op's outputs. A row that is too long is cut at the capacity, and so are its counts.
struct Matrix {
  int64_t capacity, num_types;
  int32_t *neighbors, *images, *counts;

  void write(const Row& row) const {
    const int64_t kept = std::min(row.size, capacity);
    clear(row.center, kept);
    std::copy_n(row.atoms, kept, neighbors + row.center * capacity);
    std::copy_n(row.images, kept, images + row.center * capacity);
    int64_t left = kept;
    for (size_t slot = 0; slot < row.system->types.size(); ++slot) {
      const int64_t size = std::min(left, row.sizes[slot]);
      counts[row.center * num_types + row.system->types[slot]] = static_cast<int32_t>(size);
      left -= size;
    }
  }

  // Empties a row from place `first` on, and its counts.
  void clear(int64_t i, int64_t first) const {
    std::fill(neighbors + i * capacity + first, neighbors + (i + 1) * capacity, -1);
    std::fill(images + i * capacity + first, images + (i + 1) * capacity, 0);
    std::fill_n(counts + i * num_types, num_types, 0);
  }
};

// The longest row and the first atom that has it (0 and -1 before any), seen by threads in any order.
class Longest {
 public:
  void see(int64_t size, int32_t atom) {
    const uint64_t mine = static_cast<uint64_t>(size) << 32 | static_cast<uint32_t>(~atom);
    uint64_t seen = most_.load(std::memory_order_relaxed);
    while (mine > seen && !most_.compare_exchange_weak(seen, mine, std::memory_order_relaxed)) {
    }
  }
  int64_t size() const { return static_cast<int64_t>(most_ >> 32); }
  int64_t atom() const { return ~static_cast<int32_t>(most_); }

 private:
  std::atomic<uint64_t> most_{0};
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
  Longest longest;
  search_all(atoms, cells, [&, scratch = std::vector<Neighbor>()](const Row& row) mutable {
    longest.see(row.size, row.center);
    if (sort) sort_row(atoms, row, scratch);
    matrix.write(row);
  });
  for (int64_t i = 0; i < atoms.size; ++i)
    if (atoms.types[i] < 0) matrix.clear(i, 0);
  needed.mutable_data_ptr<int64_t>()[0] = longest.size();
  needed.mutable_data_ptr<int64_t>()[1] = longest.atom();
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
  std::vector<int64_t> first(atoms.size + 1, 0);
  search_all(atoms, cells, [&](const Row& row) { first[row.center + 1] = row.size; });
  std::partial_sum(first.begin(), first.end(), first.begin());

  Tensor i = empty({first.back()}, ScalarType::Long), j = empty({first.back()}, ScalarType::Long);
  Tensor shifts = empty({first.back(), 3}, ScalarType::Int);
  int64_t *centers = i.mutable_data_ptr<int64_t>(), *neighbors = j.mutable_data_ptr<int64_t>();
  int32_t* s = shifts.mutable_data_ptr<int32_t>();
  search_all(atoms, cells, [&](const Row& row) {
    const int64_t begin = first[row.center];
    for (int64_t k = 0; k < row.size; ++k) {
      centers[begin + k] = row.center;
      neighbors[begin + k] = row.atoms[k];
      for (int axis = 0; axis < 3; ++axis) s[3 * (begin + k) + axis] = image_shift(row.images[k], axis);
    }
  });
  return {i, j, shifts};
}

}  // namespace

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CPU, m) {
  m.impl("neighbor_matrix", TORCH_BOX(&mdops::neighbor_matrix));
  m.impl("neighbor_pairs", TORCH_BOX(&mdops::neighbor_pairs));
}
