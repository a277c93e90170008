// Messages of float32 by the tensor cores, to float32's accuracy.
//
// A team of warps has a first. A warp takes 16 of its rows at once, whose x stays in registers; the weights
// are in shared memory as the products read them. Each 16 columns go from the products straight to the
// epilogue. In backward passes their part of the gradient by x is a product with the transposed weights: the
// sums of one product are in registers in the layout of the next one's left side.
//
// Each number is the sum of two float16, times a power of two that 16 rows, or all weights, share; the
// smallest of the four products of two numbers is left out. Tensor cores round sums towards zero: so large
// and small products are summed separately, the sums over few columns begin at zero, and several are added in
// float32. Where less accuracy suffices, numbers have one part.
//
// Of sixteen contiguous numbers of a row, a lane has four, by one read: two for each half of the depth, or
// for each of two products of eight columns (`place_of`).
//
// Weights that do not fit into shared memory go in several runs, each with some of the columns.
//
// The gradients of frames are computed where the rows are in registers in float32: by F when they are read,
// by x when that is written. Sums of frames by these kernels took longer than by their own.
#pragma once

#include <algorithm>

#include "common/gpu_barrier.h"
#include "common/gpu_mma.h"
#include "common/gpu_unroll.h"
#include "gemm/gpu_memory.h"
#include "gemm/gpu_parts.h"
#include "message/gpu_number.h"

namespace mdops::gpu_message {

// Columns of a run.
struct Columns {
  int begin, end;

  __host__ __device__ int sixteens() const { return (end - begin) / 16; }
};

// Warps of a block, and blocks per multiprocessor: both set how many registers warps have.
__host__ __device__ constexpr int warps_of(Pass pass, int eights) {
  if (pass == Pass::second || eights > 8) return 8;
  if (eights > 4) return 12;
  return pass == Pass::backward ? 8 : 16;
}
__host__ __device__ constexpr int blocks_of(Pass pass, int eights) {
  return pass == Pass::backward && eights <= 4 ? 2 : 1;
}

constexpr int kStep = 37;  // blocks between turns

constexpr int kFramedEights = 8;  // registers do not hold wider rows with frames

// The place in a row of number `two` of the pair that lane `four` of four has in an eight.
__host__ __device__ constexpr int place_of(int eight, int four, int two) {
  return 16 * (eight / 2) + 4 * four + 2 * (eight % 2) + two;
}

MDOPS_D float4 read_four(const float* from) {
  return __ldg(reinterpret_cast<const float4*>(from));
}
MDOPS_D void write_four(float* to, const float4& four) {
  store_four(to, four.x, four.y, four.z, four.w);
}
MDOPS_D float of_four(const float4& x, int k) {
  return k == 0 ? x.x : k == 1 ? x.y : k == 2 ? x.z : x.w;
}

// The size of a number by its bits, for maxima over lanes, and the power of two for its parts: 1 for infinity
// or NaN.
MDOPS_D unsigned size_of(float x) {
  return __float_as_uint(x) & 0x7fffffffu;
}
MDOPS_D float scale_of(unsigned largest) {
  const int exponent = static_cast<int>(largest >> 23);
  const int power = min(max(kLargest + 127 - exponent, -100), 100);
  return __int_as_float((exponent < 255 ? power + 127 : 127) << 23);
}

// A power of two for the parts of numbers, and its inverse.
struct Power {
  float scale = 1.0f, inverse = 1.0f;
};

// A warp's 16 rows of kSixteens sixteens, times a power of two, in one or two parts as products take them.
template <int kSixteens, int kParts>
struct HalfRows {
  uint32_t parts[kParts][kSixteens][4];
  float inverse;  // of the power

