// The kernels of the halves of a time step. `Start` begins a step of a system with its own cell, `Finish`
// ends it (args.h, cell_args.h).
#pragma once

#include "common/early.h"
#include "common/rows.h"
#include "dynamics/args.h"
#include "dynamics/cell.h"

namespace mdops::gpu_dynamics {

constexpr int kThreads = 256;
constexpr int kFewParts = 64;                      // of a system, summed by one warp
constexpr int kFewAtoms = 1024, kFewSystems = 16;  // whose step one block ends

// The first atom of the sorted `batch` whose system is not below `system`.
__device__ inline int32_t first_atom(const int32_t* batch, int32_t atoms, int32_t system) {
  int32_t low = 0, high = atoms;
  while (low < high) {
    const int32_t middle = low + (high - low) / 2;
    if (batch[middle] < system)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

// The system of an atom; -1 if invalid, or below that of the atom before.
MDOPS_D int32_t system_of(const int32_t* batch, int32_t i, int32_t systems) {
  const int32_t s = batch[i], before = i > 0 ? batch[i - 1] : 0;
  return s >= before && s >= 0 && s < systems ? s : -1;
}

// Half a step of the chain of atom i's system, and the atom's move. The system's first atom stores the chain.
template <int Links>
MDOPS_D void move_atom(const FirstHalfArgs& a, const Thermostats<Links>& bath, int32_t i) {
  const SortedAtoms& of = a.sorted;
  const int32_t s = system_of(of.batch, i, of.systems);
  double factor = not_a_number<double>();
  if (s >= 0) factor = a.scale[s] * bath.advance(s, a.kinetic[s], i == 0 || of.batch[i - 1] != s);
  a.move(i, factor);
}

// Keeps the chain of a system without atoms.
template <int Links>
MDOPS_D void keep_if_empty(const FirstHalfArgs& a, const Thermostats<Links>& bath, int32_t s) {
  const SortedAtoms& of = a.sorted;
  const int32_t first = first_atom(of.batch, of.atoms, s);
  if (first >= of.atoms || of.batch[first] != s) bath.keep(s);
}

// A thread per atom. Each thread moves the chain of its system: no slower than waiting for one thread to do
// it for all. Threads also look for systems without atoms.
template <int Links>
__global__ void first_half(FirstHalfArgs a, Thermostats<Links> bath) {
  follow_kernels();
  const SortedAtoms& of = a.sorted;
  const int64_t thread = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (Links > 0 && thread < of.systems) keep_if_empty(a, bath, static_cast<int32_t>(thread));
  if (thread < of.atoms) move_atom(a, bath, static_cast<int32_t>(thread));
}

// A warp per system: two of its threads move the chains of its atoms and of its cell.
template <class Start>
__global__ void start_cells(Start start, const int32_t* batch, int32_t atoms) {
  follow_kernels();
  const int32_t s = blockIdx.x, which = threadIdx.x;
  if (which > 1) return;
  const int32_t first = gridDim.x == 1 ? 0 : first_atom(batch, atoms, s);
  if (first >= atoms || batch[first] != s) return start.keep(which, s);
  const double factor = start.factor(which, s), other = __shfl_xor_sync(3, factor, 1);
  start.set(which, s, which ? other : factor, which ? factor : other);
}

static __global__ void first_half_in_cell(CellFirstHalf half, const int32_t* batch, int32_t atoms,
                                          int32_t systems) {
  follow_kernels();
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i >= atoms) return;
  const int32_t s = system_of(batch, static_cast<int32_t>(i), systems);
  if (s >= 0) return half.move(i, s);
  for (int64_t k = 3 * i; k < 3 * i + 3; ++k)
    half.new_momenta[k] = half.new_positions[k] = not_a_number<double>();
}

__device__ inline Measures warp_sum(Measures m) {
  for (int step = kWarp / 2; step; step /= 2) {
    Measures other;
    other.kinetic = __shfl_xor_sync(kAllLanes, m.kinetic, step);
    other.energy = __shfl_xor_sync(kAllLanes, m.energy, step);
    other.moved2 = __shfl_xor_sync(kAllLanes, m.moved2, step);
    other.overflow = __shfl_xor_sync(kAllLanes, m.overflow, step);
    other.closeness = __shfl_xor_sync(kAllLanes, m.closeness, step);
    m.add(other);
  }
  return m;
}

__device__ inline CellMeasures warp_sum(CellMeasures m) {
  m.of_atoms = warp_sum(m.of_atoms);
  for (int step = kWarp / 2; step; step /= 2)
    for (int k = 0; k < 6; ++k) m.flow.v[k] += __shfl_xor_sync(kAllLanes, m.flow.v[k], step);
  return m;
}

// A warp measures a window of 32 atoms. The measures of system s in window w go to parts[s + w]: both
// increase along the atoms, so the places are distinct.
template <class Half>
MDOPS_D void measure_window(const Half& half, const int32_t* batch, int32_t atoms, int32_t systems,
                            int64_t window, typename Half::Measured* parts) {
  using Measured = typename Half::Measured;
  const int64_t begin = window * kWarp, i = begin + lane_index();
  if (begin >= atoms) return;
  const int64_t end = begin + kWarp < atoms ? begin + kWarp : atoms;
  Measured own = Measured::none();
  int32_t system = -1;
  if (i < end) {
    own = half.kick(i);
    system = system_of(batch, static_cast<int32_t>(i), systems);
    if (system < 0) half.spoil(i);
  }
  const int32_t first = batch[begin] > 0 ? batch[begin] : 0;
  const int32_t last = batch[end - 1] < systems ? batch[end - 1] : systems - 1;
  for (int32_t s = first; s <= last; ++s) {
    const Measured sum = warp_sum(system == s ? own : Measured::none());
    if (lane_index() == 0) parts[s + window] = sum;
  }
}

template <class Half>
__global__ void second_half(Half half, const int32_t* batch, int32_t atoms, int32_t systems,
                            typename Half::Measured* parts) {
  follow_kernels();
  const int64_t thread = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  measure_window(half, batch, atoms, systems, thread / kWarp, parts);
}

// The atoms of a system in the sorted `batch`.
struct AtomsOf {
  int32_t first, end;

  __device__ AtomsOf(const int32_t* batch, int32_t atoms, int32_t systems, int32_t s)
      : first(systems == 1 ? 0 : first_atom(batch, atoms, s)),
        end(systems == 1 ? atoms : first_atom(batch, atoms, s + 1)) {}
};

// Sums this thread's share of a system's measures, for `threads` threads.
template <class Measured>
MDOPS_D Measured share_of_parts(const Measured* parts, const int32_t* batch, int32_t atoms, int32_t s,
                                const AtomsOf& of, int thread, int threads) {
  Measured sum = Measured::none();
  if (of.first < of.end)
    for (int32_t w = of.first / kWarp + thread; w <= (of.end - 1) / kWarp; w += threads) {
      const int32_t begin = w * kWarp, last = begin < atoms - kWarp ? begin + kWarp - 1 : atoms - 1;
      // Else `batch` is not sorted, and this place has no measures.
      const bool measured = batch[begin] <= s && s <= batch[last];
      if (measured) sum.add(parts[static_cast<int64_t>(s) + w]);
      if (!measured) sum.spoil();
    }
  return sum;
}

// Ends a system's step, from its measures.
template <class Measured, class Finish>
MDOPS_D void finish_system(const Finish& finish, const int32_t* batch, int32_t s, const AtomsOf& of,
                           int thread, Measured sum) {
  if (thread >= Finish::kThreads) return;
  if (of.first < of.end && (batch[of.first] != s || batch[of.end - 1] != s)) sum.spoil();
  finish.set(thread, s, sum, of.first < of.end);
}

// A block per system: its measures, and its chains.
template <class Measured, class Finish>
__global__ void finish_systems(const Measured* parts, const int32_t* batch, int32_t atoms, int32_t systems,
                               Finish finish) {
  follow_kernels();
  __shared__ Measured of_warp[kWarp];
  const int32_t s = blockIdx.x;
  const AtomsOf of(batch, atoms, systems, s);
  Measured sum = warp_sum(share_of_parts(parts, batch, atoms, s, of, threadIdx.x, blockDim.x));
  if (blockDim.x > kWarp) {
    if (lane_index() == 0) of_warp[threadIdx.x / kWarp] = sum;
    __syncthreads();
    if (threadIdx.x >= kWarp) return;
    sum = threadIdx.x < blockDim.x / kWarp ? of_warp[threadIdx.x] : Measured::none();
    sum = warp_sum(sum);
  }
  finish_system(finish, batch, s, of, threadIdx.x, sum);
}

// The second half for few atoms, by a block of kThreads: saves a kernel. `finish(s)` ends the step of system
// s.
template <class Half, class Finish>
MDOPS_D void end_by_block(const Half& half, const int32_t* batch, int32_t atoms, int32_t systems,
                          const Finish& finish) {
  __shared__ typename Half::Measured parts[kFewAtoms / kWarp + kFewSystems];
  constexpr int warps = kThreads / kWarp;
  const int warp = threadIdx.x / kWarp, lane = lane_index();
  for (int window = warp; window * kWarp < atoms; window += warps)
    measure_window(half, batch, atoms, systems, window, parts);
  __syncthreads();
  for (int32_t s = warp; s < systems; s += warps) {
    const AtomsOf of(batch, atoms, systems, s);
    finish_system(finish(s), batch, s, of, lane,
                  warp_sum(share_of_parts(parts, batch, atoms, s, of, lane, kWarp)));
  }
}

template <class Half, class Finish>
__global__ void __launch_bounds__(kThreads)
    end_few(Half half, const int32_t* batch, int32_t atoms, int32_t systems, Finish finish) {
  follow_kernels();
  end_by_block(half, batch, atoms, systems, [&](int32_t) -> const Finish& { return finish; });
}

// Ends a system's step, and computes its atoms' factor of momenta for the next one: one thread does both
// moves of its chain. It reads the chain before the measures are there.
template <int Links>
struct FinishAndBegin {
  static constexpr int kThreads = 1;
  const Finish<Links>& finish;
  const Thermostats<Links>& bath;
  ReadChain<Links>& chain;
  double* factors;  // per system

  MDOPS_D void set(int, int64_t system, const Measures& sum, bool occupied) const {
    if (!occupied) {
      factors[system] = not_a_number<double>();  // for atoms that are not sorted
      finish.bath.keep(system);
      for (int64_t j = system * Links; j < (system + 1) * Links; ++j)
        bath.new_eta[j] = finish.bath.eta[j], bath.new_p[j] = finish.bath.p[j];
      return finish.results.set(system, sum, 1.0);
    }
    const double factor = finish.bath.advance(system, sum.kinetic, true, chain);
    factors[system] = factor * bath.advance(system, sum.kinetic * factor * factor, true, chain);
    finish.results.set(system, sum, factor);
  }
};

// And the first half of the next step.
template <class Half, int Links>
__global__ void __launch_bounds__(kThreads)
    next_few(Half half, Finish<Links> finish, FirstHalfArgs a, Thermostats<Links> bath) {
  follow_kernels();
  __shared__ double factors[kFewSystems];
  const SortedAtoms& of = a.sorted;
  const int warp = threadIdx.x / kWarp;
  ReadChain<Links> chain{};
  if (warp < of.systems) chain = finish.bath.read(warp);
  end_by_block(half, of.batch, of.atoms, of.systems, [&](int32_t s) {
    if (s != warp) chain = finish.bath.read(s);
    return FinishAndBegin<Links>{finish, bath, chain, factors};
  });
  __syncthreads();
  for (int32_t i = threadIdx.x; i < of.atoms; i += kThreads) {
    const int32_t s = system_of(of.batch, i, of.systems);
    a.move(i, s >= 0 ? factors[s] : not_a_number<double>());
  }
}

}  // namespace mdops::gpu_dynamics
