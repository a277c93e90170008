// The kernels of a net behind one function: for the one source of a library that compiles them.
#pragma once

#include "gemm/gpu_run.h"

namespace mdops {

template <int Parts>
void run_net(const Gpu& gpu, const NetArgs& args, const NetMemory& memory, int64_t tiles, NetWay::Kind kind) {
  NetCall<Parts>(gpu, args, memory, tiles).run(kind);
}

}  // namespace mdops
