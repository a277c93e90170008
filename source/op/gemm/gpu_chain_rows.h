// The chain by rows (gpu_chain.h): 128 rows a block.
//
// Who holds what in a block of 384 threads (sizes for layers of up to 240 numbers and two parts):
//
//   warps 0-3    group 0, rows 0-63       sums 64 x 240 in float32, 120 of a thread
//   warps 4-7    group 1, rows 64-127     the same
//   warps 8, 9   a lane each: `fetch_weights`, `fetch_inputs`
//
//   shared memory   8 blocks of A, 128 rows x 32 numbers, 16 KiB each; 3 pairs of units of B, 30 KiB each
//   device memory   slopes of all layers but the last, numbers of a thread side by side with its neighbours'
//
// Layers of up to 256 numbers have 2 pairs of units of 128 columns; those of up to 128 are one unit wide and
// have half of the sums, which rotate in half of the time (for_columns).
#pragma once

#include "gemm/gpu_chain.h"

namespace mdops {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// A thread of a warpgroup: its numbers of a tile of 64 x 240 are in rows row and row + 8, columns
// 8 e + column and the next, for e < 30; sum[4 e + 2 h + c] is that of row + 8 h and column 8 e + column + c.
// `Fixed`: the activation function, or kAnyActivation.
template <int Kind, int Fixed, int Parts>
class RowThread {
 public:
  MDOPS_D RowThread(const ChainArgs& p, const float* net, float scale, char* memory, int warp)
      : p_(p),
        net_(net),
        scale_(scale),
        group_(warp / kGroupWarps),
        row_(warp % kGroupWarps * 16 + lane_index() / 4),
        column_(2 * (lane_index() % 4)),
        first_row_(int64_t{blockIdx.x} * kRows + group_ * kGroupRows + row_),
        shared_(shared_address(memory)),
        a_(memory + group_ * kGroupBlock),
        steep_(reinterpret_cast<float*>(memory + Memory::kSteep) + group_ * kGroupRows + row_),
        ring_{shared_ + Memory::kFull, shared_ + Memory::kEmpty},
        ring_a_{shared_ + Memory::kFullA, shared_ + Memory::kEmptyA} {}

  MDOPS_D void run() {
    const NetChain chain{p_.net, Parts, Memory::kKind};
    float sum[4 * kColumns];
    for (int h = 0; h < 2; ++h) unscale_[h] = inverse_power(scale_for(p_.bound[first_row_ + 8 * h]));
    for (int m = 0; m < chain.products(); ++m) {
      MDOPS_STAGE_IF(chain.is_backward(m), net_down, net_up);
      const int n = chain.layer(m), steps = chain.depth(m) / kStepDepth, width = chain.width(m);
      const float weight = net_[p_.unit_scales + m];
      const float by[2] = {unscale_[0] * weight, unscale_[1] * weight};
      for (int chunk = 0; chunk < chain.chunks(m); chunk += width) {
        start(m, n, sum);
        multiply(m == 0, steps, width, by, sum);
        if (chain.is_last(m)) store_gradient(chunk * kUnitCols, chain.columns(m), sum);
      }
      if (!chain.is_backward(m))
        activate_layer(n, sum);
      else if (n > 0)
        pass_back(n - 1, sum);
    }
  }

 private:
  using Memory = ChainMemory<Kind>;
  static constexpr int kRows = Memory::kRows, kGroupRows = 64, kGroupBlock = kGroupRows * kWideRow;
  static constexpr int kUnitsWide = Memory::kKind.units;
  static_assert(kRows == 2 * kGroupRows && kUnitsWide <= 2);
  static constexpr int kUnitCols = Memory::kKind.unit_cols, kUnitEights = kUnitCols / 8;
  static constexpr int kColumns = kUnitsWide * kUnitEights;   // eights of a layer
  static constexpr int kTurn = kUnitEights % 5 == 0 ? 5 : 4;  // see for_columns
  static constexpr int kLongTurn = 2 * kTurn;
  using Steps = ChainSteps<Parts>;
  static constexpr int kBlockDepth = Steps::kDepth, kBlockSteps = Steps::kOfBlock;

