// The low-bit ops. A device has `low_bit_product`, `quantized_matrix`, `restored_matrix`, and `run_pack` and
// `run_unpack` of ternary numbers.
#pragma once

#include "common/bind.h"
#include "lowbit/inputs.h"

namespace mdops {

template <class Device>
struct LowBitOps {
  static Tensor gemm_lowbit(Checked<Device>& in, Input a, Input b, Input a_scale, Input b_scale,
                            ScalarType out_dtype) {
    return low_bit_product(in.op, LowBitInputs(in.op, a, b, a_scale, b_scale, out_dtype));
  }

  static Outputs<2> quantize(Checked<Device>& in, Input x, std::string kind, std::string per,
                             int64_t groups) {
    const auto [values, scale] =
        quantized_matrix(in.op, QuantizeInputs(in.op, "x", x, "kind", kind, per, groups));
    return {values, scale};
  }

  static Tensor fake_quantize(Checked<Device>& in, Input x, std::string kind, std::string per,
                              int64_t groups) {
    const QuantizeInputs given(in.op, "x", x, "kind", kind, per, groups);
    return restored_matrix(in.op, given, quantized_matrix(in.op, given));
  }

  // Ternary weights are multiplied as int8 here.
  static Tensor lowbit_linear(Checked<Device>& in, Input x, Input weight, std::string x_kind,
                              std::string weight_kind, std::string weight_per, int64_t groups) {
    const LinearInputs factors(in.op, x, weight, x_kind, weight_kind, weight_per, groups);
    const auto [a, a_scale] = quantized_matrix(in.op, factors.x);
    const auto [b, b_scale] = quantized_matrix(in.op, factors.weight);
    return low_bit_product(in.op, LowBitInputs(in.op, a, b, a_scale, b_scale, ScalarType::Float));
  }

  static Tensor pack_ternary(Checked<Device>& in, Input values_) {
    const Tensor values = input(in.op, "values", values_, ScalarType::Char, {kAny, kAny});
    const int64_t rows = values.size(0), cols = values.size(1);
    Tensor packed = empty(in.op, {packed_rows(rows), cols}, ScalarType::Byte);
    run_pack(in.op, values.const_data_ptr<int8_t>(), rows, cols, packed.mutable_data_ptr<uint8_t>());
    return packed;
  }

  static Tensor unpack_ternary(Checked<Device>& in, Input packed_, int64_t rows) {
    const Tensor packed = input(in.op, "packed", packed_, ScalarType::Byte, {kAny, kAny});
    check_packed_rows(in.op, packed, rows);
    const int64_t cols = packed.size(1);
    Tensor values = empty(in.op, {rows, cols}, ScalarType::Char);
    run_unpack(in.op, packed.const_data_ptr<uint8_t>(), rows, cols, values.mutable_data_ptr<int8_t>());
    return values;
  }

  MDOPS_IMPLEMENT(LowBitOps, gemm_lowbit, quantize, fake_quantize, lowbit_linear, pack_ternary,
                  unpack_ternary)
};

}  // namespace mdops
