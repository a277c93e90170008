#include "common/cuda.h"
#include "spline_potential/gpu_chain.h"
#include "spline_potential/gpu_forces.h"
#include "spline_potential/gpu_net.h"
#include "spline_potential/gpu_pack.h"
#include "spline_potential/inputs.h"

namespace mdops {

namespace {

// Atoms whose T, D and layers are in memory at a time: four rounds of a block of the chain on each of the 132
// multiprocessors of an H100.
constexpr int kChunkRows = 4 * 132 * 128;
constexpr int64_t kFewAtoms = 4096;     // up to which tiles are small, so that all multiprocessors get some
constexpr int64_t kFewForChain = 1536;  // up to which the tiles of the chain are too few, in the same way

//                   row warps, column warps, depth warps, row units, column units, steps, stages
template <int Parts>
using WideTile = Tile<Parts, 4, 2, 1, 2, 15, 2, 3>;  // 128 x 240
template <int Parts>
using NarrowTile = Tile<Parts, 4, 2, 1, 2, 12, 2, 3>;  // 128 x 192
template <int Parts>
using SmallTile = Tile<Parts, 1, 1, 8, 1, 5, 8, 3>;  // 16 x 40, the depth shared by 8 warps

// f<parts>(): with how many float16 parts a number stands in the fitting net's products.
template <class F>
auto with_parts(bool tf32, const F& f) {
  return tf32 ? f.template operator()<1>() : f.template operator()<2>();
}

// Hands out pieces of one allocation, each on 256 bytes; without one it only counts.
struct Pieces {
  char* base = nullptr;
  int64_t used = 0;

  template <class T>
  T* take(int64_t count) {
    T* piece = reinterpret_cast<T*>(base + used);
    used += (count * static_cast<int64_t>(sizeof(T)) + 255) / 256 * 256;
    return piece;
  }
};

// The arrays of one layer of the chunk: values and slopes, then their gradients.
struct LayerRows {
  float *value, *slope;
};

// The tensor, or a copy of it if its memory does not begin on 16 bytes, which the kernels read at once.
Tensor aligned(const Tensor& tensor) {
  return reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 16 ? torch::stable::clone(tensor) : tensor;
}

class GpuCall : public CudaOp {
 public:
  explicit GpuCall(const Tensor& positions) : CudaOp("spline_potential", "positions", positions) {}

  PotentialOutputs run(PotentialInputs in) const {
    if (in.dtype != ScalarType::Float)
      fail(*this, "on a GPU this op computes in float32: compose float64 models of the single ops");
    if (in.ntypes > 256) fail(*this, "more than 256 types");
    const GpuNet packed(in.net, in.tf32 ? 1 : 2);
    check_packed(*this, in.nets, packed.size);
    in.nets = aligned(in.nets), in.tables = aligned(in.tables);
    Tensor energy = empty(*this, {in.atoms}, ScalarType::Double);
    Tensor forces = empty(*this, {in.atoms, 3}, ScalarType::Double);
    Tensor virial = empty(*this, {in.systems, 3, 3}, ScalarType::Double);
    Tensor within = empty(*this, {in.atoms, in.ntypes}, ScalarType::Int);
    Tensor nearest = empty(*this, {in.atoms}, in.dtype);
    StepArgs p = arguments(in, packed);
    p.energy = energy.mutable_data_ptr<double>(), p.forces = forces.mutable_data_ptr<double>();
    p.virial = virial.mutable_data_ptr<double>(), p.within = within.mutable_data_ptr<int32_t>();
    p.nearest = nearest.mutable_data_ptr<float>();
    with_parts(in.tf32, [&]<int Parts>() {
      if (p.atoms > kFewForChain && runs_chain(p.net))
        step(p, packed, ChainOfLayers<Parts>());
      else if (p.atoms <= kFewAtoms)
        step(p, packed, Layers<SmallTile<Parts>, SmallTile<Parts>>());
      else
        step(p, packed, Layers<WideTile<Parts>, NarrowTile<Parts>>());
    });
    return {energy, forces, virial, within, nearest};
  }

