// A whole net in one kernel by `mma.sync`, which every chip has from sm_80 on: a block takes some rows from
// their input to its gradient. (Hopper has a faster one, gpu_chain.h.)
//
// Who has what in a block of eight warps:
//
//   products   a warp has all rows, and an eighth of the columns: of 240, seven warps have four tiles of
//              eight and the last one two. So no two warps need the same weights, and none waits for another
//              during a product
//   weights    from the L2 cache through the warp's own ring in shared memory, packed for its lanes
//              (gpu_shape.h): each lane copies what it will read. They come in the order of all products, so
//              that the loads of the next start before the last one ends
//   rows       in shared memory: numbers as parts of float16, eight at a time,
//
//                16 bytes: high parts of numbers 0-7    16: their low parts    16: high parts of 8-15    ...
//
//              while they are a product's A. Once no warp needs them, the product's sums replace them as
//              floats, from which a warp a row makes the next A (gpu_steps.h). The input, deeper than that,
//              goes through the same memory, 32 numbers of all rows at a time
//   device     slopes, and inputs of residual layers
//
// The input's gradient goes straight from the sums to device memory, each warp by its columns.
//
// Floors for an atom of water (240 x 3, two parts): 5.6 MFLOP by mma.sync, 9.2 ns on an H100 and 18 on an
// A100; weights of 4.0 MB a block from L2, which 64 rows share: 62 kB, 11 ns at the 5.5 TB/s of an H100;
// shared memory, a row of 128 bytes a cycle: eight warps ask for 512 in the time of 384 products, which take
// a Hopper 307 cycles and an A100 768. nets.md (docs/notes) has predictions and what was measured.
#pragma once

#include "common/early.h"
#include "common/gpu_copy.h"
#include "common/gpu_floats.h"
#include "common/gpu_mma.h"
#include "common/gpu_unroll.h"
#include "common/profiler.h"
#include "gemm/gpu_memory.h"
#include "gemm/gpu_steps.h"

namespace mdops {

constexpr int kBlockWarps = 8, kBlockThreads = kBlockWarps * kWarp;
constexpr int kTurnUnits = 4;  // tiles of columns that a warp multiplies at once
constexpr int kFewestSlots = 2, kMostSlots = 4;
constexpr int kInputDepth = 32;  // numbers of a row of the input that are loaded at once

// A warp's sums: units of 16 rows by tiles of 8 columns.
struct BlockKind {
  int row_units, col_units;
  // Time per block of a multiprocessor, us: the net of water (240 x 3) and one of 512 x 3 for 98,304 atoms on
  // an H100, from the time of both. Not measured on other chips.
  int time;

  MDOPS_HD constexpr int rows() const { return 16 * row_units; }
  MDOPS_HD constexpr int cols() const { return kBlockWarps * kTileCols * col_units; }
  // How many blocks fit into a multiprocessor's registers.
  constexpr int resident(int parts) const { return row_units * col_units * parts <= 16 ? 2 : 1; }
};

constexpr BlockKind kBlockKinds[] = {{2, 4, 105}, {4, 4, 224}, {2, 8, 299}, {4, 8, 548}};
constexpr int kBlocks = sizeof(kBlockKinds) / sizeof(BlockKind);

// Whether a kind of block takes the net, and no narrower one does.
constexpr bool takes(const BlockKind& kind, int layers, const int* neurons) {
  const int most = widest(layers, neurons);
  return most <= kind.cols() && (kind.col_units == kTurnUnits || most > kind.cols() / 2);
}

// A block's shared memory. A row is padded by 16 bytes, so that eight rows' pieces of a column are in
// different banks.
struct BlockMemory {
  int row_bytes, ring, slots;  // of a row; where the rings begin; of each ring
  int bytes;

  // As many slots as a block may have, of the `most` bytes of a multiprocessor: for as many blocks as its
  // registers hold, or for one. `slots` is less than kFewestSlots if the bytes are too few.
  BlockMemory(const GpuNetShape& net, const BlockKind& kind, int parts, int most) {
    const int cols = round_up(widest(net.layers, net.neurons), kStepDepth), staged = 2 * input_row_bytes();
    row_bytes = 4 * cols + 16;
    ring = kind.rows() * (row_bytes > staged ? row_bytes : staged);
    const int resident = kind.resident(parts), slot = kBlockWarps * slot_bytes(parts);
    const int other = ring + kind.rows() * static_cast<int>(sizeof(float));  // `scales`
    slots = ((most + kOfSystem) / resident - kOfSystem - other) / slot;
    if (slots < kFewestSlots) slots = (most - other) / slot;
    slots = slots > kMostSlots ? kMostSlots : slots;
    bytes = ring + slots * slot;
  }

