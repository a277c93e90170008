// The kernels of whole messages, compiled separately (cuda_layers.cu).
#pragma once

#include "common/gpu.h"
#include "so2_layer/so2_layer.h"

namespace mdops::gpu_so2 {

// Whether one kernel supports these messages on this GPU.
bool takes_layers(const Gpu& gpu, const So2Messages<float>& given);

// Bytes of device memory that a call needs beside its arrays.
int64_t memory_of_layers(const Gpu& gpu, const So2Messages<float>& given);

void run_layers(const Gpu& gpu, const So2Messages<float>& given, char* memory);

}  // namespace mdops::gpu_so2
