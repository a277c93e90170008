// Sums over pairs on a GPU: each pair's terms for its row's atom, its neighbour and its system.
//
// The warp that owns the row sums the row's part. The other two are summed in fixed point
// (common/fixed_point.h), so that the result has the same bits in every run; but for a single system the
// blocks' sums are added in order. Three kernels: the largest terms, the sums, their conversion to floats.
#pragma once

#include "common/fixed_point.h"
#include "common/gpu.h"
#include "common/rows.h"
#include "displacements/args.h"

namespace mdops {

constexpr int kSystem = 9;

template <class T>
MDOPS_D T largest_of(const T* v) {
  return max(max(abs(v[0]), abs(v[1])), abs(v[2]));
}

// The terms of one pair: three for the row, kNeighbor for the neighbour (the first three as large as the
// row's), nine for the system. `bounds` gives bounds of the first three and of all the others; `bound` only
// the first.
template <class T>
struct PositionGradient {
  using Value = T;
  static constexpr int kNeighbor = 3;
  const T* grad;
  const int32_t* images;

  __device__ void add(int64_t slot, double* row, double* neighbor, double* system) const {
    add_pair_gradient(grad + 3 * slot, images[slot], row, neighbor, system);
  }
  __device__ T bound(int64_t slot) const { return largest_of(grad + 3 * slot); }
  __device__ void bounds(int64_t slot, double* most) const {
    most[0] = static_cast<double>(bound(slot));
    most[1] = 512 * most[0];  // shifts are -512 to 511
  }
};

// `OfAtoms`: with atomic virials.
template <class T, bool OfAtoms>
struct PairForce {
  using Value = T;
  static constexpr int kNeighbor = OfAtoms ? 12 : 3;
  const T *grad, *d;

  __device__ void add(int64_t slot, double* row, double* neighbor, double* system) const {
    add_pair_force(grad + 3 * slot, d + 3 * slot, row, neighbor, system, OfAtoms ? neighbor + 3 : nullptr);
  }
  __device__ T bound(int64_t slot) const { return largest_of(grad + 3 * slot); }
  __device__ void bounds(int64_t slot, double* most) const {
    most[0] = static_cast<double>(bound(slot));
    most[1] = most[0] * static_cast<double>(largest_of(d + 3 * slot));
  }
};

constexpr int kSumWarps = 8, kReadBlocks = 1024;

// Integers of a neighbour: its terms, and the count of nonfinite ones; whole 32-byte sectors.
template <class Terms>
constexpr int kNeighborStride = Terms::kNeighbor == 3 ? 4 : 16;
constexpr int kSystemStride = 16;
// In a warp's buffer: odd, so that the lanes' terms are in different banks.
template <class Terms>
constexpr int kBufferStride = kNeighborStride<Terms> + 1;
// float64 needs the second integer.
template <class Terms>
constexpr int kLimbs = sizeof(typename Terms::Value) == 8 ? 2 : 1;

// All zero at the start.
struct PairSumSpace {
  double* largest;               // of the row's and of the system's terms
  int64_t *neighbors, *systems;  // (limbs, atoms, stride), (limbs, systems, stride)
  double* blocks;                // (blocks of add_terms, kSystem), of one system; or null
  int64_t count;                 // of blocks
};

MDOPS_D bool finite_terms(const double* terms, int size) {
  bool finite = true;
  for (int k = 0; k < size; ++k) finite &= isfinite(terms[k]);
  return finite;
}

template <class Terms>
__global__ void largest_terms(Terms terms, const int32_t* neighbors, int64_t slots, PairSumSpace space) {
  using T = typename Terms::Value;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  double most[2] = {0, 0};
  const int64_t begin = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (space.blocks && Terms::kNeighbor == 3) {  // nothing else is summed in fixed point
    constexpr int kAtOnce = 4;
    T of_first = 0;
    for (int64_t from = begin; from < slots; from += kAtOnce * step)
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const int64_t slot = from + k * step < slots ? from + k * step : from;
        const T bound = terms.bound(slot);
        if (neighbors[slot] >= 0 && isfinite(bound)) of_first = max(of_first, bound);
      }
    most[0] = static_cast<double>(of_first);
  } else {
    for (int64_t slot = begin; slot < slots; slot += step) {
      if (neighbors[slot] < 0) continue;
      double bounds[2] = {0, 0};
      terms.bounds(slot, bounds);
      for (int k = 0; k < 2; ++k)
        if (isfinite(bounds[k])) most[k] = fmax(most[k], bounds[k]);
    }
  }
  __shared__ double shared[2][kSumWarps];
  for (int k = 0; k < 2; ++k) {
    most[k] = warp_largest(most[k]);
    if (lane_index() == 0) shared[k][threadIdx.x / kWarp] = most[k];
  }
  __syncthreads();
  if (threadIdx.x < 2) {
    double all = 0;
    for (double x : shared[threadIdx.x]) all = fmax(all, x);
    if (all > 0) atomic_max(space.largest + threadIdx.x, all);
  }
}

