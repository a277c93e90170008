// The atoms of all systems sorted into the bins of cells.h, on a GPU and without asking the host: every size
// is bounded by the number of atoms. What the CPU op refuses by value is kept in a status word instead.
#pragma once

#include <math_constants.h>

#include "common/early.h"
#include "common/gpu.h"
#include "common/gpu_sort.h"
#include "common/gpu_warp.h"
#include "common/rows.h"
#include "neighbor/neighbor.h"

namespace mdops {

// Why a search has no result: needed[0] is -code, needed[1] the first atom or system of which it is true
// (ops.md, "Neighbour lists"). The smallest code counts, and of those the smallest index.
enum class Refusal : int64_t {
  kCell = 1,      // a cell is not finite (system)
  kSingular = 2,  // a periodic cell is singular (system)
  kBatch = 3,     // a system out of range (atom)
  kType = 4,      // a type out of range (atom)
  kPosition = 5,  // a position is not finite (atom)
  kCutoff = 6,    // the cutoff reaches over too many images (system)
  kFarAtom = 7,   // an atom too many cells from the origin (system)
  kImage = 8,     // a neighbour's image does not fit its packed form (atom)
};

using Word = unsigned long long;
constexpr Word kAllIsWell = ~Word{0};

MDOPS_D void refuse(Word* status, Refusal code, int64_t index) {
  const Word mine = static_cast<Word>(code) << 40 | static_cast<Word>(index);
  if (mine < *static_cast<volatile Word*>(status)) atomicMin(status, mine);
}

struct GpuSystem {
  Grid grid;
  double middle[3], radius;  // sorted atoms have float32 coordinates from the middle, up to the radius
  int64_t low[3], high[3];   // range of fractional coordinates, as ordered integers
  int32_t size;              // atoms that are not virtual
  int32_t types;             // slots: how many types are present
  int32_t first_key;         // key = first_key + slot * num_bins + bin
  bool images_may_overflow;
};

// The op's inputs in device memory, checked in shape and dtype.
struct GpuAtoms {
  int64_t size;
  int32_t num_systems, num_types;  // num_types 0: types are not told apart
  const double *positions, *cell;
  const bool* pbc;
  const int32_t *batch, *types;
  double cutoff;
  int64_t centers;  // the first atoms, which have rows; the others are only neighbours

