// Layers of float32 with 64 channels by Hopper's tensor cores, to float32's accuracy: three products of
// float16's two parts (gemm/gpu_parts.h).
//
// A block has 128 edges, each of its two warpgroups 64. One part of the edges' numbers after the other lies
// in shared memory as rows of products, each row brought to one size by a power of two: m = 0, then m = -1
// and 1 side by side. The weights do not fit: they come stage after stage through a ring of shared memory, in
// the order in which all tiles need them (gpu_wide_pack.h). A gate's logits are linear in the rows of m = 0,
// too: so their weights are W's first columns times G, and they come beside the numbers that they are a gate
// of.
//
//   forward    x_0   ->  s;  z_0l and its logits, for each l  ->  factors f_l
//              x_+-  ->  z_-l and z_+l, for each l
//   backward   x_0   ->  s and all logits  ->  f_l
//              slopes, of g, f and y - x  ->  ds      dz_0 = [ds.., f g]  ->  by x_0      dz_+-  ->  by x_+-
//
// Factors of a tile go through device memory, of which each block has some of its own: little
// enough to stay in the cache.
//
// Tensor cores round sums towards zero: so 128 products at a time are summed up by them, the rest in float32.
#pragma once

#include <algorithm>

#include "common/gpu_copy.h"
#include "common/gpu_wgmma.h"
#include "gemm/gpu_hopper.h"
#include "gemm/gpu_memory.h"
#include "so2_layer/gpu_plain.h"
#include "so2_layer/gpu_wide_pack.h"

namespace mdops {

namespace gpu_so2 {

constexpr int kWideThreads = 256, kWideWarps = kWideThreads / kWarp, kWideRows = 128, kSlots = 4;
constexpr int kTogether = 2;  // times 64 products, which the tensor cores sum up
constexpr int kGroupRows = kWideRows / 2;
constexpr int kBlockBytes = kWideRows * kWideRow;  // 32 numbers of all rows, in two parts
constexpr int kWideAlignment = 1024;

struct WideArgs {
  So2Args<float> layer;
  int stages;
  const char* packed;
  const float* unscale;  // of the packed columns
  float* memory;         // of blocks: factors, and the gradient of s

