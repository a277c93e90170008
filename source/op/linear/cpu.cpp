// On a CPU the products are PyTorch's own.
#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h>

#include "linear/ops.h"

namespace mdops {

static Tensor layer_product(const Op& op, ProductForm form, Input a_, Input b_, const Tensor* bias,
                            Tensor* sums) {
  const Tensor a = on_a_line(a_), b = on_a_line(b_);
  if (!bias || !bias->numel()) return product_by_pytorch(form, a, b, sums);
  Tensor c = empty(op, {a.size(0), b.size(1)}, a.scalar_type());
  TORCH_ERROR_CODE_CHECK(aoti_torch_cpu_addmm_out(c.get(), bias->get(), a.get(), b.get(), 1.0, 1.0));
  return c;
}

static Tensor degree_product(const Op& op, Input x, Input weight, bool transposed) {
  return degrees_by_pytorch(op, x, weight, transposed);
}

}  // namespace mdops

MDOPS_ON_CPU(LinearOps)
