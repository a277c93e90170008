#include "common/cuda.h"
#include "moment_product/gpu_kernels.h"
#include "moment_product/gpu_loops.h"
#include "moment_product/ops.h"

namespace mdops {

// Atoms without a row have no gradient. If there are as many rows as atoms, such an atom lost its row to
// another.
template <class T>
static void run_moment_gradients(const CudaOp& op, const MomentProductArgs<T>& p) {
  const bool some = p.rows < p.atoms;
  Tensor counts = empty(op, {some ? p.atoms : 0}, ScalarType::Int);
  if (some) op.clear(p.out, p.atoms * p.out_size() * static_cast<int64_t>(sizeof(T))), op.clear(counts);
  const int64_t blocks = p.out_size() > 0 ? blocks_for(p.atoms, 256) : 0;
  int32_t* const count = counts.mutable_data_ptr<int32_t>();
  if (some)
    op.launch_for(p.rows, 256, gpu_moment_product::count_kernel<T>, p, count);
  else
    op.launch(gpu_moment_product::mark_kernel<T>, blocks, 256, 0, p.atoms, p.out_size(), p.out);
  Tensor memory = empty(op, {moment_gradients_bytes(p)}, ScalarType::Byte);
  run_moment_gradients(op, p, memory.mutable_data_ptr());
  if (some) op.launch(gpu_moment_product::mark_repeated_kernel<T>, blocks, 256, 0, p, count);
}

}  // namespace mdops

MDOPS_ON_GPU(MomentProductOps)