  // Calls f(e, x) for x = sum + 4 e, for `Turn` columns e at a time. The numbers move to where the code
  // expects them: registers have no index, and thirty copies of the code would be slow to fetch. `columns`
  // are rounded up to whole turns.
  template <int Turn, class F>
  MDOPS_D void for_columns(int columns, float (&sum)[4 * kColumns], const F& f) const {
    static_assert(kColumns % Turn == 0);
#pragma unroll 1
    for (int first = 0; first < kColumns; first += Turn) {
      if (8 * first < columns)
#pragma unroll
        for (int e = 0; e < Turn; ++e) f(first + e, sum + 4 * e);
      turn_round<4 * Turn>(sum);
    }
  }

  MDOPS_D float2 constants(int64_t at, int e) const {
    return __ldg(reinterpret_cast<const float2*>(net_ + at + 8 * e + column_));
  }

  // Where the high parts of two numbers of A are, and the low ones: next to them, or, if the product does not
  // use them, in the free blocks after the layer.
  MDOPS_D int place(int e, int h) const {
    constexpr int eights = kBlockDepth / 8;
    return e / eights * Memory::kBlockBytes + wide_place(row_ + 8 * h, 8 * (e % eights) + column_);
  }
  static MDOPS_D int low_place(int at) {
    static_assert(Memory::kBlocks % 2 == 0 && Memory::kBlocks * unit_depth(2) >= 8 * kColumns);
    return Parts == 2 ? at ^ 64 : at + Memory::kBlocks / 2 * Memory::kBlockBytes;
  }
  MDOPS_D float2 halves(int at) const { return __half22float2(*reinterpret_cast<const __half2*>(a_ + at)); }

  MDOPS_D float2* slopes(int n, int e, int h) const {
    const int64_t layer = static_cast<int64_t>(blockIdx.x) * (p_.net.layers - 1) + n;
    return p_.slopes + (layer * (2 * kColumns) + 2 * e + h) * (2 * kGroupThreads) + threadIdx.x;
  }

  // Initial sums of a product: zero, or the gradient through a residual layer's skip, which the sums already
  // hold if it is not the last layer. With a layer twice as wide, both halves go through the memory of its
  // slopes, which are no longer needed.
  MDOPS_D void start(int m, int n, float (&sum)[4 * kColumns]) const {
    const bool residual = m >= p_.net.layers && n > 0 && p_.net.residual[n];
    const bool last = n == p_.net.layers - 1;
    const int shift = residual ? input_shift(p_.net, n, kColumns) : kColumns;
    if (residual && !last) {
      if (shift == kColumns) return;
      for_columns<kLongTurn>(8 * kColumns, sum, [&](int e, float* x) {
        for (int h = 0; h < 2; ++h) *slopes(n, e, h) = make_float2(x[2 * h], x[2 * h + 1]);
      });
      for_columns<kLongTurn>(8 * kColumns, sum, [&](int e, float* x) {
        for (int h = 0; h < 2; ++h) {
          float2 a = make_float2(0, 0), b = a;
          if (e < shift) a = *slopes(n, e, h), b = *slopes(n, e + shift, h);
          x[2 * h] = a.x + b.x, x[2 * h + 1] = a.y + b.y;
        }
      });
      return;
    }
#pragma unroll
    for (int k = 0; k < 4 * kColumns; ++k) sum[k] = 0;
    if (!residual) return;
    for_columns<kLongTurn>(8 * kColumns, sum, [&](int e, float* x) {
      float2 c = constants(p_.out_weight, e);
      if (shift < kColumns) {
        const float2 d = constants(p_.out_weight, e < shift ? e + shift : e);
        c = e < shift ? make_float2(c.x + d.x, c.y + d.y) : make_float2(0, 0);
      }
      x[0] = x[2] = scale_ * c.x, x[1] = x[3] = scale_ * c.y;
    });
  }

