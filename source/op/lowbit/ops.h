// The low-bit ops. A device has `low_bit_product`, `quantized_matrix`, `restored_matrix`, and `run_pack` and
// `run_unpack` of ternary numbers.
#pragma once

#include "common/bind.h"
#include "lowbit/inputs.h"

namespace mdops {

template <class Device>
struct LowBitOps {
  static Tensor gemm_lowbit(const Tensor& a, const Tensor& b, const Tensor& a_scale, const Tensor& b_scale,
                            ScalarType out_dtype) {
    const auto op = Device::make("gemm_lowbit", "a", a);
    return low_bit_product(op, LowBitInputs(op, a, b, a_scale, b_scale, out_dtype));
  }

  static Outputs<2> quantize(const Tensor& x, std::string kind, std::string per, int64_t groups) {
    const auto op = Device::make("quantize", "x", x);
    const auto [values, scale] = quantized_matrix(op, QuantizeInputs(op, "x", x, "kind", kind, per, groups));
    return {values, scale};
  }

  static Tensor fake_quantize(const Tensor& x, std::string kind, std::string per, int64_t groups) {
    const auto op = Device::make("fake_quantize", "x", x);
    const QuantizeInputs in(op, "x", x, "kind", kind, per, groups);
    return restored_matrix(op, in, quantized_matrix(op, in));
  }

  // Ternary weights are multiplied as the int8 that they are here.
  static Tensor lowbit_linear(const Tensor& x, const Tensor& weight, std::string x_kind,
                              std::string weight_kind, std::string weight_per, int64_t groups) {
    const auto op = Device::make("lowbit_linear", "x", x);
    const LinearInputs in(op, x, weight, x_kind, weight_kind, weight_per, groups);
    const auto [a, a_scale] = quantized_matrix(op, in.x);
    const auto [b, b_scale] = quantized_matrix(op, in.weight);
    return low_bit_product(op, LowBitInputs(op, a, b, a_scale, b_scale, ScalarType::Float));
  }

  static Tensor pack_ternary(const Tensor& values_) {
    const auto op = Device::make("pack_ternary", "values", values_);
    const Tensor values = input(op, "values", values_, ScalarType::Char, {kAny, kAny});
    const int64_t rows = values.size(0), cols = values.size(1);
    Tensor packed = empty(op, {packed_rows(rows), cols}, ScalarType::Byte);
    run_pack(op, values.const_data_ptr<int8_t>(), rows, cols, packed.mutable_data_ptr<uint8_t>());
    return packed;
  }

  static Tensor unpack_ternary(const Tensor& packed_, int64_t rows) {
    const auto op = Device::make("unpack_ternary", "packed", packed_);
    const Tensor packed = input(op, "packed", packed_, ScalarType::Byte, {kAny, kAny});
    check_packed_rows(op, packed, rows);
    const int64_t cols = packed.size(1);
    Tensor values = empty(op, {rows, cols}, ScalarType::Char);
    run_unpack(op, packed.const_data_ptr<uint8_t>(), rows, cols, values.mutable_data_ptr<int8_t>());
    return values;
  }

  MDOPS_IMPLEMENT(LowBitOps, gemm_lowbit, quantize, fake_quantize, lowbit_linear, pack_ternary,
                  unpack_ternary)
};

}  // namespace mdops
