#include "common/scratch.h"
#include "grid_product/ops.h"

namespace mdops {

template <class T>
static void run_grid(const Op& op, const GridArgs<T>& args) {
  struct Use;
  const PackedSizes sizes = MDOPS_RUN(grid_sizes, args);
  Tensor packed = empty(op, {sizes.packed}, ScalarType::Byte);
  MDOPS_RUN(grid_pack, args, packed.mutable_data_ptr());
  parallel(args.atoms, 4, [&](int64_t begin, int64_t end) {
    const ScratchMemory<Use> memory(op, sizes.scratch);
    MDOPS_RUN(grid_atoms, args, begin, end, packed.const_data_ptr(), memory.data());
  });
}

}  // namespace mdops

MDOPS_ON_CPU(GridOps)
