// Layers of float32 with 64 channels by Hopper's tensor cores: three products of float16's two parts, to
// float32's accuracy, or one (gemm/gpu_parts.h).
//
// A block has 128 edges, each of its two warpgroups 64. One piece of the edges' numbers after the other lies
// in shared memory as rows of products, each row brought to one size by a power of two: m = 0, then m = -1
// and 1 side by side. The weights do not fit: they come stage after stage through a ring of shared memory, in
// the order in which all tiles need them (gpu_ring.h, gpu_wide_pack.h). Both signs are multiplied with the
// same columns of U and V: so these come once. A gate's logits are linear in the rows of m = 0, too: so their
// weights are W's first columns times G, and they come beside the numbers that they are a gate of.
//
//   forward    x_0   ->  s;  z_0l and its logits, for each l  ->  factors f_l
//              x_+-  ->  z_-l and z_+l, for each l
//   backward   x_0   ->  s and all logits  ->  f_l
//              dz_+- = f g  ->  by x_+-      slopes, of g (y - x)  ->  ds      dz_0 = [ds.., f g]  ->  by x_0
//
// Where g is read for dz_+-, its part of the slopes is summed up. Factors and slopes of a tile go through
// device memory, of which each block has some of its own: little enough to stay in the cache. So that they
// do, and g until it is read again, what is read or written for the last time passes the cache by.
//
// Tensor cores round sums towards zero: so 128 products at a time are summed up by them, the rest in float32.
#pragma once

#include <algorithm>

#include "common/gpu_barrier.h"
#include "common/gpu_wgmma.h"
#include "gemm/gpu_hopper.h"
#include "gemm/gpu_memory.h"
#include "so2_layer/gpu_plain.h"
#include "so2_layer/gpu_ring.h"
#include "so2_layer/gpu_wide_pack.h"

namespace mdops {

namespace gpu_so2 {

constexpr int kWideThreads = 256, kWideWarps = kWideThreads / kWarp, kWideRows = 128;
constexpr int kTogether = 2;  // times 64 products, which the tensor cores sum up
constexpr int kGroupRows = kWideRows / 2;
constexpr int kBlockBytes = kWideRows * kWideRow;  // 32 numbers of all rows in two parts, or 64 in one
constexpr int kMostSlots = 8;
constexpr int kWideAlignment = 1024;

struct WideStages {
  int count;

  MDOPS_HD int64_t begin(int stage) const { return static_cast<int64_t>(stage) * kStageBytes; }
};
using WideRing = StageRing<kWideWarps, WideStages>;

struct WideArgs {
  So2Args<float> layer;
  WideStages stages;
  int slots;  // of the ring
  const char* packed;
  const float* unscale;  // of the packed columns
  float* memory;         // of blocks: factors, slopes, and the gradient of s

