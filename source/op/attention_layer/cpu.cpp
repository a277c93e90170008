#include <algorithm>
#include <numeric>

#include "attention_layer/ops.h"
#include "common/scratch.h"

namespace mdops {

namespace {

struct AttentionLayerScratch;

// Calls work(atom, scratch) for all atoms; each thread has a share of equal cost.
template <class T, class Work>
void each_atom(const Op& op, AttentionLayerArgs<T> args, bool backward, const Work& work) {
  if (args.attention.rows == 0) return;
  const int64_t atoms = args.attention.sequences;
  std::vector<T> packed(MDOPS_RUN(attention_layer_packed_size, args));
  MDOPS_RUN(attention_layer_pack, args, backward, packed.data());
  args.packed = packed.data();
  std::vector<int64_t> cost(atoms);
  int64_t most = 0;
  for (int64_t i = 0; i < atoms; ++i) {
    const int64_t n = args.attention.length(i);
    most = std::max(most, n), cost[i] = n * (n + args.features);
  }
  std::partial_sum(cost.begin(), cost.end(), cost.begin());
  const int64_t bytes = MDOPS_RUN(attention_layer_scratch_size, args, backward, most);
  const int64_t threads = std::min<int64_t>(thread_count(), atoms);
  const auto place = [&](int64_t thread) -> int64_t {
    if (thread == 0 || thread == threads) return thread ? atoms : 0;
    return std::upper_bound(cost.begin(), cost.end(), cost.back() * thread / threads) - cost.begin();
  };
  parallel(threads, 1, [&](int64_t begin, int64_t end) {
    const ScratchMemory<AttentionLayerScratch> memory(op, bytes);
    for (int64_t atom = place(begin); atom < place(end); ++atom)
      if (args.attention.length(atom)) work(args, atom, memory.data());
  });
}

}  // namespace

template <class T>
static void check_layer(const Op&, const AttentionLayerArgs<T>&, const NeighborAttention&) {}

template <class T>
static void run_layer(const Op& op, const AttentionLayerArgs<T>& args, const NeighborAttention&, T* out) {
  each_atom<T>(op, args, false, [&](const AttentionLayerArgs<T>& all, int64_t atom, void* scratch) {
    MDOPS_RUN(attention_layer_forward, all, atom, out, scratch);
  });
}

template <class T>
static void run_layer_gradients(const Op& op, const AttentionLayerArgs<T>& args, const NeighborAttention&,
                                const AttentionLayerResults<T>& out) {
  each_atom<T>(op, args, true, [&](const AttentionLayerArgs<T>& all, int64_t atom, void* scratch) {
    MDOPS_RUN(attention_layer_backward, all, atom, out, scratch);
  });
}

}  // namespace mdops

MDOPS_ON_CPU(AttentionLayerOps)
