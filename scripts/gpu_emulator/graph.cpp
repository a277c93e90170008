// Runs the GPU kernels of the ops on graphs on the host. scripts/emulate_graph.py calls them with the
// pointers of their tensors, arguments first, and with their sizes.
#include "common/gpu_sort.cu"
#include "edge_convolution/gpu_kernels.h"
#include "edge_rotation/gpu_rotation.h"
#include "fibers.h"
#include "graph/gpu_edges.h"
#include "graph/gpu_rows.h"
#include "graph/gpu_softmax.h"
#include "order_moments/gpu_kernels.h"

namespace {

using namespace mdops;

struct Call {
  void* const* pointers;
  const int64_t* sizes;

  template <class T = int32_t>
  T* next() {
    return static_cast<T*>(*pointers++);
  }
  int64_t size() { return *sizes++; }
};

const Gpu gpu({2, 90, 232448});

// A kernel's memory, which contains no useful numbers at first.
template <class Memory, class Sizes>
std::vector<char> divide(Memory& memory, const Sizes& sizes) {
  Workspace measure(nullptr);
  Memory(memory).divide(measure, sizes);
  std::vector<char> bytes(measure.size() + 256, '\xab');
  Workspace space(bytes.data() + 256 - reinterpret_cast<uintptr_t>(bytes.data()) % 256);
  memory.divide(space, sizes);
  return bytes;
}

template <class T>
void neighbor_edges(Call c, T cutoff, T angle_cutoff) {
  EdgeListArgs<T> a{};
  a.list.displacements = c.next<T>(), a.neighbors = c.next(), a.images = c.next(), a.list.counts = c.next();
  a.list.types = c.next(), a.pair_mask = c.next<bool>();
  a.i = c.next(), a.j = c.next(), a.edge_images = c.next(), a.slots = c.next(), a.offsets = c.next();
  a.edge_of_slot = c.next(), a.angle_neighbors = c.next(), a.within = c.next(), a.needed = c.next<int64_t>();
  a.list.atoms = c.size(), a.list.width = c.size(), a.list.ntypes = static_cast<int>(c.size());
  a.edge_sel = c.size(), a.angle_sel = c.size(), a.nodes = c.size(), a.capacity = c.size();
  a.cutoff2 = cutoff * cutoff, a.angle_cutoff2 = angle_cutoff * angle_cutoff;
  gpu_graph::EdgeMemory<T> memory(gpu, a);
  const auto bytes = divide(memory, a);
  gpu_graph::run_edge_list(gpu, a, memory);
}

template <class T>
void rows(Call c, bool scatters) {
  T* const from = c.next<T>();
  if (scatters) {
    ScatterArgs<T> a{from, c.next(), c.next(), c.next()};
    a.base = c.next<T>(), a.more = c.next<T>(), a.x = c.next<T>();
    a.rows = c.size(), a.targets = c.size(), a.stride = c.size(), a.width = c.size();
    a.more_stride = c.size();
    return run_graph(gpu, a);
  }
  GatherArgs<T> a{from, c.next(), c.next()};
  a.base = c.next<T>(), a.y = c.next<T>();
  a.rows = c.size(), a.sources = c.size(), a.width = c.size(), a.stride = c.size();
  run_graph(gpu, a);
}

template <class T>
void edge_product(Call c) {
  ProductArgs<T> a{{c.next<T>(), c.next()}, {c.next<T>(), c.next()}};
  a.z = c.next<T>();
  a.rows = c.size(), a.x.nodes = c.size(), a.y.nodes = c.size(), a.width = c.size();
  run_graph(gpu, a);
}

template <class T>
void edge_weighted_sum(Call c) {
  WeightedSumArgs<T> a{c.next<T>(), {c.next<T>(), c.next()}, c.next(), c.next(), c.next()};
  a.z = c.next<T>();
  a.rows = c.size(), a.x.nodes = c.size(), a.targets = c.size(), a.width = c.size();
  run_graph(gpu, a);
}

// The arguments of a convolution: pointers a, x, b, w, t, W, the nodes' indices, and the order of the sums.
template <class T>
EdgeConvolutionArgs<T> convolution(Call& c) {
  EdgeConvolutionArgs<T> a{};
  a.a.x = c.next<T>(), a.x.x = c.next<T>(), a.b = c.next<T>(), a.w = c.next<T>(), a.t = c.next<T>();
  a.weight = c.next<T>(), a.a.index = c.next(), a.x.index = c.next();
  a.index = c.next(), a.order = c.next(), a.offsets = c.next();
  a.rows = c.size(), a.inputs = c.size(), a.turns = c.size(), a.width = c.size();
  a.a.nodes = c.size(), a.x.nodes = c.size(), a.targets = c.size();
  return a;
}

template <class T>
void edge_convolution(Call c, int pass) {
  EdgeConvolutionArgs<T> a = convolution<T>(c);
  if (pass == 0) {
    a.by_a = c.next<T>();
    gpu_edge_convolution::run_nodes<T, true>(gpu, a);
  } else if (pass == 1) {
    a.by_x = c.next<T>();
    gpu_edge_convolution::run_nodes<T, false>(gpu, a);
  } else if (pass == 2) {
    a.by_b = c.next<T>(), a.by_w = c.next<T>(), a.by_t = c.next<T>();
    gpu_edge_convolution::run_edges(gpu, a);
  } else {
    a.by_weight = c.next<T>();
    std::vector<T> sums(gpu_edge_convolution::weight_shares(gpu, a) * a.inputs * a.width);
    gpu_edge_convolution::run_weight(gpu, a, sums.data());
  }
}

RotationShape rotation_shape(Call& c) {
  return {c.size(), c.size(), c.size(), c.size(), c.size()};
}

template <class Args, class T>
void rotate(Call c) {
  Args a{rotation_shape(c), c.next<T>(), {c.next<T>(), c.next()}, c.next<T>()};
  a.x.nodes = a.shape.nodes;
  run_rotation(gpu, a);
}

template <class T>
void edge_rotate(Call c) {
  rotate<RotateArgs<T>, T>(c);
}

template <class T>
void edge_rotate_sum(Call c) {
  RotateSumArgs<T> a{rotation_shape(c), c.next<T>(), c.next<T>(), c.next(), c.next(), c.next(), c.next<T>()};
  run_rotation(gpu, a);
}

template <class T>
void edge_rotate_back(Call c) {
  RotateSumArgs<T> a{rotation_shape(c), c.next<T>(), c.next<T>()};
  a.weight = c.next<T>();
  a.index = c.next(), a.order = c.next(), a.offsets = c.next(), a.x = c.next<T>();
  run_rotation(gpu, a);
}

template <class T>
void edge_rotate_back_backward(Call c) {
  const RotationShape shape = rotation_shape(c);
  T* const grad = c.next<T>();
  T *const turn = c.next<T>(), *const y = c.next<T>(), *const weight = c.next<T>();
  const NodeRows<T> x{grad, c.next(), shape.nodes};
  T *const by_turn = c.next<T>(), *const by_y = c.next<T>();
  run_rotation(gpu, RotateArgs<T>{shape, turn, x, by_y, weight});
  run_rotation(gpu, RotateOuterArgs<T>{shape, y, x, by_turn, weight, turn, c.next<T>()});
}

template <class T>
void edge_rotate_outer(Call c) {
  rotate<RotateOuterArgs<T>, T>(c);
}

template <class T>
OrderMomentArgs<T> order_moment_args(Call& c) {
  OrderMomentArgs<T> a{
      {c.size(), c.size(), c.size(), c.size(), c.size()}, c.next<T>(), c.next<T>(), c.next<T>()};
  a.of = {c.next(), c.next(), c.next(), a.shape.edges};
  return a;
}

template <class T>
void order_moments(Call c) {
  auto a = order_moment_args<T>(c);
  a.moments = c.next<T>();
  run_order_moments(gpu, a);
}

template <class T>
void order_moments_backward(Call c) {
  const T* const grad = c.next<T>();
  auto a = order_moment_args<T>(c);
  a.grad = grad;
  a.by_turn = c.next<T>(), a.by_y = c.next<T>(), a.by_weight = c.next<T>();
  run_order_moments(gpu, a);
}

template <class T>
void softmax(Call c) {
  SoftmaxArgs<T> a{};
  a.direction = c.next<T>(), a.grad = c.next<T>(), a.x = c.next<T>(), a.offsets = c.next();
  a.of_grad = c.next<T>(), a.of_x = c.next<T>();
  a.rows = c.size(), a.columns = c.size(), a.segments = c.size();
  run_graph(gpu, a);
}

template <class T>
void weights(Call c) {
  SegmentWeightArgs<T> a{};
  a.along_x = c.next<T>(), a.along_weight = c.next<T>(), a.along_nothing = c.next<T>();
  a.grad = c.next<T>(), a.x = c.next<T>(), a.weight = c.next<T>(), a.nothing = c.next<T>();
  a.offsets = c.next();
  a.by_grad = c.next<T>(), a.y = c.next<T>(), a.by_weight = c.next<T>(), a.by_nothing = c.next<T>();
  a.rows = c.size(), a.columns = c.size(), a.segments = c.size();
  run_graph(gpu, a);
}

}  // namespace

