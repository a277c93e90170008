#include <algorithm>

#include "common/flush_tiny.h"
#include "common/scratch.h"
#include "edge_attention/ops.h"

namespace mdops {

template <class T>
static void run_edge_attention(const Op& op, const EdgeAttentionArgs<T>& args) {
  struct Use;
  constexpr int64_t kAtoms = 4;
  int64_t most = 0;
  for (int64_t i = 0; i < args.atoms; ++i)
    most = std::max<int64_t>(most, args.offsets[i + 1] - args.offsets[i]);
  const int64_t bytes = MDOPS_RUN(edge_attention_bytes, args, most);
  parallel(args.atoms, kAtoms, [&](int64_t begin, int64_t end) {
    const FlushTiny flush;  // weights of far edges are squares of squares of small switches
    const ScratchMemory<Use> memory(op, bytes);
    MDOPS_RUN(edge_attention_atoms, args, begin, end, memory.data());
  });
  const int64_t last = args.offsets[args.atoms], left = args.rows - last;
  const auto clear = [&](T* rows, int64_t width) {
    if (rows) std::fill_n(rows + last * width, left * width, T(0));
  };
  clear(args.out, args.heads * args.values), clear(args.by_q, args.heads * args.keys);
  clear(args.by_x, args.values), clear(args.by_r, 3), clear(args.by_w, 1);
}

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CPU, m) {
  mdops::EdgeAttentionOps<mdops::OnCpu>::implement(m);
}