// Adds the lanes' nine sums for one system to it, and resets them. A nonfinite sum counts as one bad term.
template <int Limbs>
__device__ void flush(double* sums, const FixedPoint& fixed, int64_t* systems, int64_t count,
                      int32_t system) {
  for (int k = 0; k < kSystem; ++k) sums[k] = warp_sum(sums[k]);
  const bool finite = finite_terms(sums, kSystem);
  for (int k = 0; k < kSystem; ++k) {
    int64_t part[2] = {0, 0};
    if (finite) fixed.split(sums[k], &part[0], &part[1]);
    for (int limb = 0; limb < Limbs; ++limb)
      if (lane_index() == k && part[limb] != 0)
        atomic_add(systems + (limb * count + system) * kSystemStride + k, part[limb]);
    sums[k] = 0;
  }
  if (!finite && lane_index() == 0)
    atomic_add(systems + system * static_cast<int64_t>(kSystemStride) + kSystem, 1);
}

// Adds words [0, size] of each lane, Stride + 1 apart, to those of its target (none: -1), such that adjacent
// lanes add to adjacent words.
template <int Stride>
MDOPS_D void add_words(const int64_t* buffer, int size, int32_t target, int64_t* to) {
  const int lane = lane_index();
#pragma unroll
  for (int first = 0; first < kWarp; first += kWarp / Stride) {
    const int from = first + lane / Stride, k = lane % Stride;
    const int64_t at = __shfl_sync(kAllLanes, target, from);
    const int64_t value = k <= size ? buffer[from * (Stride + 1) + k] : 0;
    if (at >= 0 && value != 0) atomic_add(to + at * Stride + k, value);
  }
}

// Adds each lane's terms to its neighbour j (none: -1).
template <class Terms>
__device__ void scatter(const double* terms, int32_t j, const FixedPoint* fixed, int64_t* buffer,
                        int64_t atoms, int64_t* neighbors) {
  constexpr int size = Terms::kNeighbor, stride = kNeighborStride<Terms>, limbs = kLimbs<Terms>;
  const int lane = lane_index();
  const bool finite = finite_terms(terms, size);
  int64_t low[size];
  for (int limb = 0; limb < limbs; ++limb) {
    __syncwarp();
    for (int k = 0; k < size; ++k) {
      int64_t high = 0;
      if (limb == 0) {
        low[k] = 0;
        if (finite) fixed[k < 3 ? 0 : 1].split(terms[k], &high, &low[k]);
      }
      buffer[lane * kBufferStride<Terms> + k] = limb == 0 ? high : low[k];
    }
    buffer[lane * kBufferStride<Terms> + size] = limb == 0 && !finite;
    __syncwarp();
    add_words<stride>(buffer, size, j, neighbors + limb * atoms * stride);
  }
}

// The sums of a block for one system: `own` are the lanes', and `of_warps` has room for nine numbers of each
// warp, `apart` apart.
template <int Warps>
__device__ void sum_block(const double* own, double* of_warps, int apart, const PairSumSpace& space) {
  const int warp = threadIdx.x / kWarp;
  for (int k = 0; k < kSystem; ++k) {
    const double sum = warp_sum(own[k]);
    if (lane_index() == 0) of_warps[warp * apart + k] = sum;
  }
  __syncthreads();
  if (threadIdx.x < kSystem) {
    double sum = 0;
    for (int w = 0; w < Warps; ++w) sum += of_warps[w * apart + threadIdx.x];
    space.blocks[blockIdx.x * kSystem + threadIdx.x] = sum;
  }
}

