#include "type_nets/gpu_loops.h"

#include <algorithm>
#include <type_traits>

#include "gemm/gpu_mlp.h"
#include "gemm_fp64/gpu_loops.h"
#include "moment_product/gpu_loops.h"
#include "spline_potential/gpu_run.h"

namespace mdops {

namespace {

constexpr int kRowThreads = 256;

// The kernels that order a step's atoms (spline_potential/gpu_step.h).
StepArgs order_args(const Gpu& gpu, int64_t atoms, int ntypes) {
  StepArgs p{};
  p.atoms = gpu.int32_of("atoms", atoms), p.ntypes = ntypes, p.nets = ntypes, p.systems = 1;
  p.tile_rows = kTypeTile;
  p.rows = atoms ? gpu.int32_of("atoms", (blocks_for(atoms, kTypeTile) + ntypes - 1) * kTypeTile) : 0;
  return p;
}

void divide(Workspace& space, StepArgs& p) {
  take_call(space, p);
  p.energy = space.take<double>(p.atoms), p.nearest = space.take<float>(p.atoms);
  p.within = space.take<int32_t>(static_cast<int64_t>(p.atoms) * p.ntypes);
}

// The net of each row.
__global__ void __launch_bounds__(kRowThreads)
    nets_kernel(const int32_t* tile_type, int nets, int64_t count, int32_t* index, int32_t* net) {
  const int64_t k = static_cast<int64_t>(blockIdx.x) * kRowThreads + threadIdx.x;
  if (k >= count) return;
  const int type = tile_type[k / kTypeTile];
  index[k] = static_cast<int32_t>(k), net[k] = nets == 1 && type > 0 ? 0 : type;
}

// A warp a row: the output layer, and the gradient by its input.
template <class T>
__global__ void __launch_bounds__(kRowThreads)
    output_kernel(TypeRows rows, TypeNetLayer<T> layer, int neurons, int nets, const double* scale,
                  const double* shift, const double* weight, const T* y, double* energy, T* grad) {
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * kRowThreads + threadIdx.x) / kWarp;
  if (row >= rows.rows) return;
  const int i = rows.row_atom[row], type = max(0, rows.tile_type[row / kTypeTile]),
            net = nets == 1 ? 0 : type;
  const T *own = y + row * neurons, *w = layer.weight + static_cast<int64_t>(net) * neurons;
  const T factor = i < 0 ? T(0) : static_cast<T>(scale[net] * (weight ? weight[i] : 1.0));
  double sum = 0;
  for (int c = lane_index(); c < neurons; c += kWarp) {
    sum += static_cast<double>(own[c]) * static_cast<double>(w[c]);
    grad[row * neurons + c] = factor * w[c];
  }
  sum = warp_sum(sum);
  if (lane_index() == 0 && i >= 0)
    energy[i] = scale[net] * (sum + static_cast<double>(layer.bias[net])) + shift[type];
}

template <class T>
class Call {
 public:
  Call(const Gpu& gpu, const TypeNets<T>& nets, const TypeRows& rows, Workspace& space)
      : gpu_(gpu), nets_(nets), rows_(rows) {
    const NetShape& shape = nets.shape;
    if (!kByCores) index_ = space.take<int32_t>(rows.rows), net_ = space.take<int32_t>(rows.rows);
    int widest = 0;
    for (int n = 0; n < shape.layers; ++n) {
      y_[n] = space.take<T>(rows.rows * shape.neurons[n]),
      slope_[n] = space.take<T>(rows.rows * shape.neurons[n]);
      widest = std::max(widest, shape.neurons[n]);
    }
    for (T*& buffer : buffers_) buffer = space.take<T>(rows.rows * widest);
  }