  static MDOPS_HD int64_t memory_of_block(int64_t degrees) {
    return kWideRows * kWideChannels * (2 * degrees + 1);
  }
};

inline int64_t wide_shared(int64_t degrees, int parts, int slots) {
  const int64_t blocks = std::max(2 * degrees, degrees + 1) * kWideChannels * parts / 64;
  return blocks * kBlockBytes + WideRing::bytes(slots, kStageBytes) + kWideRows * sizeof(float) +
         kWideAlignment;
}
// 0: there is no room for a ring.
inline int wide_slots(int64_t degrees, int parts, int64_t shared_bytes) {
  const int64_t room = shared_bytes - wide_shared(degrees, parts, 0);
  const int64_t slots = room / (wide_shared(degrees, parts, 1) - wide_shared(degrees, parts, 0));
  return slots < 2 ? 0 : static_cast<int>(std::min<int64_t>(slots, kMostSlots));
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

template <int kDegrees, int kParts, bool kBack, bool kGated>
class WideTile {
 public:
  // Of a block that has so many tiles.
  __device__ __forceinline__ WideTile(const WideArgs& args, int64_t tiles)
      : args_(args),
        a_(net_memory() + (-reinterpret_cast<uintptr_t>(net_memory()) & (kWideAlignment - 1))),
        ring_(a_ + kOperandBytes, args.slots, kStageBytes, args.packed, args.stages, tiles) {
    factors_ = args.memory + blockIdx.x * WideArgs::memory_of_block(kDegrees);
    const int warp = warp_index();
    row_ = 16 * warp + lane_index() / 4;
    column_ = 2 * (lane_index() % 4);
    group_ = warp / kGroupWarps;
  }

  // `count` edges from one on.
  __device__ __forceinline__ void run(int64_t first, int count) {
    first_ = first, count_ = count, is_busy_ = group_ * kGroupRows < count;
    columns_ = args_.unscale;
    const So2Args<float>& layer = args_.layer;
    const float *const x = layer.x + first_ * kRow, *const g = layer.grad + (kBack ? first_ * kRow : 0);
    // Rows of an array from a number of each on.
    const auto load_from = [&]<int kDepth>(const float* array, int begin) {
      // Backward with gates the code would not fit into the cache of instructions with more rows at once.
      load<kBack && kGated ? 4
           : kDepth <= 4   ? 16
                           : 8,
           kDepth>([=](int r, int k, float2(&found)[kDepth]) {
#pragma unroll
        for (int i = 0; i < kDepth; ++i) found[i] = two(array + r * kRow + begin + k + 64 * i);
      });
    };
    if constexpr (kGated) {
      load_from.template operator()<kDegrees + 1>(x, 0);
      if (!kBack) prefetch(x + kMiddle, 2 * kSide, count_);
      make_scalars();
    }
    if constexpr (kGated && !kBack) {
#pragma unroll 1
      for (int l = 1; l <= kDegrees; ++l) make_factors(l);
      load_from.template operator()<2 * kDegrees>(x, kMiddle);
      prefetch_next(x);
#pragma unroll 1
      for (int l = 1; l <= kDegrees; ++l) add_sides(l);
    }
    if constexpr (kBack && kGated) {
      for (int l = 1; l <= kDegrees; l += 2) keep_factors(l);
      const float* const y = layer.result + first_ * kRow;
      load<2, 2 * kDegrees, kDegrees>([=, this](int r, int k, float2(&found)[3 * kDegrees]) {
#pragma unroll
        for (int l = 0; l < kDegrees; ++l) {
          const int64_t n = r * kRow + kMiddle + l * kWideChannels + k, m = n + kSide;
          const float2 f = two(factors_ + r * kSide + l * kWideChannels + k), a = two(g + n), b = two(g + m);
          found[l] = times(f, a), found[kDegrees + l] = times(f, b);
          found[2 * kDegrees + l] =
              plus(times(a, less(once(y + n), once(x + n))), times(b, less(once(y + m), once(x + m))));
        }
      });
#pragma unroll 1
      for (int l = 1; l <= kDegrees; ++l) add_sides(l);
      load<4, kDegrees>([=, this](int r, int k, float2(&found)[kDegrees]) {
#pragma unroll
        for (int l = 0; l < kDegrees; ++l) {
          const int at = l * kWideChannels + k;
          const int64_t n = r * kRow + kWideChannels + at;
          const float2 f = two(factors_ + r * kSide + at);
          const float2 own = times(two(g + n), less(once(y + n), once(x + n)));
          found[l] = times(plus(two(slopes() + r * kSide + at), own), {1.0f - f.x, 1.0f - f.y});
        }
      });
      add_slopes();
      load<4, kDegrees + 1>([=, this](int r, int k, float2(&found)[kDegrees + 1]) {
        found[0] = two(of_scalars() + r * kWideChannels + k);
#pragma unroll
        for (int l = 0; l < kDegrees; ++l) {
          const int at = l * kWideChannels + k;
          found[l + 1] = times(two(factors_ + r * kSide + at), two(g + r * kRow + kWideChannels + at));
        }
      });
      prefetch_next(x);
      add_middle(layer.grad);
    } else if constexpr (!kGated) {
      const float* const own = kBack ? g : x;
      load_from.template operator()<kDegrees + 1>(own, 0);
      prefetch(own + kMiddle, 2 * kSide, count_);
      add_middle(kBack ? layer.grad : layer.x);
      load_from.template operator()<2 * kDegrees>(own, kMiddle);
      prefetch_next(own);
#pragma unroll 1
      for (int l = 1; l <= kDegrees; ++l) add_sides(l);
    }
  }

 private:
  static constexpr int kMiddle = (kDegrees + 1) * kWideChannels, kSide = kDegrees * kWideChannels;
  static constexpr int kRow = kMiddle + 2 * kSide;

  static __device__ __forceinline__ float2 two(const float* from) {
    return *reinterpret_cast<const float2*>(from);
  }
  // In shared memory stand the products' rows, then the ring, then what undoes the scales of rows.
  static constexpr int kOperandBytes =
      (2 * kDegrees > kDegrees + 1 ? 2 * kDegrees : kDegrees + 1) * kWideChannels * kParts / 64 * kBlockBytes;
  __device__ __forceinline__ float* rows() const {
    return reinterpret_cast<float*>(a_ + kOperandBytes + WideRing::bytes(args_.slots, kStageBytes));
  }
  // In the block's own device memory, behind factors.
  __device__ __forceinline__ float* slopes() const { return factors_ + kWideRows * kSide; }
  __device__ __forceinline__ float* of_scalars() const { return slopes() + kWideRows * kSide; }

  // Of what is not read again.
  static __device__ __forceinline__ float2 once(const float* from) {
    return __ldcs(reinterpret_cast<const float2*>(from));
  }
  static __device__ __forceinline__ float2 less(float2 a, float2 b) { return {a.x - b.x, a.y - b.y}; }
  static __device__ __forceinline__ float2 times(float2 a, float2 b) { return {a.x * b.x, a.y * b.y}; }

  __device__ __forceinline__ void sync_group() const { sync_threads(group_ + 1, kGroupThreads); }

  // Asks for numbers that are read soon, of so many rows, to be brought to the L2 cache.
  __device__ __forceinline__ void prefetch(const float* from, int numbers, int count) const {
#ifdef __CUDA_ARCH__
    if (static_cast<int>(threadIdx.x) < count)
      asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from + threadIdx.x * kRow),
                   "r"(numbers * 4));
#endif
  }
  // The first numbers of the block's next tile.
  __device__ __forceinline__ void prefetch_next(const float* from) const {
    const int64_t step = static_cast<int64_t>(gridDim.x) * kWideRows;
    prefetch(from + step * kRow, kMiddle,
             static_cast<int>(max(int64_t{0}, min(int64_t{kWideRows}, args_.layer.edges - first_ - step))));
  }

