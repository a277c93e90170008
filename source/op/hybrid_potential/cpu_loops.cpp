#include "hybrid_potential/cpu_loops.h"

#include <algorithm>

namespace mdops {

// Every thread takes an equal part of each net's atoms, as in a step of one descriptor.
template <class T>
void hybrid_step(const Op& op, const HybridArgs<T>& args, const T* nets, const StepResults<T>& results,
                 int32_t* within, T* grad_extra, ComputedInputs<T>* computed, double* near_weight) {
  const PotentialArgs<T>& first = args.first();
  std::vector<std::vector<DenseLayer<T>>> layers;
  for (int n = 0; n < first.nets; ++n)
    layers.push_back(packed_layers(args.net, nets + n * net_size(args.net)));
  const Order order(first, results.centers, useful_threads(results.centers));
  const int64_t threads = useful_threads(static_cast<int64_t>(order.ids.size()));
  std::vector<Share<T>> shares(threads);
  if (computed) computed->begin(threads);
  parallel(threads, 1, [&](int64_t begin, int64_t end) {
    const ScratchMemory<BlockScratch> memory(op, MDOPS_RUN(hybrid_scratch_size, args) * sizeof(T));
    T* scratch = static_cast<T*>(memory.data());
    for (int64_t thread = begin; thread < end; ++thread) {
      HybridResults<T> out{results.of_thread(first, order.space, shares[thread]), within, grad_extra,
                           near_weight};
      for (int n = 0; n < first.nets; ++n) {
        const int64_t from = order.first_of(n, first.nets), count = order.count_of(n, first.nets);
        const int64_t own = count * thread / threads, end_of_own = count * (thread + 1) / threads;
        const int64_t at_once = computed ? ComputedInputs<T>::kAtoms : std::max<int64_t>(1, count);
        each_block(end_of_own - own, at_once, [&](int64_t begin_of_block, int64_t end_of_block) {
          const int32_t* ids = order.ids.data() + from + own + begin_of_block;
          const int64_t atoms = end_of_block - begin_of_block;
          if (computed) computed->forward(thread, ids, atoms);
          MDOPS_RUN(hybrid_potential, args, layers[n].data(), ids, atoms, scratch, out);
          if (computed) computed->backward(thread, ids, atoms, out.sums);
        });
      }
      shares[thread].bad_atom = out.sums.bad_atom;
    }
  });
  results.finish(op, args.parts[args.widest], order.space, shares);
}

MDOPS_INSTANTIATE(hybrid_step)

}  // namespace mdops