  static MDOPS_HD int64_t memory_of_block(int64_t degrees) {
    return kWideRows * kWideChannels * (degrees + 1);
  }
};

inline int64_t wide_shared(int64_t degrees) {
  const int64_t blocks = std::max(2 * degrees, degrees + 1) * kWideChannels / 32;
  return blocks * kBlockBytes + kSlots * kStageBytes + kWideRows * sizeof(float) + kWideAlignment;
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

template <bool kBack, bool kGated>
class WideTile {
 public:
  __device__ __forceinline__ explicit WideTile(const WideArgs& args)
      : args_(args),
        a_(net_memory() + (-reinterpret_cast<uintptr_t>(net_memory()) & (kWideAlignment - 1))),
        degrees_(static_cast<int>(args.layer.degrees)) {
    ring_ = a_ + max(2 * degrees_, degrees_ + 1) * kWideChannels / 32 * kBlockBytes;
    rows_ = reinterpret_cast<float*>(ring_ + kSlots * kStageBytes);
    factors_ = args.memory + blockIdx.x * WideArgs::memory_of_block(degrees_);
    of_scalars_ = factors_ + kWideRows * side();
    const int warp = warp_index();
    row_ = 16 * warp + lane_index() / 4;
    column_ = 2 * (lane_index() % 4);
    group_ = warp / kGroupWarps;
    ask(), ask();
  }

  // `count` edges from one on.
  __device__ __forceinline__ void run(int64_t first, int count) {
    first_ = first, count_ = count, is_busy_ = group_ * kGroupRows < count;
    columns_ = args_.unscale;
    const So2Args<float>& layer = args_.layer;
    const float *const x = layer.x + first_ * row(), *const g = layer.grad + (kBack ? first_ * row() : 0);
    const auto from = [&](const float* array, int begin) {
      return [this, array, begin](int r, int k) { return two(array + r * row() + begin + k); };
    };
    if constexpr (kGated) {
      load(degrees_ + 1, from(x, 0));
      prefetch(x + middle(), 2 * side(), count_);
      if (kBack) prefetch(g, row(), count_), prefetch(layer.result + first_ * row(), row(), count_);
      make_scalars();
    }
    if constexpr (kGated && !kBack) {
      for (int l = 1; l <= degrees_; ++l) make_factors(l);
      load(2 * degrees_, from(x, middle()));
      prefetch_next(x);
      for (int l = 1; l <= degrees_; ++l) add_sides(l);
    }
    if constexpr (kBack && kGated) {
      for (int l = 1; l <= degrees_; l += 2) keep_factors(l);
      const float* const y = layer.result + first_ * row();
      load<2>(degrees_, [&](int r, int k) {
        float2 sum{0.0f, 0.0f};
        for (const int at : {kWideChannels, middle(), middle() + side()}) {
          const int64_t n = r * row() + at + k;
          const float2 to = two(y + n), off = two(x + n);
          sum = plus(sum, times(two(g + n), {to.x - off.x, to.y - off.y}));
        }
        const float2 f = two(factors_ + r * side() + k);
        return times(sum, {1.0f - f.x, 1.0f - f.y});
      });
      add_slopes();
      load(degrees_ + 1, [&](int r, int k) {
        if (k < kWideChannels) return two(of_scalars_ + r * kWideChannels + k);
        return times(two(factors_ + r * side() + k - kWideChannels), two(g + r * row() + k));
      });
      add_middle(layer.grad);
      load(2 * degrees_, [&](int r, int k) {
        const int own = k < side() ? k : k - side();
        return times(two(factors_ + r * side() + own), two(g + r * row() + middle() + k));
      });
      prefetch_next(x);
      for (int l = 1; l <= degrees_; ++l) add_sides(l);
    } else if constexpr (!kGated) {
      const float* const own = kBack ? g : x;
      load(degrees_ + 1, from(own, 0));
      prefetch(own + middle(), 2 * side(), count_);
      add_middle(kBack ? layer.grad : layer.x);
      load(2 * degrees_, from(own, middle()));
      prefetch_next(own);
      for (int l = 1; l <= degrees_; ++l) add_sides(l);
    }
  }

  // The stages that were asked for beyond the last one.
  __device__ __forceinline__ void finish() { wait_for_copies(); }

 private:
  __device__ __forceinline__ int middle() const { return (degrees_ + 1) * kWideChannels; }
  __device__ __forceinline__ int side() const { return degrees_ * kWideChannels; }
  __device__ __forceinline__ int row() const { return middle() + 2 * side(); }

  static __device__ __forceinline__ float2 two(const float* from) {
    return *reinterpret_cast<const float2*>(from);
  }
  static __device__ __forceinline__ float2 times(float2 a, float2 b) { return {a.x * b.x, a.y * b.y}; }

  // Asks for the stream's next stage.
  __device__ __forceinline__ void ask() {
    const int at = 16 * static_cast<int>(threadIdx.x);
    char* const to = ring_ + asked_ % kSlots * kStageBytes + at;
    const char* const from = args_.packed + static_cast<int64_t>(next_) * kStageBytes + at;
#pragma unroll
    for (int k = 0; k < kStageBytes; k += 16 * kWideThreads) copy_to_shared<16>(to + k, from + k, true);
    commit_copies();
    ++asked_;
    if (++next_ == args_.stages) next_ = 0;
  }

  // The stage that is multiplied next, once it is there and the one before the last is done with.
  __device__ __forceinline__ const char* next_stage() {
    wait_for_copies<1>();
    fence_shared();
    __syncthreads();
    const char* const at = ring_ + (asked_ - 2) % kSlots * kStageBytes;
    ask();
    return at;
  }

  // Asks for numbers that are read soon, of so many rows, to be brought to the L2 cache.
  __device__ __forceinline__ void prefetch(const float* from, int numbers, int count) const {
#ifdef __CUDA_ARCH__
    constexpr int kLine = 32;
    const int lines = numbers / kLine;
    for (int k = threadIdx.x; k < count * lines; k += kWideThreads)
      asm volatile("prefetch.global.L2 [%0];" ::"l"(from + k / lines * row() + k % lines * kLine));
#endif
  }
  // The first numbers of the block's next tile.
  __device__ __forceinline__ void prefetch_next(const float* from) const {
    const int64_t step = static_cast<int64_t>(gridDim.x) * kWideRows;
    prefetch(from + step * row(), middle(),
             static_cast<int>(max(int64_t{0}, min(int64_t{kWideRows}, args_.layer.edges - first_ - step))));
  }

  // f(row of the tile, number) and the next as the products' rows, 64 numbers so many times. A warp has a
  // row.
  template <int kAtOnce = 4, class F>
  __device__ __forceinline__ void load(int depth, const F& f) {
    __syncthreads();  // no product needs the last rows, and what others wrote is there
    const int lane = lane_index();

#pragma unroll 1
    for (int first = static_cast<int>(threadIdx.x) / kWarp; first < count_; first += kAtOnce * kWideWarps) {
      float2 x[kAtOnce][2 * kMostDegrees];
#pragma unroll
      for (int h = 0; h < kAtOnce; ++h)
#pragma unroll
        for (int i = 0; i < 2 * kMostDegrees; ++i) {
          const int r = first + h * kWideWarps;
          x[h][i] = {0.0f, 0.0f};
          if (i < depth && r < count_) x[h][i] = f(r, 64 * i + 2 * lane);
        }
#pragma unroll
      for (int h = 0; h < kAtOnce; ++h) {
        const int r = first + h * kWideWarps;
        float largest = 0;
#pragma unroll
        for (int i = 0; i < 2 * kMostDegrees; ++i)
          largest = fmaxf(largest, fmaxf(fabsf(x[h][i].x), fabsf(x[h][i].y)));
        const float scale = scale_for(warp_largest(largest));
        if (lane == 0) rows_[r] = inverse_power(scale);
#pragma unroll
        for (int i = 0; i < 2 * kMostDegrees; ++i) {
          if (i >= depth) continue;
          uint32_t parts[2];
          split(scale * x[h][i].x, scale * x[h][i].y, parts);
          // Two blocks' lanes begin with different parts, which stand in different banks.
          char* const to = a_ + (2 * i + lane / 16) * kBlockBytes + wide_place(r, 2 * (lane % 16));
          const bool low = lane >= 16;
          char* const other = a_ + (2 * i + lane / 16) * kBlockBytes + wide_place(r, 2 * (lane % 16), 1);
          *reinterpret_cast<uint32_t*>(low ? other : to) = low ? parts[1] : parts[0];
          *reinterpret_cast<uint32_t*>(low ? to : other) = low ? parts[0] : parts[1];
        }
      }
    }
    fence_shared();
    __syncthreads();
    by_row_[0] = rows_[row_], by_row_[1] = rows_[row_ + 8];
  }

  // The products of the rows with the stream's next chunk, of so many columns and 64 numbers of the depth so
  // many times.
  template <int kColumns>
  __device__ __forceinline__ void multiply(int depth, float (&sum)[kColumns / 2]) {
    constexpr int kSteps = kColumns == 128 ? 1 : 2;  // of a stage, 16 numbers each
    const float* const columns = columns_;
    columns_ += kColumns;
#pragma unroll
    for (int k = 0; k < kColumns / 2; ++k) sum[k] = 0;
    if (!is_busy_) {
      for (int stage = 0; stage < depth * (4 / kSteps); ++stage) next_stage();
      return;
    }
#pragma unroll 1
    for (int first = 0; first < depth; first += kTogether) {
      float part[kColumns / 2];
#pragma unroll 1
      for (int d = first; d < min(first + kTogether, depth); ++d)
#pragma unroll
        for (int stage = 0; stage < 4 / kSteps; ++stage) {
          const char* const at = next_stage();
          begin_products();
#pragma unroll
          for (int step = 0; step < kSteps; ++step) {
            const int k = stage * kSteps + step;
            const uint64_t a = matrix_of_rows<kWideRow>(
                                   a_ + (2 * d + k / 2) * kBlockBytes + group_ * (kBlockBytes / 2), 16) +
                               k % 2 * 2;
            const uint64_t b =
                (kSteps == 1 ? matrix_of_rows<64>(at) : matrix_of_rows<kWideRow>(at, 16)) + step * 2;
            constexpr int kLow = kSteps == 1 ? 2 : 4;
            multiply_unit(part, a + 4, b, d > first || k > 0);
            multiply_unit(part, a, b + kLow, 1);
            multiply_unit(part, a, b, 1);
          }
          commit_products();
          wait_for_products<1>();
        }
      wait_for_products<0>();
      fence_operands(part);
#pragma unroll
      for (int k = 0; k < kColumns / 2; ++k) sum[k] += part[k];
    }
#pragma unroll
    for (int e = 0; e < kColumns / 8; ++e) {
      const float2 by = two(columns + 8 * e + column_);
#pragma unroll
      for (int h = 0; h < 2; ++h)
        sum[4 * e + 2 * h] *= by_row_[h] * by.x, sum[4 * e + 2 * h + 1] *= by_row_[h] * by.y;
    }
  }

  // A thread's numbers of 64 columns: of row row_ + 8 h, columns 8 e + column_ and the next. Read before the
  // products that they meet, so that none waits for another, or for what is written.
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
    const float* const from[2] = {array + min(row_, count_ - 1) * width + column_ + column,
                                  array + min(row_ + 8, count_ - 1) * width + column_ + column};
    Own found;
    each([&](int h, int e) { found.v[h][e] = two(from[h] + 8 * e); });
    return found;
  }
  // To the block's own memory, which has room for all rows.
  template <class F>
  __device__ __forceinline__ void keep(float* array, int width, int column, const F& f) const {
    float* const to[2] = {array + row_ * width + column_ + column,
                          array + (row_ + 8) * width + column_ + column};
    each([&](int h, int e) { *reinterpret_cast<float2*>(to[h] + 8 * e) = f(h, e); });
  }
  __device__ __forceinline__ Own given(const float* array, int column) const {
    return read(array + first_ * row(), row(), column);
  }
  template <class F>
  __device__ __forceinline__ void answer(int column, const F& f) const {
    float* const y = args_.layer.y + (first_ + row_) * row() + column_ + column;
    float* const to[2] = {y, y + 8 * row()};
    const bool there[2] = {row_ < count_, row_ + 8 < count_};
    each([&](int h, int e) {
      const float2 found = f(h, e);
      if (there[h]) *reinterpret_cast<float2*>(to[h] + 8 * e) = found;
    });
  }

  static __device__ __forceinline__ float2 plus(float2 a, float2 b) { return {a.x + b.x, a.y + b.y}; }
  static __device__ __forceinline__ float2 sigmoids(float2 a) { return {sigmoid(a.x), sigmoid(a.y)}; }
  // The second 64 columns of a product are e from 8 on.
  template <int kSize>
  static __device__ __forceinline__ float2 at(const float (&sum)[kSize], int h, int e) {
    return {sum[4 * e + 2 * h], sum[4 * e + 2 * h + 1]};
  }

  __device__ __forceinline__ void make_scalars() {
    float s[32];
    multiply<64>(degrees_ + 1, s);
    const Own own = given(kBack ? args_.layer.grad : args_.layer.x, 0);
    if constexpr (kBack)
      keep(of_scalars_, kWideChannels, 0, [&](int h, int e) {
        const float2 f = sigmoids(at(s, h, e)), slope{f.x * (1.0f + at(s, h, e).x * (1.0f - f.x)),
                                                      f.y * (1.0f + at(s, h, e).y * (1.0f - f.y))};
        return times(own.v[h][e], slope);
      });
    else
      answer(0, [&](int h, int e) { return plus(own.v[h][e], times(at(s, h, e), sigmoids(at(s, h, e)))); });
  }

  __device__ __forceinline__ void make_factors(int l) {
    float z[64];
    multiply<128>(degrees_ + 1, z);
    const Own own = given(args_.layer.x, l * kWideChannels);
    Own factors;
    each([&](int h, int e) { factors.v[h][e] = sigmoids(at(z, h, e + 8)); });
    keep(factors_, side(), (l - 1) * kWideChannels, [&](int h, int e) { return factors.v[h][e]; });
    answer(l * kWideChannels,
           [&](int h, int e) { return plus(own.v[h][e], times(at(z, h, e), factors.v[h][e])); });
  }

  // Of two degrees, where there are two.
  __device__ __forceinline__ void keep_factors(int l) {
    const int column = (l - 1) * kWideChannels;
    if (l < degrees_) {
      float logits[64];
      multiply<128>(degrees_ + 1, logits);
      keep(factors_, side(), column, [&](int h, int e) { return sigmoids(at(logits, h, e)); });
      keep(factors_, side(), column + kWideChannels,
           [&](int h, int e) { return sigmoids(at(logits, h, e + 8)); });
    } else {
      float logits[32];
      multiply<64>(degrees_ + 1, logits);
      keep(factors_, side(), column, [&](int h, int e) { return sigmoids(at(logits, h, e)); });
    }
  }

  __device__ __forceinline__ void add_slopes() {
    float more[32];
    multiply<64>(degrees_, more);
    const Own own = read(of_scalars_, kWideChannels, 0);
    keep(of_scalars_, kWideChannels, 0, [&](int h, int e) { return plus(own.v[h][e], at(more, h, e)); });
  }

  // Of m = 0: without factors.
  __device__ __forceinline__ void add_middle(const float* to_what) {
    for (int l = 0; l <= degrees_; l += 2) {
      const int column = l * kWideChannels, next = column + kWideChannels;
      if (l < degrees_) {
        float more[64];
        multiply<128>(degrees_ + 1, more);
        const Own own = given(to_what, column), other = given(to_what, next);
        answer(column, [&](int h, int e) { return plus(own.v[h][e], at(more, h, e)); });
        answer(next, [&](int h, int e) { return plus(other.v[h][e], at(more, h, e + 8)); });
      } else {
        float more[32];
        multiply<64>(degrees_ + 1, more);
        const Own own = given(to_what, column);
        answer(column, [&](int h, int e) { return plus(own.v[h][e], at(more, h, e)); });
      }
    }
  }

  // Of both signs, with factors where a layer has gates.
  __device__ __forceinline__ void add_sides(int l) {
    const float* const to_what = kBack ? args_.layer.grad : args_.layer.x;
    const int column = (l - 1) * kWideChannels, first = middle() + column, second = first + side();
    float more[64];
    multiply<128>(2 * degrees_, more);
    const Own negative = given(to_what, first);
    const Own positive = given(to_what, second);
    if constexpr (kGated && !kBack) {
      const Own factors = read(factors_, side(), column);
      const auto gated = [&](int h, int e, int from) {
        return times(at(more, h, e + from), factors.v[h][e]);
      };
      answer(first, [&](int h, int e) { return plus(negative.v[h][e], gated(h, e, 0)); });
      answer(second, [&](int h, int e) { return plus(positive.v[h][e], gated(h, e, 8)); });
    } else {
      answer(first, [&](int h, int e) { return plus(negative.v[h][e], at(more, h, e)); });
      answer(second, [&](int h, int e) { return plus(positive.v[h][e], at(more, h, e + 8)); });
    }
  }

  const WideArgs& args_;
  char *const a_, *ring_;
  const int degrees_;
  float *rows_, *factors_, *of_scalars_;
  const float* columns_ = nullptr;  // of the next chunk
  int row_, column_, group_, asked_ = 0, next_ = 0;
  int64_t first_ = 0;  // the tile's first edge
  int count_ = 0;      // and how many there are
  bool is_busy_ = false;
  float by_row_[2] = {};
};

#endif

// Tiles that all blocks have, and then the rest, in halves if there are blocks enough: a half takes half the
// time.
template <bool kBack, bool kGated>
__global__ void __launch_bounds__(kWideThreads, 1) wide_kernel(const __grid_constant__ WideArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  WideTile<kBack, kGated> own(args);
  const int64_t edges = args.layer.edges, blocks = gridDim.x;
  const int64_t full = edges / (blocks * kWideRows) * blocks * kWideRows;
  const int64_t rest = edges - full, size = rest <= blocks * kGroupRows ? kGroupRows : kWideRows;
  for (int64_t first = blockIdx.x * int64_t{kWideRows};; first += blocks * kWideRows) {
    const bool last = first >= full;
    if (last) first = full + blockIdx.x * size;
    if (first < edges) own.run(first, static_cast<int>(min(last ? size : int64_t{kWideRows}, edges - first)));
    if (last) break;
  }
  own.finish();
#endif
}

inline bool by_wide_rows(const Gpu& gpu, const So2Args<float>& args) {
#ifdef MDOPS_HOPPER
  return gpu.limits().capability == 90 && args.channels == kWideChannels && args.degrees >= 1 &&
         args.degrees <= kMostDegrees && wide_shared(args.degrees) <= gpu.limits().shared_bytes;
#else
  return static_cast<void>(gpu), static_cast<void>(args), false;
#endif
}

// The memory that a call needs, in bytes: packed weights, what undoes their scales, blocks' own.
struct WideMemory {
  WideShape shape;
  int64_t blocks, unscale, own, bytes;

