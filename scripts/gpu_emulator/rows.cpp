// Runs the GPU kernels for environments, frames, splines, weights and updates of edges, and for norms, gates
// and updates of nodes on the host. scripts/emulate_rows.py calls them with the pointers of their tensors,
// arguments first, and with their sizes.
#include "degree_norm/gpu_kernels.h"
#include "edge_environment/gpu_kernels.h"
#include "edge_frames/gpu_kernels.h"
#include "edge_softmax/gpu_kernels.h"
#include "edge_splines/gpu_kernels.h"
#include "edge_update/gpu_kernels.h"
#include "fibers.h"
#include "node_update/gpu_kernels.h"
#include "own_message/gpu_kernels.h"
#include "scalar_gate/gpu_kernels.h"

namespace {

using namespace mdops;

const Gpu gpu({2, 90, 232448});

// The pointers of a call, one after the other, and its sizes.
struct Call {
  void** pointers;
  const int64_t* sizes;
  const double* numbers;

  template <class T>
  T* next() {
    return static_cast<T*>(*pointers++);
  }
};

template <class T>
void environment(Call c, int back) {
  EdgeEnvironmentArgs<T> a{c.sizes[0], c.sizes[1], c.sizes[2], c.sizes[3]};
  T* const form[] = {&a.form.smooth, &a.form.cutoff, &a.form.protection, &a.form.of_means,
                     &a.form.of_turning};
  for (int k = 0; k < 5; ++k) *form[k] = static_cast<T>(c.numbers[k]);
  if (back)
    for (const T** array : {&a.by_lengths, &a.by_vectors, &a.by_weight, &a.by_means, &a.by_turning})
      *array = c.next<T>();
  a.displacements = c.next<T>(), a.slots = c.next<int32_t>(), a.edge_of_slot = c.next<int32_t>();
  a.types = c.next<int32_t>(), a.mean = c.next<T>(), a.std = c.next<T>();
  if (back)
    a.by_displacements = c.next<T>();
  else
    for (T** array : {&a.lengths, &a.vectors, &a.weight, &a.means, &a.turning}) *array = c.next<T>();
  run_edge_environment(gpu, a);
}

template <class T>
void frames(Call c, int back) {
  const FrameShape shape{c.sizes[0], static_cast<int>(c.sizes[2])};
  with_degree(c.sizes[1], [&]<int kDegree>() {
    if (back == 2) {
      FrameTwiceArgs<T> args{shape};
      args.changes = c.next<T>(), args.by_harmonics = c.next<T>(), args.by_turn = c.next<T>();
      args.vectors = c.next<T>(), args.harmonics = c.next<T>(), args.turn = c.next<T>();
      args.by_vectors = c.next<T>();
      run_frames<kDegree>(gpu, args);
    } else if (back) {
      const T *const by_harmonics = c.next<T>(), *const by_turn = c.next<T>(), *const vectors = c.next<T>();
      run_frames<kDegree>(gpu, FrameBackwardArgs<T>{shape, vectors, by_harmonics, by_turn, c.next<T>()});
    } else {
      const T* const vectors = c.next<T>();
      T* const harmonics = c.next<T>();
      run_frames<kDegree>(gpu, FrameArgs<T>{shape, vectors, harmonics, c.next<T>()});
    }
  });
}

template <class T>
void splines(Call c, int back) {
  const int intervals = static_cast<int>(c.sizes[2]);
  EdgeSplineArgs<T> a{
      c.sizes[0], c.sizes[1], c.sizes[3], {static_cast<T>(intervals / c.numbers[0]), intervals}};
  if (back) a.grad = c.next<T>();
  a.lengths = c.next<T>(), a.of_edges = c.next<int32_t>(), a.table = c.next<T>(), a.out = c.next<T>();
  run_edge_splines(gpu, a);
}

template <class T>
void softmax(Call c, int back) {
  EdgeSoftmaxArgs<T> a{c.sizes[0], c.sizes[1], c.sizes[2],
                       c.sizes[3], c.sizes[4], static_cast<T>(c.numbers[0])};
  if (back) a.grad = c.next<T>();
  for (const T** array : {&a.q, &a.k, &a.bias, &a.fades, &a.nothing}) *array = c.next<T>();
  a.atom_of = c.next<int32_t>(), a.offsets = c.next<int32_t>();
  a.node_of = c.next<int32_t>(), a.order = c.next<int32_t>(), a.ends = c.next<int32_t>();
  if (back) a.by_q = c.next<T>(), a.by_k = c.next<T>();
  a.y = c.next<T>();
  if (back) a.by_fades = c.next<T>();
  run_edge_softmax(gpu, a);
}

template <class T>
void norm(Call c, int back) {
  NormArgs<T> a{c.sizes[0], c.sizes[1], c.sizes[2], c.sizes[3] != 0, static_cast<T>(c.numbers[0])};
  if (back == 2) a.direction = c.next<T>();
  if (back) a.grad = c.next<T>();
  a.x = c.next<T>();
  if (back < 3) a.factors = c.next<T>();
  if (back < 2) a.bias = c.next<T>();
  a.shares = c.next<T>();
  if (back == 2) a.by_grad = c.next<T>();
  if (back < 3) a.y = c.next<T>();
  if (back > 1) a.terms = c.next<T>();
  run_norm(gpu, a);
}

template <class T>
void gates(Call c, int back, bool adds) {
  ScalarGateArgs<T> a{c.sizes[0], c.sizes[1], c.sizes[2]};
  if (back == 2) a.along_x = c.next<T>(), a.along_gate = c.next<T>();
  if (back == 2 && adds) a.along_scalars = c.next<T>();
  if (back) a.grad = c.next<T>();
  a.x = c.next<T>(), a.gate = c.next<T>();
  if (adds) a.scalars = c.next<T>();
  if (back == 2) a.by_grad = c.next<T>();
  a.y = c.next<T>();
  if (back) a.by_gate = c.next<T>();
  if (back && adds) a.by_scalars = c.next<T>();
  run_scalar_gate(gpu, a);
}

template <class T>
void gate(Call c, int back) {
  gates<T>(c, back, true);
}

template <class T>
void plain_gate(Call c, int back) {
  gates<T>(c, back, false);
}

template <class T>
void message(Call c, int back) {
  OwnMessageArgs<T> a{c.sizes[0], c.sizes[1], static_cast<T>(c.numbers[0]),
                      static_cast<Activation>(c.sizes[2]), static_cast<T>(c.numbers[1])};
  if (back) a.grad = c.next<T>();
  for (const T** array : {&a.x, &a.weight, &a.bias, &a.factor}) *array = c.next<T>();
  a.out = c.next<T>();
  run_own_message(gpu, a);
}

template <class T>
void edge_updates(Call c, int back) {
  EdgeUpdateArgs<T> a{};
  a.rows = c.sizes[0], a.width = c.sizes[1], a.edges = c.sizes[2];
  a.activation = static_cast<Activation>(c.sizes[3]), a.threshold = static_cast<T>(c.numbers[0]);
  (back ? a.grad : a.base) = c.next<T>();
  for (const T** array : {&a.z, &a.scale, &a.bias}) *array = c.next<T>();
  a.index = c.next<int32_t>(), a.offsets = c.next<int32_t>(), a.out = c.next<T>();
  run_edge_update(gpu, a);
}

template <class T>
void node_updates(Call c, int back) {
  NodeUpdateArgs<T> a{};
  a.numbers = c.sizes[0] * c.sizes[1], a.width = c.sizes[1];
  a.activation = static_cast<Activation>(c.sizes[2]), a.threshold = static_cast<T>(c.numbers[0]);
  (back ? a.grad : a.x) = c.next<T>();
  a.z = c.next<T>(), a.u = c.next<T>();
  if (!back) a.m = c.next<T>();
  a.weights = c.next<T>();
  if (!back) a.y = c.next<T>();
  for (T** array : {&a.by_z, &a.by_u, &a.by_m}) *array = back ? c.next<T>() : nullptr;
  run_node_update(gpu, a);
}

}  // namespace

#define MDOPS_EMULATED(name, function)                                                                     \
  extern "C" void run_##name(bool is_double, int back, double* numbers, void** pointers, int64_t* sizes) { \
    is_double ? function<double>({pointers, sizes, numbers}, back)                                         \
              : function<float>({pointers, sizes, numbers}, back);                                         \
  }
MDOPS_EMULATED(edge_environment, environment)
MDOPS_EMULATED(edge_frames, frames)
MDOPS_EMULATED(edge_splines, splines)
MDOPS_EMULATED(edge_softmax, softmax)
MDOPS_EMULATED(degree_norm, norm)
MDOPS_EMULATED(scalar_gate, gate)
MDOPS_EMULATED(row_gate, plain_gate)
MDOPS_EMULATED(own_message, message)
MDOPS_EMULATED(edge_update, edge_updates)
MDOPS_EMULATED(node_update, node_updates)
