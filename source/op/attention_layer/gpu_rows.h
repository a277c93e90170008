// The part of a layer of attention that goes row by row, by tensor cores, to the accuracy of float32:
// products with the weights, and the steps before and after. attention/gpu_forward.h and gpu_backward.h run
// between them.
//
//   forward    project_kernel   q, k, v = g W + b, of length 1
//              finish_kernel    norm(g + o W_o + b_o)
//   backward   begin_kernel     dh of LayerNorm's gradient; do = dh W_o^T; delta = do.o
//              collect_kernel   dg = dh + sum over q, k and v of (dx - x x.dx) / |x| W^T
//
// If q, k and v follow g, attention reads them and writes their gradients there, and dh is written to dg. If
// they still have to be normalised or multiplied with factors, take_kernel replaces the first kernel and
// give_kernel the last.
#pragma once

#include "attention_layer/attention_layer.h"
#include "attention_layer/gpu_row_tiles.h"
#include "common/gpu_unroll.h"

namespace mdops::gpu_attention_layer {

constexpr int kLightBlocks = 4;  // a multiprocessor, of kernels without factors

struct RowArgs {
  int rows, features, width;
  int columns, parts_begin;  // of g; where q begins in it, if it has no weights
  int begin, end;            // of q, k and v, the weights for one launch
  // Rows after the last of the atoms' offsets belong to no atom, and stay unset; if attention's kernels set
  // `bad`, all are computed.
  const int32_t *last, *bad;
  bool normalize, in_place;
  float eps;
  const float *project, *project_bias, *factors, *out, *out_bias, *norm, *norm_bias, *g;
  // Saved for the gradient; the three and o are (rows, width), the normalised h (rows, features), the others
  // (rows,).
  float *part[3], *shrink[3], *o, *normed, *deviation;
  float* unit_q;  // (rows, width), with factors: q without them
};

// How many rows belong to an atom. All threads of a block must call it.
MDOPS_D int rows_of_atoms(const RowArgs& p) {
  return rows_of_atoms(p.last, p.bad, p.rows);
}

// Factors are the last of a block's per-column numbers.
constexpr int kFactors = 3;

// Stores q, k or v of 16 rows for attention and for the backward pass.
template <class Shape>
MDOPS_D void keep_part(Rows<Shape::kUnits>& x, const RowArgs& p, int part, const BlockNumbers& numbers,
                       int64_t first, int count) {
  float shrink[2];
  shorten<Shape::kUnits>(x, p.normalize, shrink);
  if (part == 0 && p.factors) {
    store_rows<Shape>(x, p.unit_q + first * p.width, p.width, count, p.width);
    with_columns<Shape::kUnits>(x, numbers.of_columns[kFactors], [](float& y, float by) { y *= by; });
  }
  store_rows<Shape>(x, p.part[part] + first * p.width, p.width, count, p.width);
  store_numbers(shrink, p.shrink[part] + first, count);
}

struct PartGradients {
  const float* of[3];  // of q, k and v, (rows, width)
};

// The gradients by q, k or v, and the saved data for the gradients by their inputs.
template <class Shape>
struct PartRows {
  Rows<Shape::kUnits> dx, x;
  float shrink[2];

  MDOPS_D void load(const RowArgs& p, const PartGradients& d, int part, int64_t first, int count) {
    load_rows<Shape>(dx, d.of[part] + first * p.width, p.width, count, p.width);
    if (!p.normalize) return;
    load_rows<Shape>(x, kept(p, part) + first * p.width, p.width, count, p.width);
    load_numbers(shrink, p.shrink[part] + first, count);
  }
  MDOPS_D void finish(const RowArgs& p, int part, const BlockNumbers& numbers) {
    if (part == 0 && p.factors)
      with_columns<Shape::kUnits>(dx, numbers.of_columns[kFactors], [](float& y, float by) { y *= by; });
    if (p.normalize) lengthen<Shape::kUnits>(dx, x, shrink);
  }

