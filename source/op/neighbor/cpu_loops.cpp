#include "neighbor/cpu_loops.h"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <tuple>

#include "neighbor/search.h"

namespace mdops {

namespace {

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

// Empties a row from place `first` on, and its counts.
void clear_row(const Matrix& m, int64_t i, int64_t first) {
  std::fill(m.neighbors + i * m.capacity + first, m.neighbors + (i + 1) * m.capacity, -1);
  std::fill(m.images + i * m.capacity + first, m.images + (i + 1) * m.capacity, 0);
  std::fill_n(m.counts + i * m.num_types, m.num_types, 0);
}

// A row that is too long is cut at the capacity, and so are its counts.
void write_row(const Matrix& m, const Row& row) {
  const int64_t kept = std::min(row.size, m.capacity);
  clear_row(m, row.center, kept);
  std::copy_n(row.atoms, kept, m.neighbors + row.center * m.capacity);
  std::copy_n(row.images, kept, m.images + row.center * m.capacity);
  int64_t left = kept;
  for (size_t slot = 0; slot < row.system->types.size(); ++slot) {
    const int64_t size = std::min(left, row.sizes[slot]);
    m.counts[row.center * m.num_types + row.system->types[slot]] = static_cast<int32_t>(size);
    left -= size;
  }
}

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

}  // namespace

LongestRow write_matrix(const Atoms& atoms, const Cells& cells, const Matrix& matrix, bool sort) {
  Longest longest;
  search_all(atoms, cells, [&, scratch = std::vector<Neighbor>()](const Row& row) mutable {
    longest.see(row.size, row.center);
    if (sort) sort_row(atoms, row, scratch);
    write_row(matrix, row);
  });
  for (int64_t i = 0; i < atoms.size; ++i)
    if (atoms.types[i] < 0) clear_row(matrix, i, 0);
  return {longest.size(), longest.atom()};
}

std::vector<int64_t> pair_starts(const Atoms& atoms, const Cells& cells) {
  std::vector<int64_t> first(atoms.size + 1, 0);
  search_all(atoms, cells, [&](const Row& row) { first[row.center + 1] = row.size; });
  std::partial_sum(first.begin(), first.end(), first.begin());
  return first;
}

void write_pairs(const Atoms& atoms, const Cells& cells, const std::vector<int64_t>& first, int64_t* centers,
                 int64_t* neighbors, int32_t* shifts) {
  search_all(atoms, cells, [&](const Row& row) {
    const int64_t begin = first[row.center];
    for (int64_t k = 0; k < row.size; ++k) {
      centers[begin + k] = row.center;
      neighbors[begin + k] = row.atoms[k];
      for (int axis = 0; axis < 3; ++axis) shifts[3 * (begin + k) + axis] = image_shift(row.images[k], axis);
    }
  });
}

}  // namespace mdops