  // Sets four scaled numbers of the lane's row h.
  MDOPS_D void set(int sixteen, int h, float a, float b, float c, float d) {
    uint32_t first[kParts], second[kParts];
    split(a, b, first), split(c, d, second);
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      parts[part][sixteen][h] = first[part], parts[part][sixteen][h + 2] = second[part];
  }
};

// large += A B, over sixteen numbers of the depth; the small products go to `small`.
template <int kSixteens, int kParts>
MDOPS_D void multiply_parts(float (&large)[4], float (&small)[4], const HalfRows<kSixteens, kParts>& a,
                            int sixteen, const uint4& b) {
  if constexpr (kParts == 2) {
    multiply_16<false>(small, a.parts[1][sixteen], b.x, b.y);
    multiply_16<false>(small, a.parts[0][sixteen], b.z, b.w);
  }
  multiply_16<false>(large, a.parts[0][sixteen], b.x, b.y);
}

// A lane's four numbers of y, h or another member, in row h of a tile of 16 rows and 16 columns: columns `u`
// and rows `h` of a tile are at 4 u + 2 h and the next.
template <int kCount, class F>
MDOPS_D float4 four_of(const Number<float> (&numbers)[kCount], int tile, int h, const F& f) {
  const Number<float>* const own = numbers + 8 * tile + 2 * h;
  return {f(own[0]), f(own[1]), f(own[4]), f(own[5])};
}

// Scales these numbers' h by one power of two, which it returns.
template <int kCount>
MDOPS_D Power bring_to_size(Number<float> (&numbers)[kCount]) {
  unsigned largest = 0;
#pragma unroll
  for (int k = 0; k < kCount; ++k) largest = max(largest, size_of(numbers[k].h));
  const float scale = scale_of(warp_largest(largest));
#pragma unroll
  for (int k = 0; k < kCount; ++k) numbers[k].h *= scale;
  return {scale, inverse_power(scale)};
}

// Multiplies these numbers' scaled h by the transposed weights of their 16 columns and by `inverse`, and adds
// it to by_x.
template <int kParts, int kTiles, int kEights>
MDOPS_D void add_to_inputs(float (&by_x)[kTiles][kEights][4], const Number<float> (&numbers)[8 * kTiles],
                           const uint4* transposed, float inverse) {
  HalfRows<1, kParts> rows[kTiles];
  unrolled<kTiles, 2>([&](int t, int h) {
    const float4 of_z = four_of(numbers, t, h, [](const auto& number) { return number.h; });
    rows[t].set(0, h, of_z.x, of_z.y, of_z.z, of_z.w);
  });
#pragma unroll
  for (int eight = 0; eight < kEights; ++eight) {
    const uint4 b = transposed[eight * kWarp];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      float now[4] = {};
      multiply_parts(now, now, rows[t], 0, b);
#pragma unroll
      for (int k = 0; k < 4; ++k) by_x[t][eight][k] += now[k] * inverse;
    }
  }
}

// The sum of one of four or eight numbers over the lanes with the same columns. A lane keeps half of the
// numbers and sends the others, then half of these; then lanes with the same number are added. `own_sum` is
// the index of a lane's sum, -1 if another lane has the same.
template <int kCount>
MDOPS_D float sum_over_rows(const float (&x)[kCount]) {
  float sums[kCount];
#pragma unroll
  for (int k = 0; k < kCount; ++k) sums[k] = x[k];
#pragma unroll
  for (int step = 4, half = kCount / 2; step < kWarp; step *= 2, half /= 2) {
    const bool keeps_last = lane_index() & step;
#pragma unroll
    for (int k = 0; k < half; ++k) {
      const float given = keeps_last ? sums[k] : sums[k + half];
      sums[k] = (keeps_last ? sums[k + half] : sums[k]) + __shfl_xor_sync(kAllLanes, given, step);
    }
    if (half == 0) sums[0] += __shfl_xor_sync(kAllLanes, sums[0], step);
  }
  return sums[0];
}
template <int kCount>
MDOPS_D int own_sum() {
  const int lane = lane_index();
  if constexpr (kCount == 8) return (lane & 4) + (lane & 8) / 4 + (lane & 16) / 16;
  return lane < 16 ? (lane & 4) / 2 + (lane & 8) / 8 : -1;
}

// Shared memory of a block, in numbers: the weights, followed by their transpose in backward passes. For each
// warp: its sums of sent columns and of gradients by P, then its first's P, u_P and gradient by sums. With
// frames, then the gradient by its first's T, and for each of 16 rows its frame, and where the rows taken
// from it begin and end.
struct TensorShared {
  int64_t weights, columns, of_warp;

  __host__ __device__ TensorShared(Pass pass, int inputs, int columns_, bool has_frames)
      : weights(int64_t{inputs} * columns_ * (pass == Pass::forward ? 1 : 2)),
        columns(columns_ * (pass == Pass::forward    ? 3
                            : pass == Pass::backward ? 4
                                                     : 5)),
        of_warp(columns + (has_frames ? 3 * inputs + 5 * 16 : 0)) {}
  int64_t bytes(int warps) const { return 4 * (weights + warps * of_warp); }
};