  // The products' rows, 64 numbers so many times, of the group. A warp has so many rows at once, a lane of
  // each 64 two numbers: f(row of the tile, the first of them, where they go), and behind them so many that
  // are kept as slopes. All is read before anything is written, behind the last row that row.
  template <int kAtOnce, int kDepth, int kSlopes = 0, class F>
  __device__ __forceinline__ void load(const F& f) {
    sync_group();  // no product needs the last rows, and what others wrote is there
    const int lane = lane_index(), last = min(count_, (group_ + 1) * kGroupRows);
#pragma unroll 1
    for (int first = group_ * kGroupRows + warp_index() % kGroupWarps; first < last;
         first += kAtOnce * kGroupWarps) {
      float2 x[kAtOnce][kDepth + kSlopes];
#pragma unroll
      for (int h = 0; h < kAtOnce; ++h) f(min(first + h * kGroupWarps, last - 1), 2 * lane, x[h]);
      if constexpr (kSlopes > 0) {
#pragma unroll
        for (int h = 0; h < kAtOnce; ++h)
#pragma unroll
          for (int l = 0; l < kSlopes; ++l)
            *reinterpret_cast<float2*>(slopes() + (first + h * kGroupWarps) * kSide + l * kWideChannels +
                                       2 * lane) = x[h][kDepth + l];
      }
#pragma unroll
      for (int h = 0; h < kAtOnce; ++h) {
        const int r = first + h * kGroupWarps;
        float largest = 0;
#pragma unroll
        for (int i = 0; i < kDepth; ++i) largest = fmaxf(largest, fmaxf(fabsf(x[h][i].x), fabsf(x[h][i].y)));
        const float scale = scale_for(warp_largest(largest));
        if (lane == 0) rows()[r] = inverse_power(scale);
#pragma unroll
        for (int i = 0; i < kDepth; ++i) {
          uint32_t parts[kParts];
          split(scale * x[h][i].x, scale * x[h][i].y, parts);
          if constexpr (kParts == 1) {
            *reinterpret_cast<uint32_t*>(a_ + i * kBlockBytes + wide_place(r, 2 * lane)) = parts[0];
            continue;
          }
          // Two blocks' lanes begin with different parts, which stand in different banks.
          char* const block = a_ + (2 * i + lane / 16) * kBlockBytes;
          const int k = 2 * (lane % 16), first_part = lane / 16;
#pragma unroll
          for (int n = 0; n < kParts; ++n)
            *reinterpret_cast<uint32_t*>(block + wide_place(r, k, n ^ first_part)) =
                n == first_part ? parts[0] : parts[kParts - 1];
        }
      }
    }
    fence_shared();
    sync_group();
    by_row_[0] = rows()[row_], by_row_[1] = rows()[row_ + 8];
  }