  MDOPS_HD static constexpr int slot_bytes(int parts) { return kTurnUnits * 32 * 8 * parts; }
  MDOPS_HD static constexpr int input_row_bytes() { return 4 * kInputDepth + 16; }

 private:
  static constexpr int kOfSystem = 1 << 10;  // reserved for each block on a multiprocessor
};

struct BlockArgs {
  NetArgs call;
  GpuNet packed;
  LayerRows layers[GpuNetShape::kMostLayers];
  BlockMemory memory;
};

// A product of the call, and this warp's tiles of columns.
struct WarpProduct {
  const PackedMatrix& matrix;
  int first, end;

  MDOPS_D WarpProduct(const BlockArgs& p, int m, int warp)
      : matrix(m < p.call.net.layers ? p.packed.forward[m]
                                     : p.packed.backward[2 * p.call.net.layers - 1 - m]) {
    const int each = (matrix.tiles + kBlockWarps - 1) / kBlockWarps;
    first = min(warp * each, matrix.tiles), end = min(first + each, matrix.tiles);
  }
};

// Prefetches a warp's weights: for each product, for each `col_units` of its tiles, for each step of the
// depth, kTurnUnits tiles a turn.
template <int ColUnits, int Parts>
class WarpWeights {
 public:
  using Piece = Fragment<Parts>;

  MDOPS_D WarpWeights(const BlockArgs& p, const float* net, Piece* ring, int warp)
      : p_(p), net_(net), ring_(ring + lane_index()), warp_(warp) {
    begin_product();
    for (int k = 0; k < p.memory.slots; ++k) fetch();
  }

  // Reads this turn's tiles; some may be missing.
  MDOPS_D void read(Piece (&b)[kTurnUnits]) const {
    if (p_.memory.slots == 2)
      wait_for_copies<1>();
    else if (p_.memory.slots == 3)
      wait_for_copies<2>();
    else
      wait_for_copies<3>();
#pragma unroll
    for (int n = 0; n < kTurnUnits; ++n) b[n] = ring_[(slot_ * kTurnUnits + n) * kWarp];
  }

  // Once all lanes' numbers of this turn are in registers: the next copies overwrite them.
  MDOPS_D void next() { fetch(); }

 private:
  MDOPS_D void fetch() {
    if (product_ < 2 * p_.call.net.layers) {
      Piece* const to = ring_ + slot_ * kTurnUnits * kWarp;
#pragma unroll
      for (int n = 0; n < kTurnUnits; ++n)
        if (unit_ + n < units_)
          copy_to_shared<sizeof(Piece)>(to + n * kWarp, from_ + (unit_ + n) * kWarp, true);
      advance();
    }
    commit_copies();
    if (++slot_ == p_.memory.slots) slot_ = 0;
  }

  MDOPS_D void advance() {
    if ((unit_ += kTurnUnits) < units_) return;
    unit_ = 0, from_ += apart_;
    if (++step_ < steps_) return;
    first_ += ColUnits;
    if (first_ < end_) return begin_tiles();
    ++product_;
    begin_product();
  }

  // Skips products of which the warp has no column.
  MDOPS_D void begin_product() {
    for (; product_ < 2 * p_.call.net.layers; ++product_) {
      const WarpProduct product(p_, product_, warp_);
      if (product.first >= product.end) continue;
      first_ = product.first, end_ = product.end;
      return begin_tiles();
    }
  }

  MDOPS_D void begin_tiles() {
    const PackedMatrix& matrix = WarpProduct(p_, product_, warp_).matrix;
    from_ = reinterpret_cast<const Piece*>(net_ + matrix.at) + first_ * kWarp + lane_index();
    apart_ = matrix.tiles * kWarp, steps_ = matrix.steps;
    units_ = min(ColUnits, end_ - first_), step_ = unit_ = 0;
  }

  const BlockArgs& p_;
  const float* const net_;
  Piece* const ring_;
  const int warp_;
  int product_ = 0, first_ = 0, end_ = 0, step_ = 0, steps_ = 0, unit_ = 0, units_ = 0, slot_ = 0;
  const Piece* from_ = nullptr;
  int64_t apart_ = 0;
};

template <int RowUnits, int ColUnits, int Parts>
class BlockThread {
 public:
  static constexpr int kRows = 16 * RowUnits;

