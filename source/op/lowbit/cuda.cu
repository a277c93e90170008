#include "common/cuda.h"
#include "lowbit/gpu_run.h"
#include "lowbit/ops.h"

namespace mdops {

namespace {

using namespace gpu_lowbit;

uint8_t* bytes(Tensor& tensor) {
  return static_cast<uint8_t*>(tensor.mutable_data_ptr());
}
const uint8_t* bytes(Input tensor) {
  return static_cast<const uint8_t*>(tensor.const_data_ptr());
}

Matrix matrix_of(const QuantizeInputs& in, float* scale) {
  const bool column = in.per == QuantizeInputs::column;
  return {data_of(in.x),
          in.rows,
          in.cols,
          in.kind,
          scale,
          in.groups,
          column ? in.group : 1,
          column ? in.cols : in.per == QuantizeInputs::row,
          column};
}

}  // namespace

static Tensor low_bit_product(const CudaOp& op, const LowBitInputs& in) {
  Tensor result = empty(op, {in.rows, in.cols}, in.out_dtype);
  if (in.rows == 0 || in.cols == 0) return result;
  const Layout layout = in.b_kind == LowBit::ternary ? Layout::ternary
                        : in.b_by_columns            ? Layout::by_line
                                                     : Layout::by_depth;
  Product p{};
  p.a = {bytes(in.a), Layout::by_line, in.depth, in.rows};
  p.b = {bytes(in.b), layout, layout == Layout::by_line ? in.depth : in.cols, in.cols};
  p.rows = op.int32_of("a", in.rows), p.cols = op.int32_of("b", in.cols),
  p.depth = op.int32_of("a", in.depth);
  p.group = op.int32_of("a", in.group), p.groups = op.int32_of("b_scale", in.groups);
  p.a_kind = in.a_kind, p.b_kind = in.b_kind;
  p.a_scale = data_of(in.a_scale), p.a_step = static_cast<int>(in.a_step());
  p.b_scale = data_of(in.b_scale), p.b_step = static_cast<int>(in.b_step());
  p.out_kind = in.out_kind, p.out = in.out_of(result);
  const Plan plan = plan_product(op, p);
  Tensor a_copy = empty(op, {plan.a_bytes}, ScalarType::Byte),
         b_copy = empty(op, {plan.b_bytes}, ScalarType::Byte);
  multiply(op, plan, p, bytes(a_copy), bytes(b_copy));
  return result;
}

static Quantized quantized_matrix(const CudaOp& op, const QuantizeInputs& in) {
  Quantized made = empty_quantized(op, in);
  Tensor parts = empty(op, {in.per == QuantizeInputs::tensor ? kMostParts : 0}, ScalarType::Double);
  quantize_matrix(op, matrix_of(in, made.scale.mutable_data_ptr<float>()), parts.mutable_data_ptr<double>(),
                  bytes(made.values));
  return made;
}

static Tensor restored_matrix(const CudaOp& op, const QuantizeInputs& in, Quantized made) {
  Tensor result = empty(op, {in.rows, in.cols}, ScalarType::Float);
  op.launch(restore_kernel, blocks_over(op, in.rows * in.cols), kQuantizeThreads, 0,
            matrix_of(in, made.scale.mutable_data_ptr<float>()), bytes(std::as_const(made.values)),
            result.mutable_data_ptr<float>());
  return result;
}

static void run_pack(const CudaOp& op, const int8_t* from, int64_t rows, int64_t cols, uint8_t* to) {
  op.launch(pack_kernel, blocks_over(op, packed_rows(rows) * cols), kQuantizeThreads, 0, from, rows, cols,
            to);
}

static void run_unpack(const CudaOp& op, const uint8_t* from, int64_t rows, int64_t cols, int8_t* to) {
  op.launch(unpack_kernel, blocks_over(op, rows * cols), kQuantizeThreads, 0, from, rows, cols, to);
}

}  // namespace mdops

MDOPS_ON_GPU(LowBitOps)