  // The stream's next chunk, of so many columns and 64 numbers of the depth so many times: product(the
  // stage's columns, the block of the rows, from which piece on, whether it adds) of each 16 of the depth,
  // and after each kTogether times 64 add() of what the tensor cores have summed up.
  template <int kColumns, int kDepth, bool kUnrolls = false, class Product, class Add>
  __device__ __forceinline__ void each_stage(const Product& product, const Add& add) {
    constexpr int kSteps = stage_depth(kColumns, kParts) / 16;  // of a stage, 16 numbers each
    if (!is_busy_) {
      for (int stage = 0; stage < kDepth * (4 / kSteps); ++stage) ring_.next(), ring_.let_go();
      return;
    }
    // With both sums and what they are added to, there are no registers to move them between rounds.
    constexpr int kRounds = kUnrolls ? kDepth : 1;
#pragma unroll kRounds
    for (int first = 0; first < kDepth; first += kTogether) {
#pragma unroll kRounds
      for (int d = first; d < min(first + kTogether, kDepth); ++d)
#pragma unroll
        for (int stage = 0; stage < 4 / kSteps; ++stage) {
          const char* const at = ring_.next();
          begin_products();
#pragma unroll
          for (int step = 0; step < kSteps; ++step) {
            const int k = stage * kSteps + step;
            const int block = kParts * d + kParts * k / 4, piece = kParts * k % 4 / kParts;
            const uint64_t columns =
                kColumns == 128 ? matrix_of_rows<64>(at) : matrix_of_rows<kWideRow>(at, 16);
            product(columns + 2 * step, block, 2 * piece, d > first || k > 0);
          }
          commit_products();
          if (d > first || stage > 0) {
            wait_for_products<1>();
            ring_.let_go();
          }
        }
      wait_for_products<0>();
      ring_.let_go();
      add();
    }
  }

  // sum (+)= rows times a stage's columns, by three products of two parts or one.
  template <int kColumns>
  __device__ __forceinline__ void add_product(float (&sum)[kColumns / 2], uint64_t columns, int block,
                                              int piece, bool adds) const {
    constexpr int kLow = kColumns == 128 ? 2 : 4;
    const uint64_t rows =
        matrix_of_rows<kWideRow>(a_ + block * kBlockBytes + group_ * (kBlockBytes / 2), 16) + piece;
    if constexpr (kParts == 2)
      multiply_unit(sum, rows + 4, columns, adds), multiply_unit(sum, rows, columns + kLow, 1);
    multiply_unit(sum, rows, columns, kParts == 2 || adds);
  }

  // The products of the rows with the stream's next chunk.
  template <int kColumns, int kDepth>
  __device__ __forceinline__ void multiply(float (&sum)[kColumns / 2]) {
    float part[kColumns / 2];
#pragma unroll
    for (int k = 0; k < kColumns / 2; ++k) sum[k] = 0;
    each_stage<kColumns, kDepth>([&](uint64_t columns, int block, int piece,
                                     bool adds) { add_product<kColumns>(part, columns, block, piece, adds); },
                                 [&] {
                                   fence_operands(part);
#pragma unroll
                                   for (int k = 0; k < kColumns / 2; ++k) sum[k] += part[k];
                                 });
  }

