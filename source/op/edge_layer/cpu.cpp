#include <algorithm>

#include "common/flush_tiny.h"
#include "common/scratch.h"
#include "edge_layer/ops.h"

namespace mdops {

template <class T>
static void run_edge_layer(const Op& op, const EdgeLayerArgs<T>& args) {
  struct Use;
  constexpr int64_t kAtoms = 4;
  int64_t most = 0;
  for (int64_t i = 0; i < args.atoms; ++i)
    most = std::max<int64_t>(most, args.offsets[i + 1] - args.offsets[i]);
  const EdgeLayerSizes sizes = MDOPS_RUN(edge_layer_sizes, args, most);
  Tensor packed = empty(op, {sizes.packed}, ScalarType::Byte);
  MDOPS_RUN(edge_layer_pack, args, packed.mutable_data_ptr());
  parallel(args.atoms, kAtoms, [&](int64_t begin, int64_t end) {
    const FlushTiny flush;  // weights of far edges are squares of squares of small switches
    const ScratchMemory<Use> memory(op, sizes.scratch);
    MDOPS_RUN(edge_layer_atoms, args, begin, end, packed.const_data_ptr(), memory.data());
  });
  // Rows of no atom.
  const int64_t last = args.offsets[args.atoms], left = args.rows - last;
  const auto clear = [&](T* rows, int64_t width) {
    if (rows) std::fill_n(rows + last * width, left * width, T(0));
  };
  clear(args.out, args.width);
  if (!args.grad && args.heads) clear(args.saved, args.width);
  // Without heads nothing reads directions and weights.
  const int64_t none = args.heads ? last : 0;
  if (args.by_r) std::fill(args.by_r + 3 * none, args.by_r + 3 * args.rows, T(0));
  if (args.by_w) std::fill(args.by_w + none, args.by_w + args.rows, T(0));
}

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CPU, m) {
  mdops::EdgeLayerOps<mdops::OnCpu>::implement(m);
}
