#include <algorithm>

#include "so2_layer/gpu_layers.h"
#include "so2_layer/gpu_layers_call.h"

namespace mdops {

namespace gpu_so2 {

// Layers of which all but the last have gates.
bool takes_layers(const Gpu& gpu, const So2Layers<float>& given) {
#ifdef MDOPS_HOPPER
  const So2Args<float>& first = given.layers[0];
  const int count = static_cast<int>(given.layers.size());
  bool fits = gpu.limits().capability == 90 && first.channels == kOwnChannels &&
              first.degrees == kOwnDegrees && count >= 2 && count <= kMostLayers &&
              layers_shared(first.parts) <= gpu.limits().shared_bytes;
  const RotateArgs<float>& rows = given.rows;
  fits = fits && rows.shape.columns == kOwnColumns &&
         (reinterpret_cast<uintptr_t>(rows.turn) | reinterpret_cast<uintptr_t>(rows.x.x)) % 16 == 0;
  for (int n = 0; fits && n < count; ++n) fits = (given.layers[n].gate != nullptr) == (n + 1 < count);
  return fits;
#else
  return static_cast<void>(gpu), static_cast<void>(given), false;
#endif
}

namespace {

// The memory that a call needs, in bytes: packed weights, what undoes their scales, blocks' own.
struct LayersMemory {
  LayersStream stream;
  int64_t blocks, unscale, own, bytes;

  LayersMemory(const Gpu& gpu, const So2Layers<float>& given)
      : stream(static_cast<int>(given.layers.size()), given.grad != nullptr, given.layers[0].parts),
        blocks(
            std::min<int64_t>(blocks_for(given.layers[0].edges, kLayersRows), gpu.limits().multiprocessors)),
        unscale(stream.bytes()),
        own(unscale + round_up(LayersStream::kMostChunks, 64) * static_cast<int64_t>(sizeof(float))),
        bytes(own +
              (given.grad ? blocks * LayersArgs::memory_of_block(static_cast<int>(given.layers.size())) : 0) *
                  static_cast<int64_t>(sizeof(float))) {}
};

}  // namespace

int64_t memory_of_layers(const Gpu& gpu, const So2Layers<float>& given) {
  return LayersMemory(gpu, given).bytes;
}

void run_layers(const Gpu& gpu, const So2Layers<float>& given, char* memory) {
  const LayersMemory has(gpu, given);
  const int layers = static_cast<int>(given.layers.size()), parts = given.layers[0].parts;
  LayersWeights<float> weights{};
  for (int n = 0; n < layers; ++n)
    weights.weight[n] = given.layers[n].weight, weights.both[n] = given.layers[n].both,
    weights.gate[n] = given.layers[n].gate;
  float* const unscale = reinterpret_cast<float*>(memory + has.unscale);
  gpu.launch(pack_layers_kernel, blocks_for(has.stream.columns(), kLayersPackWarps), kLayersPackThreads, 0,
             weights, has.stream, memory, unscale);
  const LayersArgs args{given.layers[0].edges,
                        layers,
                        given.rows,
                        given.grad,
                        given.y,
                        memory,
                        unscale,
                        reinterpret_cast<float*>(memory + has.own),
                        LayersStages(has.stream)};
  const auto launch = [&](auto kernel) {
    gpu.launch(kernel, has.blocks, kLayersThreads, layers_shared(parts), args);
  };
  if (given.grad)
    parts == 1 ? launch(layers_kernel<1, true>) : launch(layers_kernel<2, true>);
  else
    parts == 1 ? launch(layers_kernel<1, false>) : launch(layers_kernel<2, false>);
}

}  // namespace gpu_so2

}  // namespace mdops
