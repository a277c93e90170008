#include "common/flush_tiny.h"
#include "common/scratch.h"
#include "common/segments.h"
#include "edge_attention/ops.h"

namespace mdops {

template <class T>
static void run_edge_attention(const Op& op, const EdgeAttentionArgs<T>& args) {
  struct Use;
  constexpr int64_t kAtoms = 4;
  const int64_t bytes = MDOPS_RUN(edge_attention_bytes, args, longest_segment(args.offsets, args.atoms));
  parallel(args.atoms, kAtoms, [&](int64_t begin, int64_t end) {
    const FlushTiny flush;  // weights of far edges are squares of squares of small switches
    const ScratchMemory<Use> memory(op, bytes);
    MDOPS_RUN(edge_attention_atoms, args, begin, end, memory.data());
  });
  const auto clear = [&](T* rows, int64_t width) {
    clear_rows(rows, args.offsets[args.atoms], args.rows, width);
  };
  clear(args.out, args.heads * args.values), clear(args.by_q, args.heads * args.keys);
  clear(args.by_x, args.values), clear(args.by_r, 3), clear(args.by_w, 1);
}

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CPU, m) {
  mdops::EdgeAttentionOps<mdops::OnCpu>::implement(m);
}