  // Behind all that a chunk's sums meet, whose reading does not wait for that of the scales then.
  template <int kColumns>
  __device__ __forceinline__ void unscale(float (&sum)[kColumns / 2]) {
#pragma unroll
    for (int e = 0; e < kColumns / 8; ++e) {
      const float2 by = two(columns_ + 8 * e + column_);
#pragma unroll
      for (int h = 0; h < 2; ++h)
        sum[4 * e + 2 * h] *= by_row_[h] * by.x, sum[4 * e + 2 * h + 1] *= by_row_[h] * by.y;
    }
    columns_ += kColumns;
  }

  // A thread's numbers of 64 columns: of row row_ + 8 h, of each sixteen of them four side by side, those of
  // e and of e + 1 (column_at). Read before the products that they meet, so that none waits for another, or
  // for what is written.
  struct Own {
    float2 v[2][8];
  };

  template <class F>
  static __device__ __forceinline__ void each(const F& f) {
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int e = 0; e < 8; ++e) f(h, e);
  }

  // Of an array of the tile's rows, so many numbers each, from a column on. Rows behind the last one read the
  // last.
  __device__ __forceinline__ Own read(const float* array, int width, int column) const {
    const float* const from[2] = {array + min(row_, count_ - 1) * width + 2 * column_ + column,
                                  array + min(row_ + 8, count_ - 1) * width + 2 * column_ + column};
    Own found;
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int e = 0; e < 8; e += 2) {
        const float4 four = *reinterpret_cast<const float4*>(from[h] + 8 * e);
        found.v[h][e] = {four.x, four.y}, found.v[h][e + 1] = {four.z, four.w};
      }
    return found;
  }
  // f(h, e) and f(h, e + 1) as four numbers: store(h, where they stand in row row_ + 8 h, they).
  template <class F, class Store>
  static __device__ __forceinline__ void by_four(const F& f, const Store& store) {
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int e = 0; e < 8; e += 2) {
        const float2 first = f(h, e), second = f(h, e + 1);
        store(h, 8 * e, float4{first.x, first.y, second.x, second.y});
      }
  }
  // To the block's own memory, which has room for all rows.
  template <class F>
  __device__ __forceinline__ void keep(float* array, int width, int column, const F& f) const {
    float* const to = array + row_ * width + 2 * column_ + column;
    by_four(f, [&](int h, int k, const float4& four) {
      *reinterpret_cast<float4*>(to + 8 * h * width + k) = four;
    });
  }
  __device__ __forceinline__ Own given(const float* array, int column) const {
    return read(array + first_ * kRow, kRow, column);
  }
  template <class F>
  __device__ __forceinline__ void answer(int column, const F& f) const {
    float* const to = args_.layer.y + (first_ + row_) * kRow + 2 * column_ + column;
    const bool there[2] = {row_ < count_, row_ + 8 < count_};
    by_four(f, [&](int h, int k, const float4& four) {
      if (there[h]) __stcs(reinterpret_cast<float4*>(to + 8 * h * kRow + k), four);
    });
  }

  static __device__ __forceinline__ float2 plus(float2 a, float2 b) { return {a.x + b.x, a.y + b.y}; }
  static __device__ __forceinline__ float2 sigmoids(float2 a) {
#ifdef __CUDACC__
    return {sigmoid_gpu(a.x), sigmoid_gpu(a.y)};
#else
    return {sigmoid(a.x), sigmoid(a.y)};
#endif
  }
  // The second 64 columns of a product are e from 8 on.
  template <int kSize>
  static __device__ __forceinline__ float2 at(const float (&sum)[kSize], int h, int e) {
    return {sum[4 * e + 2 * h], sum[4 * e + 2 * h + 1]};
  }

  __device__ __forceinline__ void make_scalars() {
    float s[32];
    multiply<64, kDegrees + 1>(s);
    const Own own = given(kBack ? args_.layer.grad : args_.layer.x, 0);
    unscale<64>(s);
    if constexpr (kBack)
      keep(of_scalars(), kWideChannels, 0, [&](int h, int e) {
        const float2 f = sigmoids(at(s, h, e)), slope{f.x * (1.0f + at(s, h, e).x * (1.0f - f.x)),
                                                      f.y * (1.0f + at(s, h, e).y * (1.0f - f.y))};
        return times(own.v[h][e], slope);
      });
    else
      answer(0, [&](int h, int e) { return plus(own.v[h][e], times(at(s, h, e), sigmoids(at(s, h, e)))); });
  }

  __device__ __forceinline__ void make_factors(int l) {
    float z[64];
    multiply<128, kDegrees + 1>(z);
    const Own own = given(args_.layer.x, l * kWideChannels);
    unscale<128>(z);
    Own factors;
    each([&](int h, int e) { factors.v[h][e] = sigmoids(at(z, h, e + 8)); });
    keep(factors_, kSide, (l - 1) * kWideChannels, [&](int h, int e) { return factors.v[h][e]; });
    answer(l * kWideChannels,
           [&](int h, int e) { return plus(own.v[h][e], times(at(z, h, e), factors.v[h][e])); });
  }

  // Of two degrees, where there are two.
  __device__ __forceinline__ void keep_factors(int l) {
    const int column = (l - 1) * kWideChannels;
    if (l < kDegrees) {
      float logits[64];
      multiply<128, kDegrees + 1>(logits);
      unscale<128>(logits);
      keep(factors_, kSide, column, [&](int h, int e) { return sigmoids(at(logits, h, e)); });
      keep(factors_, kSide, column + kWideChannels,
           [&](int h, int e) { return sigmoids(at(logits, h, e + 8)); });
    } else {
      float logits[32];
      multiply<64, kDegrees + 1>(logits);
      unscale<64>(logits);
      keep(factors_, kSide, column, [&](int h, int e) { return sigmoids(at(logits, h, e)); });
    }
  }

  __device__ __forceinline__ void add_slopes() {
    float more[32];
    multiply<64, kDegrees>(more);
    const Own own = read(of_scalars(), kWideChannels, 0);
    unscale<64>(more);
    keep(of_scalars(), kWideChannels, 0, [&](int h, int e) { return plus(own.v[h][e], at(more, h, e)); });
  }

  // Of m = 0: without factors.
  __device__ __forceinline__ void add_middle(const float* to_what) {
    for (int l = 0; l <= kDegrees; l += 2) {
      const int column = l * kWideChannels, next = column + kWideChannels;
      if (l < kDegrees) {
        float more[64];
        multiply<128, kDegrees + 1>(more);
        const Own own = given(to_what, column), other = given(to_what, next);
        unscale<128>(more);
        answer(column, [&](int h, int e) { return plus(own.v[h][e], at(more, h, e)); });
        answer(next, [&](int h, int e) { return plus(other.v[h][e], at(more, h, e + 8)); });
      } else {
        float more[32];
        multiply<64, kDegrees + 1>(more);
        const Own own = given(to_what, column);
        unscale<64>(more);
        answer(column, [&](int h, int e) { return plus(own.v[h][e], at(more, h, e)); });
      }
    }
  }

  // Of both signs, with factors where a layer has gates: rows of m = -1 and of m = 1 are multiplied with the
  // same 64 columns of U and of V, which have one scale.
  __device__ __forceinline__ void add_sides(int l) {
    const float* const to_what = kBack ? args_.layer.grad : args_.layer.x;
    const int column = (l - 1) * kWideChannels, first = kMiddle + column, second = first + kSide;
    Own negative = given(to_what, first), positive = given(to_what, second);
    float a[64], b[64];
    each_stage<128, kDegrees, true>(
        [&](uint64_t columns, int block, int piece, bool adds) {
          add_product<128>(a, columns, block, piece, adds);
          add_product<128>(b, columns, kParts * kDegrees + block, piece, adds);
        },
        [&] {
          fence_operands(a), fence_operands(b);
          Own factors;
          if constexpr (kGated && !kBack) factors = read(factors_, kSide, column);
#pragma unroll
          for (int e = 0; e < 8; ++e) {
            const float2 by = two(columns_ + 8 * e + column_);
#pragma unroll
            for (int h = 0; h < 2; ++h) {
              float2 scale{by_row_[h] * by.x, by_row_[h] * by.y};
              if constexpr (kGated && !kBack) scale = times(scale, factors.v[h][e]);
              const float2 a_u = at(a, h, e), a_v = at(a, h, e + 8), b_u = at(b, h, e), b_v = at(b, h, e + 8);
              negative.v[h][e] =
                  plus(negative.v[h][e], times(scale, kBack ? plus(a_u, b_v) : less(a_u, b_v)));
              positive.v[h][e] =
                  plus(positive.v[h][e], times(scale, kBack ? less(b_u, a_v) : plus(b_u, a_v)));
            }
          }
        });
    columns_ += 128;
    answer(first, [&](int h, int e) { return negative.v[h][e]; });
    answer(second, [&](int h, int e) { return positive.v[h][e]; });
  }

  const WideArgs& args_;
  char* const a_;
  WideRing ring_;
  float* factors_;
  const float* columns_ = nullptr;  // of the next chunk
  int row_, column_, group_;
  int64_t first_ = 0;  // the tile's first edge
  int count_ = 0;      // and how many there are
  bool is_busy_ = false;
  float by_row_[2] = {};
};