// A warp per range of rows.
template <class Terms>
__global__ void __launch_bounds__(kWarp* kSumWarps)
    add_terms(Terms terms, PairRows rows, int64_t rows_per_warp, PairSumSpace space, double* row_sums) {
  const int64_t atoms = rows.atoms, width = rows.width, systems = rows.systems;
  __shared__ int64_t buffers[kSumWarps][kWarp * kBufferStride<Terms>];
  const int lane = lane_index(), warp = threadIdx.x / kWarp;
  const FixedPoint fixed[2] = {FixedPoint(space.largest[0], rows.rows * width),
                               FixedPoint(space.largest[1], rows.rows * width)};
  const int64_t begin = (static_cast<int64_t>(blockIdx.x) * kSumWarps + warp) * rows_per_warp;
  const int64_t end = begin + rows_per_warp < rows.rows ? begin + rows_per_warp : rows.rows;
  double of_system[kSystem] = {};
  int32_t current = -1;
  for (int64_t i = begin; i < end; ++i) {
    const int32_t named = rows.batch[rows.first + i], system = named >= 0 && named < systems ? named : -1;
    if (!space.blocks && system != current && current >= 0)
      flush<kLimbs<Terms>>(of_system, fixed[1], space.systems, systems, current);
    current = system;
    double row[3] = {};
    int32_t next = lane < width ? rows.neighbors[i * width + lane] : -1;
    for (int64_t k = 0; k < width; k += kWarp) {
      const int64_t slot = i * width + k + lane;
      int32_t j = next;
      next = k + kWarp + lane < width ? rows.neighbors[slot + kWarp] : -1;  // loaded while these are summed
      double neighbor[Terms::kNeighbor] = {};
      if (j != -1 && (j < 0 || j >= atoms || system < 0)) {
        row[0] = row[1] = row[2] = not_a_number<double>();
        if (system >= 0) of_system[0] = not_a_number<double>();
        j = -1;
      } else if (j >= 0) {
        terms.add(slot, row, neighbor, of_system);
      }
      scatter<Terms>(neighbor, j, fixed, buffers[warp], atoms, space.neighbors);
    }
    for (int a = 0; a < 3; ++a) {
      row[a] = warp_sum(row[a]);
      if (lane == 0) row_sums[3 * (rows.first + i) + a] = row[a];
    }
  }
  if (space.blocks) {
    __shared__ double of_warps[kSumWarps * kSystem];
    sum_block<kSumWarps>(of_system, of_warps, kSystem, space);
  } else if (current >= 0) {
    flush<kLimbs<Terms>>(of_system, fixed[1], space.systems, systems, current);
  }
}

MDOPS_HD int64_t whole_warps(int64_t threads) {
  return (threads + kWarp - 1) / kWarp * kWarp;
}