template <int kEights, Pass pass, Way way, bool kFrames>
class TensorTeam {
  static constexpr int kInputs = 8 * kEights, kSixteens = kEights / 2, kParts = parts_of(way);
  static constexpr bool kIsSecond = pass == Pass::second, kIsForward = pass == Pass::forward;

 public:
  __device__ TensorTeam(const MessageArgs<float>& args, const Memory<float>& memory, Columns columns,
                        float weight_inverse, int team)
      : args_(args),
        memory_(memory),
        columns_(columns),
        weight_inverse_(weight_inverse),
        all_(static_cast<int>(args.columns())),
        sent_(static_cast<int>(args.sent)),
        warps_(team),
        warp_(threadIdx.x / kWarp % team),
        barrier_(1 + threadIdx.x / kWarp / team) {
    const int width = columns.end - columns.begin;
    const TensorShared shared(pass, kInputs, width, kFrames);
    float* const memory_of_block = reinterpret_cast<float*>(net_memory());
    weight_ = reinterpret_cast<const uint4*>(memory_of_block) + lane_index();
    transposed_ = weight_ + kInputs * width / 4;
    of_warp_ = static_cast<int>(shared.of_warp);
    team_sums_ = memory_of_block + shared.weights + int64_t{threadIdx.x / kWarp / team * team} * of_warp_;
    sums_ = team_sums_ + warp_ * of_warp_;
    moments_at_ = static_cast<int>(shared.columns);
  }

  // Copies the weights to shared memory: for each 16 of the depth and 8 columns, four numbers per lane.
  // Returns the inverse of their power of two.
  __device__ static float place_weights(const MessageArgs<float>& args, Columns columns) {
    const int width = columns.end - columns.begin, count = kInputs * width / 4;
    const int64_t all = args.columns();
    unsigned* const largest = reinterpret_cast<unsigned*>(net_memory());
    if (threadIdx.x == 0) *largest = 0;
    __syncthreads();
    unsigned own = 0;
    // Several at once, as nothing else runs during these reads.
#pragma unroll 4
    for (int at = threadIdx.x; at < count; at += blockDim.x) {
      const float4 four =
          read_four(args.weight + at / (width / 4) * all + columns.begin + at % (width / 4) * 4);
#pragma unroll
      for (int k = 0; k < 4; ++k) own = max(own, size_of(of_four(four, k)));
    }
    own = warp_largest(own);
    if (lane_index() == 0) atomicMax(largest, own);
    __syncthreads();
    const float scale = scale_of(*largest);
    __syncthreads();
    uint4* const to = reinterpret_cast<uint4*>(net_memory());
    const auto place = [&](uint4& four, const float* from, int64_t step) {
      uint32_t first[2], second[2];
      split(scale * __ldg(from), scale * __ldg(from + step), first);
      split(scale * __ldg(from + 2 * step), scale * __ldg(from + 3 * step), second);
      four = {first[0], second[0], first[1], second[1]};
    };
#pragma unroll 4
    for (int at = threadIdx.x; at < count; at += blockDim.x) {
      const int g = at % kWarp / 4, t = at % 4, depth = at / kWarp % kSixteens, n = at / kWarp / kSixteens;
      place(to[at], args.weight + (16 * depth + 4 * t) * all + columns.begin + place_of(n, g / 2, g % 2),
            all);
    }
#pragma unroll 4
    for (int at = threadIdx.x; !kIsForward && at < count; at += blockDim.x) {
      const int g = at % kWarp / 4, t = at % 4, eight = at / kWarp % kEights, depth = at / kWarp / kEights;
      place(to[count + at],
            args.weight + place_of(eight, g / 2, g % 2) * all + columns.begin + 16 * depth + 4 * t, 1);
    }
    __syncthreads();
    return 1.0f / scale;
  }

  __device__ void run(int64_t f) {
    const RowsOfFirst<float> rows(args_, f);
    begin_first(f);
    for (int64_t row = rows.begin + 16 * warp_; row < rows.end; row += 16 * warps_) add_rows(row, rows.end);
    wait();
    write_sums(rows.is_wrong);
    wait();
  }

 private:
  // With several runs over the columns, the first one handles the frames.
  MDOPS_D bool has_frames() const { return kFrames && columns_.begin == 0; }