  WideMemory(const Gpu& gpu, const So2Args<float>& args)
      : shape{static_cast<int>(args.degrees), args.grad != nullptr, args.gate != nullptr},
        blocks(std::min<int64_t>(blocks_for(args.edges, kWideRows), gpu.limits().multiprocessors)),
        unscale(static_cast<int64_t>(shape.stages()) * kStageBytes),
        own(unscale + round_up(shape.columns(), 64) * static_cast<int64_t>(sizeof(float))),
        bytes(own + (shape.gated ? blocks * WideArgs::memory_of_block(args.degrees) : 0) *
                        static_cast<int64_t>(sizeof(float))) {}
};

inline void run_wide(const Gpu& gpu, const So2Args<float>& args, char* memory) {
  const WideMemory has(gpu, args);
  float* const unscale = reinterpret_cast<float*>(memory + has.unscale);
  gpu.launch(pack_wide_kernel, blocks_for(has.shape.columns(), kPackThreads / kWarp), kPackThreads, 0, args,
             has.shape, memory, unscale);
  const WideArgs wide{args, has.shape.stages(), memory, unscale, reinterpret_cast<float*>(memory + has.own)};
  const auto launch = [&](auto kernel) {
    gpu.launch(kernel, has.blocks, kWideThreads, wide_shared(args.degrees), wide);
  };
  if (args.grad)
    args.gate ? launch(wide_kernel<true, true>) : launch(wide_kernel<true, false>);
  else
    args.gate ? launch(wide_kernel<false, true>) : launch(wide_kernel<false, false>);
}

}  // namespace gpu_so2

}  // namespace mdops