  // Keys of bins are below this, and it is the key of virtual atoms: a system of n atoms of t types has
  // at most t (n / t + 1) <= 2 n of them.
  __host__ __device__ int64_t last_key() const { return 2 * size; }
  __host__ __device__ int32_t slots() const { return num_types > 0 ? num_types : 1; }
  __device__ int32_t type_of(int64_t i) const { return num_types > 0 ? types[i] : 0; }
};

// What the search reads.
struct GpuCells {
  GpuSystem* systems;
  int32_t* slot_of;  // (S, slots): the slot of a type in its system, or -1
  int32_t* type_in;  // (S, slots): the type of a slot
  uint32_t* key;     // sorted
  int32_t* atom;     // sorted: the atom
  float4* place;     // sorted: coordinates from the system's middle, wrapped
  int32_t* image;    // sorted: the image that undoes the wrapping, packed
  int32_t* start;    // (last_key + 2): a bin's first atom in the sorted arrays
  int32_t* wrap;     // (N, 3), by atom
  Word* status;
};

namespace gpu_cells {

constexpr int kThreads = 256;
constexpr int kSystemThreads = 256;
constexpr int kFew = 1024;  // atoms, and systems times types, that one block sorts

MDOPS_D int64_t thread_index() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

// Integers in the order of the numbers, for atomics; and back.
MDOPS_D int64_t ordered(double value) {
  const int64_t bits = __double_as_longlong(value);
  return bits ^ (bits >> 63 & 0x7fffffffffffffff);
}
MDOPS_D double unordered(int64_t bits) {
  return __longlong_as_double(bits ^ (bits >> 63 & 0x7fffffffffffffff));
}

// Most atoms change nothing: read before the atomic.
MDOPS_D void lower_to(int64_t* address, int64_t value) {
  if (value < *static_cast<volatile int64_t*>(address))
    atomicMin(reinterpret_cast<long long*>(address), value);
}
MDOPS_D void raise_to(int64_t* address, int64_t value) {
  if (value > *static_cast<volatile int64_t*>(address))
    atomicMax(reinterpret_cast<long long*>(address), value);
}

__device__ inline void set_lattice_of(const GpuAtoms& atoms, const GpuCells& cells, int64_t s) {
  if (s >= atoms.num_systems) return;
  GpuSystem& system = cells.systems[s];
  bool finite = true;
  for (int k = 0; k < 9; ++k) finite &= fabs(atoms.cell[9 * s + k]) <= kLargestLength;
  if (!finite) refuse(cells.status, Refusal::kCell, s);
  if (!(set_lattice(atoms.cell + 9 * s, atoms.pbc + 3 * s, system.grid) > kFlattestCell))
    refuse(cells.status, Refusal::kSingular, s);
  for (int d = 0; d < 3; ++d) {
    system.low[d] = ordered(CUDART_INF);
    system.high[d] = ordered(-CUDART_INF);
  }
  system.size = 0;
  for (int t = 0; t < atoms.slots(); ++t) cells.slot_of[s * atoms.slots() + t] = -1;
}

// Whether atom i takes part; reports invalid values.
__device__ inline bool check_atom(const GpuAtoms& atoms, int64_t i, Word* status) {
  const int32_t s = atoms.batch[i], t = atoms.types[i];
  if (s < 0 || s >= atoms.num_systems) {
    refuse(status, Refusal::kBatch, i);
    return false;
  }
  if (t < -1 || (atoms.num_types > 0 && t >= atoms.num_types)) {
    refuse(status, Refusal::kType, i);
    return false;
  }
  if (t < 0) return false;
  bool finite = true;
  for (int d = 0; d < 3; ++d) finite &= fabs(atoms.positions[3 * i + d]) <= kLargestLength;
  if (!finite) refuse(status, Refusal::kPosition, i);
  return finite;
}

// Each system's size, its extent and its types. Atoms of one system are mostly adjacent, so a warp adds its
// atoms at once if possible.
__device__ inline void survey_atom(const GpuAtoms& atoms, const GpuCells& cells, int64_t i) {
  const bool real = i < atoms.size && check_atom(atoms, i, cells.status);
  const unsigned present = __ballot_sync(kAllLanes, real);
  if (present == 0) return;
  const int32_t s = real ? atoms.batch[i] : -1;
  const int32_t first = __shfl_sync(kAllLanes, s, __ffs(present) - 1);
  int64_t low[3], high[3];
  if (real) {
    double f[3];
    fractional(cells.systems[s].grid, atoms.positions + 3 * i, f);
    for (int d = 0; d < 3; ++d) low[d] = high[d] = ordered(f[d]);
    int32_t* slot = cells.slot_of + static_cast<int64_t>(s) * atoms.slots() + atoms.type_of(i);
    if (*static_cast<volatile int32_t*>(slot) < 0) atomicMax(slot, 0);
  } else {
    for (int d = 0; d < 3; ++d) {
      low[d] = ordered(CUDART_INF);
      high[d] = ordered(-CUDART_INF);
    }
  }
  const bool together = __all_sync(kAllLanes, !real || s == first);
  if (together) {
    for (int step = kWarp / 2; step > 0; step /= 2)
      for (int d = 0; d < 3; ++d) {
        low[d] = min(low[d], __shfl_down_sync(kAllLanes, low[d], step));
        high[d] = max(high[d], __shfl_down_sync(kAllLanes, high[d], step));
      }
    if (lane_index() != 0) return;
    atomicAdd(&cells.systems[first].size, __popc(present));
  } else {
    if (!real) return;
    atomicAdd(&cells.systems[s].size, 1);
  }
  GpuSystem& system = cells.systems[together ? first : s];
  for (int d = 0; d < 3; ++d) {
    lower_to(&system.low[d], low[d]);
    raise_to(&system.high[d], high[d]);
  }
}

// Numbers the types that are present.
__device__ inline int32_t number_slots(const GpuAtoms& atoms, const GpuCells& cells, int64_t s) {
  int32_t types = 0;
  int32_t *slot = cells.slot_of + s * atoms.slots(), *type = cells.type_in + s * atoms.slots();
  for (int32_t t = 0; t < atoms.slots(); ++t)
    if (slot[t] == 0) {
      slot[t] = types;
      type[types++] = t;
    }
  return types;
}

// The origin of float32 coordinates of a system's wrapped atoms, and their largest size.
__device__ inline void set_middle(GpuSystem& system, const double* low, const double* high) {
  const Grid& grid = system.grid;
  system.radius = 0;
  for (int e = 0; e < 3; ++e) system.middle[e] = 0;
  for (int d = 0; d < 3; ++d) {
    const double from = grid.periodic[d] ? 0 : low[d], to = grid.periodic[d] ? 1 : high[d];
    for (int e = 0; e < 3; ++e) system.middle[e] += (from + to) / 2 * grid.cell[d][e];
    system.radius += (to - from) / 2 * sqrt(dot(grid.cell[d], grid.cell[d]));
  }
}

// The grid of one system; returns the number of its keys.
__device__ inline int64_t set_grid(const GpuAtoms& atoms, const GpuCells& cells, int64_t s) {
  GpuSystem& system = cells.systems[s];
  system.types = number_slots(atoms, cells, s);
  system.grid.num_bins = 0;
  if (system.size == 0 || *static_cast<volatile Word*>(cells.status) != kAllIsWell) return 0;
  double low[3], high[3];
  for (int d = 0; d < 3; ++d) {
    low[d] = unordered(system.low[d]);
    high[d] = unordered(system.high[d]);
  }
  set_bins(system.grid, low, high, atoms.cutoff, max(1, system.size / system.types + 1));
  if (direction_too_far(system.grid) >= 0) refuse(cells.status, Refusal::kCutoff, s);
  if (too_far_from_cell(system.grid, low, high)) refuse(cells.status, Refusal::kFarAtom, s);
  system.images_may_overflow = images_may_overflow(system.grid, low, high);
  set_middle(system, low, high);
  return system.types * system.grid.num_bins;
}

// All grids, by one block with these threads: the systems' keys follow each other.
template <int Threads>
__device__ inline void set_all_grids(const GpuAtoms& atoms, const GpuCells& cells) {
  __shared__ int64_t of_warps[Threads / kWarp];
  int64_t before = 0;
  for (int64_t first = 0; first < atoms.num_systems; first += Threads) {
    const int64_t s = first + threadIdx.x;
    const int64_t keys = s < atoms.num_systems ? set_grid(atoms, cells, s) : 0;
    int64_t all;
    const int64_t own = before + sum_before<Threads / kWarp>(keys, of_warps, &all);
    if (s < atoms.num_systems) cells.systems[s].first_key = static_cast<int32_t>(own);
    before += all;
  }
}

// The key and the wrapping of an atom. After an error no atom takes part.
__device__ inline uint32_t find_key(const GpuAtoms& atoms, const GpuCells& cells, int64_t i) {
  int32_t* wrap = cells.wrap + 3 * i;
  wrap[0] = wrap[1] = wrap[2] = 0;
  if (*cells.status != kAllIsWell || atoms.types[i] < 0) return static_cast<uint32_t>(atoms.last_key());
  const int32_t s = atoms.batch[i];
  const GpuSystem& system = cells.systems[s];
  const int64_t slot = cells.slot_of[static_cast<int64_t>(s) * atoms.slots() + atoms.type_of(i)];
  const int64_t bin = find_bin(system.grid, atoms.positions + 3 * i, wrap);
  return static_cast<uint32_t>(system.first_key + slot * system.grid.num_bins + bin);
}

// Fills the sorted place k, and the start of key k.
__device__ inline void fill_place(const GpuAtoms& atoms, const GpuCells& cells, int64_t k) {
  if (k < atoms.last_key() + 2) {
    int64_t low = 0, high = atoms.size;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (cells.key[middle] < k)
        low = middle + 1;
      else
        high = middle;
    }
    cells.start[k] = static_cast<int32_t>(low);
  }
  if (k >= atoms.size) return;
  const int64_t i = cells.atom[k];
  const int32_t* wrap = cells.wrap + 3 * i;
  float4 place = {0, 0, 0, 0};
  if (cells.key[k] < atoms.last_key()) {
    const GpuSystem& system = cells.systems[atoms.batch[i]];
    double x[3];
    wrap_position(system.grid, atoms.positions + 3 * i, wrap, x);
    place.x = static_cast<float>(x[0] - system.middle[0]);
    place.y = static_cast<float>(x[1] - system.middle[1]);
    place.z = static_cast<float>(x[2] - system.middle[2]);
    place.w = __int_as_float(static_cast<int32_t>(i));
  }
  cells.place[k] = place;
  cells.image[k] = pack_image(-wrap[0], -wrap[1], -wrap[2]);
}

// Each stage as a kernel, for any number of atoms,
static __global__ void set_lattices(GpuAtoms atoms, GpuCells cells) {
  set_lattice_of(atoms, cells, thread_index());
}
static __global__ void survey(GpuAtoms atoms, GpuCells cells) {
  survey_atom(atoms, cells, thread_index());
}
static __global__ void set_grids(GpuAtoms atoms, GpuCells cells) {
  set_all_grids<kSystemThreads>(atoms, cells);
}
static __global__ void find_keys(GpuAtoms atoms, GpuCells cells, uint32_t* key, int32_t* atom) {
  const int64_t i = thread_index();
  if (i >= atoms.size) return;
  atom[i] = static_cast<int32_t>(i);
  key[i] = find_key(atoms, cells, i);
}
static __global__ void fill_sorted(GpuAtoms atoms, GpuCells cells) {
  fill_place(atoms, cells, thread_index());
}

// and all of them, for few, by one block: a thread an atom, whose rank among the keys is its place.
static __global__ void __launch_bounds__(kFew) sort_few(GpuAtoms atoms, GpuCells cells) {
  follow_kernels();  // lets the search begin early
  __shared__ uint32_t keys[kFew];
  const int n = static_cast<int>(atoms.size), i = threadIdx.x;
  if (i == 0) *cells.status = kAllIsWell;
  __syncthreads();
  set_lattice_of(atoms, cells, i);
  __syncthreads();
  survey_atom(atoms, cells, i);
  __syncthreads();
  set_all_grids<kFew>(atoms, cells);
  __syncthreads();
  if (i < n) keys[i] = find_key(atoms, cells, i);
  __syncthreads();
  if (i < n) {
    const uint32_t own = keys[i];
    int rank = 0;
    for (int j = 0; j < n; ++j) rank += keys[j] < own || (keys[j] == own && j < i);
    cells.key[rank] = own, cells.atom[rank] = i;
  }
  __syncthreads();
  for (int k = i; k < atoms.last_key() + 2; k += kFew) fill_place(atoms, cells, k);
}

inline int bits_of(uint64_t value) {
  int bits = 0;
  for (; value > 0; value >>= 1) ++bits;
  return bits;
}

}  // namespace gpu_cells