#endif

template <int kDegrees, int kParts, bool kBack, bool kGated>
__global__ void __launch_bounds__(kWideThreads, 1) wide_kernel(const __grid_constant__ WideArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  const TileShare share(args.layer.edges, kWideRows);
  const int64_t tiles = share.count();
  WideTile<kDegrees, kParts, kBack, kGated> own(args, tiles);
  for (int64_t k = 0; k < tiles; ++k) own.run(share.first(k), share.edges(k));
#endif
}

inline bool by_wide_rows(const Gpu& gpu, const So2Args<float>& args) {
#ifdef MDOPS_HOPPER
  return gpu.limits().capability == 90 && args.channels == kWideChannels && args.degrees >= 1 &&
         args.degrees <= kMostDegrees && wide_slots(args.degrees, args.parts, gpu.limits().shared_bytes) > 0;
#else
  return static_cast<void>(gpu), static_cast<void>(args), false;
#endif
}

// The memory that a call needs, in bytes: packed weights, what undoes their scales, blocks' own.
struct WideMemory {
  WideShape shape;
  int64_t blocks, unscale, own, bytes;

  WideMemory(const Gpu& gpu, const So2Args<float>& args)
      : shape{static_cast<int>(args.degrees), args.parts, args.grad != nullptr, args.gate != nullptr},
        blocks(std::min<int64_t>(blocks_for(args.edges, kWideRows), gpu.limits().multiprocessors)),
        unscale(static_cast<int64_t>(shape.stages()) * kStageBytes),
        own(unscale + round_up(shape.columns(), 64) * static_cast<int64_t>(sizeof(float))),
        bytes(own + (shape.gated ? blocks * WideArgs::memory_of_block(args.degrees) : 0) *
                        static_cast<int64_t>(sizeof(float))) {}
};