 private:
  static StepArgs arguments(const PotentialInputs& in, const GpuNet& packed) {
    StepArgs p{};
    p.positions = in.positions.const_data_ptr<double>();
    p.cell = in.cell.const_data_ptr<double>();
    p.batch = in.batch.const_data_ptr<int32_t>();
    p.types = in.types.const_data_ptr<int32_t>();
    p.neighbors = in.neighbors.const_data_ptr<int32_t>();
    p.images = in.images.const_data_ptr<int32_t>();
    p.counts = in.counts.const_data_ptr<int32_t>();
    p.mean = in.mean.const_data_ptr<float>();
    p.std = in.std.const_data_ptr<float>();
    p.pair_mask = in.pair_mask.const_data_ptr<bool>();
    p.zeroed = in.zeroed.const_data_ptr<bool>();
    p.sel = in.sel.const_data_ptr<int32_t>();
    p.tables = in.tables.const_data_ptr<float>();
    p.nets = in.nets.const_data_ptr<float>();
    p.extra = in.extra.const_data_ptr<float>();
    p.scale = in.scale.const_data_ptr<double>();
    p.shift = in.shift.const_data_ptr<double>();
    p.atoms = static_cast<int>(in.atoms), p.systems = static_cast<int>(in.systems);
    p.list_width = static_cast<int>(in.neighbors.size(1)), p.ntypes = static_cast<int>(in.ntypes);
    p.table_width = static_cast<int>(in.tables.size(2)), p.extra_size = in.net.extra;
    p.layers = in.net.layers, p.net_size = packed.size, p.out_bias = packed.out_bias;
    p.cutoff = in.cutoff_as<float>(), p.grid = in.grid_as<float>();
    p.net = in.net;
    p.feature_stride = GpuNet::depth(in.net, 0);
    return p;
  }

  // Threads of a block in which a warp works on an atom with so much shared memory.
  int atom_threads(int bytes_a_warp) const {
    int threads = kAtomThreads;
    while (threads > kWarp && threads / kWarp * bytes_a_warp > 64 * 1024) threads /= 2;
    return threads;
  }

  template <class... Parameters, class... Args>
  void launch_shared(void (*kernel)(Parameters...), int64_t blocks, int threads, int bytes,
                     Args... args) const {
    if (bytes > 48 * 1024 &&
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) != cudaSuccess) {
      cudaGetLastError();
      fail(*this, "this model needs " + std::to_string(bytes) +
                      " bytes of a GPU's shared memory, more than "
                      "this one has: evaluate it without the fused step");
    }
    launch(kernel, blocks, threads, bytes, args...);
  }

  // Whether this GPU has Hopper's tensor cores, this library code for them, and the kernel takes the net.
  bool runs_chain(const FittingShape& net) const {
#ifdef MDOPS_HOPPER
    int major = 0, minor = 0;
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, gpu));
    check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, gpu));
    const Chain chain{net, 2};
    return major == 9 && minor == 0 && net.activation == Activation::tanh && chain.fits() &&
           chain.fits_residuals();
#else
    return static_cast<void>(net), false;
