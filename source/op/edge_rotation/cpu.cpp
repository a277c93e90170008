#include "common/scratch.h"
#include "edge_rotation/ops.h"

namespace mdops {

namespace {

constexpr int64_t kRotationNodes = 4, kRotationEdges = 128;  // a piece of work, at least

struct RotationRows;

}  // namespace

MDOPS_IN_PIECES(run_rotation, RotateArgs, rotate_rows, args.shape.edges, kRotationEdges)
MDOPS_IN_PIECES(run_rotation, RotateSumArgs, rotate_sums, args.shape.nodes, kRotationNodes)

template <class T>
static void run_rotation(const Op& op, const RotateOuterArgs<T>& args) {
  const ScratchMemory<RotationRows> memory(op, MDOPS_RUN(rotate_outer_room, args) * sizeof(T));
  T* const room = static_cast<T*>(memory.data());
  parallel(args.shape.nodes, kRotationNodes,
           [&](int64_t begin, int64_t end) { MDOPS_RUN(rotate_by_channel, args, room, begin, end); });
  parallel(args.shape.edges, kRotationEdges, [&](int64_t begin, int64_t end) {
    MDOPS_RUN(rotate_outers, args, static_cast<const T*>(room), begin, end);
  });
}

MDOPS_INSTANTIATE_OF(rotate, Op, RotateArgs)
MDOPS_INSTANTIATE_OF(rotate, Op, RotateSumArgs)
MDOPS_INSTANTIATE_OF(rotate, Op, RotateOuterArgs)

}  // namespace mdops

MDOPS_ON_CPU(EdgeRotationOps)
