// Gates of atoms' rows on a GPU: a thread a channel of an atom.
#pragma once

#include "common/gpu.h"
#include "common/gpu_divide.h"
#include "common/rows.h"
#include "scalar_gate/scalar_gate.h"

namespace mdops::gpu_scalar_gate {

constexpr int kThreads = 128;

template <class T, int kRowsAtOnce>
__global__ void __launch_bounds__(kThreads) gate_kernel(const ScalarGateArgs<T> args) {
  const int64_t k = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (k >= args.atoms * args.channels) return;
  const auto [atom, channel] = divided(k, args.channels);
  pass_channels<kRowsAtOnce>(args, atom, channel, OneChannel<T>());
}

template <class T>
void run_scalar_gate(const Gpu& gpu, const ScalarGateArgs<T>& args) {
  gpu.launch_for(args.atoms * args.channels, kThreads, args.rows > 2 ? gate_kernel<T, 8> : gate_kernel<T, 2>,
                 args);
}

}  // namespace mdops::gpu_scalar_gate

namespace mdops {
using gpu_scalar_gate::run_scalar_gate;
}
