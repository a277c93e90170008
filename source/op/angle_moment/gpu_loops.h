// GPU launches of the ops of angle features, for PyTorch and for callers without PyTorch.
#pragma once

#include "angle_moment/angle_moment.h"
#include "common/gpu.h"

namespace mdops {

// Bytes of GPU memory for a call.
template <class T>
int64_t angle_features_bytes(const Gpu& gpu, const AngleArgs<T>& args, const AngleTables<T>& tables,
                             int64_t atoms);
template <class T>
int64_t angle_gradients_bytes(const Gpu& gpu, const AngleArgs<T>& args, const AngleTables<T>& tables,
                              int64_t atoms);

// Features (atoms, channels), the neighbours within the cutoff (atoms, ntypes), the distance of the nearest
// (atoms,).
template <class T>
void run_angle_features(const Gpu& gpu, const AngleArgs<T>& args, const AngleTables<T>& tables, int64_t atoms,
                        void* memory, T* features, int32_t* within, T* nearest);

// The gradients by the pair vectors (atoms, width, 3), from those by the features.
template <class T>
void run_angle_gradients(const Gpu& gpu, const AngleArgs<T>& args, const AngleTables<T>& tables,
                         int64_t atoms, const T* grad, void* memory, T* pairs);

}  // namespace mdops