  // sum += A B, for B the next blocks of one or two units. The tensor cores sum two blocks, 64 products of
  // two parts or 128 of one, and round towards zero; the rest is added in float32.
  MDOPS_D void multiply(bool streamed, int steps, int width, const float (&by)[2],
                        float (&sum)[4 * kColumns]) {
    constexpr int pair = 2 * kBlockSteps;
    for (int step = 0; step < steps; step += pair) {
      const int block = step / kBlockSteps, now = min(pair, steps - step);
      const uint64_t a0 = block_of_a(block), a1 = block_of_a(block + 1);
      if (streamed) ring_a_.wait();
#pragma unroll
      for (int c = 0; c < kUnitsWide; ++c) {
        if (c >= width) break;
        ring_.wait();
        float part[4 * kUnitEights];
        multiply_blocks<pair>(now, part, a0, a1, unit_of_b(0), unit_of_b(1));
        ring_.release();
#pragma unroll
        for (int k = 0; k < 4 * kUnitEights; ++k) sum[4 * kUnitEights * c + k] += part[k] * by[k / 2 % 2];
      }
      if (streamed) ring_a_.release();
    }
  }

  MDOPS_D uint64_t block_of_a(int block) const {
    return wide_matrix(shared_address(a_) + block % Memory::kBlocks * Memory::kBlockBytes);
  }
  // Of the current pair.
  MDOPS_D uint64_t unit_of_b(int block) const {
    const int at = ring_.slot * Memory::kPairBytes + block * Memory::kUnitBytes;
    return wide_matrix(shared_ + Memory::kUnits + at);
  }

  // part = A B of `now` times 16 columns of A, at most `Most`, in one or two blocks; the small parts first.
  template <int Most>
  static MDOPS_D void multiply_blocks(int now, float (&part)[4 * kUnitEights], uint64_t a0, uint64_t a1,
                                      uint64_t b0, uint64_t b1) {
    if constexpr (Most > 1)
      if (now < Most) return multiply_blocks<Most - 1>(now, part, a0, a1, b0, b1);
    begin_products();
    if constexpr (Parts == 2) {
#pragma unroll
      for (int k = 0; k < Most; ++k) {
        multiply_unit(part, Steps::at(a0, a1, k) + Steps::kLowParts, Steps::at(b0, b1, k), k > 0);
        multiply_unit(part, Steps::at(a0, a1, k), Steps::at(b0, b1, k) + Steps::kLowParts, 1);
      }
    }
#pragma unroll
    for (int k = 0; k < Most; ++k)
      multiply_unit(part, Steps::at(a0, a1, k), Steps::at(b0, b1, k), Parts == 2 || k > 0);
    end_products(part);
  }

  // x of layer n becomes f(x) and the next product's A; for the last layer, the output, and the gradient
  // before its activation.
  MDOPS_D void activate_layer(int n, float (&sum)[4 * kColumns]) {
    float largest[2] = {0, 0};
    with_layer<Fixed>(p_.net, n, [&]<Activation kind, bool Last, bool Residual>() {
      activate_columns<kind, Last, Residual>(n, sum, largest);
    });
    write_a(p_.net.cols(n), largest, sum, added_later(p_.net, n), [](int, int, float2 x) { return x; });
  }

