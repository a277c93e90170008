// What the ops on moments times tables launch on a GPU, for PyTorch and for callers without PyTorch.
#pragma once

#include "common/gpu.h"
#include "moment_product/moment_product.h"

namespace mdops {

template <class T>
void run_moment_product(const Gpu& gpu, const MomentProductArgs<T>& args);

// The backward pass; `args.table` as for the product itself. Atoms without a row are not written. `memory` of
// the GPU has moment_gradients_bytes() bytes.
template <class T>
int64_t moment_gradients_bytes(const MomentProductArgs<T>& args);
template <class T>
void run_moment_gradients(const Gpu& gpu, const MomentProductArgs<T>& args, void* memory);

}  // namespace mdops
