// The arguments of the low-bit ops, checked at entry.
#pragma once

#include "common/tensor.h"
#include "lowbit/lowbit.h"

namespace mdops {

inline bool is_float8(ScalarType dtype) {
  return dtype == ScalarType::Float8_e4m3fn || dtype == ScalarType::Float8_e5m2;
}

inline LowBit low_bit_of(ScalarType dtype) {
  return dtype == ScalarType::Char            ? LowBit::int8
         : dtype == ScalarType::Byte          ? LowBit::ternary
         : dtype == ScalarType::Float8_e4m3fn ? LowBit::e4m3
                                              : LowBit::e5m2;
}

inline int64_t packed_rows(int64_t rows) {
  return rows / 4 + (rows % 4 != 0);
}

inline void check_packed_rows(const Op& op, Input packed, int64_t rows) {
  if (rows < 0 || packed_rows(rows) != packed.size(0))
    fail(op, "argument `rows` is ", rows, ", expected a number that takes the ", packed.size(0),
         " rows of `packed`, four in each");
}

struct LowBitInputs {
  ScalarType out_dtype;
  LowBit a_kind, b_kind;
  LowBitOut out_kind;
  Tensor a, b, a_scale, b_scale;
  bool b_by_columns = false;  // b is kept as (columns, depth)
  int64_t rows, cols, depth, groups = 1, group;

  LowBitInputs(const Op& op, Input a_, Input b_, Input a_scale_, Input b_scale_, ScalarType out)
      : out_dtype(out), out_kind(out_kind_of(op, out)) {
    const ScalarType a_dtype = a_.scalar_type(), b_dtype = b_.scalar_type();
    const bool whole = a_dtype == ScalarType::Char;
    if (!whole && !is_float8(a_dtype))
      fail(op,
           "argument `a` has dtype " + name_of(a_dtype) + ", expected int8, float8_e4m3fn or float8_e5m2");
    if (whole ? b_dtype != ScalarType::Char && b_dtype != ScalarType::Byte : !is_float8(b_dtype))
      fail(op, "argument `b` has dtype ", name_of(b_dtype), ", expected ",
           (whole ? "int8, or uint8 for packed ternary numbers," : "float8_e4m3fn or float8_e5m2"),
           " beside an `a` of ", name_of(a_dtype));
    a_kind = low_bit_of(a_dtype), b_kind = low_bit_of(b_dtype);
    a = input(op, "a", a_, a_dtype, {kAny, kAny});
    rows = a.size(0), depth = a.size(1);
    const int64_t b_rows = b_kind == LowBit::ternary ? packed_rows(depth) : depth;
    if (b_.dim() == 2 && b_.size(0) == b_rows && b_kind != LowBit::ternary && b_.stride(0) == 1 &&
        (b_.stride(1) != 1 || b_.size(1) == 1)) {
      b = input(op, "b", torch::stable::transpose(b_, 0, 1), b_dtype, {kAny, b_rows});
      b_by_columns = true;
    } else {
      b = input(op, "b", b_, b_dtype, {b_rows, kAny});
    }
    cols = b.size(b_by_columns ? 0 : 1);
    a_scale = a_scale_.dim() == 0 ? input(op, "a_scale", a_scale_, ScalarType::Float, {})
                                  : input(op, "a_scale", a_scale_, ScalarType::Float, {rows});
    if (b_scale_.dim() == 0) {
      b_scale = input(op, "b_scale", b_scale_, ScalarType::Float, {});
    } else if (b_scale_.dim() == 1) {
      b_scale = input(op, "b_scale", b_scale_, ScalarType::Float, {cols});
    } else {
      b_scale = input(op, "b_scale", b_scale_, ScalarType::Float, {kAny, cols});
      groups = b_scale.size(0);
    }
    group = groups > 0 ? depth / groups + (depth % groups != 0) : 0;
    if (groups > 1 ? depth <= (groups - 1) * group : groups == 0 && depth > 0)
      fail(op, "argument `b_scale` has ", groups, " groups, of which ceil(K / groups) = ", group,
           " rows each leave some empty or rows over for K = ", depth);
    const int64_t most = b_kind == LowBit::ternary ? kMostTernaryDepth : kMostInt8Depth;
    if (whole && group > most)
      fail(op, "arguments `a` and `b` are summed over ", group, " numbers, more than the ", most,
           " whose sum fits into 32 bits: give `b_scale` for groups");
  }

  int64_t b_row() const { return b_by_columns ? 1 : cols; }
  int64_t b_col() const { return b_by_columns ? depth : 1; }
  int64_t a_step() const { return a_scale.dim() == 0 ? 0 : 1; }
  int64_t b_step() const { return b_scale.dim() == 0 ? 0 : 1; }