  MDOPS_D BlockThread(const BlockArgs& p, const float* net, float scale, char* shared, float* scales)
      : p_(p),
        net_(net),
        scale_(scale),
        rows_(shared),
        scales_(scales),
        warp_(warp_index()),
        first_row_(int64_t{blockIdx.x} * kRows),
        weights_(p, net, ring_of(p, shared, warp_), warp_) {}

  // From the input to its gradient. `follow` waits for the kernel that wrote the input.
  MDOPS_D void run(const auto& follow) {
    const NetSteps steps{p_.call, p_.packed, p_.layers, true};
    const int layers = p_.call.net.layers;
    follow();
    for (int r = threadIdx.x; r < kRows; r += kBlockThreads)
      scales_[r] = scale_for(p_.call.bounds[first_row_ + r]);
    __syncthreads();
    Sums sum;
    {
      MDOPS_STAGE(net_up);
#pragma unroll 1
      for (int n = 0; n < layers; ++n) {
        multiply(n, sum);
        n < layers - 1 ? finish<LayerStep::forward>(steps.forward(n))
                       : finish<LayerStep::last>(steps.forward(n));
      }
    }
    MDOPS_STAGE(net_down);
#pragma unroll 1
    for (int n = layers - 1; n > 0; --n) {
      multiply(2 * layers - 1 - n, sum);
      finish<LayerStep::backward>(steps.backward(n));
    }
    store_gradient(steps.input_gradient(), sum);
  }

 private:
  using Sums = float[RowUnits][ColUnits][4];
  using Weights = WarpWeights<ColUnits, Parts>;
  static constexpr int kProducts = Parts == 2 ? 3 : 1;
  static constexpr int kAtOnce =
      BlockKind{RowUnits, ColUnits, 0}.resident(Parts) == 1 ? 4 : 2;  // rows of a warp
  static_assert(ColUnits % kTurnUnits == 0 && RowUnits % 2 == 0 && kRows % (kBlockWarps * kAtOnce) == 0);

  static MDOPS_D typename Weights::Piece* ring_of(const BlockArgs& p, char* shared, int warp) {
    return reinterpret_cast<typename Weights::Piece*>(shared + p.memory.ring +
                                                      warp * p.memory.slots * BlockMemory::slot_bytes(Parts));
  }

  // The sums of every product but the last go to shared memory, in place of its A.
  MDOPS_D void multiply(int m, Sums& sum) {
    const WarpProduct product(p_, m, warp_);
    const int units = product.end - product.first;
    clear(sum);
    if (m == 0)
      multiply_input(units, product.matrix.steps, sum);
    else
      multiply_rows(units, product.matrix.steps, sum);
    __syncthreads();
#pragma unroll
    for (int n = 0; n < ColUnits; ++n) {
      if (n >= units) break;
      const int col = kTileCols * (product.first + n) + 2 * (lane_index() % 4);
#pragma unroll
      for (int u = 0; u < RowUnits; ++u)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          *reinterpret_cast<float2*>(row(16 * u + 8 * half + lane_index() / 4) + 4 * col) =
              make_float2(sum[u][n][2 * half], sum[u][n][2 * half + 1]);
    }
    __syncthreads();
  }

  static MDOPS_D void clear(Sums& sum) {
    unrolled<RowUnits, ColUnits, 4>([&](int u, int n, int k) { sum[u][n][k] = 0; });
  }

  MDOPS_D void multiply_rows(int units, int steps, Sums& sum) {
    if (units <= 0) return;
    const char* const a = rows_ + place_of_lane(p_.memory.row_bytes);
#pragma unroll 1
    for (int step = 0; step < steps; ++step)
      multiply_step(a + 4 * kStepDepth * step, p_.memory.row_bytes, units, sum);
  }

  // The input has two alternating stages: one is multiplied while a thread writes its numbers of the next,
  // and loads those of the one after into registers.
  MDOPS_D void multiply_input(int units, int steps, Sums& sum) {
    constexpr int bytes = BlockMemory::input_row_bytes();
    const int stages = steps * kStepDepth / kInputDepth;
    float4 x[kInputLoads];
    load_input(0, x);
    store_input(0, x);
    if (stages > 1) load_input(1, x);
#pragma unroll 1
    for (int s = 0; s < stages; ++s) {
      __syncthreads();
      if (s + 1 < stages) store_input(s + 1, x);
      if (s + 2 < stages) load_input(s + 2, x);
      if (units <= 0) continue;
      const char* const a = rows_ + s % 2 * kRows * bytes + place_of_lane(bytes);
#pragma unroll 1
      for (int step = 0; step < kInputDepth / kStepDepth; ++step)
        multiply_step(a + 4 * kStepDepth * step, bytes, units, sum);
    }
  }