extern "C" {

#define MDOPS_EMULATED(name)                                                      \
  void run_##name(bool is_double, void** pointers, int64_t* sizes) {              \
    is_double ? name<double>({pointers, sizes}) : name<float>({pointers, sizes}); \
  }
MDOPS_EMULATED(edge_product)
MDOPS_EMULATED(edge_weighted_sum)
MDOPS_EMULATED(edge_rotate)
MDOPS_EMULATED(edge_rotate_sum)
MDOPS_EMULATED(edge_rotate_back)
MDOPS_EMULATED(edge_rotate_back_backward)
MDOPS_EMULATED(order_moments)
MDOPS_EMULATED(order_moments_backward)
MDOPS_EMULATED(edge_rotate_outer)
MDOPS_EMULATED(softmax)
MDOPS_EMULATED(weights)

void run_neighbor_edges(bool is_double, double cutoff, double angle_cutoff, void** pointers, int64_t* sizes) {
  if (is_double)
    neighbor_edges<double>({pointers, sizes}, cutoff, angle_cutoff);
  else
    neighbor_edges<float>({pointers, sizes}, static_cast<float>(cutoff), static_cast<float>(angle_cutoff));
}

void run_rows(bool is_double, bool scatters, void** pointers, int64_t* sizes) {
  is_double ? rows<double>({pointers, sizes}, scatters) : rows<float>({pointers, sizes}, scatters);
}

