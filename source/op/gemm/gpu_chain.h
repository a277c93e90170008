// A whole net on Hopper in one kernel: a block takes its rows from their input to its gradient. One lane
// streams the weights of all products through shared memory, in the order of `NetChain`, and another one the
// input; two warpgroups multiply. A layer's results are split into parts of float16 at once and stay in
// shared memory for the next product. There are two ways to multiply, and a kind of chain uses one:
//
//   gpu_chain_rows.h      128 rows a block, 64 for each group: the least time per row, for layers of up to
//   256
//                         numbers and rows enough for some rounds of blocks
//   gpu_chain_columns.h   32 to 96 rows, half of a layer's columns for each group: for fewer rows, which fill
//                         the multiprocessors in a round or two; and wider layers
//
// In shared memory are blocks of A, all rows x 32 numbers, and units of B, 32 numbers x 120 or 128 columns
// (both are twice as deep with one part), which are copied in pairs. Pairs of units form a ring. A's blocks
// do so only for the input, which is deeper than they are; a layer's numbers stay: numbers 32 b .. 32 b + 31
// of all rows are block b. The products of a layer of 240 columns use the units in this order, a pair of
// blocks of the depth with all columns before the next pair:
//
//                  columns 0-127   128-255
//   depth  0-31       unit 0        unit 2
//          32-63      unit 1        unit 3
//          64-95      unit 4        unit 6
//          96-127     unit 5        unit 7  ...
//
// so the tensor cores sum 64 of the depth into `part`, which is then added to `sum` in float32. gpu_shape.h
// shows a row of A, or of a unit, whose rows are B's columns.
#pragma once

#include "common/profiler.h"
#include "gemm/gpu_hopper.h"
#include "gemm/gpu_layer.h"

namespace mdops {

struct ChainArgs {
  const int32_t* tile_type;  // -1: the tile has no row
  const float* nets;
  int64_t net_size, units, unit_scales, bias[kChainLayers], timestep[kChainLayers], out_weight;
  GpuNetShape net;
  float* inputs;       // (rows, net.inputs), as InputRow writes them; then their gradient, as floats
  const float* bound;  // of each row of the input
  float2* slopes;      // a number for each column of a row, for each layer but the last
  double* output;      // of each row, without its bias
  const double* scale;
};

constexpr int kAnyActivation = -1;  // the kernel reads it from the net
constexpr int kChainThreads = 3 * kGroupThreads;
constexpr int kChainWarps = 2 * kGroupThreads / kWarp;  // warps that multiply
constexpr int kMostRegisters = 240;                     // of a multiplying thread
constexpr int kFewRegisters = 24;                       // of a fetching thread
constexpr int kStageRows = 16;                          // of each group, staged for device memory
constexpr int kChainShared = 227 << 10;                 // available to a block

// Shared memory of a kind of chain, from an address that is a multiple of 1,024: A, the slots for pairs of
// units, and for every row the largest slope of every layer but the last. If groups share rows, also each
// row's maximum, its scale (a power of two), the inverse, and that times the weights' own.
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
  static constexpr int kUnits = kBlocks * kBlockBytes;         // after A
  static constexpr int kSteep = kUnits + kSlots * kPairBytes;  // [layer][row], except the last layer
  static constexpr int kLargest = kSteep + kSteepBytes, kScale = kLargest + kRowBytes;
  static constexpr int kUnscale = kScale + kRowBytes, kFactor = kUnscale + kRowBytes;
  static constexpr int kStage = kFactor + kRowBytes, kBarriers = kStage + kStageBytes;
  static constexpr int kFull = kBarriers, kEmpty = kFull + 8 * kSlots;
  static constexpr int kFullA = kEmpty + 8 * kSlots, kEmptyA = kFullA + 8 * kSlotsA;
  static constexpr int kBytes = kEmptyA + 8 * kSlotsA + 1024;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// A ring of slots, each with a barrier for full and one for empty.
template <int Slots>
struct Ring {
  uint32_t full, empty;
  int slot = 0;
  uint32_t round = 0;