  // The type of results: float32, or the bits of PyTorch's own 16-bit types.
  void* out_of(Tensor& result) const {
    if (out_dtype == ScalarType::Float) return result.mutable_data_ptr<float>();
    if (out_dtype == ScalarType::Half) return result.mutable_data_ptr<torch::headeronly::Half>();
    return result.mutable_data_ptr<torch::headeronly::BFloat16>();
  }

 private:
  static std::string name_of(ScalarType dtype) { return torch::headeronly::toString(dtype); }
  static LowBitOut out_kind_of(const Op& op, ScalarType out) {
    if (out == ScalarType::Float) return LowBitOut::float32;
    if (out == ScalarType::BFloat16) return LowBitOut::bfloat16;
    if (out == ScalarType::Half) return LowBitOut::float16;
    fail(op, "argument `out_dtype` is ", name_of(out), ", expected float32, bfloat16 or float16");
  }
};

// The inputs of quantize: a matrix, the kind of number, and which numbers share a scale.
struct QuantizeInputs {
  enum Per { tensor, row, column } per;
  LowBit kind;
  Tensor x;
  int64_t rows = x.size(0), cols = x.size(1), groups, group;  // groups of rows, for scales of columns

  QuantizeInputs(const Op& op, const char* name, Input x_, const char* kind_name, const std::string& kind_,
                 const std::string& per_, int64_t groups_)
      : per(per_of(op, per_)),
        kind(kind_of(op, kind_name, kind_)),
        x(input(op, name, x_, ScalarType::Float, {kAny, kAny})),
        groups(groups_) {
    if (groups < 0 || (per != column && groups != 1))
      fail(op, "argument `groups` is ", groups, ", expected 1, or 0 or more for scales of columns");
    group = groups > 0 ? rows / groups + (rows % groups != 0) : 0;
    if (groups > 1 ? rows <= (groups - 1) * group : groups == 0 && rows > 0)
      fail(op, "argument `groups` is ", groups, ", of which ceil(rows / groups) = ", group,
           " rows each leave some empty or rows over for ", rows, " rows");
  }

  // The index of a number's scale.
  int64_t scale_at(int64_t i, int64_t j) const {
    return per == tensor ? 0 : per == row ? i : i / group * cols + j;
  }

 private:
  static Per per_of(const Op& op, const std::string& name) {
    if (name == "tensor") return tensor;
    if (name == "row") return row;
    if (name == "column") return column;
    fail(op, "the scales are per ", name, ", expected per tensor, row or column");
  }
  static LowBit kind_of(const Op& op, const char* argument, const std::string& name) {
    if (name == "int8") return LowBit::int8;
    if (name == "ternary") return LowBit::ternary;
    if (name == "e4m3") return LowBit::e4m3;
    if (name == "e5m2") return LowBit::e5m2;
    fail(op,
         "argument `" + std::string(argument) + "` is " + name + ", expected int8, ternary, e4m3 or e5m2");
  }
};

struct Quantized {
  Tensor values, scale;
};

inline Quantized empty_quantized(const Op& op, const QuantizeInputs& in) {
  const ScalarType dtype = in.kind == LowBit::e4m3   ? ScalarType::Float8_e4m3fn
                           : in.kind == LowBit::e5m2 ? ScalarType::Float8_e5m2
                                                     : ScalarType::Char;
  return {empty(op, {in.rows, in.cols}, dtype),
          in.per == QuantizeInputs::tensor ? empty(op, {}, ScalarType::Float)
          : in.per == QuantizeInputs::row  ? empty(op, {in.rows}, ScalarType::Float)
                                           : empty(op, {in.groups, in.cols}, ScalarType::Float)};
}

// The factors of a product that quantises them.
struct LinearInputs {
  QuantizeInputs x, weight;

  LinearInputs(const Op& op, Input x_, Input weight_, const std::string& x_kind,
               const std::string& weight_kind, const std::string& weight_per, int64_t groups)
      : x(op, "x", x_, "x_kind", x_kind, "row", 1),
        weight(op, "weight", input(op, "weight", weight_, ScalarType::Float, {x.cols, kAny}), "weight_kind",
               weight_kind, weight_per, groups) {
    const auto is_float = [](LowBit kind) { return kind == LowBit::e4m3 || kind == LowBit::e5m2; };
    if (x.kind == LowBit::ternary || is_float(x.kind) != is_float(weight.kind))
      fail(op, "arguments `x_kind` and `weight_kind` are ", x_kind, " and ", weight_kind,
           ", expected int8 beside int8 or ternary, or two float8");
    if (weight.per == QuantizeInputs::row)
      fail(op, "argument `weight_per` is row, expected tensor or column");
  }
};

}  // namespace mdops
