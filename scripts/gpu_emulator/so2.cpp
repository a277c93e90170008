// Runs the GPU kernels for layers of edges, products at points and mixed degrees on the host.
// scripts/emulate_so2.py calls them with the pointers of their tensors, arguments first, and with their
// sizes.
#include <vector>

#include "fibers.h"
#include "grid_product/gpu_kernels.h"
#include "order_mix/gpu_kernels.h"
#include "so2_layer/cuda_layers.cu"
#include "so2_layer/gpu_run.h"

namespace {

using namespace mdops;

template <class T>
void run(void** pointers, const int64_t* sizes) {
  So2Args<T> a{sizes[0], sizes[1], sizes[2]};
  for (const T** array : {&a.grad, &a.x, &a.weight, &a.both, &a.gate, &a.result})
    *array = static_cast<T*>(*pointers++);
  a.y = static_cast<T*>(*pointers), a.parts = static_cast<int>(sizes[5]), a.groups = sizes[6];
  const Gpu gpu({2, static_cast<int>(sizes[3]), static_cast<int>(sizes[4])});
  const std::vector<float4> memory(gpu_so2::memory_for(gpu, a) / sizeof(float4) + 1);
  gpu_so2::run(gpu, a, const_cast<float4*>(memory.data()),
               [](const MatrixView<const T>& x, const MatrixView<const T>& y, const MatrixView<T>& z,
                  const T* added) {
                 const auto at = [](const auto& matrix, int64_t i, int64_t k) {
                   return matrix.data[matrix.transposed ? k * matrix.line + i : i * matrix.line + k];
                 };
                 for (int64_t i = 0; i < z.rows; ++i)
                   for (int64_t j = 0; j < z.columns; ++j) {
                     double sum = added ? added[i * z.line + j] : 0;
                     for (int64_t k = 0; k < x.columns; ++k) sum += double{at(x, i, k)} * at(y, k, j);
                     z.data[i * z.line + j] = static_cast<T>(sum);
                   }
               });
}

// Whole messages: pointers of vectors, mixtures, nodes' rows, weights of edges, both indices with their
// orders and offsets, the gradient, y, sums, the four gradients, then those of all W, [U V] and gates.
void run_messages(void** pointers, const int64_t* sizes) {
  Pointers next(pointers);
  const int64_t edges = sizes[0], nodes = sizes[1], degrees = sizes[2], channels = sizes[3];
  So2Messages<float> a{{edges, nodes, 3 * degrees + 1, (degrees + 1) * (degrees + 1), channels}};
  a.vectors = next(), a.mixture = next(), a.x = next(), a.weight = next();
  a.of_neighbor = {next(), next(), next(), nodes};
  a.of_center = {next(), next(), next(), sizes[6]};
  a.grad = next(), a.y = next(), a.sums = next();
  a.by_vectors = next(), a.by_mixture = next(), a.by_x = next(), a.by_weight = next();
  So2Args<float> of{edges, degrees, channels};
  of.parts = static_cast<int>(sizes[4]);
  a.layers.assign(sizes[5], of);
  for (auto& layer : a.layers) layer.weight = next();
  for (auto& layer : a.layers) layer.both = next();
  for (auto& layer : a.layers) layer.gate = next();
  const Gpu gpu({2, 90, 232448});
  if (!gpu_so2::takes_layers(gpu, a)) stop("messages that no kernel takes");
  const std::vector<float4> memory(gpu_so2::memory_of_layers(gpu, a) / sizeof(float4) + 1);
  gpu_so2::run_layers(gpu, a, reinterpret_cast<char*>(const_cast<float4*>(memory.data())));
}

template <class T>
void run_grid(void** pointers, const int64_t* sizes) {
  GridArgs<T> a{sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5]};
  for (const T** array : {&a.a, &a.b, &a.out, &a.u, &a.v}) *array = static_cast<T*>(*pointers++);
  a.y = static_cast<T*>(*pointers), a.by_angles = sizes[6] != 0;
  run_grid(Gpu({2, 90, 232448}), a);
}

template <class T>
void run_orders(bool outer, void** pointers, const int64_t* sizes) {
  const OrderShape shape{sizes[0], sizes[1], sizes[2], sizes[3]};
  T *const first = static_cast<T*>(pointers[0]), *const x = static_cast<T*>(pointers[1]);
  T* const y = static_cast<T*>(pointers[2]);
  const Gpu gpu({2, 90, 232448});
  if (outer)
    run_orders(gpu, OrderOuterArgs<T>{shape, first, x, y});
  else
    run_orders(gpu, OrderMixArgs<T>{shape, sizes[4] != 0, first, x, y});
}

}  // namespace

extern "C" void run_order_mix(bool is_double, bool outer, void** pointers, int64_t* sizes) {
  is_double ? run_orders<double>(outer, pointers, sizes) : run_orders<float>(outer, pointers, sizes);
}

extern "C" void run_grid_product(bool is_double, void** pointers, int64_t* sizes) {
  is_double ? run_grid<double>(pointers, sizes) : run_grid<float>(pointers, sizes);
}

extern "C" void run_so2_messages(void** pointers, int64_t* sizes) {
  run_messages(pointers, sizes);
}

extern "C" void run_so2(bool is_double, void** pointers, int64_t* sizes) {
  is_double ? run<double>(pointers, sizes) : run<float>(pointers, sizes);
}
