#include "common/cuda.h"
#include "lowbit/gpu_run.h"
#include "lowbit/inputs.h"

namespace mdops {

namespace {

using namespace gpu_lowbit;

uint8_t* bytes(Tensor& tensor) {
  return static_cast<uint8_t*>(tensor.mutable_data_ptr());
}
const uint8_t* bytes(const Tensor& tensor) {
  return static_cast<const uint8_t*>(tensor.const_data_ptr());
}

Tensor product(const CudaOp& op, const LowBitInputs& in) {
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
  p.a_scale = in.a_scale.const_data_ptr<float>(), p.a_step = static_cast<int>(in.a_step());
  p.b_scale = in.b_scale.const_data_ptr<float>(), p.b_step = static_cast<int>(in.b_step());
  p.out_kind = in.out_kind, p.out = in.out_of(result);
  const Plan plan = plan_product(op, p);
  Tensor a_copy = empty(op, {plan.a_bytes}, ScalarType::Byte),
         b_copy = empty(op, {plan.b_bytes}, ScalarType::Byte);
  multiply(op, plan, p, bytes(a_copy), bytes(b_copy));
  return result;
}

Matrix matrix_of(const QuantizeInputs& in, float* scale) {
  const bool column = in.per == QuantizeInputs::column;
  return {in.x.const_data_ptr<float>(),
          in.rows,
          in.cols,
          in.kind,
          scale,
          in.groups,
          column ? in.group : 1,
          column ? in.cols : in.per == QuantizeInputs::row,
          column};
}

Quantized quantized_matrix(const CudaOp& op, const QuantizeInputs& in) {
  Quantized made = empty_quantized(op, in);
  Tensor parts = empty(op, {in.per == QuantizeInputs::tensor ? kMostParts : 0}, ScalarType::Double);
  quantize_matrix(op, matrix_of(in, made.scale.mutable_data_ptr<float>()), parts.mutable_data_ptr<double>(),
                  bytes(made.values));
  return made;
}

Tensor gemm_lowbit(const Tensor& a, const Tensor& b, const Tensor& a_scale, const Tensor& b_scale,
                   ScalarType out_dtype) {
  const CudaOp op("gemm_lowbit", "a", a);
  return product(op, LowBitInputs(op, a, b, a_scale, b_scale, out_dtype));
}

std::tuple<Tensor, Tensor> quantize(const Tensor& x, std::string kind, std::string per, int64_t groups) {
  const CudaOp op("quantize", "x", x);
  const auto [values, scale] = quantized_matrix(op, QuantizeInputs(op, "x", x, "kind", kind, per, groups));
  return {values, scale};
}

Tensor fake_quantize(const Tensor& x, std::string kind, std::string per, int64_t groups) {
  const CudaOp op("fake_quantize", "x", x);
  const QuantizeInputs in(op, "x", x, "kind", kind, per, groups);
  Quantized made = quantized_matrix(op, in);
  Tensor result = empty(op, {in.rows, in.cols}, ScalarType::Float);
  op.launch(restore_kernel, blocks_over(op, in.rows * in.cols), kQuantizeThreads, 0,
            matrix_of(in, made.scale.mutable_data_ptr<float>()), bytes(std::as_const(made.values)),
            result.mutable_data_ptr<float>());
  return result;
}

Tensor lowbit_linear(const Tensor& x, const Tensor& weight, std::string x_kind, std::string weight_kind,
                     std::string weight_per, int64_t groups) {
  const CudaOp op("lowbit_linear", "x", x);
  const LinearInputs in(op, x, weight, x_kind, weight_kind, weight_per, groups);
  const auto [a, a_scale] = quantized_matrix(op, in.x);
  const auto [values, b_scale] = quantized_matrix(op, in.weight);
  // Ternary numbers are multiplied as the int8 that they are here.
  return product(op, LowBitInputs(op, a, values, a_scale, b_scale, ScalarType::Float));
}

Tensor pack_ternary(const Tensor& values_) {
  const CudaOp op("pack_ternary", "values", values_);
  const Tensor values = input(op, "values", values_, ScalarType::Char, {kAny, kAny});
  const int64_t rows = values.size(0), cols = values.size(1);
  Tensor packed = empty(op, {packed_rows(rows), cols}, ScalarType::Byte);
  op.launch(pack_kernel, blocks_over(op, packed_rows(rows) * cols), kQuantizeThreads, 0,
            values.const_data_ptr<int8_t>(), rows, cols, packed.mutable_data_ptr<uint8_t>());
  return packed;
}

Tensor unpack_ternary(const Tensor& packed_, int64_t rows) {
  const CudaOp op("unpack_ternary", "packed", packed_);
  const Tensor packed = input(op, "packed", packed_, ScalarType::Byte, {kAny, kAny});
  check_packed_rows(op, packed, rows);
  const int64_t cols = packed.size(1);
  Tensor values = empty(op, {rows, cols}, ScalarType::Char);
  op.launch(unpack_kernel, blocks_over(op, rows * cols), kQuantizeThreads, 0,
            packed.const_data_ptr<uint8_t>(), rows, cols, values.mutable_data_ptr<int8_t>());
  return values;
}

}  // namespace

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  m.impl("gemm_lowbit", TORCH_BOX(&mdops::gemm_lowbit));
  m.impl("quantize", TORCH_BOX(&mdops::quantize));
  m.impl("fake_quantize", TORCH_BOX(&mdops::fake_quantize));
  m.impl("lowbit_linear", TORCH_BOX(&mdops::lowbit_linear));
  m.impl("pack_ternary", TORCH_BOX(&mdops::pack_ternary));
  m.impl("unpack_ternary", TORCH_BOX(&mdops::unpack_ternary));
}
