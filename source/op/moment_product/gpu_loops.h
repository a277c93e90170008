// What the ops on moments times tables launch on a GPU, and such products of the layers of a net, for PyTorch
// and for callers that do not know PyTorch.
#pragma once

#include "common/gpu.h"
#include "moment_product/moment_product.h"

namespace mdops {

template <class T>
void run_moment_product(const Gpu& gpu, const MomentProductArgs<T>& args);

// The way back; `args.table` as for the product itself. Atoms that have no row are not touched. `memory` of
// the GPU has as many bytes as `moment_gradients_bytes` says.
template <class T>
int64_t moment_gradients_bytes(const MomentProductArgs<T>& args);
template <class T>
void run_moment_gradients(const Gpu& gpu, const MomentProductArgs<T>& args, void* memory);

// Rows of numbers times matrices of their kinds, or, `back`, times the transposed matrices: args.in (rows, 4,
// depth), args.out (rows, 4, width) by the float64 tensor cores, four rows of one kind together.
void run_layer_product(const Gpu& gpu, const MomentProductArgs<double>& args, bool back);

}  // namespace mdops
