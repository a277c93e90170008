// Runs the GPU kernel for a net as one block with mma.sync and packed weights on the host.
#include <vector>

#include "fibers.h"
#include "gemm/gpu_block.h"
#include "gemm/gpu_pack.h"

// scripts/emulate_nets.py fills it. The last layer is the output's; rows are whole blocks.
struct NetCall {
  float *weight[17], *bias[17], *timestep[17], *inputs;
  double* output;
  int64_t neurons[16], residual[16], rows, columns, layers, activation, kind, parts, shared_bytes;
  double threshold, scale;
};

namespace {

using namespace mdops;

template <int Parts>
void pack(const Gpu& gpu, const GpuNetShape& net, const GpuNet& to, const NetCall& c, float* packed) {
  PackArgs p{net, to, {}, static_cast<int>(c.columns), {}, static_cast<int>(net.layers) + 1, {}, packed};
  for (int n = 0; n <= net.layers; ++n) p.layers[n] = {c.weight[n], c.bias[n], c.timestep[n]};
  int64_t blocks = p.vectors;
  for (int n = 0; n < net.layers; ++n) {
    p.padded[n] = GpuNet::vector_columns(net, n);
    blocks += to.forward[n].tiles + to.backward[n].tiles;
  }
  gpu.launch(fragments_kernel<Parts>, blocks, kPackThreads, 0, p);
}

template <int Kind, int Parts>
void run(const NetCall& c) {
  const Gpu gpu({1, 80, static_cast<int>(c.shared_bytes)});
  GpuNetShape net{round_up(static_cast<int>(c.columns), GpuNetShape::kInputUnit), static_cast<int>(c.layers)};
  for (int n = 0; n < net.layers; ++n)
    net.neurons[n] = static_cast<int>(c.neurons[n]), net.residual[n] = c.residual[n] != 0;
  net.activation = static_cast<Activation>(c.activation), net.threshold = static_cast<float>(c.threshold);
  const GpuNet to(net, Parts);
  std::vector<float> packed(to.size + 64, 0.0f);
  float* const weights = packed.data() + 64 - reinterpret_cast<uintptr_t>(packed.data()) / 4 % 64;
  pack<Parts>(gpu, net, to, c, weights);
  const int rows = static_cast<int>(c.rows), tile = kBlockKinds[Kind].rows();
  std::vector<int32_t> types(rows / tile, 0);
  std::vector<float> bounds((1 + 2 * net.layers) * rows, 0.0f), inputs(int64_t{rows} * net.inputs, 0.0f);
  for (int r = 0; r < rows; ++r)
    for (int k = 0; k < c.columns; ++k) {
      const float x = c.inputs[r * c.columns + k];
      inputs[int64_t{r} * net.inputs + k] = x, bounds[r] = std::max(bounds[r], std::fabs(x));
    }
  BlockArgs a{
      {types.data(), weights, to.size, &c.scale, net, tile, rows, inputs.data(), bounds.data(), c.output},
      to,
      {},
      BlockMemory(net, kBlockKinds[Kind], Parts, static_cast<int>(c.shared_bytes))};
  if (a.memory.slots < kFewestSlots) stop("a block that does not fit");
  std::vector<std::vector<float>> layers(2 * net.layers);
  for (int n = 0; n < net.layers - 1; ++n) {
    for (int k = 0; k < 2; ++k) layers[2 * n + k].assign(rows * net.cols(n), NAN);
    a.layers[n] = {layers[2 * n].data(), layers[2 * n + 1].data()};
  }
  gpu.launch(block_kernel<Kind, Parts>, rows / tile, kBlockThreads, a.memory.bytes, a);
  for (int r = 0; r < rows; ++r)
    for (int k = 0; k < c.columns; ++k) c.inputs[r * c.columns + k] = inputs[int64_t{r} * net.inputs + k];
}

template <int Kind = 0>
void run_kind(const NetCall& c) {
  if constexpr (Kind < kBlocks) {
    if (c.kind != Kind) return run_kind<Kind + 1>(c);
    c.parts == 1 ? run<Kind, 1>(c) : run<Kind, 2>(c);
  }
}

}  // namespace

extern "C" void run_net(const NetCall* call) {
  run_kind(*call);
}