void run_edge_convolution(bool is_double, int pass, void** pointers, int64_t* sizes) {
  is_double ? edge_convolution<double>({pointers, sizes}, pass)
            : edge_convolution<float>({pointers, sizes}, pass);
}

void run_edge_reverse(void** pointers, int64_t* sizes) {
  Call c{pointers, sizes};
  ReverseArgs a{c.next(), c.next(), c.next(), c.next(), c.size(), c.size()};
  a.reverse = c.next();
  run_graph(gpu, a);
}

void run_edge_order(void** pointers, int64_t* sizes) {
  Call c{pointers, sizes};
  OrderArgs a{c.next(), c.size(), c.size()};
  a.order = c.next(), a.offsets = c.next();
  gpu_graph::OrderMemory memory(gpu, a);
  const auto bytes = divide(memory, a);
  gpu_graph::run_order(gpu, a, memory);
}

void run_edge_angles(void** pointers, int64_t* sizes) {
  Call c{pointers, sizes};
  EdgeAngleArgs a{c.next(), c.next(), c.size(), c.size(), c.size()};
  a.first = c.next(), a.second = c.next(), a.mirror = c.next(), a.angle_offsets = c.next();
  a.needed = c.next<int64_t>();
  gpu_graph::Scan scan(gpu, a.atoms);
  const auto bytes = divide(scan, a.atoms);
  gpu_graph::run_angles(gpu, a, scan);
}
}