  // A thread has four numbers of every kInputApart-th row.
  static constexpr int kInputQuads = kInputDepth / 4, kInputApart = kBlockThreads / kInputQuads;
  static constexpr int kInputLoads = kRows / kInputApart;
  static_assert(kRows % kInputApart == 0 && GpuNetShape::kInputUnit % kInputDepth == 0);

  MDOPS_D void load_input(int stage, float4 (&x)[kInputLoads]) const {
    const float* const from = p_.call.inputs + (first_row_ + threadIdx.x / kInputQuads) * p_.call.net.inputs +
                              kInputDepth * stage + 4 * (threadIdx.x % kInputQuads);
#pragma unroll
    for (int k = 0; k < kInputLoads; ++k)
      x[k] = *reinterpret_cast<const float4*>(from + int64_t{k} * kInputApart * p_.call.net.inputs);
  }
  MDOPS_D void store_input(int stage, const float4 (&x)[kInputLoads]) const {
#pragma unroll
    for (int k = 0; k < kInputLoads; ++k) {
      const int r = threadIdx.x / kInputQuads + k * kInputApart;
      store_parts(rows_ + (stage % 2 * kRows + r) * BlockMemory::input_row_bytes(),
                  4 * (threadIdx.x % kInputQuads), scales_[r], x[k]);
    }
  }

  // Writes numbers col .. col + 3 of a row as parts; with TF32's accuracy, the low parts' place stays
  // untouched.
  static MDOPS_D void store_parts(char* row, int col, float scale, float4 x) {
    uint2 parts[Parts];
    split(scale * x, parts);
#pragma unroll
    for (int k = 0; k < Parts; ++k)
      *reinterpret_cast<uint2*>(row + 32 * (col / 8) + 16 * k + 2 * (col % 8)) = parts[k];
  }

  // The piece of A whose address a lane passes to `load_matrices`.
  static MDOPS_D int place_of_lane(int row_bytes) {
    return lane_index() % 16 * row_bytes + 32 * (lane_index() / 16);
  }

  // Adds 16 of the depth to the sums, in float32 outside of the tensor cores (gpu_tile.h says why).
  MDOPS_D void multiply_step(const char* a, int row_bytes, int units, Sums& sum) {
#pragma unroll
    for (int first = 0; first < ColUnits; first += kTurnUnits) {
      if (first >= units) break;
      typename Weights::Piece b[kTurnUnits];
      weights_.read(b);
#pragma unroll
      for (int u = 0; u < RowUnits; u += 2)
        multiply_pair(a + 16 * u * row_bytes, row_bytes, b, u, first, sum);
      weights_.next();
    }
  }

  // Multiplies two units of rows by a turn's tiles.
  static MDOPS_D void multiply_pair(const char* a, int row_bytes,
                                    const typename Weights::Piece (&b)[kTurnUnits], int unit, int first,
                                    Sums& sum) {
    uint32_t left[2][Parts][4];
    float part[2][kTurnUnits][4] = {};
    unrolled<2, Parts>(
        [&](int u, int k) { load_matrices(left[u][k], shared_address(a + 16 * u * row_bytes + 16 * k)); });
    unrolled<kProducts, 2, kTurnUnits>([&](int product, int u, int n) {
      const auto& right = b[n].part[product == 1];
      multiply_here(Parts == 1 ? sum[unit + u][first + n] : part[u][n], left[u][product == 2], right[0],
                    right[1]);
    });
    if constexpr (Parts == 2) {
      unrolled<2, kTurnUnits, 4>([&](int u, int n, int k) { sum[unit + u][first + n][k] += part[u][n][k]; });
    }
  }

