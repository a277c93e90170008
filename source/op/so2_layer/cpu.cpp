#include "common/scratch.h"
#include "so2_layer/ops.h"

namespace mdops {

namespace {

constexpr int64_t kLayerEdges = 64;  // a piece of work, at least

}  // namespace

template <class T>
static void run_so2(const Op& op, const So2Args<T>& args) {
  struct Use;
  const So2Sizes sizes = MDOPS_RUN(so2_sizes, args);
  Tensor packed = empty(op, {sizes.packed}, ScalarType::Byte);
  MDOPS_RUN(so2_pack, args, packed.mutable_data_ptr());
  parallel(args.edges, kLayerEdges, [&](int64_t begin, int64_t end) {
    const ScratchMemory<Use> memory(op, sizes.scratch);
    MDOPS_RUN(so2_rows, args, begin, end, packed.const_data_ptr(), memory.data());
  });
}

template <class T>
static void run_so2_messages(const Op& op, So2Messages<T>& args) {
  run_one_by_one(op, args);
}

}  // namespace mdops

MDOPS_ON_CPU(So2LayerOps, So2MessageOps)
