// Float32 products of few multiply-adds have their own kernels, and so have products with a depth or a column
// count of one. On Hopper large float32 products run by warpgroups. All others are PyTorch's.
#include <utility>

#include "common/gpu_divide.h"
#include "linear/cuda_call.h"
#include "linear/gpu_product.h"
#include "linear/gpu_small.h"
#include "linear/gpu_thin.h"
#include "linear/ops.h"

namespace mdops {

namespace {

constexpr int kProductThreads = 256;
constexpr int64_t kLarge = int64_t{1} << 26;  // multiply-adds from which on tensor cores are fastest
constexpr int64_t kFewRows = 1024;            // a depth that the blocks of a product need not share

template <class T>
__global__ void __launch_bounds__(kProductThreads)
    add_to_rows_kernel(int64_t numbers, int64_t columns, const T* bias, T* y) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kProductThreads + threadIdx.x;
  if (at < numbers) y[at] += bias[at % columns];
}

template <class T>
__global__ void __launch_bounds__(kProductThreads)
    add_matrix_kernel(int64_t numbers, int64_t columns, int64_t line, const T* added, T* y) {
  const int64_t k = static_cast<int64_t>(blockIdx.x) * kProductThreads + threadIdx.x;
  if (k >= numbers) return;
  const auto [row, column] = divided(k, columns);
  y[row * line + column] += added[row * line + column];
}

bool is_hopper(const CudaOp& op) {
#ifdef MDOPS_HOPPER
  return op.limits().capability == 90;
#else
  return static_cast<void>(op), false;
#endif
}

int64_t columns_of(ProductForm form, Input b) {
  return b.size(form == ProductForm::b_transposed ? 0 : 1);
}

// Products with sums, or with a depth to share among blocks, use the tensor cores even if they are small.
bool is_deep(ProductForm form, Input a, bool sums) {
  return form == ProductForm::a_transposed && (sums || a.size(0) > kFewRows);
}

bool is_small(ProductForm form, Input a, Input b) {
  const int64_t products = a.numel() * columns_of(form, b);
  return a.scalar_type() == ScalarType::Float && products > 0 && products < gpu_linear::kSmallProduct;
}

// None is empty.
bool use_3xtf32(ProductForm form, Input a, Input b, bool sums) {
  if (is_deep(form, a, sums)) return a.numel() && b.numel();
  return a.numel() * columns_of(form, b) >= kLarge;
}

// The matrices of a product in memory.
gpu_linear::RowArgs arguments_of(ProductForm form, Input a, Input b, const Tensor* bias, Tensor& c) {
  const bool of_a = form == ProductForm::a_transposed, of_b = form == ProductForm::b_transposed;
  const int64_t rows = a.size(of_a ? 1 : 0), depth = a.size(of_a ? 0 : 1), columns = columns_of(form, b);
  return {rows,
          columns,
          depth,
          1,
          {data_of(a), of_a ? 1 : depth, of_a ? rows : 1},
          {data_of(b), of_b ? depth : 1, of_b ? 1 : columns},
          data_of(bias && bias->numel() ? bias : nullptr),
          data_of(c),
          columns,
          {}};
}

Tensor empty_result(const CudaOp& op, ProductForm form, Input a, Input b) {
  return empty(op, {a.size(form == ProductForm::a_transposed ? 1 : 0), columns_of(form, b)}, a.scalar_type());
}

Tensor small_product(const CudaOp& op, ProductForm form, Input a, Input b, const Tensor* bias) {
  Tensor c = empty_result(op, form, a, b);
  gpu_linear::run_small(op, arguments_of(form, a, b, bias, c));
  return c;
}

void run_3xtf32(const CudaOp& op, const gpu_linear::RowArgs& rows, float* sums) {
  const gpu_linear::Args args{
      gpu_linear::shape_of(op, rows), rows.a, rows.b, rows.bias, rows.c, sums, rows.c_line, {}, rows.added};
  Tensor memory = empty(op, {gpu_linear::workspace(op, args)}, ScalarType::Float);
  gpu_linear::multiply(op, args, memory.mutable_data_ptr<float>());
}

Tensor gemm_3xtf32(const CudaOp& op, ProductForm form, Input a, Input b, const Tensor* bias, Tensor* sums) {
  Tensor c = empty_result(op, form, a, b);
  run_3xtf32(op, arguments_of(form, a, b, bias, c), data_of(sums));
  return c;
}

// A matrix as a PyTorch tensor.
template <class T>
Tensor tensor_of(const CudaOp& op, const MatrixView<T>& matrix) {
  using Numbers = std::remove_const_t<T>;
  const std::array<int64_t, 2> sizes{matrix.rows, matrix.columns};
  const std::array<int64_t, 2> strides{matrix.transposed ? 1 : matrix.line,
                                       matrix.transposed ? matrix.line : 1};
  return torch::stable::from_blob(const_cast<Numbers*>(matrix.data), sizes, strides,
                                  {torch::headeronly::DeviceType::CUDA, op.gpu}, kDtype<Numbers>);
}

Tensor by_pytorch(const CudaOp& op, ProductForm form, Input a, Input b, const Tensor* bias, Tensor* sums) {
  Tensor c = product_by_pytorch(form, a, b, sums);
  if (bias && bias->numel())
    dispatch_float(op, a.scalar_type(), [&]<class T>(T) {
      op.launch(add_to_rows_kernel<T>, blocks_for(c.numel(), kProductThreads), kProductThreads, 0, c.numel(),
                c.size(1), bias->const_data_ptr<T>(), c.mutable_data_ptr<T>());
    });
  return c;
}

bool is_thin(ProductForm form, Input a, Input b) {
  const int64_t columns = columns_of(form, b);
  return form != ProductForm::a_transposed && (a.size(1) == 1 || columns == 1) && a.numel() && columns;
}

Tensor thin_product(const CudaOp& op, ProductForm form, Input a, Input b, const Tensor* bias) {
  const int64_t rows = a.size(0), depth = a.size(1), columns = columns_of(form, b);
  Tensor c = empty_result(op, form, a, b);
  dispatch_float(op, a.scalar_type(), [&]<class T>(T) {
    const T* const biases = bias && bias->numel() ? bias->const_data_ptr<T>() : nullptr;
    const int64_t width = depth == 1 ? columns : depth;
    with_row_lanes<T>(width, 0, [&]<int size>(int lanes) {
      const auto kernel = depth == 1 ? gpu_linear::outer_kernel<T, size> : gpu_linear::dot_kernel<T, size>;
      op.launch_for(rows << lanes, kRowThreads, kernel, rows, width, a.const_data_ptr<T>(),
                    b.const_data_ptr<T>(), biases, c.mutable_data_ptr<T>(), lanes);
    });
  });
  return c;
}

}  // namespace

