// Layers of float32 with 64 channels by Hopper's tensor cores: three products of float16's two parts, to
// float32's accuracy, or one (gemm/gpu_parts.h).
//
// A block has 128 edges, each of its two warpgroups 64. The edges' numbers are in shared memory as rows of
// products, each scaled by a power of two: first m = 0, then m = -1 and 1 side by side. The weights do not
// fit: their stages come through a ring of shared memory, in the order in which all tiles need them
// (gpu_ring.h, gpu_wide_pack.h). Both signs are multiplied by the same columns of U and V: so these come
// once. s has its own slot beside the rows, for the gates' logits. Products and traffic with the L2 cache
// limit the speed. So if a residual is the product's rows, it is read from them: their two parts have all of
// its bits but the last. Channels in two groups that do not mix have separate products, half as deep and
// wide.
//
//   forward    x_0   ->  s and z_01;  s  ->  logits  ->  factors f_l;  x_0  ->  the other z_0l
//              x_+-  ->  z_-l and z_+l, for each l
//   backward   x_0   ->  s;  s  ->  logits  ->  f_l
//              dz_+- = f g  ->  by x_+-
//              slopes, of g (y - x)  ->  ds      dz_0 = [ds, f g]  ->  by x_0
//
// When g is read for dz_+-, its part of the slopes is summed. Factors and slopes of a tile go through the
// block's own device memory, small enough to stay in the cache. To keep them there, and g until it is read
// again, the last reads and writes of other numbers bypass the cache.
//
// Tensor cores round sums towards zero: so they sum 128 products at a time, and the rest is added in float32.
#pragma once

#include <algorithm>

#include "common/gpu_barrier.h"
#include "common/gpu_floats.h"
#include "common/gpu_unroll.h"
#include "common/gpu_wgmma.h"
#include "gemm/gpu_hopper.h"
#include "gemm/gpu_memory.h"
#include "so2_layer/gpu_gates.h"
#include "so2_layer/gpu_ring.h"
#include "so2_layer/gpu_wide_pack.h"

