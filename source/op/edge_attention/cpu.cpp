#include "common/segments.h"
#include "edge_attention/ops.h"

namespace mdops {

template <class T>
static void run_edge_attention(const Op& op, const EdgeAttentionArgs<T>& args) {
  const int64_t bytes = MDOPS_RUN(edge_attention_bytes, args, longest_segment(args.offsets, args.atoms));
  each_atoms_edges(op, args.atoms, bytes, [&](int64_t begin, int64_t end, void* memory) {
    MDOPS_RUN(edge_attention_atoms, args, begin, end, memory);
  });
  const auto clear = [&](T* rows, int64_t width) {
    clear_rows(rows, args.offsets[args.atoms], args.rows, width);
  };
  clear(args.out, args.heads * args.values), clear(args.by_q, args.heads * args.keys);
  clear(args.by_x, args.values), clear(args.by_r, 3), clear(args.by_w, 1);
}

}  // namespace mdops

MDOPS_ON_CPU(EdgeAttentionOps)
