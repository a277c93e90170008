// Layers of any width and number type: matrix products, and kernels for their gates (gpu_gates.h).
#pragma once

#include "common/matrix_view.h"
#include "so2_layer/gpu_gates.h"

namespace mdops::gpu_so2 {

// The memory of a call, in numbers: both signs' matrix, then logits, scalars and dz of edges.
template <class T>
struct ProductMemory {
  int64_t logits, scalars, by_z, numbers;

  explicit ProductMemory(const So2Args<T>& args)
      : logits(4 * args.side() * args.side()),
        scalars(logits + (args.gate ? args.edges * args.side() : 0)),
        by_z(scalars + (args.gate && args.grad ? args.edges * args.channels : 0)),
        numbers(by_z + (args.gate && args.grad ? args.edges * args.row() : 0)) {}
};

// multiply(A, B, C, added): C = A B + added; `added` has the layout of C, or is null.
template <class T, class Multiply>
void run_products(const Gpu& gpu, const So2Args<T>& args, T* memory, const Multiply& multiply) {
  using Read = MatrixView<const T>;
  using Write = MatrixView<T>;
  const int64_t edges = args.edges, c = args.channels, middle = args.middle(), side = args.side();
  const ProductMemory<T> has(args);
  T *const signs = memory, *const logits = memory + has.logits, *const scalars = memory + has.scalars,
           *const by_z = memory + has.by_z;
  gpu.launch_for(4 * side * side, kGateThreads, pack_signs_kernel<T>, side, args.both, signs);
  const auto rows = [&](auto* from, int64_t begin, int64_t columns) {
    return MatrixView<std::remove_pointer_t<decltype(from)>>{from + begin, edges, columns, args.row()};
  };
  // Rows times W and the signs' matrix, or these transposed, plus `added`.
  const auto multiply_rows = [&](const T* from, bool transposed, const T* added) {
    multiply(rows(from, 0, middle), Read{args.weight, middle, middle, middle, transposed},
             rows(args.y, 0, middle), added);
    multiply(rows(from, middle, 2 * side), Read{signs, 2 * side, 2 * side, 2 * side, transposed},
             rows(args.y, middle, 2 * side), added ? added + middle : nullptr);
  };
  const T* const none = nullptr;
  const Write of_gates{logits, edges, side, side}, of_scalars{scalars, edges, c, c};
  const int64_t blocks = blocks_for(edges, kGateThreads / kWarp);
  if (!args.grad) {
    multiply_rows(args.x, false, args.gate ? none : args.x);
    if (!args.gate) return;
    multiply(rows(static_cast<const T*>(args.y), 0, c), Read{args.gate, c, side, side}, of_gates, none);
    return gpu.launch(gate_kernel<T>, blocks, kGateThreads, 0, args, static_cast<const T*>(logits));
  }
  if (!args.gate) return multiply_rows(args.grad, true, args.grad);
  multiply(rows(args.x, 0, middle), Read{args.weight, middle, c, middle}, of_scalars, none);
  multiply(Read{scalars, edges, c, c}, Read{args.gate, c, side, side}, of_gates, none);
  gpu.launch(gate_backward_kernel<T>, blocks, kGateThreads, 0, args, static_cast<const T*>(scalars), logits,
             by_z);
  multiply(Read{logits, edges, side, side}, Read{args.gate, side, c, side, true}, of_scalars, none);
  gpu.launch_for(edges * c, kGateThreads, add_scalars_kernel<T>, args, static_cast<const T*>(scalars), by_z);
  multiply_rows(by_z, true, args.grad);
}

}  // namespace mdops::gpu_so2
