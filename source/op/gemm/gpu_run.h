// A net on a GPU from the host: packing its weights, and a call for rows of input: which kernels, their
// memory, their launches.
#pragma once

#include <cstdlib>
#include <vector>

#include "common/gpu.h"
#include "gemm/gpu_args.h"
#include "gemm/gpu_block.h"
#include "gemm/gpu_chain_kernel.h"
#include "gemm/gpu_cluster.h"
#include "gemm/gpu_layers.h"
#include "gemm/gpu_pack.h"

namespace mdops {

// The kernels for a call, and their requirements for its arrays.
struct NetKernel {
  enum Kind { cluster, chain, block, wide, medium, small, none } kind;
  int tile_rows, input_parts, output_parts;
};

//                   row warps, column warps, depth warps, row units, column units, steps, stages
template <int Parts>
using WideTile = Tile<Parts, 4, 2, 1, 2, 15, 2, 3>;  // 128 x 240
template <int Parts>
using NarrowTile = Tile<Parts, 4, 2, 1, 2, 12, 2, 3>;  // 128 x 192
template <int Parts>
using MediumTile = Tile<Parts, 4, 2, 1, 2, 5, 2, 3>;  // 128 x 80, for chips with less shared memory
template <int Parts>
using SmallTile = Tile<Parts, 1, 1, 8, 1, 5, 8, 3>;  // 16 x 40, the depth shared by 8 warps

// The most rows of a tile, and per multiprocessor of a chunk in memory.
constexpr int kMostTileRows = 128, kChunkRows = 4 * kMostTileRows;

// Rows in memory at a time: whole rounds of tiles on the multiprocessors.
inline int rows_at_once(const NetKernel& kernel, const GpuLimits& limits) {
  return kChunkRows / kernel.tile_rows * kernel.tile_rows * limits.multiprocessors;
}

template <class T>
bool tile_fits(const GpuLimits& limits) {
  static_assert(kMostTileRows % T::kRows == 0);
  return T::kShared + kLayerBytes<T> <= limits.shared_bytes;
}

template <class T>
NetKernel net_kernel_of(NetKernel::Kind kind, const GpuNetShape& net) {
  return {kind, T::kRows, 0, (net.cols(net.layers - 1) + T::kCols - 1) / T::kCols};
}

// Whether a library includes a kind of chain or block: one that is rebuilt for a model has only those that
// take that model.
template <class Kind>
constexpr bool is_built(const Kind& kind) {
#ifdef MDOPS_MODEL_NEURONS
  constexpr int neurons[] = {MDOPS_MODEL_NEURONS};
  return takes(kind, sizeof(neurons) / sizeof(int), neurons);
#else
  return static_cast<void>(kind), true;
#endif
}

// Calls f<kind>() for the net's chain with `rows` rows a block, if there is one.
template <int Kind = 0, class F>
void with_chain(const GpuNetShape& net, int rows, const F& f) {
  if constexpr (Kind < kChains) {
    constexpr ChainKind own = kChainKinds[Kind];
    if (own.rows != rows || !takes(own, net)) return with_chain<Kind + 1>(net, rows, f);
    if constexpr (is_built(own)) f.template operator()<Kind>();
  }
}

// Calls f<kind>() for the net's block with `rows` rows, if there is one.
template <int Kind = 0, class F>
void with_block(const GpuNetShape& net, int rows, const F& f) {
  if constexpr (Kind < kBlocks) {
    constexpr BlockKind own = kBlockKinds[Kind];
    if (own.rows() != rows || !takes(own, net.layers, net.neurons)) return with_block<Kind + 1>(net, rows, f);
    if constexpr (is_built(own)) f.template operator()<Kind>();
  }
}

// For tests, the rows of a block, even if slower; 0: not set. MDOPS_CHAIN_ROWS: for the chain.
// MDOPS_BLOCK_ROWS: for the block by mma.sync, even if the chain is available; a number that no block has: a
// kernel per product.
inline int named_rows(const char* variable) {
  const char* const wanted = std::getenv(variable);
  return wanted ? std::atoi(wanted) : 0;
}
inline int chain_rows() {
  return named_rows("MDOPS_CHAIN_ROWS");
}
inline int block_rows() {
  return named_rows("MDOPS_BLOCK_ROWS");
}

// The kind of chain that takes the least time for `rows` rows; kChains if the chip lacks the instructions of
// the chain, this library has no code for them, or no kernel takes the net.
inline int choose_chain(const GpuNetShape& net, int64_t rows, const GpuLimits& limits) {
  int best = kChains;
#ifdef MDOPS_HOPPER
  if (limits.capability != 90 || limits.shared_bytes < kChainShared || !residuals_fit_chain(net)) return best;
  const int wanted = chain_rows();
  int64_t least = 0;
  for (int kind = 0; kind < kChains; ++kind) {
    const ChainKind& own = kChainKinds[kind];
    if (!is_built(own) || !takes(own, net) || (wanted && wanted != own.rows)) continue;
    const int64_t time = blocks_for(blocks_for(rows, own.rows), limits.multiprocessors) * own.time;
    if (best == kChains || time < least) best = kind, least = time;
  }
#endif
  return static_cast<void>(net), static_cast<void>(rows), static_cast<void>(limits), best;
}

// The kind of block that takes the least time for `rows` rows; kBlocks if none takes the net, or fits.
inline int choose_block(const GpuNetShape& net, int parts, int64_t rows, const GpuLimits& limits) {
  int best = kBlocks;
  const int wanted = block_rows();
  int64_t least = 0;
  for (int kind = 0; kind < kBlocks; ++kind) {
    const BlockKind& own = kBlockKinds[kind];
    if (!is_built(own) || !takes(own, net.layers, net.neurons) || (wanted && wanted != own.rows())) continue;
    if (BlockMemory(net, own, parts, limits.shared_bytes).slots < kFewestSlots) continue;
    const int64_t time = blocks_for(blocks_for(rows, own.rows()), limits.multiprocessors) * own.time;
    if (best == kBlocks || time < least) best = kind, least = time;
  }
  return best;
}

inline bool has_cluster(const GpuNetShape& net, int parts, const GpuLimits& limits) {
#ifdef MDOPS_HOPPER
  return limits.capability == 90 && ClusterMemory(net, parts).bytes <= limits.shared_bytes;
#else
  return static_cast<void>(net), static_cast<void>(parts), static_cast<void>(limits), false;
#endif
}

// Up to this many rows per multiprocessor, clusters are the fastest kernel.
constexpr int kFewRows = 3;
// Up to this many, a kernel per product is faster than one block of many (240 x 3 on an H100: 176 and 214 us
// with 1,536 rows, 317 and 219 with 3,072).
constexpr int kFewRowsOfBlocks = 14;

// By device: clusters for few rows; then the chain; then, for more than a few rows, the block by mma.sync;
// then the largest tiles that fit its shared memory (the smallest splits its depth among warps).
template <int Parts>
NetKernel choose_net_kernel(const GpuNetShape& net, int64_t rows, const GpuLimits& limits) {
  const int64_t tiles = blocks_for(rows, kMostTileRows);
  const bool named = chain_rows() || block_rows();
  const bool few = rows <= int64_t{kFewRows} * limits.multiprocessors && !named;
  if (!block_rows()) {
    if (few && has_cluster(net, Parts, limits)) return {NetKernel::cluster, kClusterRows, 0, kClusterBlocks};
    if (const int kind = choose_chain(net, rows, limits); kind < kChains && !few)
      return {NetKernel::chain, kChainKinds[kind].rows, Parts, kChainKinds[kind].by_rows() ? 1 : kChainWarps};
  }
  const bool few_for_blocks = rows <= int64_t{kFewRowsOfBlocks} * limits.multiprocessors && !named;
  if (const int kind = choose_block(net, Parts, rows, limits); kind < kBlocks && !few_for_blocks)
    return {NetKernel::block, kBlockKinds[kind].rows(), 0, 1};
  if (4 * tiles > limits.multiprocessors) {
    if (tile_fits<WideTile<Parts>>(limits)) return net_kernel_of<WideTile<Parts>>(NetKernel::wide, net);
    if (tile_fits<MediumTile<Parts>>(limits)) return net_kernel_of<MediumTile<Parts>>(NetKernel::medium, net);
  }
  if (tile_fits<SmallTile<Parts>>(limits)) return net_kernel_of<SmallTile<Parts>>(NetKernel::small, net);
  return {NetKernel::none, 1, 0, 1};
}

// Packs a net from weights (inputs, neurons) of all hidden layers: the first has `inputs` rows, by default
// net.inputs. `layers` end with the output layer.
template <int Parts>
class NetPacker {
 public:
  NetPacker(const Gpu& gpu, const GpuNetShape& net, const std::vector<LayerWeights>& layers, float* packed,
            int inputs = 0)
      : gpu_(gpu), args_{net, GpuNet(net, Parts), {}, inputs ? inputs : net.inputs, {}, 0, {}, packed} {
    for (int n = 0; n <= net.layers; ++n) args_.layers[n] = layers[n];
    for (int n = 0; n < net.layers; ++n) args_.padded[n] = GpuNet::vector_columns(net, n);
  }