  template <Activation kind, bool Last, bool Residual>
  MDOPS_D void activate_columns(int n, float (&sum)[4 * kColumns], float (&largest)[2]) {
    float steepest[2] = {0, 0};
    double output[2] = {0, 0};
    const bool residual = Residual && n > 0 && p_.net.residual[n];
    const int shift = residual ? input_shift(p_.net, n, kColumns) : 0;
    for_columns<kTurn>(p_.net.cols(n), sum, [&](int e, float* x) {
      const float2 bias = constants(p_.bias[n], e), timestep = constants(p_.timestep[n], e);
      const float2 out = Last ? constants(p_.out_weight, e) : make_float2(0, 0);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float2 value, slope, other = make_float2(0, 0);
        if constexpr (Residual) {
          if (e < 2 * shift) {  // the rest keeps old numbers
            const int at = place(e < shift ? e : e - shift, h);
            const float2 high = halves(at), low = halves(low_place(at));
            other = make_float2(unscale_[h] * (high.x + low.x), unscale_[h] * (high.y + low.y));
          }
        }
        layer_value<kind>(x[2 * h], bias.x, timestep.x, other.x, p_.net.threshold, &value.x, &slope.x);
        layer_value<kind>(x[2 * h + 1], bias.y, timestep.y, other.y, p_.net.threshold, &value.y, &slope.y);
        if constexpr (Last) {
          value = make_float2(end_of_net(value.x, slope.x, out.x, scale_, output + h),
                              end_of_net(value.y, slope.y, out.y, scale_, output + h));
        } else {
          *slopes(n, e, h) = slope;
          steepest[h] = fmaxf(steepest[h], fmaxf(fabsf(slope.x), fabsf(slope.y)));
        }
        x[2 * h] = value.x, x[2 * h + 1] = value.y;
        largest[h] = fmaxf(largest[h], fmaxf(fabsf(value.x), fabsf(value.y)));
      }
    });
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      largest[h] = quad_largest(largest[h]), steepest[h] = quad_largest(steepest[h]);
      if (Last) output[h] = quad_sum(output[h]);
      if (Last && column_ == 0) p_.output[first_row_ + 8 * h] = output[h];
      if (!Last && column_ == 0) steep_[n * kRows + 8 * h] = steepest[h];
    }
  }

  // From the gradient of layer n's values to that before its activation. Its bound is the product of bounds:
  // a bound too large by up to 2^10 costs nothing.
  MDOPS_D void pass_back(int n, float (&sum)[4 * kColumns]) {
    float largest[2] = {0, 0};
#pragma unroll
    for (int k = 0; k < 4 * kColumns; ++k) largest[k / 2 % 2] = fmaxf(largest[k / 2 % 2], fabsf(sum[k]));
#pragma unroll
    for (int h = 0; h < 2; ++h) largest[h] = quad_largest(largest[h]) * steep_[n * kRows + 8 * h];
    write_a(p_.net.cols(n), largest, sum, false, [&](int e, int h, float2 x) {
      const float2 slope = *slopes(n, e, h);
      return make_float2(before_activation(x.x, slope.x), before_activation(x.y, slope.y));
    });
  }

  // Writes f of the sums as the next product's A, once no thread of the group needs the last one's. The low
  // parts are kept for a residual layer even if the product does not use them.
  MDOPS_D void write_a(int columns, const float (&largest)[2], float (&sum)[4 * kColumns], bool keep_low,
                       const auto& f) {
    float scales[2];
    sync_group(group_);
    for (int h = 0; h < 2; ++h) {
      scales[h] = scale_for(largest[h]);
      unscale_[h] = inverse_power(scales[h]);
    }
    for_columns<kTurn>(columns, sum, [&](int e, float* x) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float2 v = f(e, h, make_float2(x[2 * h], x[2 * h + 1]));
        uint32_t parts[2];
        split(scales[h] * v.x, scales[h] * v.y, parts);
        *reinterpret_cast<uint32_t*>(a_ + place(e, h)) = parts[0];
        if (Parts == 2 || keep_low) *reinterpret_cast<uint32_t*>(a_ + low_place(place(e, h))) = parts[1];
      }
    });
    fence_shared();
    sync_group(group_);
  }

  MDOPS_D void store_gradient(int first, int columns, float (&sum)[4 * kColumns]) const {
    float* const to = p_.inputs + first_row_ * columns + first + column_;
#pragma unroll
    for (int e = 0; e < kUnitCols / 8; ++e) {
      if (first + 8 * e >= columns) break;
      __stcg(reinterpret_cast<float2*>(to + 8 * e), make_float2(sum[4 * e], sum[4 * e + 1]));
      __stcg(reinterpret_cast<float2*>(to + 8 * columns + 8 * e),
             make_float2(sum[4 * e + 2], sum[4 * e + 3]));
    }
  }

  const ChainArgs& p_;
  const float* const net_;
  const float scale_;
  const int group_, row_, column_;
  const int64_t first_row_;
  const uint32_t shared_;
  char* const a_;
  float* const steep_;
  Ring<Memory::kSlots> ring_;
  Ring<Memory::kSlotsA> ring_a_;
  float unscale_[2];  // of A's rows
};

#endif

}  // namespace mdops
