// On Hopper float32 goes by the tensor cores; products of which the depth or the columns are one have kernels
// of their own, and others are PyTorch's.
#include "linear/cuda_call.h"
#include "linear/gpu_product.h"
#include "linear/gpu_thin.h"
#include "linear/ops.h"

namespace mdops {

namespace {

constexpr int kProductThreads = 256;
constexpr int64_t kFewest = int64_t{1} << 26;  // multiply-adds
constexpr int64_t kFewRows = 1024;             // whose products with others of them PyTorch's do not divide

template <class T>
__global__ void __launch_bounds__(kProductThreads)
    add_to_rows_kernel(int64_t numbers, int64_t columns, const T* bias, T* y) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kProductThreads + threadIdx.x;
  if (at < numbers) y[at] += bias[at % columns];
}

bool is_hopper(const CudaOp& op) {
#ifdef MDOPS_HOPPER
  return op.limits().capability == 90;
#else
  return static_cast<void>(op), false;
#endif
}

// Smaller products PyTorch's are sooner done with, but for those with sums, which are kernels of their own
// there (linear.md), and for those of many rows. None is empty.
bool use_3xtf32(ProductForm form, const Tensor& a, const Tensor& b, bool sums) {
  if (form == ProductForm::a_transposed && (sums || a.size(0) > kFewRows)) return a.numel() && b.numel();
  return a.numel() * b.size(form == ProductForm::b_transposed ? 0 : 1) >= kFewest;
}

Tensor gemm_3xtf32(const CudaOp& op, ProductForm form, const Tensor& a, const Tensor& b, const Tensor* bias,
                   Tensor* sums) {
  const bool of_a = form == ProductForm::a_transposed, of_b = form == ProductForm::b_transposed;
  const gpu_linear::Shape shape =
      gpu_linear::shape_of(op, a.size(of_a ? 1 : 0), b.size(of_b ? 0 : 1), a.size(of_a ? 0 : 1));
  Tensor c = empty(op, {shape.rows, shape.columns}, ScalarType::Float);
  const bool biased = bias && bias->numel();
  const gpu_linear::Args args{shape,
                              {data_of(a), of_a ? 1 : shape.depth, of_a ? shape.rows : 1},
                              {data_of(b), of_b ? shape.depth : 1, of_b ? 1 : shape.columns},
                              data_of(biased ? bias : nullptr),
                              data_of(c),
                              data_of(sums),
                              shape.columns};
  Tensor memory = empty(op, {gpu_linear::workspace(op, args)}, ScalarType::Float);
  gpu_linear::multiply(op, args, memory.mutable_data_ptr<float>());
  return c;
}

Tensor by_pytorch(const CudaOp& op, ProductForm form, const Tensor& a, const Tensor& b, const Tensor* bias,
                  Tensor* sums) {
  Tensor c = product_by_pytorch(form, a, b, sums);
  if (bias && bias->numel())
    dispatch_float(op, a.scalar_type(), [&]<class T>(T) {
      op.launch(add_to_rows_kernel<T>, blocks_for(c.numel(), kProductThreads), kProductThreads, 0, c.numel(),
                c.size(1), bias->const_data_ptr<T>(), c.mutable_data_ptr<T>());
    });
  return c;
}

bool is_thin(ProductForm form, const Tensor& a, const Tensor& b) {
  const int64_t columns = b.size(form == ProductForm::b_transposed ? 0 : 1);
  return form != ProductForm::a_transposed && (a.size(1) == 1 || columns == 1) && a.numel() && columns;
}

Tensor thin_product(const CudaOp& op, ProductForm form, const Tensor& a, const Tensor& b,
                    const Tensor* bias) {
  const int64_t rows = a.size(0), depth = a.size(1),
                columns = b.size(form == ProductForm::b_transposed ? 0 : 1);
  Tensor c = empty(op, {rows, columns}, a.scalar_type());
  dispatch_float(op, a.scalar_type(), [&]<class T>(T) {
    const T* const biases = bias && bias->numel() ? bias->const_data_ptr<T>() : nullptr;
    gpu_linear::with_thin_rows<T>(
        rows, depth == 1 ? columns : depth, [&]<int size>(int lanes, int64_t blocks) {
          const auto launch = [&](auto kernel, int64_t width) {
            op.launch(kernel, blocks, gpu_linear::kThinThreads, 0, rows, width, a.const_data_ptr<T>(),
                      b.const_data_ptr<T>(), biases, c.mutable_data_ptr<T>(), lanes);
          };
          if (depth == 1)
            launch(gpu_linear::outer_kernel<T, size>, columns);
          else
            launch(gpu_linear::dot_kernel<T, size>, depth);
        });
  });
  return c;
}

}  // namespace

Tensor layer_product(const CudaOp& op, ProductForm form, const Tensor& a, const Tensor& b, const Tensor* bias,
                     Tensor* sums) {
  if (is_thin(form, a, b)) return thin_product(op, form, aligned(a), aligned(b), bias);
  const bool by_tensor_cores =
      a.scalar_type() == ScalarType::Float && is_hopper(op) && use_3xtf32(form, a, b, sums);
  return by_tensor_cores ? gemm_3xtf32(op, form, aligned(a), aligned(b), bias, sums)
                         : by_pytorch(op, form, aligned(a), aligned(b), bias, sums);
}

Tensor degree_product(const CudaOp& op, const Tensor& x_, const Tensor& weight_, bool transposed) {
  const Tensor x = aligned(x_), weight = aligned(weight_);
  const int64_t rows = x.size(0), count = x.size(1), depth = x.size(2),
                columns = weight.size(transposed ? 1 : 2);
  if (x.scalar_type() != ScalarType::Float || !is_hopper(op) || !x.numel() || !columns)
    return degrees_by_pytorch(op, x, weight, transposed);
  Tensor y = empty(op, {rows, count, columns}, ScalarType::Float);
  const gpu_linear::Args args{{rows, columns, depth, 1, gpu_linear::stages_of(op, depth)},
                              {data_of(x), count * depth, 1},
                              {data_of(weight), transposed ? depth : 1, transposed ? 1 : columns},
                              nullptr,
                              data_of(y),
                              nullptr,
                              count * columns,
                              {count, depth, depth * columns, columns}};
  gpu_linear::multiply(op, args, nullptr);
  return y;
}

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  mdops::LinearOps<mdops::OnGpu>::implement(m);
}