  // For calls of any kernel.
  void pack() {
    gpu_.clear(args_.packed, 4 * args_.to.size);
    fragments();
    bool met = false;
    for (int kind = 0; kind < kChains; ++kind) {
      if (args_.to.units[kind] < 0 || is_earlier(kind)) continue;
      if (!met) largest(0), met = true;
      units(kind);
    }
  }

  // For a call of one kernel with only this net: no more than it reads.
  void pack_for(const NetKernel& kernel, const AloneNet& alone) {
    args_.alone = alone;
    if (kernel.kind != NetKernel::chain) return fragments();
    largest(args_.net.layers + 1);
    with_chain(args_.net, kernel.tile_rows, [&]<int Kind>() { units(Kind); });
  }

 private:
  void fragments() {
    int64_t blocks = args_.vectors = args_.net.layers + 1;
    for (int n = 0; n < args_.net.layers; ++n)
      blocks += args_.to.forward[n].tiles + args_.to.backward[n].tiles;
    gpu_.launch(fragments_kernel<Parts>, blocks, kPackThreads, 0, args_);
  }

  void largest(int vectors) {
    args_.vectors = vectors;
    gpu_.launch(largest_kernel, vectors + args_.net.layers * kLargestParts, kPackThreads, 0, args_);
  }

  void units(int kind) const {
    const int64_t count = NetChain{args_.net, Parts, kChainKinds[kind]}.units();
    gpu_.launch(units_kernel<Parts>, count, kPackThreads, 0, args_, kChainKinds[kind], args_.to.units[kind]);
  }

