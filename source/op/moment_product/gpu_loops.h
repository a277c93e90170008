// What the ops on moments times tables launch on a GPU, for PyTorch and for callers that do not know PyTorch.
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

}  // namespace mdops
