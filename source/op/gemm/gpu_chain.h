// A whole net on Hopper in one kernel: so many rows a block, from their input to its gradient. One lane
// streams the weights of all products through shared memory, in the order of `NetChain`, and another one the
// input; two warpgroups follow them. What a layer leaves is split into the parts of float16 where it arises
// and stays in shared memory for the next product. There are two ways to multiply, of which a kind of chain
// has one:
//
//   gpu_chain_rows.h      128 rows a block, of which each group has 64: what takes the least time a row, for
//                         layers of up to 256 numbers and as many rows as are some rounds of blocks
//   gpu_chain_columns.h   32 to 96 rows, of which each group has half of a layer's columns: so many as
//                         fill the multiprocessors in a round or two; and wider layers
//
// In shared memory are blocks of A, all rows x 32 numbers, and units of B, 32 numbers x 120 or 128 columns
// (both are twice as deep where there is one part), which come in pairs, a copy each. Pairs of units go round
// as a ring. A's blocks do so for the input alone, which is deeper than they hold; a layer's numbers stay:
// numbers 32 b .. 32 b + 31 of all rows are block b. The products of a layer of 240 columns take the units in
// this order, a pair of blocks of the depth with all columns before the next pair:
//
//                  columns 0-127   128-255
//   depth  0-31       unit 0        unit 2
//          32-63      unit 1        unit 3
//          64-95      unit 4        unit 6
//          96-127     unit 5        unit 7  ...
//
// so 64 products deep are summed by the tensor cores into `part`, then added to `sum` in float32. gpu_shape.h
// draws a row of A, or of a unit, whose rows are B's columns.
#pragma once

#include "common/profiler.h"
#include "gemm/gpu_hopper.h"
#include "gemm/gpu_layer.h"

namespace mdops {

struct ChainArgs {
  const int32_t* tile_type;  // -1: no row counts
  const float* nets;
  int64_t net_size, units, unit_scales, bias[kChainLayers], timestep[kChainLayers], out_weight;
  GpuNetShape net;
  float* inputs;       // (rows, net.inputs), as InputRow writes them; then their gradient, as floats
  const float* bound;  // of each row of the input
  float2* slopes;      // a number for each column of a row, for each layer but the last
  double* output;      // of each row, without its bias
  const double* scale;
};

constexpr int kAnyActivation = -1;  // of a kernel: the net's, which it looks at
constexpr int kChainThreads = 3 * kGroupThreads;
constexpr int kChainWarps = 2 * kGroupThreads / kWarp;  // that multiply
constexpr int kMostRegisters = 240;                     // of a thread that multiplies
constexpr int kFewRegisters = 24;                       // of one that fetches
constexpr int kStageRows = 16;                          // of each group, on their way to device memory
constexpr int kChainShared = 227 << 10;                 // what a block may have

// Shared memory of a kind of chain, from an address that is a multiple of 1,024 on: A, the slots for pairs of
// units, and of every row the largest slope of every layer but the last; where groups share rows also a row's
// largest number, the power of two that it is multiplied with, the inverse, and that times the weights' own.
template <int Kind>
struct ChainMemory {
  static constexpr ChainKind kKind = kChainKinds[Kind];
  static constexpr int kRows = kKind.rows, kUnitBytes = kKind.unit_cols * kWideRow;
  static constexpr int kBlocks = round_up(kKind.cols(), 64) / 32, kBlockBytes = kRows * kWideRow;  // of A
  static constexpr int kSteepBytes = 4 * (kChainLayers - 1) * kRows;
  static constexpr int kRowBytes = kKind.by_rows() ? 0 : 4 * kRows;
  static constexpr int kStageBytes = kKind.by_rows() ? 0 : 2 * kStageRows * 64 * 4;
  static constexpr int kPairBytes = 2 * kUnitBytes, kPairBytesA = 2 * kBlockBytes, kSlotsA = kBlocks / 2;
  static constexpr int kMostSlots = 6, kBarrierBytes = 16 * (kMostSlots + kSlotsA);
  static constexpr int kOther = kSteepBytes + 4 * kRowBytes + kStageBytes + kBarrierBytes + 1024;
  static constexpr int kSlots = (kChainShared - kOther - kBlocks * kBlockBytes) / kPairBytes;
  static_assert(kSlots >= 2 && kSlots <= kMostSlots);
  static constexpr int kUnits = kBlocks * kBlockBytes;         // behind A
  static constexpr int kSteep = kUnits + kSlots * kPairBytes;  // [layer][row], but for the last layer
  static constexpr int kLargest = kSteep + kSteepBytes, kScale = kLargest + kRowBytes;
  static constexpr int kUnscale = kScale + kRowBytes, kFactor = kUnscale + kRowBytes;
  static constexpr int kStage = kFactor + kRowBytes, kBarriers = kStage + kStageBytes;
  static constexpr int kFull = kBarriers, kEmpty = kFull + 8 * kSlots;
  static constexpr int kFullA = kEmpty + 8 * kSlots, kEmptyA = kFullA + 8 * kSlotsA;
  static constexpr int kBytes = kEmptyA + 8 * kSlotsA + 1024;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// A ring of slots, each with a barrier that says it is full and one that says it is empty.
template <int Slots>
struct Ring {
  uint32_t full, empty;
  int slot = 0;
  uint32_t round = 0;