  // The sums of all rows become the next product's A: a warp a row, a few at once, since their loads take
  // long.
  template <LayerStep Step>
  MDOPS_D void finish(const LayerArgs& a) {
#pragma unroll 1
    for (int first = warp_; first < kRows; first += kBlockWarps * kAtOnce) {
      float largest[kAtOnce] = {}, unscale[kAtOnce];
      double output[kAtOnce] = {};
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) unscale[n] = inverse_power(scales_[first + n * kBlockWarps]);
      __syncwarp();  // all lanes have read what one writes below
#pragma unroll 1
      for (int col = 4 * lane_index(); col < a.cols; col += 4 * kWarp)
        finish_columns<Step>(a, first, col, unscale, largest, output);
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        largest[n] = warp_largest(largest[n]);
        if constexpr (Step == LayerStep::last) output[n] = warp_sum(output[n]);
        const int r = first + n * kBlockWarps;
        const float scale = scale_for(largest[n]);
        if (lane_index() == 0) {
          scales_[r] = scale;
          if constexpr (Step == LayerStep::last) a.output[first_row_ + r] = output[n];
        }
        split_row(row(r), a.cols, scale);
      }
    }
    __syncthreads();
  }

  template <LayerStep Step>
  MDOPS_D void finish_columns(const LayerArgs& a, int first, int col, const float (&unscale)[kAtOnce],
                              float (&largest)[kAtOnce], double (&output)[kAtOnce]) {
    Columns constant;
    constant.load<Step>(a, net_, col);
    RowPart part[kAtOnce];
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      const int r = first + n * kBlockWarps;
      part[n].template load<Step>(a, net_, scale_, first_row_ + r, col,
                                  *reinterpret_cast<const float4*>(row(r) + 4 * col));
    }
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      const int r = first + n * kBlockWarps;
      part[n].template finish<Step>(a, constant, unscale[n], scale_, output + n);
      part[n].template store<Step>(a, (first_row_ + r) * a.stride + col);
      largest[n] = fmaxf(largest[n], part[n].largest());
      const float* const x = part[n].x;
      *reinterpret_cast<float4*>(row(r) + 4 * col) = make_float4(x[0], x[1], x[2], x[3]);
    }
  }

  // Replaces a row's floats by their parts: two lanes have eight numbers, and both read before one writes.
  MDOPS_D void split_row(char* row, int cols, float scale) const {
#pragma unroll 1
    for (int first = 0; first < cols; first += 4 * kWarp) {
      const int col = first + 4 * lane_index();
      float4 x;
      if (col < cols) x = *reinterpret_cast<const float4*>(row + 4 * col);
      __syncwarp();
      if (col < cols) store_parts(row, col, scale, x);
    }
  }

  // The last product, some tiles of a warp's columns at a time, and where its sums go.
  MDOPS_D void store_gradient(const LayerArgs& a, Sums& sum) {
    const WarpProduct product(p_, 2 * p_.call.net.layers - 1, warp_);
#pragma unroll 1
    for (int first = product.first; first < product.end; first += ColUnits) {
      const int units = product.end - first;
      clear(sum);
      multiply_rows(units, product.matrix.steps, sum);
#pragma unroll
      for (int n = 0; n < ColUnits; ++n) {
        if (n >= units) break;
        const int col = kTileCols * (first + n) + 2 * (lane_index() % 4);
        const float2 inverse = *reinterpret_cast<const float2*>(net_ + product.matrix.columns_at() + col);
#pragma unroll
        for (int u = 0; u < RowUnits; ++u)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int r = 16 * u + 8 * half + lane_index() / 4;
            const float unscale = inverse_power(scales_[r]);
            __stcg(reinterpret_cast<float2*>(a.value + (first_row_ + r) * a.stride + col),
                   make_float2(unscaled(sum[u][n][2 * half], inverse.x, unscale),
                               unscaled(sum[u][n][2 * half + 1], inverse.y, unscale)));
          }
      }
    }
  }

  MDOPS_D char* row(int r) const { return rows_ + r * p_.memory.row_bytes; }

  const BlockArgs& p_;
  const float* const net_;
  const float scale_;
  char* const rows_;
  float* const scales_;  // of each row of A
  const int warp_;
  const int64_t first_row_;
  Weights weights_;
};

template <int Kind, int Parts>
__global__ void __launch_bounds__(kBlockThreads, kBlockKinds[Kind].resident(Parts))
    block_kernel(const __grid_constant__ BlockArgs p) {
  constexpr BlockKind kind = kBlockKinds[Kind];
  __shared__ float scales[kind.rows()];
  const int type = p.call.tile_type[blockIdx.x];
  if (type < 0) return follow_kernels();
  BlockThread<kind.row_units, kind.col_units, Parts> thread(
      p, p.call.nets + type * p.call.net_size, static_cast<float>(p.call.scale[type]), net_memory(), scales);
  thread.run([] { follow_kernels(); });
}

}  // namespace mdops