  void run(const T* x, const double* weight, double* energy, T* grad) const {
    const NetShape& shape = nets_.shape;
    if (!kByCores)
      gpu_.launch_for(rows_.rows, kRowThreads, nets_kernel, rows_.tile_type, nets_.nets, rows_.rows, index_,
                      net_);
    for (int n = 0; n < shape.layers; ++n) {
      const T* const in = n ? y_[n - 1] : x;
      product(n, in, y_[n], false);
      const MlpValues<T> v{y_[n], slope_[n], nullptr, nullptr, nullptr, in};
      with_activation(shape.activation[n], [&]<Activation kind>() {
        launch(mlp_value_kernel<T, kind>, rows_.rows * shape.neurons[n], layer(n), v);
      });
    }
    const int last = shape.layers - 1;
    T *by_y = buffers_[0], *delta = buffers_[1];
    gpu_.launch_for(rows_.rows * kWarp, kRowThreads, output_kernel<T>, rows_, nets_.layers[last + 1],
                    shape.neurons[last], nets_.nets, nets_.scale, nets_.shift, weight, y_[last], energy,
                    by_y);
    for (int n = last; n >= 0; --n) {
      const MlpDeltas<T> v{by_y,    nullptr, slope_[n], nullptr, nullptr,
                           nullptr, nullptr, delta,     nullptr, nullptr};
      launch(mlp_delta_kernel<T>, rows_.rows * shape.neurons[n], layer(n), v);
      // The values of layer n - 1 are no longer needed.
      T* const to = n ? y_[n - 1] : grad;
      product(n, delta, to, true);
      const int64_t numbers = rows_.rows * inputs(n);
      if (shape.residual[n]) launch(mlp_around_kernel<T>, numbers, layer(n), numbers, by_y, to);
      by_y = to;
    }
  }

 private:
  static constexpr bool kByCores = std::is_same_v<T, double>;  // by tensor cores

  int inputs(int n) const { return n ? nets_.shape.neurons[n - 1] : nets_.inputs; }

  template <class... Parameters, class... Args>
  void launch(void (*kernel)(Parameters...), int64_t numbers, const Args&... args) const {
    gpu_.launch_for(numbers, kMlpThreads, kernel, args...);
  }

  MlpLayerArgs<T> layer(int n) const {
    const NetShape& shape = nets_.shape;
    MlpLayerArgs<T> p{};
    p.numbers = rows_.rows * shape.neurons[n], p.columns = shape.neurons[n], p.inputs = inputs(n);
    p.adds_input = shape.residual[n], p.activation = shape.activation[n];
    p.threshold = static_cast<T>(shape.threshold[n]), p.bias = nets_.layers[n].bias;
    p.timestep = nets_.layers[n].timestep;
    if (nets_.nets > 1) p.tile_net = rows_.tile_type, p.tile_rows = kTypeTile;
    return p;
  }

  void product(int n, const T* in, T* out, bool back) const {
    const TypeNetLayer<T>& of = nets_.layers[n];
    const int from = inputs(n), to = nets_.shape.neurons[n];
    const int depth = back ? to : from, width = back ? from : to;
    if constexpr (kByCores) {
      run_gemm_fp64(
          gpu_, {rows_.rows, depth, width, in, of.weight, out, rows_.tile_type, kTypeTile, nets_.nets}, back);
    } else {
      const T* const table = back ? of.transposed : of.weight;
      run_moment_product(gpu_, MomentProductArgs<T>{rows_.rows, rows_.rows, 1, depth, width, nets_.nets,
                                                    index_, net_, in, table, out});
    }
  }

  const Gpu& gpu_;
  const TypeNets<T>& nets_;
  const TypeRows& rows_;
  int32_t *index_ = nullptr, *net_ = nullptr;
  T *y_[kMaxLayers], *slope_[kMaxLayers], *buffers_[2];
};

}  // namespace

int64_t type_rows_bytes(const Gpu& gpu, int64_t atoms, int ntypes) {
  StepArgs p = order_args(gpu, atoms, ntypes);
  return Workspace::bytes([&](Workspace& space) { divide(space, p); });
}

TypeRows run_type_rows(const Gpu& gpu, const double* positions, const int32_t* types, const int32_t* systems,
                       int64_t atoms, int ntypes, void* memory) {
  Workspace space(static_cast<char*>(memory));
  StepArgs p = order_args(gpu, atoms, ntypes);
  divide(space, p);
  p.positions = positions, p.types = types, p.batch = systems;
  launch_order(gpu, p);
  return {p.rows, p.row_atom, p.tile_net};
}

template <class T>
int64_t type_nets_bytes(const TypeNets<T>& nets, const TypeRows& rows) {
  return Workspace::bytes([&](Workspace& space) { Call<T>(Gpu("", 0, nullptr), nets, rows, space); });
}

template <class T>
void run_type_nets(const Gpu& gpu, const TypeNets<T>& nets, const TypeRows& rows, const T* x,
                   const double* weight, void* memory, double* energy, T* grad) {
  Workspace space(static_cast<char*>(memory));
  Call<T>(gpu, nets, rows, space).run(x, weight, energy, grad);
}

MDOPS_INSTANTIATE(type_nets_bytes, run_type_nets)

}  // namespace mdops