  __device__ void begin_first(int64_t f) {
    const int width = columns_.end - columns_.begin;
    first_ = f;
    if constexpr (kFrames) {
      for (int k = 4 * lane_index(); has_frames() && k < 3 * kInputs; k += 4 * kWarp)
        *reinterpret_cast<float4*>(sums_ + moments_at_ + k) =
            read_four(args_.frames.grad_moments + f * 3 * kInputs + k);
    }
    for (int c = lane_index(); c < width; c += kWarp) {
      float* to = sums_ + c;
      const auto put = [&](float value) { *to = value, to += width; };
      put(0.0f), put(0.0f);
      put(args_.p[f * all_ + columns_.begin + c]);
      if constexpr (kIsSecond) put(args_.along_p[f * all_ + columns_.begin + c]);
      if (!kIsForward && columns_.begin + c < sent_) put(args_.grad_sent[f * sent_ + columns_.begin + c]);
    }
    __syncwarp();
  }

  __device__ void wait() const {
    if (warps_ == 1)
      __syncwarp();
    else
      sync_threads(barrier_, warps_ * kWarp);
  }

  // Writes the warps' sums, added in order.
  __device__ void write_sums(bool is_wrong) const {
    const int width = columns_.end - columns_.begin;
    for (int c = threadIdx.x % (warps_ * kWarp); c < width; c += warps_ * kWarp) {
      float sent = is_wrong ? not_a_number<float>() : 0.0f, by_p = sent;
      for (int w = 0; w < warps_; ++w) {
        const float* const own = team_sums_ + w * of_warp_;
        if (pass != Pass::backward) sent += own[c];
        if (!kIsForward) by_p += own[width + c];
      }
      if (pass != Pass::backward && columns_.begin + c < sent_)
        args_.to_sent[first_ * sent_ + columns_.begin + c] = sent;
      if (!kIsForward) args_.by_p[first_ * all_ + columns_.begin + c] = by_p;
    }
  }

  // Four columns of the gradient by T.
  MDOPS_D float4 four_of_moments(int a, int n) const {
    return *reinterpret_cast<const float4*>(sums_ + moments_at_ + a * kInputs + 16 * n +
                                            4 * (lane_index() % 4));
  }

  // The frames' data that 16 rows need when the gradient by x is written, loaded ahead: the frames' numbers,
  // and where the rows taken from a row begin and end; if these are wrong, the end is before the begin.
  struct FramesAhead {
    float frames[2];
    int begin, end;
  };
  MDOPS_D FramesAhead frames_ahead(int64_t row, int64_t end) const {
    const MessageFrames<float>& frames = args_.frames;
    FramesAhead ahead{};
    const int lane = lane_index(), there = static_cast<int>(min(end - row, int64_t{16}));
#pragma unroll
    for (int k = 0; k < 2; ++k)
      if (lane + kWarp * k < 3 * there) ahead.frames[k] = frames.frame[3 * row + lane + kWarp * k];
    if (frames.count > 0 && lane < there) {
      ahead.begin = frames.taken_offsets[row + lane], ahead.end = frames.taken_offsets[row + lane + 1];
      if (ahead.begin < 0 || ahead.end > frames.count) ahead.begin = 1, ahead.end = 0;
    }
    return ahead;
  }
  MDOPS_D void put_frames(const FramesAhead& ahead) const {
    float* const to = sums_ + moments_at_ + 3 * kInputs;
    const int lane = lane_index();
    __syncwarp();  // those of the rows before have been read
    to[lane] = ahead.frames[0];
    if (lane < 16) {
      to[kWarp + lane] = ahead.frames[1];
      to[48 + lane] = __int_as_float(ahead.begin), to[64 + lane] = __int_as_float(ahead.end);
    }
    __syncwarp();
  }

