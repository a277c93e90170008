#include <algorithm>

#include "attention_moments/ops.h"
#include "common/scratch.h"

namespace mdops {

namespace {

struct AttentionMomentsScratch;

// work(atom, scratch) for all atoms.
template <class T, class Work>
void each_atom(const Op& op, const AttentionMomentsArgs<T>& args, const Work& work) {
  int64_t most = 0;
  for (int64_t i = 0; i < args.attention.sequences; ++i) most = std::max(most, args.attention.length(i));
  const int64_t bytes = most * MDOPS_RUN(attention_moments_scratch, args) * static_cast<int64_t>(sizeof(T));
  parallel(args.attention.sequences, 1, [&](int64_t begin, int64_t end) {
    const ScratchMemory<AttentionMomentsScratch> memory(op, bytes);
    for (int64_t atom = begin; atom < end; ++atom) work(atom, static_cast<T*>(memory.data()));
  });
}

}  // namespace

template <class T>
static void check_moments(const Op&, const AttentionMomentsArgs<T>&, const NeighborAttention&) {}

template <class T>
static void run_moments(const Op& op, const AttentionMomentsArgs<T>& args, const NeighborAttention&, T* out) {
  std::fill(args.saved, args.saved + args.attention.rows * JoinedSaved<T>(args, nullptr).columns, T(0));
  each_atom(op, args, [&](int64_t atom, T* scratch) {
    MDOPS_RUN(attention_moments_forward, args, atom, out + 4 * atom * args.features, scratch);
  });
}

template <class T>
static void run_moments_gradients(const Op& op, const AttentionMomentsArgs<T>& args, const NeighborAttention&,
                                  const AttentionMomentsResults<T>& out) {
  each_atom(op, args, [&](int64_t atom, T* scratch) {
    MDOPS_RUN(attention_moments_backward, args, atom, out, scratch);
  });
}

}  // namespace mdops

MDOPS_ON_CPU(AttentionMomentsOps)