#endif
  }

  template <class Net>
  void step(StepArgs p, const GpuNet& packed, Net net) const {
    constexpr int rows = Net::kRows;
    static_assert(kChunkRows % rows == 0);
    p.tile_rows = rows;
    p.rows = static_cast<int>((blocks_for(p.atoms, rows) + p.ntypes - 1) * rows);
    if (p.atoms == 0) p.rows = 0;
    p.chunk_rows = p.rows < kChunkRows ? p.rows : kChunkRows;
    p.energy_parts = Net::energy_parts(p.net);

    Pieces pieces;
    divide(pieces, p), net.divide(pieces, p);
    const Tensor memory = empty(*this, {pieces.used}, ScalarType::Byte);
    pieces = {static_cast<char*>(const_cast<void*>(memory.data_ptr())), 0};
    divide(pieces, p), net.divide(pieces, p);

    const int64_t blocks = blocks_for(p.atoms > 0 ? p.atoms : 1, kOrderBlock);
    launch_shared(begin_kernel, blocks, kOrderBlock, 4 * p.ntypes, p);
    launch_shared(order_kernel, p.atoms ? blocks : 0, kOrderBlock,
                  4 * ((2 + kOrderBlock / kWarp) * p.ntypes + 1), p);
    for (p.first_row = 0; p.first_row < p.rows; p.first_row += p.chunk_rows) chunk(p, packed, net);
    const int64_t numbers =
        p.atoms > 3 * p.systems ? 3 * static_cast<int64_t>(p.atoms) : 9 * static_cast<int64_t>(p.systems);
    launch(end_kernel, blocks_for(numbers, 256), 256, 0, p);
  }

  static void divide(Pieces& pieces, StepArgs& p) {
    const int64_t n = p.atoms, chunk = p.chunk_rows;
    p.places = pieces.take<Place>(n);
    p.force_sums = pieces.take<int64_t>(4 * n);
    p.virial_sums = pieces.take<int64_t>(9 * static_cast<int64_t>(p.systems));
    p.type_counts = pieces.take<int32_t>(blocks_for(n + 1, kOrderBlock) * p.ntypes);
    p.row_atom = pieces.take<int32_t>(p.rows);
    p.tile_type = pieces.take<int32_t>(p.rows / p.tile_rows);
    p.failed = pieces.take<int32_t>(1);
    p.pairs = pieces.take<float4>(chunk * p.list_width);
    p.touched = pieces.take<uint32_t>(chunk * p.words());
    p.t = pieces.take<float>(chunk * 4 * p.table_width);
    p.features = pieces.take<float>(chunk * p.feature_stride);
    p.largest = pieces.take<float>(chunk * (1 + 2 * p.layers));
    p.energy_part = pieces.take<double>(chunk * p.energy_parts);
  }

  // Rows of the chunk: the last one may have fewer.
  static int rows_left(const StepArgs& p) {
    return p.rows - p.first_row < p.chunk_rows ? p.rows - p.first_row : p.chunk_rows;
  }

  template <class Net>
  void chunk(const StepArgs& p, const GpuNet& packed, const Net& net) const {
    const int moment_bytes = AtomMemory::bytes(p), force_bytes = ForceMemory::bytes(p);
    const int64_t rows = rows_left(p);
    int threads = atom_threads(moment_bytes);
    launch_shared(moments_kernel<Net::feature_parts()>, blocks_for(rows, threads / kWarp), threads,
                  threads / kWarp * moment_bytes, p);
    net.run(*this, p, packed);
    threads = atom_threads(force_bytes);
    launch_shared(forces_kernel, blocks_for(rows, threads / kWarp), threads, threads / kWarp * force_bytes,
                  p);
  }

  // The fitting net as one kernel.
  template <int Parts>
  struct ChainOfLayers {
    static constexpr int kRows = kChainRows;
    static constexpr int feature_parts() { return Parts; }
    float2* slopes;

    static int energy_parts(const FittingShape&) { return 1; }
    void divide(Pieces& pieces, const StepArgs& p) {
      slopes = pieces.take<float2>(int64_t{p.chunk_rows} * (p.layers - 1) * (kChainCols / 2));
    }
    void run(const GpuCall& call, const StepArgs& p, const GpuNet& packed) const {
      ChainArgs a{};
      a.tile_type = p.tile_type + p.first_row / p.tile_rows;
      a.nets = p.nets, a.net_size = p.net_size, a.units = packed.units, a.unit_scales = packed.unit_scales;
      for (int n = 0; n < p.layers; ++n) a.bias[n] = packed.bias[n], a.timestep[n] = packed.timestep[n];
      a.out_weight = packed.out_weight, a.net = p.net, a.scale = p.scale;
      a.features = p.features, a.bound = p.largest, a.slopes = slopes, a.energy = p.energy_part;
      call.launch_shared(chain_kernel<Activation::tanh, Parts>, rows_left(p) / kRows, kChainThreads,
                         ChainMemory::kBytes, a);
    }
  };

  // The fitting net as a kernel a product.
  template <class T, class Narrow>
  struct Layers {
    static constexpr int kRows = T::kRows;
    static constexpr int feature_parts() { return 0; }
    static_assert(kRows == Narrow::kRows);
    LayerRows rows[kMaxLayers];

    static int energy_parts(const FittingShape& net) {
      return (GpuNet::cols(net, net.layers - 1) + T::kCols - 1) / T::kCols;
    }
    void divide(Pieces& pieces, const StepArgs& p) {
      for (int k = 0; k < p.layers; ++k) {
        rows[k].value = pieces.take<float>(int64_t{p.chunk_rows} * GpuNet::cols(p.net, k));
        rows[k].slope = pieces.take<float>(int64_t{p.chunk_rows} * GpuNet::cols(p.net, k));
      }
    }
    void run(const GpuCall& call, const StepArgs& p, const GpuNet& packed) const {
      const int last = p.layers - 1;
      for (int n = 0; n < last; ++n) call.template forward<T, Narrow, LayerStep::forward>(p, packed, rows, n);
      call.template forward<T, Narrow, LayerStep::last>(p, packed, rows, last);
      for (int n = last; n > 0; --n) call.template backward<T, Narrow>(p, packed, rows, n);
      call.template feature_gradient<T, Narrow>(p, packed, rows);
    }
  };

  LayerArgs layer_args(const StepArgs& p, const GpuNet& packed) const {
    LayerArgs a{};
    a.tile_type = p.tile_type + p.first_row / p.tile_rows;
    a.nets = p.nets, a.net_size = p.net_size, a.scale = p.scale, a.energy = p.energy_part;
    a.out_weight = packed.out_weight;
    a.activation = p.net.activation, a.threshold = static_cast<float>(p.net.threshold);
    return a;
  }

  // Row 0 of `largest` bounds D; then come the layers' values, then the gradients.
  static float* value_bound(const StepArgs& p, int n) { return p.largest + (1 + n) * int64_t{p.chunk_rows}; }
  static float* grad_bound(const StepArgs& p, int n) { return value_bound(p, p.layers + n); }

  static void write_to(LayerArgs& a, const StepArgs& p, const LayerRows* layers, int n) {
    a.value = layers[n].value, a.slope = layers[n].slope;
    a.stride = a.cols = GpuNet::cols(p.net, n), a.neurons = p.net.neurons[n];
  }

  template <class T, class Narrow, LayerStep Step>
  void forward(const StepArgs& p, const GpuNet& packed, const LayerRows* layers, int n) const {
    LayerArgs a = layer_args(p, packed);
    a.matrix = packed.forward[n];
    a.in = n ? layers[n - 1].value : p.features;
    a.in_stride = GpuNet::depth(p.net, n);
    a.in_largest = n ? value_bound(p, n - 1) : p.largest;
    write_to(a, p, layers, n);
    a.largest = Step == LayerStep::last ? grad_bound(p, n) : value_bound(p, n);
    a.bias = packed.bias[n], a.timestep = packed.timestep[n];
    if (n && p.net.residual[n]) {
      a.residual = layers[n - 1].value;
      a.residual_stride = GpuNet::cols(p.net, n - 1), a.residual_cols = p.net.neurons[n - 1];
    }
    launch_layer<T, Narrow, Step>(p, a);
  }

  // From the gradient before the activation of layer n to that of layer n - 1.
  template <class T, class Narrow>
  void backward(const StepArgs& p, const GpuNet& packed, const LayerRows* layers, int n) const {
    LayerArgs a = layer_args(p, packed);
    a.matrix = packed.backward[n];
    a.in = layers[n].slope, a.in_stride = GpuNet::cols(p.net, n), a.in_largest = grad_bound(p, n);
    write_to(a, p, layers, n - 1);
    a.largest = grad_bound(p, n - 1);
    a.keep_gradient = n > 1 && p.net.residual[n - 1];
    if (p.net.residual[n]) {
      a.residual_is_out_weight = n == p.layers - 1;
      if (!a.residual_is_out_weight) a.residual = layers[n].value;
      a.residual_stride = GpuNet::cols(p.net, n), a.residual_cols = p.net.neurons[n];
    }
    launch_layer<T, Narrow, LayerStep::backward>(p, a);
  }

  template <class T, class Narrow>
  void feature_gradient(const StepArgs& p, const GpuNet& packed, const LayerRows* layers) const {
    LayerArgs a = layer_args(p, packed);
    a.matrix = packed.backward[0];
    a.in = layers[0].slope, a.in_stride = GpuNet::cols(p.net, 0), a.in_largest = grad_bound(p, 0);
    a.value = p.features;
    a.stride = a.cols = a.neurons = p.feature_stride;
    launch_layer<T, Narrow, LayerStep::features>(p, a);
  }

  // By the tile that leaves fewer columns idle.
  template <class T, class Narrow, LayerStep Step>
  void launch_layer(const StepArgs& p, const LayerArgs& a) const {
    const int64_t wide = blocks_for(a.cols, T::kCols), narrow = blocks_for(a.cols, Narrow::kCols);
    const int64_t tiles = rows_left(p) / p.tile_rows;
    // The parts of the energy are one for each of the wide tiles.
    if (Step == LayerStep::last || wide * T::kCols <= narrow * Narrow::kCols)
      launch_shared(layer_kernel<T, Step>, tiles * wide, T::kThreads, T::kShared, a);
    else
      launch_shared(layer_kernel<Narrow, Step>, tiles * narrow, Narrow::kThreads, Narrow::kShared, a);
  }
};