  // The gradients by frames of rows that are being read.
  MDOPS_D void use_rows(const float4 (&rows)[2][kSixteens]) const {
    if (!has_frames()) return;
    float sums[2][3] = {};
    unrolled<kSixteens, 3>([&](int n, int a) {
      const float4 grad = four_of_moments(a, n);
      unrolled<2, 4>([&](int h, int k) { sums[h][a] += of_four(grad, k) * of_four(rows[h][n], k); });
    });
    const int t = lane_index() % 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float own = 0.0f;
#pragma unroll
      for (int a = 0; a < 3; ++a) {
        const float sum = quad_sum(sums[h][a]);
        own = t == a ? sum : own;
      }
      if (t < 3 && is_there(h)) args_.frames.by_frame[3 * (row_ + 8 * h) + t] = own;
    }
  }

  // Adds the gradients by four columns of x through T and through taken rows.
  MDOPS_D void add_by_frames(float4& sum, int h, int n) const {
    const MessageFrames<float>& frames = args_.frames;
    const int own = lane_index() / 4 + 8 * h, column = 16 * n + 4 * (lane_index() % 4);
    const float* const of_rows = sums_ + moments_at_ + 3 * kInputs;
#pragma unroll
    for (int a = 0; a < 3; ++a) {
      const float4 grad = four_of_moments(a, n);
      const float by = of_rows[3 * own + a];
      sum = {sum.x + by * grad.x, sum.y + by * grad.y, sum.z + by * grad.z, sum.w + by * grad.w};
    }
    const int begin = __float_as_int(of_rows[48 + own]), end = __float_as_int(of_rows[64 + own]);
    if (begin == end || column >= frames.width) return;
    const float none = not_a_number<float>();
    if (begin > end) sum = {none, none, none, none};
    for (int at = begin; at < end; ++at) {
      float4 grad = read_four(frames.grad_taken + at * frames.width + column);
      if (frames.taken[at] != row_ + 8 * h) grad = {none, none, none, none};
      sum = {sum.x + grad.x, sum.y + grad.y, sum.z + grad.z, sum.w + grad.w};
    }
  }

  // 16 rows. Those from `end` on are missing: their x, weights and gradients are zero, and so are their
  // contributions to sums. A row with another first or a wrong second becomes NaN.
  MDOPS_D void add_rows(int64_t row, int64_t end) {
    FramesAhead ahead{};
    if constexpr (kFrames)
      if (has_frames()) ahead = frames_ahead(row, end);
    row_ = row + lane_index() / 4;
    left_ = static_cast<int>(max(min(end - row_, int64_t{16}), int64_t{0}));
    const Places at = places();
    HalfRows<kSixteens, kParts> x, along[1];
    load_rows(x, at, args_.x, [&](const auto& rows) {
      if constexpr (kFrames) use_rows(rows);
    });
    if constexpr (kIsSecond) load_rows(*along, at, args_.along_x, [](const auto&) {});
    if constexpr (kFrames) put_frames(ahead);
    float by_weight[2] = {}, by_x[1][kIsForward ? 1 : kEights][4] = {};
    const int sixteens = columns_.sixteens(), sent = min(max(sent_ - columns_.begin, 0) / 16, sixteens);
    add_columns<true>(0, sent, x, along, at, by_weight, by_x);
    add_columns<false>(sent, sixteens, x, along, at, by_weight, by_x);
    if constexpr (!kIsForward) write_inputs(by_x[0], by_weight);
  }

  // The places of a lane's two rows, and their weights.
  struct Places {
    bool is_wrong[2], has_second[2];
    const float *q[2], *along_q[2];
    int64_t kept;  // of the first row in arrays of kept columns
    float weight[2], along_weight[2];
  };

  // What a lane reads for four columns of its rows, loaded while the four before are computed.
  struct Given {
    float4 q[2], along_q[2];
    float4 kept[2], along[2];  // x, or in backward passes gradients, of kept columns
  };

  MDOPS_D bool is_there(int h) const { return 8 * h < left_; }

  MDOPS_D Places places() const {
    Places found;
    const int column = columns_.begin + 4 * (lane_index() % 4);
    found.kept = row_ * kInputs + column - sent_;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int64_t row = row_ + 8 * h;
      found.along_weight[h] = kIsSecond && is_there(h) ? args_.along_row_weight[row] : 0.0f;
      int64_t second = is_there(h) ? args_.second[row] : -1;
      found.is_wrong[h] = is_there(h) && !is_right(args_, row, first_, second);
      found.has_second[h] = second >= 0 && !found.is_wrong[h];
      found.weight[h] = is_there(h) ? args_.row_weight[row] : 0.0f;
      if (!found.has_second[h]) second = 0;
      found.q[h] = args_.q + second * all_ + column;
      if constexpr (kIsSecond) found.along_q[h] = args_.along_q + second * all_ + column;
    }
    return found;
  }

  // Calls use(rows) with the numbers as in memory.
  MDOPS_D void load_rows(HalfRows<kSixteens, kParts>& to, const Places& at, const float* x,
                         const auto& use) const {
    float4 rows[2][kSixteens];
    unsigned largest = 0;
    unrolled<2, kSixteens>([&](int h, int n) {
      if (is_there(h))
        rows[h][n] = read_four(x + (row_ + 8 * h) * kInputs + 16 * n + 4 * (lane_index() % 4));
      else
        rows[h][n] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
      for (int k = 0; k < 4; ++k) largest = max(largest, size_of(of_four(rows[h][n], k)));
    });
    use(rows);
    const float scale = scale_of(warp_largest(largest));
    to.inverse = inverse_power(scale) * weight_inverse_;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float by = at.is_wrong[h] ? not_a_number<float>() : scale;
#pragma unroll
      for (int n = 0; n < kSixteens; ++n) {
        const float4& four = rows[h][n];
        to.set(n, h, by * four.x, by * four.y, by * four.z, by * four.w);
      }
    }
  }

  // Multiplies rows by eight columns, to z.
  MDOPS_D void multiply(float (&z)[4], const HalfRows<kSixteens, kParts>& rows, int n) const {
    float large[4] = {}, small[4] = {};
#pragma unroll
    for (int k = 0; k < kSixteens; ++k)
      multiply_parts(large, small, rows, k, weight_[(n * kSixteens + k) * kWarp]);
#pragma unroll
    for (int k = 0; k < 4; ++k) z[k] += (large[k] + small[k]) * rows.inverse;
  }

  // Adds a lane's numbers of four columns to the sums over the warp's rows.
  MDOPS_D void add_to_sums(float* sums, int n, const float (&x)[4]) const {
    const float sum = sum_over_rows(x);
    const int which = own_sum<4>();
    if (which >= 0) sums[16 * n + 4 * (lane_index() % 4) + which] += sum;
  }

  // Four columns of the first's P (0), u_P (1), or gradient by sums (the last).
  MDOPS_D float4 four_of_first(int which, int n) const {
    const int width = columns_.end - columns_.begin;
    return *reinterpret_cast<const float4*>(sums_ + (2 + which) * width + 16 * n + 4 * (lane_index() % 4));
  }

  template <bool kIsSent>
  MDOPS_D void load(Given& given, const Places& at, int n) const {
    constexpr float4 nothing{0.0f, 0.0f, 0.0f, 0.0f};
    const float* const kept = (kIsForward ? args_.x : args_.grad_kept) + at.kept + 16 * n;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      given.q[h] = at.has_second[h] ? read_four(at.q[h] + 16 * n) : nothing;
      if constexpr (kIsSecond)
        given.along_q[h] = at.has_second[h] ? read_four(at.along_q[h] + 16 * n) : nothing;
      if constexpr (kIsSent) continue;
      given.kept[h] = is_there(h) ? read_four(kept + 8 * h * kInputs) : nothing;
      if constexpr (kIsSecond)
        given.along[h] =
            is_there(h) ? read_four(args_.along_x + at.kept + 16 * n + 8 * h * kInputs) : nothing;
    }
  }

  // Sixteens [begin, end) of the columns, which are all sent or all kept.
  template <bool kIsSent, int kCount>
  MDOPS_D void add_columns(int begin, int end, const HalfRows<kSixteens, kParts>& x,
                           const HalfRows<kSixteens, kParts>* along, const Places& at, float (&by_weight)[2],
                           float (&by_x)[1][kCount][4]) {
    if (begin >= end) return;
    Given next;
    load<kIsSent>(next, at, begin);
#pragma unroll 1
    for (int n = begin; n < end; ++n) {
      Given given = next;
      if (n + 1 < end) load<kIsSent>(next, at, n + 1);
      const float4 p = four_of_first(0, n);
      float4 along_p, factor;  // factor: the gradient by sums, or the scale of kept columns
      if constexpr (kIsSecond) along_p = four_of_first(1, n);
      if constexpr (!kIsSent)
        factor = read_four(args_.scale + columns_.begin + 4 * (lane_index() % 4) - sent_ + 16 * n);
      else if constexpr (!kIsForward)
        factor = four_of_first(kIsSecond ? 2 : 1, n);
      // For eight columns `u` and rows `h`, a lane has numbers 4 u + 2 h and the next.
      Number<float> numbers[8];
#pragma unroll
      for (int u = 0; u < 2; ++u) {
        float z[4], v[4];
        unrolled<2, 2>([&](int h, int k) {
          const int four = 2 * u + k;
          z[2 * h + k] = of_four(p, four) + of_four(given.q[h], four);
          if constexpr (kIsSecond) v[2 * h + k] = of_four(along_p, four) + of_four(given.along_q[h], four);
        });
        multiply(z, x, 2 * n + u);
        if constexpr (kIsSecond) multiply(v, *along, 2 * n + u);
        unrolled<2, 2>([&](int h, int k) {
          Number<float>& own = numbers[4 * u + 2 * h + k];
          const int four = 2 * u + k;
          own.z = z[2 * h + k];
          if constexpr (kIsSecond) own.v = v[2 * h + k];
          if constexpr (kIsForward) return;
          own.grad = of_four(factor, four) * (kIsSent ? at.weight[h] : of_four(given.kept[h], four));
          own.extra = kIsSent ? at.along_weight[h] * of_four(factor, four) : 0.0f;
        });
      }
      evaluate_all<pass, way == Way::any, false>(args_.activation, threshold_of(args_), numbers);
      float of_sent[4] = {}, of_p[4] = {};
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int four = 0; four < 4; ++four) {
          const Number<float>& own = numbers[four / 2 * 4 + 2 * h + four % 2];
          const float of_v = kIsSecond ? own.sv : own.y;
          of_p[four] += own.h;
          if constexpr (!kIsSent) continue;
          of_sent[four] += at.weight[h] * of_v + (kIsSecond ? at.along_weight[h] * own.y : 0.0f);
          if constexpr (!kIsForward) by_weight[h] += of_four(factor, four) * of_v;
        }
      write_rows<kIsSent>(given, factor, at, numbers, n);
      if constexpr (pass != Pass::backward && kIsSent) add_to_sums(sums_, n, of_sent);
      if constexpr (!kIsForward) {
        add_to_sums(sums_ + columns_.end - columns_.begin, n, of_p);
        const float inverse = bring_to_size(numbers).inverse * weight_inverse_;
        add_to_inputs<kParts>(by_x, numbers, transposed_ + n * kEights * kWarp, inverse);
      }
    }
  }

  // Writes the rows' results in sixteen columns.
  template <bool kIsSent>
  MDOPS_D void write_rows(const Given& given, const float4& factor, const Places& at,
                          const Number<float> (&numbers)[8], int n) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const auto own = [&](const auto& f) { return four_of(numbers, 0, h, f); };
      const float4 of_z = own([](const auto& number) { return number.h; });
      if (!is_there(h)) continue;
      if constexpr (!kIsSent) {
        const float4 y = own([](const auto& number) { return kIsSecond ? number.sv : number.y; });
        const int64_t kept = at.kept + 16 * n + 8 * h * kInputs;
        if constexpr (pass != Pass::backward) {
          const float4 added = kIsSecond ? given.along[h] : given.kept[h], &c = factor;
          write_four(args_.to_kept + kept,
                     {added.x + c.x * y.x, added.y + c.y * y.y, added.z + c.z * y.z, added.w + c.w * y.w});
        }
        const float4& grad = given.kept[h];
        if (!kIsForward && memory_.of_scales)
          write_four(memory_.of_scales + kept, {grad.x * y.x, grad.y * y.y, grad.z * y.z, grad.w * y.w});
      }
      if constexpr (kIsForward) continue;
      const int64_t of_row = (row_ + 8 * h) * all_ + columns_.begin + 16 * n + 4 * (lane_index() % 4);
      if (args_.by_z) write_four(args_.by_z + of_row, of_z);
      if (kIsSecond && memory_.dz)
        write_four(memory_.dz + of_row, own([](const auto& number) { return number.dz; }));
    }
  }

  // Writes the gradients by x and by the rows' weights, added to those of the runs before.
  template <int kCount>
  MDOPS_D void write_inputs(const float (&by_x)[kCount][4], const float (&by_weight)[2]) const {
    const int t = lane_index() % 4;
    const bool goes_on = columns_.begin > 0, adds_kept = !kIsSecond && !goes_on && args_.kept;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int64_t row = row_ + 8 * h;
      const float of_row = quad_sum(by_weight[h]);
      if (!is_there(h)) continue;
      if (t == 0) args_.by_row_weight[row] = of_row + (goes_on ? args_.by_row_weight[row] : 0.0f);
      const float* const added = goes_on ? args_.by_x : adds_kept ? args_.grad_kept : nullptr;
#pragma unroll
      for (int eight = 0; eight + 1 < kCount; eight += 2) {
        const int64_t at = row * kInputs + 8 * eight + 4 * t;
        const float *const a = by_x[eight] + 2 * h, *const b = by_x[eight + 1] + 2 * h;
        float4 sum{a[0], a[1], b[0], b[1]};
        if (added) {
          const float4 before = *reinterpret_cast<const float4*>(added + at);
          sum = {sum.x + before.x, sum.y + before.y, sum.z + before.z, sum.w + before.w};
        }
        if constexpr (kFrames)
          if (has_frames()) add_by_frames(sum, h, eight / 2);
        write_four(args_.by_x + at, sum);
      }
    }
  }

  const MessageArgs<float>& args_;
  const Memory<float>& memory_;
  const Columns columns_;
  const float weight_inverse_;
  const int all_, sent_, warps_, warp_, barrier_;
  const uint4 *weight_, *transposed_;  // the lane's
  int of_warp_;                        // a warp's numbers in shared memory
  int moments_at_;                     // after so many of them, the frames' data
  float *team_sums_, *sums_;
  int64_t first_ = 0, row_ = 0;  // the lane's first row
  int left_ = 0;                 // rows from it on
};