namespace mdops::gpu_so2 {

constexpr int kWideThreads = 256, kWideWarps = kWideThreads / kWarp, kWideRows = 128;
constexpr int kTogether = 2;  // times 64 products that the tensor cores sum
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

// Units of 64 numbers of a product's rows: both signs, or m = 0 and s.
MDOPS_HD constexpr int wide_units(int degrees) {
  return degrees > 1 ? 2 * degrees : degrees + 2;
}
inline int64_t wide_shared(int64_t degrees, int parts, int slots) {
  const int64_t blocks = wide_units(static_cast<int>(degrees)) * parts;
  return blocks * kBlockBytes + WideRing::bytes(slots, kStageBytes) + kWideRows * sizeof(float) +
         kWideAlignment;
}
// Slots of the ring; 0: there is no room for one.
inline int wide_slots(int64_t degrees, int parts, int64_t shared_bytes) {
  const int64_t room = shared_bytes - wide_shared(degrees, parts, 0);
  const int64_t slots = room / (wide_shared(degrees, parts, 1) - wide_shared(degrees, parts, 0));
  return slots < 2 ? 0 : static_cast<int>(std::min<int64_t>(slots, kMostSlots));
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

template <int kDegrees, int kParts, bool kBack, bool kGated, int kSplit>
class WideTile {
 public:
  // For a block with so many tiles.
  MDOPS_D WideTile(const WideArgs& args, int64_t tiles)
      : args_(args),
        a_(net_memory() + (-reinterpret_cast<uintptr_t>(net_memory()) & (kWideAlignment - 1))),
        ring_(a_ + kOperandBytes, args.slots, kStageBytes, args.packed, args.stages, tiles) {
    factors_ = args.memory + blockIdx.x * WideArgs::memory_of_block(kDegrees);
    const int warp = warp_index();
    row_ = 16 * warp + lane_index() / 4;
    column_ = 2 * (lane_index() % 4);
    group_ = warp / kGroupWarps;
  }

  // `count` edges from `first` on.
  MDOPS_D void run(int64_t first, int count) {
    first_ = first, count_ = count, is_busy_ = group_ * kGroupRows < count;
    columns_ = args_.unscale;
    const So2Args<float>& layer = args_.layer;
    const float *const x = layer.x + first_ * kRow, *const g = layer.grad + (kBack ? first_ * kRow : 0);
    // Loads rows of an array, from number `begin` of each on.
    const auto load_from = [&]<int kDepth>(const float* array, int begin) {
      // Backward with gates, code for more rows at once would not fit into the instruction cache.
      load<kBack && kGated ? 4
           : kDepth <= 4   ? 16
                           : 8,
           kDepth>([=](int r, int k, float2(&found)[kDepth]) {
#pragma unroll
        for (int i = 0; i < kDepth; ++i) {
          const float* const from = array + r * kRow + begin + k + 64 * i;
          found[i] = kAddsRows ? once(from) : two(from);
        }
      });
    };
    if constexpr (kGated) {
      load_from.template operator()<kDegrees + 1>(x, 0);
      if (!kBack) prefetch(x + kMiddle, 2 * kSide, count_);
    }
    if constexpr (kGated && !kBack) {
      add_middle();
      load_from.template operator()<2 * kDegrees>(x, kMiddle);
      prefetch_next(x);
#pragma unroll 1
      for (int l = 1; l <= kDegrees; ++l) add_sides(l);
    }
    if constexpr (kBack && kGated) {
      make_scalars();
      const float* const y = layer.result + first_ * kRow;
      load<2, 2 * kDegrees, kDegrees>([=, this](int r, int k, float2(&found)[3 * kDegrees]) {
#pragma unroll
        for (int l = 0; l < kDegrees; ++l) {
          const int64_t n = r * kRow + kMiddle + l * kWideChannels + k, m = n + kSide;
          const float2 f = two(factors_ + r * kSide + l * kWideChannels + k), a = two(g + n), b = two(g + m);
          found[l] = f * a, found[kDegrees + l] = f * b;
          found[2 * kDegrees + l] = a * (once(y + n) - once(x + n)) + b * (once(y + m) - once(x + m));
        }
      });
#pragma unroll 1
      for (int l = 1; l <= kDegrees; ++l) add_sides(l);
      // One scale suffices for both: the loss is far below the larger of the two.
      load<4, 2 * kDegrees>([=, this](int r, int k, float2(&found)[2 * kDegrees]) {
#pragma unroll
        for (int l = 0; l < kDegrees; ++l) {
          const int at = l * kWideChannels + k;
          const int64_t n = r * kRow + kWideChannels + at;
          const float2 f = two(factors_ + r * kSide + at), by = two(g + n);
          const float2 own = by * (once(y + n) - once(x + n));
          found[l] = (two(slopes() + r * kSide + at) + own) * float2{1.0f - f.x, 1.0f - f.y};
          found[kDegrees + l] = f * by;
        }
      });
      add_slopes();
      prefetch_next(x);
      add_middle();
    } else if constexpr (!kGated) {
      const float* const own = kBack ? g : x;
      load_from.template operator()<kDegrees + 1>(own, 0);
      prefetch(own + kMiddle, 2 * kSide, count_);
      add_middle();
      load_from.template operator()<2 * kDegrees>(own, kMiddle);
      prefetch_next(own);
#pragma unroll 1
      for (int l = 1; l <= kDegrees; ++l) add_sides(l);
    }
  }

 private:
  static constexpr int kMiddle = (kDegrees + 1) * kWideChannels, kSide = kDegrees * kWideChannels;
  static constexpr int kRow = kMiddle + 2 * kSide;
  static constexpr int kPieces = 4 / kSplit;  // of 16 numbers, in a group's part of 64

  static MDOPS_D float2 two(const float* from) { return *reinterpret_cast<const float2*>(from); }
  // Shared memory holds the products' rows, then the ring, then the rows' inverse scales.
  static constexpr int kOperandBytes = wide_units(kDegrees) * kParts * kBlockBytes;
  // Whether the residual can be read from the products' rows.
  static constexpr bool kAddsRows = kParts == 2 && !(kBack && kGated);
  MDOPS_D float* rows() const {
    return reinterpret_cast<float*>(a_ + kOperandBytes + WideRing::bytes(args_.slots, kStageBytes));
  }
  // In the block's own device memory, after the factors.
  MDOPS_D float* slopes() const { return factors_ + kWideRows * kSide; }
  MDOPS_D float* of_scalars() const { return slopes() + kWideRows * kSide; }

  // A read of numbers that are not read again.
  static MDOPS_D float2 once(const float* from) { return __ldcs(reinterpret_cast<const float2*>(from)); }

  MDOPS_D void sync_group() const { sync_threads(group_ + 1, kGroupThreads); }

  // Prefetches `numbers` of each of `count` rows to the L2 cache.
  MDOPS_D void prefetch(const float* from, int numbers, int count) const {
#ifdef __CUDA_ARCH__
    if (static_cast<int>(threadIdx.x) < count)
      asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from + threadIdx.x * kRow),
                   "r"(numbers * 4));
#endif
  }
  // The same for the first numbers of the block's next tile.
  MDOPS_D void prefetch_next(const float* from) const {
    const int64_t step = static_cast<int64_t>(gridDim.x) * kWideRows;
    prefetch(from + step * kRow, kMiddle,
             static_cast<int>(max(int64_t{0}, min(int64_t{kWideRows}, args_.layer.edges - first_ - step))));
  }