// Cells in device memory of `bytes()`, which the caller keeps as long.
class SortedCells {
 public:
  SortedCells(const Gpu& gpu, const GpuAtoms& atoms) : gpu_(gpu), atoms_(atoms) {
    gpu_.check(
        sort_pairs(nullptr, sort_bytes_, key_, key_, atom_, atom_, atoms.size, key_bits(), gpu.stream()));
  }

  int64_t bytes() {
    return Workspace::bytes([&](Workspace& space) { divide(space); });
  }

  void sort(void* memory) {
    Workspace workspace(static_cast<char*>(memory));
    divide(workspace);
    sort();
  }

  const GpuCells& cells() const { return cells_; }

 private:
  void divide(Workspace& space) {
    const int64_t n = atoms_.size, slots = static_cast<int64_t>(atoms_.num_systems) * atoms_.slots();
    cells_.systems = space.take<GpuSystem>(atoms_.num_systems);
    cells_.slot_of = space.take<int32_t>(slots);
    cells_.type_in = space.take<int32_t>(slots);
    cells_.key = space.take<uint32_t>(n);
    cells_.atom = space.take<int32_t>(n);
    cells_.place = space.take<float4>(n);
    cells_.image = space.take<int32_t>(n);
    cells_.start = space.take<int32_t>(atoms_.last_key() + 2);
    cells_.wrap = space.take<int32_t>(3 * n);
    cells_.status = space.take<Word>(1);
    key_ = space.take<uint32_t>(n);
    atom_ = space.take<int32_t>(n);
    sort_ = space.take<char>(static_cast<int64_t>(sort_bytes_));
  }