template <int kEights, Pass pass, Way way, bool kFrames>
__global__ void __launch_bounds__(warps_of(pass, kEights) * kWarp, blocks_of(pass, kEights))
    tensor_kernel(const __grid_constant__ MessageArgs<float> args,
                  const __grid_constant__ Memory<float> memory, Columns columns, int team) {
  using Team = TensorTeam<kEights, pass, way, kFrames>;
  const float inverse = Team::place_weights(args, columns);
  Team own(args, memory, columns, inverse, team);
  const int teams = warps_of(pass, kEights) / team;
  // A block has adjacent firsts: as edges of one atom they share their seconds. Each turn gives other blocks
  // the first edges of an atom, which have the most rows.
  const int64_t blocks = gridDim.x, runs = (args.firsts + teams - 1) / teams;
  for (int64_t turn = 0; turn * blocks < runs; ++turn) {
    const int64_t run = turn * blocks + (blockIdx.x + kStep * turn) % blocks;
    const int64_t f = run * teams + threadIdx.x / kWarp / team;
    if (f < args.firsts) own.run(f);
  }
  if (columns.begin == 0) finish_rows<kFrames>(args, memory);
}

// Whether there are kernels for these widths, with arrays that can be read by fours.
inline bool by_tensor_cores(const Gpu& gpu, const MessageArgs<float>& args) {
  const bool is_wide = args.inputs == 32 || args.inputs == 64 || args.inputs == 128;
  bool is_placed = true;
  for (const float* from : {args.x, args.weight, args.p, args.q, args.scale, args.grad_sent, args.grad_kept,
                            args.along_x, args.along_p, args.along_q})
    is_placed &= reinterpret_cast<uintptr_t>(from) % sizeof(float4) == 0;
  return gpu.limits().capability >= 80 && is_wide && is_placed && args.sent % 16 == 0 && args.columns() > 0;
}