  // Whether an earlier kind has the same units.
  bool is_earlier(int kind) const {
    bool earlier = false;
    for (int other = 0; other < kind; ++other) earlier |= args_.to.units[other] == args_.to.units[kind];
    return earlier;
  }

  const Gpu& gpu_;
  PackArgs args_;
};

// The net's scratch memory for a chunk of rows.
struct NetMemory {
  float2* slopes;  // of the chain
  LayerRows layers[GpuNetShape::kMostLayers];

  void take(Workspace& space, const NetKernel& kernel, const GpuNetShape& net, int64_t rows) {
    if (kernel.kind == NetKernel::cluster) return;
    if (kernel.kind == NetKernel::chain) {
      with_chain(net, kernel.tile_rows, [&]<int Kind>() {
        slopes = space.take<float2>(rows * (net.layers - 1) * (kChainKinds[Kind].cols() / 2));
      });
      return;
    }
    for (int n = 0; n < net.layers; ++n) {
      layers[n] = {};
      if (kernel.kind == NetKernel::block && n == net.layers - 1) continue;  // it goes back as it comes
      layers[n].value = space.take<float>(rows * net.cols(n));
      layers[n].slope = space.take<float>(rows * net.cols(n));
    }
  }
};

// Runs the net for the first `tiles` tiles of its arrays. Its kernels are compiled once for all ops
// (gpu_net.h).
template <int Parts>
void run_net(const Gpu& gpu, const NetArgs& args, const NetMemory& memory, int64_t tiles,
             NetKernel::Kind kind);

}  // namespace mdops