// A thread per number of the result: `row_sums` grows by the first three terms of each neighbour, `others`
// (N, 9) gets the rest, `of_systems` (S, 9) the systems' sums; after whole warps, a warp has a number of one
// system.
template <class Terms>
__global__ void finish_sums(PairRows rows, PairSumSpace space, double* row_sums, double* of_systems,
                            double* others) {
  constexpr int size = Terms::kNeighbor, stride = kNeighborStride<Terms>, limbs = kLimbs<Terms>;
  const int64_t item = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  const int64_t atoms = rows.atoms, systems = rows.systems, pairs = rows.rows * rows.width;
  const int64_t slots = pairs > 0 ? pairs : 1;
  const auto read = [&](const int64_t* words, int64_t count, int64_t step, int64_t at, int k, int bad,
                        int scale) {
    const FixedPoint fixed(space.largest[scale], slots);
    const int64_t* first = words + at * step;
    if (first[bad] != 0) return not_a_number<double>();
    return fixed.sum(first[k], limbs == 2 ? first[count * step + k] : 0);
  };
  if (item < atoms * size) {
    const int64_t i = item / size;
    const int k = static_cast<int>(item - i * size);
    const double value = read(space.neighbors, atoms, stride, i, k, size, k < 3 ? 0 : 1);
    if (k < 3)
      row_sums[3 * i + k] += value;
    else
      others[9 * i + k - 3] = value;
  } else if (space.blocks) {
    const int64_t k = (item - whole_warps(atoms * size)) / kWarp;
    if (item < whole_warps(atoms * size) || k >= kSystem) return;
    double sum = 0;
#pragma unroll 8
    for (int64_t block = lane_index(); block < space.count; block += kWarp)
      sum += space.blocks[block * kSystem + k];
    sum = warp_sum(sum);
    if (lane_index() == 0) of_systems[k] = sum;
  } else if (item < atoms * size + systems * kSystem) {
    const int64_t rest = item - atoms * size, s = rest / kSystem;
    const int k = static_cast<int>(rest - s * kSystem);
    of_systems[rest] = read(space.systems, systems, kSystemStride, s, k, kSystem, 1);
  }
}

// A call.
template <class Terms>
struct PairSums {
  const Gpu& gpu;
  PairRows rows;

  // Words of memory, for `run`; for kernels of `blocks` blocks that add the terms.
  int64_t words() const { return words(blocks()); }
  int64_t words(int64_t blocks) const {
    return kFirst + neighbor_words() +
           (rows.systems == 1 ? blocks * kSystem : kLimbs<Terms> * rows.systems * kSystemStride);
  }

  // `row_sums` (N, 3), `of_systems` (S, 9), `others` (N, 9) or null if the terms have none.
  void run(const Terms& terms, int64_t* memory, double* row_sums, double* of_systems, double* others) const {
    const PairSumSpace space = begin(memory, blocks(), row_sums);
    const int64_t slots = rows.rows * rows.width, reading = blocks_for(slots, kThreads);
    gpu.launch(largest_terms<Terms>, reading < kReadBlocks ? reading : kReadBlocks, kThreads, 0, terms,
               rows.neighbors, slots, space);
    gpu.launch(add_terms<Terms>, blocks(), kThreads, 0, terms, rows, rows_per_warp(), space, row_sums);
    end(space, row_sums, of_systems, others);
  }

  PairSumSpace begin(int64_t* memory, int64_t blocks, double* row_sums) const {
    gpu.clear(memory, 8 * words(blocks));
    if (rows.rows < rows.atoms) gpu.clear(row_sums, 24 * rows.atoms);
    int64_t* const behind = memory + kFirst + neighbor_words();
    return {reinterpret_cast<double*>(memory), memory + kFirst, behind,
            rows.systems == 1 ? reinterpret_cast<double*>(behind) : nullptr, blocks};
  }

  void end(const PairSumSpace& space, double* row_sums, double* of_systems, double* others) const {
    const int64_t numbers = rows.atoms * Terms::kNeighbor;
    const int64_t items =
        rows.systems == 1 ? whole_warps(numbers) + kSystem * kWarp : numbers + rows.systems * kSystem;
    gpu.launch_for(items, kThreads, finish_sums<Terms>, rows, space, row_sums, of_systems, others);
  }

 private:
  static constexpr int kThreads = kWarp * kSumWarps;
  static constexpr int64_t kFirst = 16;  // after the largest terms
  // One round of persistent blocks: each warp flushes its system's sums once or, with small systems, a few
  // times.
  int64_t rows_per_warp() const {
    const int64_t most = gpu.resident_blocks(add_terms<Terms>, kThreads) * kSumWarps;
    return blocks_for(rows.rows, most < rows.rows ? most : rows.rows + 1);
  }
  int64_t blocks() const {
    return rows.rows ? blocks_for(blocks_for(rows.rows, rows_per_warp()), kSumWarps) : 0;
  }
  int64_t neighbor_words() const { return kLimbs<Terms> * rows.atoms * kNeighborStride<Terms>; }
};

}  // namespace mdops