// Whether these kernels also handle frames.
inline bool tensor_cores_take_frames(const Gpu& gpu, const MessageArgs<float>& args) {
  const MessageFrames<float>& frames = args.frames;
  bool is_placed = frames.width % 4 == 0 && args.inputs <= 8 * kFramedEights;
  for (const float* from : {frames.grad_moments, frames.grad_taken})
    is_placed &= reinterpret_cast<uintptr_t>(from) % sizeof(float4) == 0;
  const bool is_silu = args.activation == Activation::silu || args.activation == Activation::silut;
  return is_silu && is_placed && args.groups == 0 && pass_of(args) == Pass::backward &&
         by_tensor_cores(gpu, args);
}

template <int kEights, Pass pass, Way way, bool kFrames>
void run_tensor(const Gpu& gpu, const MessageArgs<float>& args, const Memory<float>& memory) {
  const int columns = gpu.int32_of("weight", args.columns()), warps = warps_of(pass, kEights);
  const auto bytes = [&](int width) { return TensorShared(pass, 8 * kEights, width, kFrames).bytes(warps); };
  int width = columns;
  while (bytes(width) > gpu.limits().shared_bytes && width > 16)
    width = static_cast<int>(blocks_for(width / 16, 2)) * 16;
  const int64_t chip = gpu.limits().multiprocessors * blocks_of(pass, kEights);
  // If firsts are few, each has several warps.
  int team = 1;
  for (int more = 2; more <= warps / 2; ++more)
    if (warps % more == 0 && args.firsts * more <= chip * warps) team = more;
  const int64_t blocks = std::clamp<int64_t>(blocks_for(args.firsts, warps / team), 1, chip);
  for (int begin = 0; begin < columns; begin += width) {
    const Columns run{begin, std::min(begin + width, columns)};
    gpu.launch(tensor_kernel<kEights, pass, way, kFrames>, blocks, warps * kWarp, bytes(run.end - run.begin),
               args, memory, run, team);
  }
}

}  // namespace mdops::gpu_message
