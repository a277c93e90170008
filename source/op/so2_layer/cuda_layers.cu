#include <algorithm>

#include "so2_layer/gpu_layers.h"
#include "so2_layer/gpu_layers_call.h"

namespace mdops {

namespace gpu_so2 {

// Layers, all but the last of them with gates.
bool takes_layers(const Gpu& gpu, const So2Messages<float>& given) {
#ifdef MDOPS_HOPPER
  const So2Args<float>& first = given.layers[0];
  const int count = static_cast<int>(given.layers.size());
  bool fits = gpu.limits().capability == 90 && first.channels == kOwnChannels &&
              first.degrees == kOwnDegrees && given.shape.columns == kOwnColumns && count >= 2 &&
              count <= kMostLayers &&
              layers_shared(first.parts, given.grad != nullptr) <= gpu.limits().shared_bytes;
  // Arrays read 16 bytes at a time.
  const auto place = [](const float* at) { return reinterpret_cast<uintptr_t>(at); };
  fits = fits && (place(given.x) | place(given.y) | place(given.grad)) % 16 == 0;
  for (int n = 0; fits && n < count; ++n) fits = (given.layers[n].gate != nullptr) == (n + 1 < count);
  return fits;
#else
  return static_cast<void>(gpu), static_cast<void>(given), false;
#endif
}

namespace {

// The memory of a call, in bytes: packed weights, their inverse scales, sums of eights, blocks' own.
struct LayersMemory {
  LayersStream stream;
  int64_t blocks, unscale, sums, own, bytes;

  LayersMemory(const Gpu& gpu, const So2Messages<float>& given)
      : stream(static_cast<int>(given.layers.size()), given.grad != nullptr, given.layers[0].parts),
        blocks(std::min<int64_t>(blocks_for(given.shape.edges, kLayersRows), gpu.limits().multiprocessors)),
        unscale(stream.bytes()),
        sums(unscale + round_up(LayersStream::kMostChunks, 64) * static_cast<int64_t>(sizeof(float))),
        own(sums + GroupSums::bytes(given.shape.edges, summed_by(given).nodes)),
        bytes(own +
              (given.grad ? blocks * LayersArgs::memory_of_block(static_cast<int>(given.layers.size())) : 0) *
                  static_cast<int64_t>(sizeof(float))) {}

  static const EdgesOfNodes& summed_by(const So2Messages<float>& given) {
    return given.grad ? given.of_neighbor : given.of_center;
  }
};

}  // namespace

int64_t memory_of_layers(const Gpu& gpu, const So2Messages<float>& given) {
  return LayersMemory(gpu, given).bytes;
}

void run_layers(const Gpu& gpu, const So2Messages<float>& given, char* memory) {
  const LayersMemory has(gpu, given);
  const int layers = static_cast<int>(given.layers.size()), parts = given.layers[0].parts;
  const int64_t edges = given.shape.edges;
  LayersWeights<float> weights{};
  for (int n = 0; n < layers; ++n)
    weights.weight[n] = given.layers[n].weight, weights.both[n] = given.layers[n].both,
    weights.gate[n] = given.layers[n].gate;
  float* const unscale = reinterpret_cast<float*>(memory + has.unscale);
  gpu.launch(pack_layers_kernel, has.stream.blocks(), kLayersPackThreads, 0, weights, has.stream, memory,
             unscale);
  const EdgesOfNodes& by = LayersMemory::summed_by(given);
  const GroupSums sums(reinterpret_cast<float*>(memory + has.sums), edges);
  const LayersArgs args{edges,
                        layers,
                        given.vectors,
                        given.mixture,
                        given.weight,
                        {given.x, given.of_neighbor.index, given.of_neighbor.nodes},
                        given.grads(),
                        by.order,
                        given.y,
                        given.by_vectors,
                        given.by_mixture,
                        given.by_weight,
                        sums,
                        memory,
                        unscale,
                        reinterpret_cast<float*>(memory + has.own),
                        LayersStages(has.stream)};
  const auto launch = [&](auto kernel) {
    gpu.launch(kernel, has.blocks, kLayersThreads, layers_shared(parts, given.grad != nullptr), args);
  };
  if (given.grad) gpu.launch(clear_edges_kernel, blocks_for(edges, kLayersThreads), kLayersThreads, 0, args);
  if (given.grad)
    parts == 1 ? launch(layers_kernel<1, true>) : launch(layers_kernel<2, true>);
  else
    parts == 1 ? launch(layers_kernel<1, false>) : launch(layers_kernel<2, false>);
  gpu.launch(sum_groups_kernel, blocks_for(by.nodes * (kOwnNode / 4), kLayersThreads), kLayersThreads, 0,
             sums, by.offsets, by.nodes, edges,
             reinterpret_cast<float4*>(given.grad ? given.by_x : given.sums));
}

}  // namespace gpu_so2

}  // namespace mdops
