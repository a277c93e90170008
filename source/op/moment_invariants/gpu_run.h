// Chooses the atoms of a block, for CUDA and for the emulated GPU.
#pragma once

#include "common/gpu.h"
#include "moment_invariants/gpu_kernels.h"

namespace mdops::gpu_invariants {

// work(atoms of a block, its threads) with the most atoms whose numbers fit; blocks that use a
// multiprocessor's whole shared memory have twice as many threads.
template <class T, class Work>
void with_atoms(const Gpu& gpu, const InvariantArgs<T>& args, int64_t numbers, const Work& work) {
  const int64_t most = gpu.limits().shared_bytes;
  using Few = std::integral_constant<int, 512>;
  if (2 * Block<T, 32, 512>::bytes(args, numbers) <= most)
    work(std::integral_constant<int, 32>{}, Few{});
  else if (Block<T, 32, 1024>::bytes(args, numbers) <= most)
    work(std::integral_constant<int, 32>{}, std::integral_constant<int, 1024>{});
  else if (Block<T, 8, 512>::bytes(args, numbers) <= most)
    work(std::integral_constant<int, 8>{}, Few{});
  else
    work(std::integral_constant<int, 1>{}, Few{});
}

template <class T>
void run(const Gpu& gpu, const InvariantArgs<T>& args, T* out) {
  with_atoms<T>(gpu, args, args.all(), [&](auto atoms, auto threads) {
    gpu.launch(forward_kernel<T, atoms(), threads()>, blocks_for(args.atoms, atoms()), threads(),
               Block<T, atoms(), threads()>::bytes(args, args.all()), args, out);
  });
}

template <class T>
void run(const Gpu& gpu, const InvariantArgs<T>& args, const T* grad, T* by_scalars, T* by_others) {
  const int64_t numbers = args.all_backward() + 2;  // and the gradients by both divisors
  with_atoms<T>(gpu, args, numbers, [&](auto atoms, auto threads) {
    gpu.launch(backward_kernel<T, atoms(), threads()>, blocks_for(args.atoms, atoms()), threads(),
               Block<T, atoms(), threads()>::bytes(args, numbers), args, grad, by_scalars, by_others);
  });
}

}  // namespace mdops::gpu_invariants