  void sort() {
    using namespace gpu_cells;
    const int64_t n = atoms_.size, systems = atoms_.num_systems;
    if (n <= kFew && systems * atoms_.slots() <= kFew)
      return gpu_.launch(sort_few, 1, kFew, 0, atoms_, cells_);
    gpu_.check(cudaMemsetAsync(cells_.status, 0xff, sizeof(Word), gpu_.stream()));
    gpu_.launch_for(systems, kThreads, set_lattices, atoms_, cells_);
    gpu_.launch_for(n, kThreads, survey, atoms_, cells_);
    gpu_.launch(set_grids, systems > 0, kSystemThreads, 0, atoms_, cells_);
    gpu_.launch_for(n, kThreads, find_keys, atoms_, cells_, key_, atom_);
    if (n > 0)  // stable, so that the order is the atoms' own inside a bin
      gpu_.check(
          sort_pairs(sort_, sort_bytes_, key_, cells_.key, atom_, cells_.atom, n, key_bits(), gpu_.stream()));
    gpu_.launch_for(atoms_.last_key() + 2, kThreads, fill_sorted, atoms_, cells_);
  }

  int key_bits() const { return gpu_cells::bits_of(static_cast<uint64_t>(atoms_.last_key())); }

  const Gpu& gpu_;
  GpuAtoms atoms_;
  GpuCells cells_;
  uint32_t* key_ = nullptr;
  int32_t* atom_ = nullptr;
  char* sort_ = nullptr;
  size_t sort_bytes_ = 0;
};

}  // namespace mdops