  // Writes the group's rows of products, kDepth times 64 numbers each. A warp has kAtOnce rows at once, a
  // lane two of each 64 numbers: f(row of the tile, index of the first, results). Then come kSlopes results
  // that are stored as slopes. All reads come before the writes. Rows beyond the last one repeat it.
  template <int kAtOnce, int kDepth, int kSlopes = 0, class F>
  MDOPS_D void load(const F& f) {
    sync_group();  // no product still reads the old rows, and other threads' writes are visible
    const int lane = lane_index(), last = min(count_, (group_ + 1) * kGroupRows);
#pragma unroll 1
    for (int first = group_ * kGroupRows + warp_index() % kGroupWarps; first < last;
         first += kAtOnce * kGroupWarps) {
      float2 x[kAtOnce][kDepth + kSlopes];
#pragma unroll
      for (int h = 0; h < kAtOnce; ++h) f(min(first + h * kGroupWarps, last - 1), 2 * lane, x[h]);
      if constexpr (kSlopes > 0) {
        unrolled<kAtOnce, kSlopes>([&](int h, int l) {
          *reinterpret_cast<float2*>(slopes() + (first + h * kGroupWarps) * kSide + l * kWideChannels +
                                     2 * lane) = x[h][kDepth + l];
        });
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
          // Lanes of the two blocks begin with different parts, which are in different banks.
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

  // Runs the stream's next chunk, of kColumns columns and a depth of kDepth times 64. It calls
  // product(stage's columns, which 64, which 16 of a group's, whether to add) for each 16 of a group's depth,
  // and add() for the tensor cores' sums after each kTogether times 64.
  template <int kColumns, int kDepth, bool kUnrolls = false, class Product, class Add>
  MDOPS_D void each_stage(const Product& product, const Add& add) {
    constexpr int kSteps = stage_depth(kColumns, kParts, kSplit) / 16;  // of 16 numbers, in a stage
    constexpr int kEach = kPieces / kSteps, kAtOnce = kTogether * kSplit;
    if (!is_busy_) {
      for (int stage = 0; stage < kDepth * kEach; ++stage) ring_.next(), ring_.let_go();
      return;
    }
    // The sums and what they are added to leave no registers for moves between rounds.
    constexpr int kRounds = kUnrolls ? kDepth : 1;
    // Backward with gates, the code would not fit into the instruction cache otherwise.
    constexpr int kStages = kBack && kGated && !(kUnrolls && kColumns == 128) ? 1 : 4;
#pragma unroll kRounds
    for (int first = 0; first < kDepth; first += kAtOnce) {
#pragma unroll kRounds
      for (int d = first; d < min(first + kAtOnce, kDepth); ++d)
#pragma unroll kStages
        for (int stage = 0; stage < kEach; ++stage) {
          const char* const at = ring_.next();
          begin_products();
#pragma unroll
          for (int step = 0; step < kSteps; ++step) {
            const int k = stage * kSteps + step;
            const uint64_t columns =
                kColumns == 128 ? matrix_of_rows<64>(at) : matrix_of_rows<kWideRow>(at, 16);
            product(columns + 2 * step, d, k, d > first || k > 0);
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

  // sum (+)= rows times a stage's columns, by three products of two parts or one, for each group of channels:
  // in the rows' unit of 64 numbers, the group's k-th 16.
  template <int kColumns>
  MDOPS_D void add_product(float (&sums)[kColumns / 2], uint64_t columns, int unit, int k, bool adds) const {
    constexpr int kLow = kColumns == 128 ? 2 : 4, kOwn = kColumns / 2 / kSplit;
#pragma unroll
    for (int own = 0; own < kSplit; ++own, k += kPieces, columns += kStageBytes / kSplit / 16) {
      const int block = kParts * unit + kParts * k / 4, piece = kParts * k % 4 / kParts;
      const uint64_t rows =
          matrix_of_rows<kWideRow>(a_ + block * kBlockBytes + group_ * (kBlockBytes / 2), 16) + 2 * piece;
      float (&sum)[kOwn] = reinterpret_cast<float (&)[kOwn]>(sums[kOwn * own]);
      if constexpr (kParts == 2)
        multiply_unit(sum, rows + 4, columns, adds), multiply_unit(sum, rows, columns + kLow, 1);
      multiply_unit(sum, rows, columns, kParts == 2 || adds);
    }
  }

  // Multiplies rows by the stream's next chunk, from unit `unit` of 64 numbers on; kMore: adds to sums of
  // other rows. `by_row`: the rows' inverse scales.
  template <int kColumns, int kDepth, bool kMore = false>
  MDOPS_D void multiply(float (&sum)[kColumns / 2], int unit, const float (&by_row)[2]) {
    float part[kColumns / 2];
    if constexpr (!kMore)
#pragma unroll
      for (int k = 0; k < kColumns / 2; ++k) sum[k] = 0;
    // With 64 columns in a loop the compiler serializes the products of one kernel.
    each_stage<kColumns, kDepth, kColumns == 64>(
        [&](uint64_t columns, int d, int k, bool adds) {
          add_product<kColumns>(part, columns, unit + d, k, adds);
        },
        [&] {
          fence_operands(part);
#pragma unroll
          for (int k = 0; k < kColumns / 2; ++k) sum[k] += by_row[k / 2 % 2] * part[k];
        });
  }
  // The same for m = 0. Backward with gates, ds is separate, where the slopes were.
  template <int kColumns>
  MDOPS_D void multiply_middle(float (&sum)[kColumns / 2]) {
    if constexpr (kBack && kGated) {
      multiply<kColumns, kDegrees>(sum, kDegrees, by_row_);
      multiply<kColumns, 1, true>(sum, 0, by_scalar_);
    } else {
      multiply<kColumns, kDegrees + 1>(sum, 0, by_row_);
    }
  }

  // After all reads of what a chunk's sums are added to, which need not wait for the scales then.
  template <int kColumns>
  MDOPS_D void unscale(float (&sum)[kColumns / 2]) {
#pragma unroll
    for (int e = 0; e < kColumns / 8; ++e) {
      const float2 by = two(columns_ + 8 * e + column_);
#pragma unroll
      for (int h = 0; h < 2; ++h) sum[4 * e + 2 * h] *= by.x, sum[4 * e + 2 * h + 1] *= by.y;
    }
    columns_ += kColumns;
  }

  // A thread's numbers of 64 columns in row row_ + 8 h: four side by side of each sixteen, at e and e + 1
  // (column_at). They are read before the products to which they are added, so that no read waits for
  // another, or for writes.
  struct Own {
    float2 v[2][8];
  };

  static MDOPS_D void each(const auto& f) {
    unrolled<2, 8>([&](int h, int e) { f(h, e); });
  }

  // Reads an array of the tile's rows, `width` numbers each, from a column on. Rows beyond the last one
  // repeat it.
  MDOPS_D Own read(const float* array, int width, int column) const {
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
  // Calls store(h, column in row row_ + 8 h, f(h, e) and f(h, e + 1) as four numbers).
  static MDOPS_D void by_four(const auto& f, const auto& store) {
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int e = 0; e < 8; e += 2) {
        const float2 first = f(h, e), second = f(h, e + 1);
        store(h, 8 * e, float4{first.x, first.y, second.x, second.y});
      }
  }
  // Writes to the block's own memory, which has room for all rows.
  MDOPS_D void keep(float* array, int width, int column, const auto& f) const {
    float* const to = array + row_ * width + 2 * column_ + column;
    by_four(f, [&](int h, int k, const float4& four) {
      *reinterpret_cast<float4*>(to + 8 * h * width + k) = four;
    });
  }
  MDOPS_D Own given(const float* array, int column) const {
    return read(array + first_ * kRow, kRow, column);
  }
  // Where four of the thread's 64 numbers, those of (h, e) and (h, e + 1), are in a product's rows. That is
  // the first parts' place; an exclusive or with kSecondPart gives the second parts', as rows are swizzled.
  static constexpr int kSecondPart = 64;
  MDOPS_D int place_of(int unit, int h, int e) const {
    constexpr int kNumbers = 64 / kParts;  // in a block
    const int k = 8 * e + 2 * column_;
    return (kParts * unit + k / kNumbers) * kBlockBytes + wide_place(row_ + 8 * h, k % kNumbers);
  }
  // What 64 columns of sums are added to: the products' rows in unit `unit` of 64 numbers, or an array from a
  // column on.
  MDOPS_D Own addend(int unit, int column) const {
    if constexpr (!kAddsRows) {
      return given(kBack ? args_.layer.grad : args_.layer.x, column);
    } else {
      Own found;
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int e = 0; e < 8; e += 2) {
          const int from = place_of(unit, h, e);
          const uint2 high = *reinterpret_cast<const uint2*>(a_ + from);
          const uint2 low = *reinterpret_cast<const uint2*>(a_ + (from ^ kSecondPart));
          found.v[h][e] = (halves(high.x) + halves(low.x)) * float2{by_row_[h], by_row_[h]};
          found.v[h][e + 1] = (halves(high.y) + halves(low.y)) * float2{by_row_[h], by_row_[h]};
        }
      return found;
    }
  }
  static MDOPS_D float2 halves(uint32_t two) {
    return __half22float2(*reinterpret_cast<const __half2*>(&two));
  }
  // Writes the thread's part x(h, e) of the 64 numbers of s to the group's rows of products.
  MDOPS_D void place(int unit, const auto& x) {
    sync_group();  // no product still reads the old numbers
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float largest = 0;
#pragma unroll
      for (int e = 0; e < 8; ++e) largest = fmaxf(largest, fmaxf(fabsf(x(h, e).x), fabsf(x(h, e).y)));
      const float scale = scale_for(quad_largest(largest));
      by_scalar_[h] = inverse_power(scale);
#pragma unroll
      for (int e = 0; e < 8; e += 2) {
        const float2 a = x(h, e), b = x(h, e + 1);
        uint2 parts[kParts];
        split(make_float4(scale * a.x, scale * a.y, scale * b.x, scale * b.y), parts);
        const int to = place_of(unit, h, e);
        *reinterpret_cast<uint2*>(a_ + to) = parts[0];
        if constexpr (kParts == 2) *reinterpret_cast<uint2*>(a_ + (to ^ kSecondPart)) = parts[1];
      }
    }
    fence_shared();
    sync_group();
  }
  MDOPS_D void answer(int column, const auto& f) const {
    float* const to = args_.layer.y + (first_ + row_) * kRow + 2 * column_ + column;
    const bool there[2] = {row_ < count_, row_ + 8 < count_};
    by_four(f, [&](int h, int k, const float4& four) {
      if (there[h]) __stcs(reinterpret_cast<float4*>(to + 8 * h * kRow + k), four);
    });
  }

  static MDOPS_D float2 sigmoids(float2 a) {
#ifdef __CUDACC__
    return {sigmoid_gpu(a.x), sigmoid_gpu(a.y)};
#else
    return {sigmoid(a.x), sigmoid(a.y)};
#endif
  }
  // e from 8 on is the second 64 columns of a product. A group has half of each.
  template <int kSize>
  static MDOPS_D float2 at(const float (&sum)[kSize], int h, int e) {
    const int place = kSize == 64 ? place_at(e) : e;
    return {sum[4 * place + 2 * h], sum[4 * place + 2 * h + 1]};
  }
  // Their index among the sums of 128 columns.
  static MDOPS_D constexpr int place_at(int e) {
    constexpr int kOwn = 8 / kSplit;
    return e % 8 / kOwn * 2 * kOwn + e / 8 * kOwn + e % kOwn;
  }

  // Backward: s, the factor of y's gradient in that of s, and the gates' factors.
  MDOPS_D void make_scalars() {
    float s[32];
    const Own own = given(args_.layer.grad, 0);
    multiply<64, kDegrees + 1>(s, 0, by_row_);
    unscale<64>(s);
    keep(of_scalars(), kWideChannels, 0, [&](int h, int e) {
      const float2 x = at(s, h, e), f = sigmoids(x);
      return own.v[h][e] * float2{f.x * (1.0f + x.x * (1.0f - f.x)), f.y * (1.0f + x.y * (1.0f - f.y))};
    });
    make_factors([&](int h, int e) { return at(s, h, e); });
  }

  // Computes the factors of all degrees from s(h, e), and stores them.
  MDOPS_D void make_factors(const auto& s) {
    constexpr int kUnit = kDegrees + 1;  // after the rows of m = 0
    place(kUnit, s);
#pragma unroll 1
    for (int l = 1; l <= kDegrees; ++l) {
      float logits[32];
      multiply<64, 1>(logits, kUnit, by_scalar_);
      unscale<64>(logits);
      keep(factors_, kSide, (l - 1) * kWideChannels,
           [&](int h, int e) { return sigmoids(at(logits, h, e)); });
    }
  }

  // ds, where the slopes were.
  MDOPS_D void add_slopes() {
    float more[32];
    const Own own = read(of_scalars(), kWideChannels, 0);
    multiply<64, kDegrees>(more, 0, by_row_);
    unscale<64>(more);
    place(0, [&](int h, int e) { return own.v[h][e] + at(more, h, e); });
  }

  // m = 0, two degrees at a time.
  MDOPS_D void add_middle() {
#pragma unroll 1
    for (int l = 0; l < kDegrees; l += 2) {
      float more[64];
      Own own, other;
      add_before(l, own), add_before(l + 1, other);
      multiply_middle<128>(more);
      unscale<128>(more);
      const auto z = [&](int h, int e) { return at(more, h, e); };
      if (kGated && !kBack && l == 0)
        add_scalars(own, z);
      else
        add_behind(l, own, z);
      add_behind(l + 1, other, [&](int h, int e) { return at(more, h, e + 8); });
    }
    if constexpr (kDegrees % 2 == 0) {
      float more[32];
      Own own;
      add_before(kDegrees, own);
      multiply_middle<64>(more);
      unscale<64>(more);
      add_behind(kDegrees, own, [&](int h, int e) { return at(more, h, e); });
    }
  }
  // Forward with gates: s and all factors.
  MDOPS_D void add_scalars(Own& own, const auto& s) {
    if constexpr (kAddsRows) own = addend(0, 0);
    answer(0, [&](int h, int e) { return own.v[h][e] + s(h, e) * sigmoids(s(h, e)); });
    make_factors(s);
  }
  // Memory is read before the products, and the rest after them.
  MDOPS_D void add_before(int l, Own& own) const {
    if constexpr (!kAddsRows) own = addend(l, l * kWideChannels);
  }
  MDOPS_D void add_behind(int l, Own& own, const auto& z) const {
    if constexpr (kAddsRows) own = addend(l, l * kWideChannels);
    if constexpr (kGated && !kBack) {
      const Own factors = read(factors_, kSide, (l - 1) * kWideChannels);
      answer(l * kWideChannels, [&](int h, int e) { return own.v[h][e] + factors.v[h][e] * z(h, e); });
    } else {
      answer(l * kWideChannels, [&](int h, int e) { return own.v[h][e] + z(h, e); });
    }
  }

  // Both signs, with factors if the layer has gates: rows of m = -1 and of m = 1 are multiplied by the same
  // 64 columns of U and of V, which have one scale.
  MDOPS_D void add_sides(int l) {
    const int column = (l - 1) * kWideChannels, first = kMiddle + column, second = first + kSide;
    Own negative = addend(l - 1, first), positive = addend(kDegrees + l - 1, second);
    float a[64], b[64];
    each_stage<128, kDegrees, true>(
        [&](uint64_t columns, int d, int k, bool adds) {
          add_product<128>(a, columns, d, k, adds);
          add_product<128>(b, columns, kDegrees + d, k, adds);
        },
        [&] {
          fence_operands(a), fence_operands(b);
          Own factors;
          if constexpr (kGated && !kBack) factors = read(factors_, kSide, column);
#pragma unroll
          for (int e = 0; e < 8; ++e) {
            const float2 by = two(columns_ + 8 * place_at(e) + column_);
#pragma unroll
            for (int h = 0; h < 2; ++h) {
              float2 scale{by_row_[h] * by.x, by_row_[h] * by.y};
              if constexpr (kGated && !kBack) scale = scale * factors.v[h][e];
              const float2 a_u = at(a, h, e), a_v = at(a, h, e + 8), b_u = at(b, h, e), b_v = at(b, h, e + 8);
              negative.v[h][e] = negative.v[h][e] + scale * (kBack ? a_u + b_v : a_u - b_v);
              positive.v[h][e] = positive.v[h][e] + scale * (kBack ? b_u - a_v : b_u + a_v);
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
  float by_row_[2] = {}, by_scalar_[2] = {};  // inverse scales of the products' rows, and of s
};

#endif

template <int kDegrees, int kParts, bool kBack, bool kGated, int kSplit = 1>
__global__ void __launch_bounds__(kWideThreads, 1) wide_kernel(const __grid_constant__ WideArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  const TileShare share(args.layer.edges, kWideRows);
  const int64_t tiles = share.count();
  WideTile<kDegrees, kParts, kBack, kGated, kSplit> own(args, tiles);
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

// The number of groups of channels into which a kernel splits its products. Otherwise it also multiplies the
// zeros between groups.
inline int wide_split(const So2Args<float>& args) {
  return args.groups == 2 && args.degrees == kMostDegrees && args.gate ? 2 : 1;
}

// The memory of a call, in bytes: packed weights, their inverse scales, blocks' own memory.
struct WideMemory {
  WideShape shape;
  int64_t blocks, unscale, own, bytes;

  WideMemory(const Gpu& gpu, const So2Args<float>& args)
      : shape{static_cast<int>(args.degrees), args.parts, wide_split(args), args.grad != nullptr,
              args.gate != nullptr},
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
    if constexpr (kDegrees == kMostDegrees)
      if (has.shape.groups == 2)
        return args.grad ? launch(wide_kernel<kDegrees, kParts, true, true, 2>)
                         : launch(wide_kernel<kDegrees, kParts, false, true, 2>);
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

}  // namespace mdops::gpu_so2