Tensor layer_product(const CudaOp& op, ProductForm form, Input a, Input b, const Tensor* bias, Tensor* sums) {
  if (is_thin(form, a, b)) return thin_product(op, form, aligned(a), aligned(b), bias);
  if (is_small(form, a, b) && !is_deep(form, a, sums != nullptr)) return small_product(op, form, a, b, bias);
  const bool by_tensor_cores =
      a.scalar_type() == ScalarType::Float && is_hopper(op) && use_3xtf32(form, a, b, sums);
  return by_tensor_cores ? gemm_3xtf32(op, form, aligned(a), aligned(b), bias, sums)
                         : by_pytorch(op, form, aligned(a), aligned(b), bias, sums);
}

template <class T>
void multiply_into(const CudaOp& op, const MatrixView<const T>& a, const MatrixView<const T>& b,
                   const MatrixView<T>& c, const T* added) {
  const int64_t products = a.rows * a.columns * b.columns;
  if (!products) return;
  const auto product = [&] {
    if constexpr (std::is_same_v<T, float>) {
      const auto lines = [](const MatrixView<const float>& matrix, bool of_columns) {
        const bool deep = matrix.transposed != of_columns;  // the depth has the stride of lines
        return gpu_linear::Matrix{matrix.data, deep ? 1 : matrix.line, deep ? matrix.line : 1};
      };
      gpu_linear::RowArgs rows{a.rows,         b.columns, a.columns, 1,      lines(a, false),
                               lines(b, true), nullptr,   c.data,    c.line, {}};
      if (products < gpu_linear::kSmallProduct) return gpu_linear::run_small(op, rows);
      if (is_hopper(op) && products >= kLarge) {
        if (gpu_linear::takes_halves(op, rows)) rows.added = std::exchange(added, nullptr);
        return run_3xtf32(op, rows, nullptr);
      }
    }
    const Tensor first = tensor_of(op, a), second = tensor_of(op, b), result = tensor_of(op, c);
    std::array<StableIValue, 3> stack{torch::stable::detail::from(first), torch::stable::detail::from(second),
                                      torch::stable::detail::from(result)};
    TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::mm", "out", stack.data(), TORCH_ABI_VERSION));
    torch::stable::detail::to<Tensor>(stack[0]);  // which owns the result
  };
  product();
  if (added)
    op.launch_for(c.rows * c.columns, kProductThreads, add_matrix_kernel<T>, c.rows * c.columns, c.columns,
                  c.line, added, c.data);
}

template void multiply_into(const CudaOp&, const MatrixView<const float>&, const MatrixView<const float>&,
                            const MatrixView<float>&, const float*);
template void multiply_into(const CudaOp&, const MatrixView<const double>&, const MatrixView<const double>&,
                            const MatrixView<double>&, const double*);

Tensor degree_product(const CudaOp& op, Input x_, Input weight_, bool transposed) {
  const Tensor x = aligned(x_), weight = aligned(weight_);
  const int64_t rows = x.size(0), count = x.size(1), depth = x.size(2),
                columns = weight.size(transposed ? 1 : 2);
  const int64_t products = x.numel() * columns;
  const bool small = products < gpu_linear::kSmallProduct;
  if (x.scalar_type() != ScalarType::Float || (!small && !is_hopper(op)) || !products)
    return degrees_by_pytorch(op, x, weight, transposed);
  Tensor y = empty(op, {rows, count, columns}, ScalarType::Float);
  const gpu_linear::RowArgs args{rows,
                                 columns,
                                 depth,
                                 1,
                                 {data_of(x), count * depth, 1},
                                 {data_of(weight), transposed ? depth : 1, transposed ? 1 : columns},
                                 nullptr,
                                 data_of(y),
                                 count * columns,
                                 {count, depth, depth * columns, columns}};
  if (small)
    gpu_linear::run_small(op, args);
  else
    gpu_linear::multiply(op,
                         {{rows, columns, depth, 1, gpu_linear::stages_of(op, depth)},
                          args.a,
                          args.b,
                          nullptr,
                          args.c,
                          nullptr,
                          args.c_line,
                          args.coefficients},
                         nullptr);
  return y;
}

}  // namespace mdops

MDOPS_ON_GPU(LinearOps)
