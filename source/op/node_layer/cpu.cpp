#include "common/scratch.h"
#include "node_layer/ops.h"

namespace mdops {

// Gaps between arrays are zeros.
template <class T>
static Tensor pack_node_layer(const Op& op, const NodeLayerArgs<T>& args) {
  Tensor packed = zeros(op, {MDOPS_RUN(node_layer_sizes, args).packed}, ScalarType::Byte);
  MDOPS_RUN(node_layer_pack, args, packed.mutable_data_ptr());
  return packed;
}

template <class T>
static void run_node_layer(const Op& op, const NodeLayerArgs<T>& args, const Optional& given) {
  struct Use;
  constexpr int64_t kNodes = 32;
  const PackedSizes sizes = MDOPS_RUN(node_layer_sizes, args);
  const Tensor packed =
      given ? input(op, "packed", *given, ScalarType::Byte, {sizes.packed}) : pack_node_layer(op, args);
  parallel(args.rows, kNodes, [&](int64_t begin, int64_t end) {
    const ScratchMemory<Use> memory(op, sizes.scratch);
    MDOPS_RUN(node_layer_rows, args, begin, end, packed.const_data_ptr(), memory.data());
  });
}

}  // namespace mdops

MDOPS_ON_CPU(NodeLayerOps)