  MDOPS_D void next() {
    if (++slot == Slots) slot = 0, round ^= 1;
  }
  MDOPS_D void wait() const { wait_for(full + 8 * slot, round); }
  MDOPS_D void release() {
    if (lane_index() == 0) arrive(empty + 8 * slot);
    next();
  }
  MDOPS_D void wait_empty() const { wait_for(empty + 8 * slot, round ^ 1); }
};

// The steps of a product through two blocks of A and two of B, 16 of the depth each.
template <int Parts>
struct ChainSteps {
  static constexpr int kDepth = unit_depth(Parts), kOfBlock = kDepth / kStepDepth;
  // In units of 16 bytes: from 16 numbers of a row to the next 16, and from high parts to low ones.
  static constexpr int kNext = 2, kLowParts = 4;

  static MDOPS_D uint64_t at(uint64_t block0, uint64_t block1, int step) {
    return (step < kOfBlock ? block0 : block1) + step % kOfBlock * kNext;
  }
};

// In a residual layer twice as wide as its input, columns e and e + shift (in eights) add the same input; in
// others, the shift exceeds all columns.
MDOPS_D int input_shift(const GpuNetShape& net, int n, int beyond) {
  return net.neurons[n] > net.neurons[n - 1] ? net.neurons[n - 1] / 8 : beyond;
}

// Moves the first `Turn` numbers behind the others.
template <int Turn, int Numbers>
MDOPS_D void turn_round(float (&x)[Numbers]) {
  float turned[Turn];
#pragma unroll
  for (int k = 0; k < Turn; ++k) turned[k] = x[k];
#pragma unroll
  for (int k = 0; k < Numbers - Turn; ++k) x[k] = x[k + Turn];
#pragma unroll
  for (int k = 0; k < Turn; ++k) x[k + Numbers - Turn] = turned[k];
}

// Calls f<kind, last, residual>() for layer n. With kAnyActivation, layers with and without residuals share
// one copy of the code.
template <int Fixed, class F>
MDOPS_D void with_layer(const GpuNetShape& net, int n, const F& f) {
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

// Whether the next layer adds this layer's values.
MDOPS_D bool added_later(const GpuNetShape& net, int n) {
  return n + 1 < net.layers && net.residual[n + 1];
}

// One lane copies pieces of `Bytes` that follow each other into a ring's slots from `to` on. It has
// kFewRegisters. All products wait for each turn of its loop: nothing else belongs there.
template <int Bytes, int Slots>
MDOPS_D void fetch(Ring<Slots> ring, uint32_t to, const char* from, int pieces) {
#pragma unroll 1
  for (; pieces > 0; --pieces, from += Bytes, ring.next()) {
    ring.wait_empty();
    const uint32_t full = ring.full + 8 * ring.slot;
    expect_bytes(full, Bytes);
    copy_bulk(to + ring.slot * Bytes, from, Bytes, full);
  }
}
template <int Kind, int Parts>
MDOPS_D void fetch_weights(const ChainArgs& p, const float* weights, uint32_t shared) {
  using Memory = ChainMemory<Kind>;
  fetch<Memory::kPairBytes, Memory::kSlots>({shared + Memory::kFull, shared + Memory::kEmpty},
                                            shared + Memory::kUnits, reinterpret_cast<const char*>(weights),
                                            NetChain{p.net, Parts, Memory::kKind}.units() / 2);
}
template <int Kind, int Parts>
MDOPS_D void fetch_inputs(const ChainArgs& p, uint32_t shared) {
  using Memory = ChainMemory<Kind>;
  const NetChain chain{p.net, Parts, Memory::kKind};
  fetch<Memory::kPairBytesA, Memory::kSlotsA>(
      {shared + Memory::kFullA, shared + Memory::kEmptyA}, shared,
      reinterpret_cast<const char*>(p.inputs + int64_t{blockIdx.x} * Memory::kRows * chain.depth(0)),
      chain.blocks(0) / 2);
}

#endif

}  // namespace mdops
