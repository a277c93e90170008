// How many atoms a block has, for CUDA and for the emulated GPU.
#pragma once

#include "common/gpu.h"
#include "moment_invariants/gpu_kernels.h"

namespace mdops {

namespace gpu_invariants {

// work(number of atoms) with the most whose numbers fit.
template <class T, class Work>
void with_atoms(const Gpu& gpu, const InvariantArgs<T>& args, int64_t numbers, const Work& work) {
  const int64_t most = gpu.limits().shared_bytes;
  if (Block<T, 32>::bytes(args, numbers) <= most)
    work(std::integral_constant<int, 32>{});
  else if (Block<T, 8>::bytes(args, numbers) <= most)
    work(std::integral_constant<int, 8>{});
  else
    work(std::integral_constant<int, 1>{});
}

template <class T>
void run(const Gpu& gpu, const InvariantArgs<T>& args, T* out) {
  with_atoms<T>(gpu, args, args.all(), [&](auto atoms) {
    gpu.launch(forward_kernel<T, atoms()>, blocks_for(args.atoms, atoms()), kThreads,
               Block<T, atoms()>::bytes(args, args.all()), args, out);
  });
}

template <class T>
void run(const Gpu& gpu, const InvariantArgs<T>& args, const T* grad, T* by_scalars, T* by_others) {
  const int64_t numbers = args.all_backward() + 2;  // and the gradients by both divisors
  with_atoms<T>(gpu, args, numbers, [&](auto atoms) {
    gpu.launch(backward_kernel<T, atoms()>, blocks_for(args.atoms, atoms()), kThreads,
               Block<T, atoms()>::bytes(args, numbers), args, grad, by_scalars, by_others);
  });
}

}  // namespace gpu_invariants

}  // namespace mdops
