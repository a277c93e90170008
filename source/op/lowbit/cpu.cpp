#include "common/large_results.h"
#include "common/scratch.h"
#include "lowbit/cpu_kernel.h"
#include "lowbit/ops.h"

namespace mdops {

namespace {

constexpr int64_t kNumbers = 1 << 15;  // of a piece of work, at least

const uint8_t* bytes(Input tensor) {
  return static_cast<const uint8_t*>(tensor.const_data_ptr());
}

LowBitChip best_chip(int64_t groups) {
  return isa() != Isa::v4 ? LowBitChip::plain
         : isa_has_amx()  ? (groups == 1 ? LowBitChip::tiles : LowBitChip::amx)
         : isa_has_vnni() ? LowBitChip::vnni
                          : LowBitChip::plain;
}

struct PreparedRows;
struct ThreadMemory;

// max|x| of a row, or its mean|x|.
float size_of_row(LowBit kind, const float* x, int64_t n) {
  if (kind != LowBit::ternary) return MDOPS_RUN(largest, x, n);
  double sum = 0;
  for (int64_t k = 0; k < n; ++k) sum += std::fabs(static_cast<double>(x[k]));
  return n == 0 ? 0.0f : static_cast<float>(sum / static_cast<double>(n));
}

float scale_of(LowBit kind, float size) {
  return scale_or_one(kind == LowBit::ternary ? size : size / most_of(kind));
}

// The scale of all numbers, from pieces of a fixed length.
float scale_of_all(LowBit kind, const float* x, int64_t n) {
  const int64_t pieces = (n + kNumbers - 1) / kNumbers;
  std::vector<double> size(pieces);
  parallel_each(pieces, 1, [&](int64_t k) {
    const int64_t first = k * kNumbers, count = std::min(kNumbers, n - first);
    if (kind != LowBit::ternary) {
      size[k] = MDOPS_RUN(largest, x + first, count);
    } else {
      for (int64_t i = first; i < first + count; ++i) size[k] += std::fabs(static_cast<double>(x[i]));
    }
  });
  double all = 0;
  for (const double one : size)
    all = kind == LowBit::ternary ? all + one : one > all || one != one ? one : all;
  if (kind == LowBit::ternary && n > 0) all /= static_cast<double>(n);
  return scale_of(kind, static_cast<float>(all));
}

void scales_of_columns(const QuantizeInputs& in, const float* x, float* scale) {
  parallel(in.groups, 1, [&](int64_t begin, int64_t end) {
    std::vector<double> size(in.cols);
    for (int64_t g = begin; g < end; ++g) {
      const int64_t first = g * in.group, last = std::min(in.rows, first + in.group);
      std::fill(size.begin(), size.end(), 0.0);
      for (int64_t row = first; row < last; ++row)
        for (int64_t n = 0; n < in.cols; ++n) {
          const double one = std::fabs(static_cast<double>(x[row * in.cols + n]));
          if (in.kind == LowBit::ternary)
            size[n] += one;
          else if (one > size[n] || one != one)
            size[n] = size[n] != size[n] ? size[n] : one;
        }
      for (int64_t n = 0; n < in.cols; ++n) {
        const double mean = last > first ? size[n] / static_cast<double>(last - first) : 0.0;
        scale[g * in.cols + n] =
            scale_of(in.kind, static_cast<float>(in.kind == LowBit::ternary ? mean : size[n]));
      }
    }
  });
}

template <class Float8>
void put_row(const float* x, int64_t n, const float* scale, int64_t step, float most, Float8* values) {
  for (int64_t k = 0; k < n; ++k) {
    const float value = x[k] / scale[k * step];
    values[k] = static_cast<Float8>(value > most ? most : value < -most ? -most : value);
  }
}

template <class T>
void times_scale(const QuantizeInputs& in, const T* values, const float* scale, float* x) {
  parallel_each(in.rows, std::max<int64_t>(1, kNumbers / std::max<int64_t>(1, in.cols)), [&](int64_t row) {
    for (int64_t n = 0; n < in.cols; ++n)
      x[row * in.cols + n] = static_cast<float>(values[row * in.cols + n]) * scale[in.scale_at(row, n)];
  });
}

}  // namespace

static Tensor low_bit_product(const Op& op, const LowBitInputs& in) {
  Tensor result = empty_result(op, {in.rows, in.cols}, in.out_dtype);
  if (in.rows == 0 || in.cols == 0) return result;
  LowBitProduct p{};
  p.a_kind = in.a_kind, p.b_kind = in.b_kind, p.out_kind = in.out_kind;
  p.a = bytes(in.a), p.b = bytes(in.b), p.b_row = in.b_row(), p.b_col = in.b_col();
  p.rows = in.rows, p.cols = in.cols, p.depth = in.depth, p.groups = in.groups, p.group = in.group;
  p.a_scale = data_of(in.a_scale), p.a_step = in.a_step();
  p.b_scale = data_of(in.b_scale), p.b_step = in.b_step();
  p.out = in.out_of(result);

  const LowBitChip chip = best_chip(in.groups);
  const LowBitCut cut = MDOPS_RUN(cut_product, p, chip, thread_count());
  const ScratchMemory<PreparedRows> prepared(op, cut.prepared);
  void* const a_ready = prepared.data();
  if (cut.prepared > 0)
    parallel(p.rows, std::max<int64_t>(1, kNumbers / std::max<int64_t>(1, p.depth)),
             [&](int64_t begin, int64_t end) { MDOPS_RUN(prepare_rows, p, chip, begin, end, a_ready); });

  const int64_t panels = (p.cols + cut.panel - 1) / cut.panel, blocks = (p.rows + cut.block - 1) / cut.block;
  const int64_t work = cut.block * cut.panel * std::max<int64_t>(1, p.depth);
  parallel(panels * blocks, std::max<int64_t>(1, (1 << 20) / work), [&](int64_t begin, int64_t end) {
    const ScratchMemory<ThreadMemory> scratch(op, cut.scratch);
    MDOPS_RUN(multiply_pieces, p, chip, cut, begin, end, a_ready, scratch.data());
  });
  return result;
}

static Quantized quantized_matrix(const Op& op, const QuantizeInputs& in) {
  auto [values, scale] = empty_quantized(op, in);
  const float* x = in.x.const_data_ptr<float>();
  float* scales = scale.mutable_data_ptr<float>();
  uint8_t* to = static_cast<uint8_t*>(values.mutable_data_ptr());
  if (in.per == QuantizeInputs::tensor) *scales = scale_of_all(in.kind, x, in.rows * in.cols);
  if (in.per == QuantizeInputs::column) scales_of_columns(in, x, scales);
  const float most = in.kind == LowBit::ternary ? 1.0f : most_of(in.kind);
  parallel_each(in.rows, std::max<int64_t>(1, kNumbers / std::max<int64_t>(1, in.cols)), [&](int64_t row) {
    const float* from = x + row * in.cols;
    uint8_t* out = to + row * in.cols;
    if (in.per == QuantizeInputs::row) scales[row] = scale_of(in.kind, size_of_row(in.kind, from, in.cols));
    const float* own = in.per == QuantizeInputs::tensor ? scales
                       : in.per == QuantizeInputs::row  ? scales + row
                                                        : scales + row / in.group * in.cols;
    const int64_t step = in.per == QuantizeInputs::column ? 1 : 0;
    if (in.kind == LowBit::e4m3)
      put_row(from, in.cols, own, step, most, reinterpret_cast<torch::headeronly::Float8_e4m3fn*>(out));
    else if (in.kind == LowBit::e5m2)
      put_row(from, in.cols, own, step, most, reinterpret_cast<torch::headeronly::Float8_e5m2*>(out));
    else
      MDOPS_RUN(quantise_row, from, in.cols, own, step, most, reinterpret_cast<int8_t*>(out));
  });
  return {values, scale};
}

static Tensor restored_matrix(const Op&, const QuantizeInputs& in, const Quantized& made) {
  const auto& [values, scale] = made;
  Tensor result = empty({in.rows, in.cols}, ScalarType::Float);
  float* x = result.mutable_data_ptr<float>();
  const float* scales = scale.const_data_ptr<float>();
  if (in.kind == LowBit::e4m3)
    times_scale(in, values.const_data_ptr<torch::headeronly::Float8_e4m3fn>(), scales, x);
  else if (in.kind == LowBit::e5m2)
    times_scale(in, values.const_data_ptr<torch::headeronly::Float8_e5m2>(), scales, x);
  else
    times_scale(in, values.const_data_ptr<int8_t>(), scales, x);
  return result;
}

static void run_pack(const Op& op, const int8_t* from, int64_t rows, int64_t cols, uint8_t* to) {
  parallel_each(
      packed_rows(rows), std::max<int64_t>(1, kNumbers / std::max<int64_t>(1, 4 * cols)), [&](int64_t row) {
        for (int64_t n = 0; n < cols; ++n) {
          unsigned byte = 0;
          for (int k = 0; k < 4 && 4 * row + k < rows; ++k) {
            const int8_t value = from[(4 * row + k) * cols + n];
            if (value < -1 || value > 1)
              fail(op, "argument `values` has ", value, " in row ", 4 * row + k, ", expected -1, 0 or 1");
            byte |= (static_cast<unsigned>(value) & 3) << (2 * k);
          }
          to[row * cols + n] = static_cast<uint8_t>(byte);
        }
      });
}

static void run_unpack(const Op&, const uint8_t* from, int64_t rows, int64_t cols, int8_t* to) {
  parallel_each(rows, std::max<int64_t>(1, kNumbers / std::max<int64_t>(1, cols)), [&](int64_t row) {
    for (int64_t n = 0; n < cols; ++n)
      to[row * cols + n] = ternary_of(from[row / 4 * cols + n], static_cast<int>(row % 4));
  });
}

}  // namespace mdops

MDOPS_ON_CPU(LowBitOps)