// The units of the chain.
template <int Parts>
void pack_chain(const CudaOp& op, const FittingShape& net, const std::vector<DenseLayer<float>>& layers,
                const GpuNet& to, float* out) {
  const Chain chain{net, Parts};
  char* units = reinterpret_cast<char*>(out + to.units);
  for (int m = 0; m < chain.products(); ++m) {
    const int n = chain.layer(m), depth = chain.depth(m), columns = chain.columns(m);
    const LayerMatrix matrix{layers[n].weight, net, n, chain.is_backward(m)};
    float* const scale = out + to.unit_scales + m;
    op.launch(unit_scale_kernel, 1, 1024, 0, matrix, depth, columns, scale);
    op.launch(units_kernel<Parts>, chain.units(m), 256, 0, matrix, depth, columns, chain.width(m), scale,
              units);
    units += static_cast<int64_t>(chain.units(m)) * kUnitBytes;
  }
}

template <int Parts>
Tensor pack_net(const CudaOp& op, const NetInputs& in) {
  const GpuNet to(in.net, Parts);
  Tensor packed = empty(op, {to.size}, ScalarType::Float);
  float* out = packed.mutable_data_ptr<float>();
  if (cudaMemsetAsync(out, 0, 4 * to.size, op.stream()) != cudaSuccess)
    fail(op, "the net could not be cleared");
  const std::vector<DenseLayer<float>> layers = in.layers<float>();
  if (Chain{in.net, Parts}.fits()) pack_chain<Parts>(op, in.net, layers, to, out);
  const auto copy = [&](const float* from, int64_t at, int count) {
    if (cudaMemcpyAsync(out + at, from, 4 * count, cudaMemcpyDeviceToDevice, op.stream()) != cudaSuccess)
      fail(op, "the biases could not be copied");
  };
  for (int n = 0; n < in.net.layers; ++n) {
    for (const bool backward : {false, true}) {
      const LayerMatrix matrix{layers[n].weight, in.net, n, backward};
      const PackedMatrix& place = backward ? to.backward[n] : to.forward[n];
      op.launch(column_scales_kernel, place.tiles * kTileCols, kWarp, 0, matrix, place, out);
      op.launch(fragments_kernel<Parts>, static_cast<int64_t>(place.steps) * place.tiles, kWarp, 0, matrix,
                place, out);
    }
    copy(layers[n].bias, to.bias[n], in.net.neurons[n]);
    copy(layers[n].timestep, to.timestep[n], in.net.neurons[n]);
  }
  copy(layers[in.net.layers].weight, to.out_weight, in.net.neurons[in.net.layers - 1]);
  copy(layers[in.net.layers].bias, to.out_bias, 1);
  return packed;
}

Tensor spline_potential_pack(std::vector<Tensor> weights, std::vector<Tensor> biases,
                             std::vector<Tensor> timesteps, int64_t width, int64_t axis, bool tf32) {
  constexpr const char* name = "spline_potential_pack";
  if (weights.empty())
    fail(name, "expected weights, biases and timesteps of two layers or more, as many of each");
  const CudaOp op(name, "weights", weights[0]);
  const NetInputs in(op, std::move(weights), std::move(biases), std::move(timesteps), width, axis);
  if (in.weights[0].scalar_type() != ScalarType::Float) fail(op, "on a GPU nets are packed in float32");
  return with_parts(tf32, [&]<int Parts>() { return pack_net<Parts>(op, in); });
}

}  // namespace

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  m.impl("spline_potential_pack", TORCH_BOX(&mdops::spline_potential_pack));
  m.impl("spline_potential", TORCH_BOX(&mdops::spline_potential<mdops::GpuCall>));
}
