// The outputs of the search on a GPU: rows of one length, their order, or pairs one after the other.
#pragma once

#include <string>

#include "neighbor/gpu_search.h"

namespace mdops {

// What a status word means.
inline std::string refusal_of(Word status) {
  const std::string index = std::to_string(status & 0xffffffffff);
  const std::string atom = " for atom " + index, system = " in system " + index;
  switch (static_cast<Refusal>(status >> 40)) {
    case Refusal::kCell:
      return "argument `cell` is not finite" + system + ", expected finite lengths up to 1e9 A";
    case Refusal::kSingular:
      return "argument `cell` is singular" + system +
             ", expected linearly independent lattice vectors along the periodic directions";
    case Refusal::kBatch:
      return "argument `batch` is out of range" + atom + ", expected one of the systems of `cell`";
    case Refusal::kType:
      return "argument `types` is out of range" + atom + ", expected -1 or more";
    case Refusal::kPosition:
      return "argument `positions` is not finite" + atom + ", expected finite lengths up to 1e9 A";
    case Refusal::kCutoff:
      return "argument `cutoff` reaches over too many periodic images" + system +
             "; expected at most 511 in a direction and 2^22 in "
             "all (a model without a cutoff takes clusters alone, atoms without periodic boundaries)";
    case Refusal::kFarAtom:
      return "argument `positions` lies more than 1e9 cells from the origin" + system +
             ", expected atoms nearer to their cell";
    case Refusal::kImage:
      return "argument `positions`" + atom +
             " has a neighbour through an image outside of -512 to 511: wrap it into the cell";
  }
  return "refused with an unknown status";
}

// Rows of one length. A row that is too long is cut at the capacity, and so are its counts.
struct MatrixWriter {
  int64_t capacity;
  int32_t num_types;
  int32_t *neighbors, *images, *counts;
  Word* longest;  // the longest row << 32 | ~(the first atom that has it)

  __device__ void put(int64_t i, int64_t place, int32_t neighbor, int32_t image) const {
    if (place >= capacity) return;
    neighbors[i * capacity + place] = neighbor;
    images[i * capacity + place] = image;
  }
  __device__ void count(int64_t i, int32_t type, int64_t before, int64_t after) const {
    if (lane_index() == 0)
      counts[i * num_types + type] = static_cast<int32_t>(min(after, capacity) - min(before, capacity));
  }
  __device__ void finish(int64_t i, int64_t size) const {
    for (int64_t place = size + lane_index(); place < capacity; place += kWarp) {
      neighbors[i * capacity + place] = -1;
      images[i * capacity + place] = 0;
    }
    if (lane_index() != 0) return;
    const Word mine = static_cast<Word>(size) << 32 | static_cast<uint32_t>(~static_cast<int32_t>(i));
    if (mine > *static_cast<volatile Word*>(longest)) atomicMax(longest, mine);
  }
};

static __global__ void write_needed(const Word* longest, const Word* status, int64_t* needed) {
  follow_kernels();
  const bool refused = *status != kAllIsWell;
  needed[0] = refused ? -static_cast<int64_t>(*status >> 40) : static_cast<int64_t>(*longest >> 32);
  needed[1] = refused ? static_cast<int64_t>(*status & 0xffffffffff)
                      : static_cast<int64_t>(~static_cast<int32_t>(*longest));
}

// The squared length of every pair in the rows, as `displacements` forms the pair.
static __global__ void measure_rows(GpuAtoms atoms, int64_t capacity, const int32_t* neighbors,
                                    const int32_t* images, double* distance2) {
  const int64_t place = gpu_cells::thread_index(), i = place / max(capacity, int64_t{1});
  if (i >= atoms.size || neighbors[place] < 0) return;
  double d[3];
  displacement(atoms.positions + 3 * i, atoms.positions + 3 * static_cast<int64_t>(neighbors[place]),
               atoms.cell + 9 * static_cast<int64_t>(atoms.batch[i]), images[place], d);
  distance2[place] = dot(d, d);
}

// Sorts rows by (distance, atom, image) within each type: a warp a row; each neighbour moves to its rank.
static __global__ void sort_rows(int64_t rows, int64_t capacity, int32_t num_types, const int32_t* counts,
                                 const double* distance2, const int32_t* neighbors, const int32_t* images,
                                 int32_t* sorted_neighbors, int32_t* sorted_images) {
  const int64_t i = gpu_cells::thread_index() / kWarp;
  if (i >= rows) return;
  int64_t first = i * capacity;
  for (int32_t t = 0; t < num_types; ++t) {
    const int64_t last = first + counts[i * num_types + t];
    for (int64_t a = first + lane_index(); a < last; a += kWarp) {
      int64_t rank = 0;
      for (int64_t b = first; b < last; ++b) {
        const bool nearer = distance2[b] < distance2[a];
        const bool as_near = distance2[b] == distance2[a];
        const bool lower =
            neighbors[b] < neighbors[a] || (neighbors[b] == neighbors[a] && images[b] < images[a]);
        rank += nearer || (as_near && lower);
      }
      sorted_neighbors[first + rank] = neighbors[a];
      sorted_images[first + rank] = images[a];
    }
    first = last;
  }
  for (int64_t place = first + lane_index(); place < (i + 1) * capacity; place += kWarp) {
    sorted_neighbors[place] = -1;
    sorted_images[place] = 0;
  }
}

// Pairs one after the other. Without `j` it only counts those of each atom.
struct PairWriter {
  int64_t* size;         // (N,)
  const int64_t* after;  // (N,): where each atom's pairs end
  int64_t *i, *j;
  int32_t* shifts;

  __device__ void put(int64_t center, int64_t place, int32_t neighbor, int32_t image) const {
    if (j == nullptr) return;
    const int64_t pair = after[center] - size[center] + place;
    i[pair] = center;
    j[pair] = neighbor;
    for (int axis = 0; axis < 3; ++axis) shifts[3 * pair + axis] = image_shift(image, axis);
  }
  __device__ void count(int64_t, int32_t, int64_t, int64_t) const {}
  __device__ void finish(int64_t center, int64_t found) const {
    if (j == nullptr && lane_index() == 0) size[center] = found;
  }
};

}  // namespace mdops