  __device__ __forceinline__ void next() {
    if (++slot == Slots) slot = 0, round ^= 1;
  }
  __device__ __forceinline__ void wait() const { wait_for(full + 8 * slot, round); }
  __device__ __forceinline__ void release() {
    if (lane_index() == 0) arrive(empty + 8 * slot);
    next();
  }
  __device__ __forceinline__ void wait_empty() const { wait_for(empty + 8 * slot, round ^ 1); }
};

// The way of a product through two blocks of A and two of B, 16 of the depth a step.
template <int Parts>
struct ChainSteps {
  static constexpr int kDepth = unit_depth(Parts), kOfBlock = kDepth / kStepDepth;
  // In units of 16 bytes: from 16 numbers of a row to the next 16, and from the high parts to the low ones.
  static constexpr int kNext = 2, kLowParts = 4;

  static __device__ __forceinline__ uint64_t at(uint64_t block0, uint64_t block1, int step) {
    return (step < kOfBlock ? block0 : block1) + step % kOfBlock * kNext;
  }
};

// Of a residual layer twice as wide as its input, column e + shift (in eights) adds the same of it as column
// e; of others a shift beyond all columns.
__device__ __forceinline__ int input_shift(const GpuNetShape& net, int n, int beyond) {
  return net.neurons[n] > net.neurons[n - 1] ? net.neurons[n - 1] / 8 : beyond;
}

// The first `Turn` numbers go behind the others.
template <int Turn, int Numbers>
__device__ __forceinline__ void turn_round(float (&x)[Numbers]) {
  float turned[Turn];
#pragma unroll
  for (int k = 0; k < Turn; ++k) turned[k] = x[k];
#pragma unroll
  for (int k = 0; k < Numbers - Turn; ++k) x[k] = x[k + Turn];
#pragma unroll
  for (int k = 0; k < Turn; ++k) x[k + Numbers - Turn] = turned[k];
}

// f<kind, last, residual>() for layer n. With many activation functions there is one copy for layers that add
// their input and those that do not.
template <int Fixed, class F>
__device__ __forceinline__ void with_layer(const GpuNetShape& net, int n, const F& f) {
  const auto as = [&]<Activation kind>() {
    const bool last = n == net.layers - 1;
    if (Fixed == kAnyActivation || (n > 0 && net.residual[n]))
      last ? f.template operator()<kind, true, true>() : f.template operator()<kind, false, true>();
    else if constexpr (Fixed != kAnyActivation)
      last ? f.template operator()<kind, true, false>() : f.template operator()<kind, false, false>();
  };
  if constexpr (Fixed == kAnyActivation)
    with_activation(net.activation, as);
  else
    as.template operator()<static_cast<Activation>(Fixed)>();
}

// Whether the next layer adds layer n's values.
__device__ __forceinline__ bool added_later(const GpuNetShape& net, int n) {
  return n + 1 < net.layers && net.residual[n + 1];
}

// One lane: so many pieces of `Bytes` that follow each other, into a ring's slots from `to` on. It has
// kFewRegisters. What a turn of its loop takes, all products wait for: nothing else belongs there.
template <int Bytes, int Slots>
__device__ __forceinline__ void fetch(Ring<Slots> ring, uint32_t to, const char* from, int pieces) {
#pragma unroll 1
  for (; pieces > 0; --pieces, from += Bytes, ring.next()) {
    ring.wait_empty();
    const uint32_t full = ring.full + 8 * ring.slot;
    expect_bytes(full, Bytes);
    copy_bulk(to + ring.slot * Bytes, from, Bytes, full);
  }
}
template <int Kind, int Parts>
__device__ __forceinline__ void fetch_weights(const ChainArgs& p, const float* weights, uint32_t shared) {
  using Memory = ChainMemory<Kind>;
  fetch<Memory::kPairBytes, Memory::kSlots>({shared + Memory::kFull, shared + Memory::kEmpty},
                                            shared + Memory::kUnits, reinterpret_cast<const char*>(weights),
                                            NetChain{p.net, Parts, Memory::kKind}.units() / 2);
}
template <int Kind, int Parts>
__device__ __forceinline__ void fetch_inputs(const ChainArgs& p, uint32_t shared) {
  using Memory = ChainMemory<Kind>;
  const NetChain chain{p.net, Parts, Memory::kKind};
  fetch<Memory::kPairBytesA, Memory::kSlotsA>(
      {shared + Memory::kFullA, shared + Memory::kEmptyA}, shared,
      reinterpret_cast<const char*>(p.inputs + int64_t{blockIdx.x} * Memory::kRows * chain.depth(0)),
      chain.blocks(0) / 2);
}

#endif

}  // namespace mdops