  static MDOPS_D const float* kept(const RowArgs& p, int part) {
    return part == 0 && p.factors ? p.unit_q : p.part[part];
  }
};

template <bool Even, int W>
using PartShape = RowShape<Even, 2 * W, Even && W == kMost ? 2 * kSome : 0>;

template <bool Even, int F, int W>
__global__ void __launch_bounds__(kRowThreads, 1) project_kernel(RowArgs p) {
  using Features = FeatureRows<Even, F>;
  using Part = PartShape<Even, W>;
  char* const memory = gpu_attention::block_memory();
  constexpr int kBytes = Factor<F, 2 * W>::kBytes;
  BlockNumbers& numbers = block_numbers((p.end - p.begin) * kBytes);
  fill_columns(numbers, kFactors, p.factors, p.width);
  for (int part = p.begin; part < p.end; ++part) {
    fill_columns(numbers, part, p.project_bias + part * p.width, p.width);
    const float found =
        fill_factor<F, 2 * W>(memory + (part - p.begin) * kBytes, p.features, p.width, &numbers.largest,
                              [&](int k, int n) { return p.project[(k * 3 + part) * p.width + n]; });
    if (threadIdx.x == 0) numbers.inverse[part] = found;
  }
  __syncthreads();
  const int rows = min(max(*p.last, 0), p.rows);
  each_group(rows, [&](int64_t first, int count, int64_t next) {
    ask_for_rows(p.g, next, rows, p.features, p.features);
    Rows<2 * F> g;
    load_rows<Features>(g, p.g + first * p.features, p.features, count, p.features);
    const float scale = gpu_attention::scale_of_units<Parts>(g);
#pragma unroll 1
    for (int part = p.begin; part < p.end; ++part) {
      Rows<2 * W> x{};
      add_product<F, 2 * W>(x, g, scale, memory + (part - p.begin) * kBytes, numbers.inverse[part]);
      with_columns<2 * W>(x, numbers.of_columns[part], [](float& y, float bias) { y += bias; });
      keep_part<Part>(x, p, part, numbers, first, count);
    }
  });
}

template <bool Even, int W>
__global__ void __launch_bounds__(kRowThreads, kLightBlocks) take_kernel(RowArgs p) {
  using Part = PartShape<Even, W>;
  BlockNumbers& numbers = block_numbers(0);
  fill_columns(numbers, kFactors, p.factors, p.width);
  __syncthreads();
  each_group(min(max(*p.last, 0), p.rows), [&](int64_t first, int count, int64_t) {
#pragma unroll 1
    for (int part = 0; part < 3; ++part) {
      Rows<2 * W> x;
      const float* const from = p.g + first * p.columns + p.parts_begin + part * p.width;
      load_rows<Part>(x, from, p.width, count, p.columns);
      keep_part<Part>(x, p, part, numbers, first, count);
    }
  });
}

// A block's per-column numbers besides `kFactors`.
enum OfColumns { kOutBias, kNorm, kNormBias };

// Maps o to `result` (rows, features).
template <bool Even, int F, int W>
__global__ void __launch_bounds__(kRowThreads, 1) finish_kernel(RowArgs p, float* result) {
  using Features = FeatureRows<Even, F>;
  using Part = PartShape<Even, W>;
  char* const memory = gpu_attention::block_memory();
  BlockNumbers& numbers = block_numbers(Factor<W, 2 * F>::kBytes);
  fill_columns(numbers, kOutBias, p.out_bias, p.features);
  fill_columns(numbers, kNorm, p.norm, p.features), fill_columns(numbers, kNormBias, p.norm_bias, p.features);
  const float inverse = fill_factor<W, 2 * F>(memory, p.width, p.features, &numbers.largest,
                                              [&](int k, int n) { return p.out[k * p.features + n]; });
  const int rows = rows_of_atoms(p);
  each_group(rows, [&](int64_t first, int count, int64_t next) {
    ask_for_rows(p.o, next, rows, p.width, p.width), ask_for_rows(p.g, next, rows, p.features, p.columns);
    Rows<2 * F> x{}, g;
    Rows<2 * W> in;
    load_rows<Part>(in, p.o + first * p.width, p.width, count, p.width);
    load_rows<Features>(g, p.g + first * p.columns, p.features, count, p.columns);
    add_product<W, 2 * F>(x, in, memory, inverse);
    with_columns<2 * F>(g, numbers.of_columns[kOutBias], [](float& y, float bias) { y += bias; });
    unrolled<2 * F, 4>([&](int unit, int k) { x[unit][k] += g[unit][k]; });
    float mean[2], deviation[2];
    sum_rows<2 * F>(mean, [&](int unit, int k) { return x[unit][k]; });
    mean[0] /= p.features, mean[1] /= p.features;
    sum_rows<2 * F>(deviation, [&](int unit, int k) {
      const float from = x[unit][k] - mean[k / 2];
      return Features::has(unit, k, p.features) ? from * from : 0.0f;
    });
#pragma unroll
    for (int h = 0; h < 2; ++h) deviation[h] = 1 / sqrtf(deviation[h] / p.features + p.eps);
    store_numbers(deviation, p.deviation + first, count);
    unrolled<2 * F, 4>([&](int unit, int k) { x[unit][k] = (x[unit][k] - mean[k / 2]) * deviation[k / 2]; });
    store_rows<Features>(x, p.normed + first * p.features, p.features, count, p.features);
    with_columns<2 * F>(x, numbers.of_columns[kNorm], [](float& y, float by) { y *= by; });
    with_columns<2 * F>(x, numbers.of_columns[kNormBias], [](float& y, float bias) { y += bias; });
    store_rows<Features>(x, result + first * p.features, p.features, count, p.features);
  });
}

// Maps `grad` (rows, features) to `dh` (rows, features), with rows `columns` apart, `grad_o` (rows, width)
// and `delta` (rows,).
template <bool Even, int F, int W>
__global__ void __launch_bounds__(kRowThreads, 1)
    begin_kernel(RowArgs p, const float* grad, float* dh, int columns, float* grad_o, float* delta) {
  using Features = FeatureRows<Even, F>;
  using Part = PartShape<Even, W>;
  char* const memory = gpu_attention::block_memory();
  BlockNumbers& numbers = block_numbers(Factor<F, 2 * W>::kBytes);
  fill_columns(numbers, kNorm, p.norm, p.features);
  const float inverse = fill_factor<F, 2 * W>(memory, p.features, p.width, &numbers.largest,
                                              [&](int k, int n) { return p.out[n * p.features + k]; });
  const int rows = min(max(*p.last, 0), p.rows);
  // If attention writes its gradients in place, this fills the columns before them.
  const int stored = p.in_place ? min(p.parts_begin, 16 * F) : p.features;
  each_group(rows, [&](int64_t first, int count, int64_t) {
    if (p.in_place) clear_columns(dh + first * columns, stored, p.parts_begin, columns, count);
    Rows<2 * F> x, h;
    float deviation[2], along[2], whole[2], sum[2];
    load_rows<Features>(x, grad + first * p.features, p.features, count, p.features);
    load_rows<Features>(h, p.normed + first * p.features, p.features, count, p.features);
    load_numbers(deviation, p.deviation + first, count);
    with_columns<2 * F>(x, numbers.of_columns[kNorm], [](float& y, float by) { y *= by; });
    sum_rows<2 * F>(whole, [&](int unit, int k) { return x[unit][k]; });
    sum_rows<2 * F>(along, [&](int unit, int k) { return x[unit][k] * h[unit][k]; });
    unrolled<2 * F, 4>([&](int unit, int k) {
      const int i = k / 2;
      const float rest = x[unit][k] - whole[i] / p.features - h[unit][k] * (along[i] / p.features);
      x[unit][k] = Features::has(unit, k, p.features) ? rest * deviation[i] : 0.0f;
    });
    store_rows<Features>(x, dh + first * columns, stored, count, columns);
    Rows<2 * W> grad_rows{}, o;
    load_rows<Part>(o, p.o + first * p.width, p.width, count, p.width);
    add_product<F, 2 * W>(grad_rows, x, memory, inverse);
    store_rows<Part>(grad_rows, grad_o + first * p.width, p.width, count, p.width);
    sum_rows<2 * W>(sum, [&](int unit, int k) { return grad_rows[unit][k] * o[unit][k]; });
    store_numbers(sum, delta + first, count);
  });
}

// `result` = `from` (rows, features) + the parts of this launch.
template <bool Even, int F, int W>
__global__ void __launch_bounds__(kRowThreads, 1)
    collect_kernel(RowArgs p, PartGradients d, const float* from, float* result) {
  using Features = FeatureRows<Even, F>;
  using Part = PartShape<Even, W>;
  char* const memory = gpu_attention::block_memory();
  constexpr int kBytes = Factor<W, 2 * F>::kBytes;
  BlockNumbers& numbers = block_numbers((p.end - p.begin) * kBytes);
  fill_columns(numbers, kFactors, p.factors, p.width);
  for (int part = p.begin; part < p.end; ++part) {
    const float found =
        fill_factor<W, 2 * F>(memory + (part - p.begin) * kBytes, p.width, p.features, &numbers.largest,
                              [&](int k, int n) { return p.project[(n * 3 + part) * p.width + k]; });
    if (threadIdx.x == 0) numbers.inverse[part] = found;
  }
  __syncthreads();
  const int rows = rows_of_atoms(p);
  // For the next part.
  const auto ask = [&](int part, int64_t at) {
    ask_for_rows(d.of[part], at, rows, p.width, p.width);
    if (p.normalize) ask_for_rows(PartRows<Part>::kept(p, part), at, rows, p.width, p.width);
  };
  each_group(rows, [&](int64_t first, int count, int64_t next) {
    Rows<2 * F> sum;
    load_rows<Features>(sum, from + first * p.features, p.features, count, p.features);
#pragma unroll 1
    for (int part = p.begin; part < p.end; ++part) {
      PartRows<Part> own;
      own.load(p, d, part, first, count);
      if (part + 1 < p.end)
        ask(part + 1, first);
      else
        ask(p.begin, next);
      own.finish(p, part, numbers);
      add_product<W, 2 * F>(sum, own.dx, memory + (part - p.begin) * kBytes, numbers.inverse[part]);
    }
    store_rows<Features>(sum, result + first * p.features, p.features, count, p.features);
  });
}

// Writes the columns of the coordinates in `result` (rows, columns); the others are there.
template <bool Even, int W>
__global__ void __launch_bounds__(kRowThreads, kLightBlocks)
    give_kernel(RowArgs p, PartGradients d, float* result) {
  using Part = PartShape<Even, W>;
  BlockNumbers& numbers = block_numbers(0);
  fill_columns(numbers, kFactors, p.factors, p.width);
  const int rows = rows_of_atoms(p);
  each_group(rows, [&](int64_t first, int count, int64_t) {
    float* const to = result + first * p.columns;
    clear_columns(to, p.features, p.parts_begin, p.columns, count);
#pragma unroll 1
    for (int part = 0; part < 3; ++part) {
      PartRows<Part> own;
      own.load(p, d, part, first, count);
      own.finish(p, part, numbers);
      store_rows<Part>(own.dx, to + p.parts_begin + part * p.width, p.width, count, p.columns);
    }
  });
}

}  // namespace mdops::gpu_attention_layer