inline void run_wide(const Gpu& gpu, const So2Args<float>& args, char* memory) {
  const WideMemory has(gpu, args);
  float* const unscale = reinterpret_cast<float*>(memory + has.unscale);
  gpu.launch(pack_wide_kernel, has.shape.columns() / kPackColumns, kPackThreads, 0, args, has.shape, memory,
             unscale);
  const int slots = wide_slots(args.degrees, args.parts, gpu.limits().shared_bytes);
  const WideArgs wide{
      args, {has.shape.stages()}, slots, memory, unscale, reinterpret_cast<float*>(memory + has.own)};
  const auto launch = [&](auto kernel) {
    gpu.launch(kernel, has.blocks, kWideThreads, wide_shared(args.degrees, args.parts, slots), wide);
  };
  const auto launch_parts = [&]<int kDegrees, int kParts>() {
    if (args.grad)
      args.gate ? launch(wide_kernel<kDegrees, kParts, true, true>)
                : launch(wide_kernel<kDegrees, kParts, true, false>);
    else
      args.gate ? launch(wide_kernel<kDegrees, kParts, false, true>)
                : launch(wide_kernel<kDegrees, kParts, false, false>);
  };
  const auto launch_degrees = [&]<int kDegrees>() {
    args.parts == 1 ? launch_parts.template operator()<kDegrees, 1>()
                    : launch_parts.template operator()<kDegrees, 2>();
  };
  static_assert(kMostDegrees == 3);
  if (args.degrees == 1) return launch_degrees.template operator()<1>();
  args.degrees == 2 ? launch_degrees.template operator()<2>() : launch_degrees.template operator()<3>();
}

}  // namespace gpu_so2

}  // namespace mdops
