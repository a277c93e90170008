#include "common/segments.h"
#include "edge_layer/ops.h"

namespace mdops {

template <class T>
static void run_edge_layer(const Op& op, const EdgeLayerArgs<T>& args) {
  const PackedSizes sizes = MDOPS_RUN(edge_layer_sizes, args, longest_segment(args.offsets, args.atoms));
  Tensor packed = empty(op, {sizes.packed}, ScalarType::Byte);
  MDOPS_RUN(edge_layer_pack, args, packed.mutable_data_ptr());
  each_atoms_edges(op, args.atoms, sizes.scratch, [&](int64_t begin, int64_t end, void* memory) {
    MDOPS_RUN(edge_layer_atoms, args, begin, end, packed.const_data_ptr(), memory);
  });
  // Rows that belong to no atom.
  const int64_t last = args.offsets[args.atoms];
  clear_rows(args.out, last, args.rows, args.width);
  if (!args.grad && args.heads) clear_rows(args.saved, last, args.rows, args.width);
  // Without heads nothing reads directions and weights.
  const int64_t none = args.heads ? last : 0;
  clear_rows(args.by_r, none, args.rows, 3), clear_rows(args.by_w, none, args.rows, 1);
}

}  // namespace mdops

MDOPS_ON_CPU(EdgeLayerOps)
