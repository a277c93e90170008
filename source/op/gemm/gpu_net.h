// The kernels of a net behind one function: for the sources of a library that compile them. The two kinds
// that take longest to compile have sources of their own.
#pragma once

#include "gemm/gpu_run.h"

namespace mdops {

// The net for the first `tiles` tiles of its arrays.
template <int Parts>
class NetCall {
 public:
  NetCall(const Gpu& gpu, const NetArgs& args, const NetMemory& memory, int64_t tiles)
      : gpu_(gpu), p_(args), packed_(args.net, Parts), memory_(memory), tiles_(tiles) {}

  void run(NetKernel::Kind kind) const {
    switch (kind) {
      case NetKernel::cluster:
        return clusters();
      case NetKernel::chain:
        return chain();
      case NetKernel::block:
        return blocks();
      case NetKernel::wide:
        return layers<WideTile<Parts>, NarrowTile<Parts>>();
      case NetKernel::medium:
        return layers<MediumTile<Parts>, MediumTile<Parts>>();
      case NetKernel::small:
        return layers<SmallTile<Parts>, SmallTile<Parts>>();
      case NetKernel::none:
        gpu_.refuse("a GPU without the shared memory for any of its tiles");
    }
  }

 private:
  // Launches one kernel of clusters.
  void clusters() const {
    const ClusterArgs a{p_, packed_, ClusterMemory(p_.net, Parts)};
    gpu_.launch_clusters(cluster_kernel<Parts>, kClusterBlocks * tiles_, kClusterBlocks, kClusterThreads,
                         a.memory.bytes, true, a);
  }

  void chain() const;
  void blocks() const;

  // Launches a kernel per product.
  template <class T, class Narrow>
  void layers() const {
    const NetSteps steps{p_, packed_, memory_.layers, false};
    const int last = steps.last();
    for (int n = 0; n < last; ++n) launch<T, Narrow, LayerStep::forward>(steps.forward(n));
    launch<T, Narrow, LayerStep::last>(steps.forward(last));
    for (int n = last; n > 0; --n) launch<T, Narrow, LayerStep::backward>(steps.backward(n));
    launch<T, Narrow, LayerStep::input>(steps.input_gradient());
  }

  // Chooses the tile that leaves fewer columns idle.
  template <class T, class Narrow, LayerStep Step>
  void launch(const LayerArgs& a) const {
    const int64_t wide = blocks_for(a.cols, T::kCols), narrow = blocks_for(a.cols, Narrow::kCols);
    // The output has a part for each of the wide tiles.
    if (Step == LayerStep::last || wide * T::kCols <= narrow * Narrow::kCols)
      gpu_.launch_early(layer_kernel<T, Step>, tiles_ * wide, T::kThreads, T::kShared, a);
    else
      gpu_.launch_early(layer_kernel<Narrow, Step>, tiles_ * narrow, Narrow::kThreads, Narrow::kShared, a);
  }

  const Gpu& gpu_;
  const NetArgs& p_;
  const GpuNet packed_;
  const NetMemory& memory_;
  const int64_t tiles_;
};

// Launches one chain kernel.
template <int Parts>
void NetCall<Parts>::chain() const {
  ChainArgs a{};
  a.tile_type = p_.tile_type, a.nets = p_.nets, a.net_size = p_.net_size;
  a.unit_scales = packed_.unit_scales, a.out_weight = packed_.out_weight;
  for (int n = 0; n < p_.net.layers; ++n) a.bias[n] = packed_.bias[n], a.timestep[n] = packed_.timestep[n];
  a.net = p_.net, a.scale = p_.scale, a.inputs = p_.inputs, a.bound = p_.bounds;
  a.slopes = memory_.slopes, a.output = p_.output;
  with_activation(p_.net.activation, [&]<Activation kind>() {
    with_chain(p_.net, p_.tile_rows, [&]<int Kind>() {
      // A kernel with all functions is as fast, and compiles once for all; the usual function has its own.
      constexpr bool usual = kChainKinds[Kind].units == 2 && kind == Activation::tanh;
      constexpr int fixed = usual ? static_cast<int>(kind) : kAnyActivation;
      a.units = packed_.units[Kind];
      gpu_.launch(chain_kernel<Kind, fixed, Parts>, tiles_, kChainThreads, ChainMemory<Kind>::kBytes, a);
    });
  });
}

// Launches one kernel by mma.sync.
template <int Parts>
void NetCall<Parts>::blocks() const {
  with_block(p_.net, p_.tile_rows, [&]<int Kind>() {
    BlockArgs a{p_, packed_, {}, BlockMemory(p_.net, kBlockKinds[Kind], Parts, gpu_.limits().shared_bytes)};
    std::copy(memory_.layers, memory_.layers + p_.net.layers, a.layers);
    gpu_.launch_early(block_kernel<Kind, Parts>, tiles_, kBlockThreads, a.memory.bytes, a);
  });
}

template <int Parts>
void run_net(const Gpu& gpu, const NetArgs& args, const NetMemory& memory, int64_t tiles,
             NetKernel::Kind kind) {
  NetCall<Parts>(gpu, args, memory, tiles).run(kind);
}

}  // namespace mdops
