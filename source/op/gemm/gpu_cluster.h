// The net of few rows as one kernel, on Hopper: a cluster of eight blocks has the 16 rows of a tile from the
// input to its gradient, and layers exchange numbers through its blocks' shared memory. A kernel per product
// (gpu_layers.h) waits longer for its launch and its first weights than it multiplies.
//
// How the products are shared, in tiles of 8 columns and steps of 16 of the depth:
//
//   input x weights   block b: an eighth of the depth, all columns; a tile's sums go to its owner
//   layers, back too  block b: its own columns, the whole depth; four warps share a tile's depth
//   input's gradient  block b: its own columns; a warp a tile, straight to device memory
//
//   own columns of a layer: tiles [b e, (b + 1) e) with e an eighth of all, rounded up
//
// Before a product each block has A whole (of the input, its part of the depth) as float32 rows; it splits
// them into the registers' order of `mma.sync`: uint4 [step][part][lane]. After a product warp r finishes row
// r, and writes its numbers and their maximum to all eight blocks. Two buffers alternate: a block may be one
// product ahead of another. B comes packed for the lanes of a warp (gpu_shape.h), and each number of it
// is used once by a block: it goes straight to registers.
#pragma once

#include <cooperative_groups.h>

#include <type_traits>

#include "common/early.h"
#include "common/gpu_barrier.h"
#include "common/gpu_floats.h"
#include "common/gpu_unroll.h"
#include "common/profiler.h"
#include "gemm/gpu_args.h"
#include "gemm/gpu_layer.h"
#include "gemm/gpu_tile.h"

namespace mdops {

constexpr int kClusterBlocks = 8, kClusterRows = 16, kClusterWarps = kClusterRows;
constexpr int kClusterThreads = kClusterWarps * kWarp;
constexpr int kClusterSlices = 4;  // parts of the depth of a layer's product

// A block's share of a cluster's tiles or steps.
struct Share {
  int each, first, count;

  MDOPS_HD Share(int all, int block) : each((all + kClusterBlocks - 1) / kClusterBlocks) {
    first = block * each < all ? block * each : all;
    count = all - first < each ? all - first : each;
  }
};

// A block's shared memory, in bytes from its start.
struct ClusterMemory {
  int width, stride, own;  // of a row: of A, of sums, of own columns
  int barriers, operand, sums, rows, grads, largest, slopes, scales;  // where they begin
  int bytes;

  ClusterMemory(const GpuNetShape& net, int parts) {
    int cols = 0, steps = Share(net.inputs / kStepDepth, 0).each;
    bool residual = false;
    for (int n = 0; n < net.layers; ++n) {
      cols = net.cols(n) > cols ? net.cols(n) : cols;
      residual |= n > 0 && net.residual[n];
    }
    steps = cols / kStepDepth > steps ? cols / kStepDepth : steps;
    own = kTileCols * Share(cols / kTileCols, 0).each;
    width = cols + 4, stride = round_up(own, 32) + 8;  // rows of sums in different banks
    bytes = 0;
    barriers = take(16);
    operand = take(4 * kWarp * 4 * parts * steps);
    sums = take(4 * kClusterBlocks * kClusterRows * stride);
    rows = take(4 * 2 * kClusterRows * width);
    grads = take(residual ? 4 * 2 * kClusterRows * width : 0);
    largest = take(4 * 2 * kClusterRows * kClusterBlocks);
    slopes = take(4 * net.layers * kClusterRows * own);
    scales = take(4 * kClusterRows);
  }

 private:
  int take(int size) {
    const int at = bytes;
    bytes += size;
    return at;
  }
};

struct ClusterArgs {
  NetArgs call;
  GpuNet packed;
  ClusterMemory memory;
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// A block of a cluster, which computes its share of a tile.
template <int Parts>
class ClusterBlock {
 public:
  MDOPS_D ClusterBlock(const ClusterArgs& p, char* shared, int type)
      : p_(p),
        net_(p.call.net),
        cluster_(cooperative_groups::this_cluster()),
        shared_(shared),
        weights_(p.call.nets + type * p.call.net_size),
        scale_(static_cast<float>(p.call.scale[type])),
        first_row_(static_cast<int64_t>(blockIdx.x / kClusterBlocks) * kClusterRows),
        block_(static_cast<int>(cluster_.block_rank())),
        turn_(0),
        exchanges_(0) {
    const uint32_t own = shared_address(shared);
    unrolled<kClusterBlocks>([&](int b) { away_[b] = address_in_block(own, b) - own; });
  }

  // From the input to its gradient. `follow` waits for the kernel that wrote the input.
  MDOPS_D void run(const auto& follow) {
    init_exchange();
    meet([&] { begin(input_work()); });  // all blocks must run before one writes to another
    follow();
    const int last = net_.layers - 1;
    {
      MDOPS_STAGE(net_up);
      multiply_input();
      for (int n = 0; n <= last; ++n) {
        const OwnColumn column = own_column(p_.packed.forward[n], n, lane_index());
        if (n == 0)
          exchange(kClusterBlocks * Share(p_.packed.forward[0].tiles, block_).count, [] {});
        else
          multiply_rows(layer_work(p_.packed.forward[n]));
        finish_layer(n, column);
      }
    }
    MDOPS_STAGE(net_down);
    for (int n = last; n > 0; --n) {
      const OwnColumn column = own_column(p_.packed.backward[n], -1, lane_index());
      multiply_rows(layer_work(p_.packed.backward[n]));
      finish_backward(n, column);
    }
    input_gradient(gradient_work());
  }

 private:
  template <class T>
  MDOPS_D T* at(int offset) const {
    return reinterpret_cast<T*>(shared_ + offset);
  }
  MDOPS_D float* rows(int turn) const {
    return at<float>(p_.memory.rows) + turn * kClusterRows * p_.memory.width;
  }
  MDOPS_D float* grads(int turn) const {
    return at<float>(p_.memory.grads) + turn * kClusterRows * p_.memory.width;
  }
  MDOPS_D float* largest(int turn) const {
    return at<float>(p_.memory.largest) + turn * kClusterRows * kClusterBlocks;
  }
  MDOPS_D float* slopes(int layer, int row) const {
    return at<float>(p_.memory.slopes) + (layer * kClusterRows + row) * p_.memory.own;
  }
  MDOPS_D float* scales() const { return at<float>(p_.memory.scales); }
  MDOPS_D float* sums(int slice, int row) const {
    return at<float>(p_.memory.sums) + (slice * kClusterRows + row) * p_.memory.stride;
  }

  // Writes four numbers of a row, from `column` of the operand on, a multiple of four, to their lanes'
  // places.
  MDOPS_D void split_into_operand(int row, int column, float scale, float4 x) const {
    uint32_t* const operand = at<uint32_t>(p_.memory.operand);
    uint2 parts[Parts];
    split(scale * x, parts);
    const int step = column / kStepDepth, pair = column % kStepDepth / 2;
    const int lane = row % 8 * 4 + pair % 4, number = row / 8 + 2 * (pair / 4);
    unrolled<Parts>([&](int k) {
      uint32_t* const to = operand + ((step * Parts + k) * kWarp + lane) * 4 + number;
      to[0] = parts[k].x, to[4] = parts[k].y;
    });
  }

  // A lane's numbers of a few steps of a tile of B: zeros after the last.
  static constexpr int kAhead = 4;
  struct Steps {
    Fragment<Parts> of[kAhead];
  };

  // A warp's share of a product: `steps` of the depth, from `first` on in B and `operand_first` in the
  // operand, and the tiles of B from `tile` on, `apart` apart, below `end`.
  struct Work {
    PackedMatrix matrix;
    int first, operand_first, steps, tile, apart, end;
  };

  // A warp's position in its work.
  struct Position {
    int tile, step;

    MDOPS_D bool ends_tile(const Work& work) const { return step + kAhead >= work.steps; }
    MDOPS_D Position next(const Work& work) const {
      return ends_tile(work) ? Position{tile + work.apart, 0} : Position{tile, step + kAhead};
    }
  };

  MDOPS_D void load(Steps& to, const Work& work, Position at) const {
    if (at.tile >= work.end) return;
    using Whole = std::conditional_t<Parts == 2, uint4, uint2>;
    const int apart = work.matrix.tiles * kWarp, count = work.steps - at.step;
    const Whole* from = reinterpret_cast<const Whole*>(weights_ + work.matrix.at) +
                        ((work.first + at.step) * apart + at.tile * kWarp + lane_index());
#pragma unroll
    for (int n = 0; n < kAhead; ++n, from += apart) {
      Whole x{};
      if (n < count) x = __ldg(from);
      to.of[n] = *reinterpret_cast<const Fragment<Parts>*>(&x);
    }
  }

  // Adds the products of those steps with the operand's from `first` on, `count` of them.
  MDOPS_D void add(int first, int count, const Steps& b, float (&sum)[4]) const {
    if (count <= 0) return;  // more warps than steps
    const uint4* const operand = at<uint4>(p_.memory.operand) + first * Parts * kWarp + lane_index();
    float part[kAhead][4] = {};
    unrolled<kAhead>([&](int n) {
      const int from = min(n, count - 1) * Parts * kWarp;
      uint32_t left[Parts][4];
      unrolled<Parts>([&](int k) {
        const uint4 x = operand[from + k * kWarp];
        left[k][0] = x.x, left[k][1] = x.y, left[k][2] = x.z, left[k][3] = x.w;
      });
      unrolled<(Parts == 2 ? 3 : 1)>([&](int product) {
        const auto& right = b.of[n].part[product == 1];
        multiply_here(part[n], left[product == 2], right[0], right[1]);
      });
    });
    // Added outside of the tensor cores, which round towards zero.
    unrolled<4>([&](int c) { sum[c] += (part[0][c] + part[1][c]) + (part[2][c] + part[3][c]); });
    static_assert(kAhead == 4);
  }

  // Starts the loads with which `multiply` begins.
  MDOPS_D void begin(const Work& work) { load(next_, work, {work.tile, 0}); }

  // Calls done(tile, sum) for each tile.
  MDOPS_D void multiply(const Work& work, const auto& done) {
    float sum[4] = {};
    Position at{work.tile, 0};
    const auto turn = [&](const Steps& now, Steps& then) {
      const Position next = at.next(work);
      load(then, work, next);
      add(work.operand_first + at.step, work.steps - at.step, now, sum);
      if (next.tile != at.tile) {
        done(at.tile, sum);
        sum[0] = sum[1] = sum[2] = sum[3] = 0;
      }
      at = next;
    };
    Steps other;
#pragma unroll 1
    while (at.tile < work.end) {
      turn(next_, other);
      if (at.tile >= work.end) break;
      turn(other, next_);
    }
  }

  // Stores a lane's sums of a tile: `to` is the first number of a block's row 0.
  MDOPS_D void store_sums(float* to, const float (&sum)[4]) const {
    to += lane_index() / 4 * p_.memory.stride + 2 * (lane_index() % 4);
    *reinterpret_cast<float2*>(to) = make_float2(sum[0], sum[1]);
    *reinterpret_cast<float2*>(to + 8 * p_.memory.stride) = make_float2(sum[2], sum[3]);
  }

  // The input times the first weights: this block's part of the depth.
  MDOPS_D Work input_work() const {
    const PackedMatrix& matrix = p_.packed.forward[0];
    const Share steps(matrix.steps, block_);
    return {matrix, steps.first, 0, steps.count, warp(), kClusterWarps, matrix.tiles};
  }

  MDOPS_D void multiply_input() {
    const Work work = input_work();
    const int row = warp();
    const int64_t at = first_row_ + row;
    const float scale = scale_for(p_.call.bounds[at]);
    const float* const from = p_.call.inputs + at * net_.inputs + kStepDepth * work.first;
    for (int column = 4 * lane_index(); column < kStepDepth * work.steps; column += 4 * kWarp)
      split_into_operand(row, column, scale, *reinterpret_cast<const float4*>(from + column));
    if (lane_index() == 0) scales()[row] = scale;
    __syncthreads();
    const int each = Share(work.matrix.tiles, block_).each;
    multiply(work, [&](int tile, const float (&sum)[4]) {
      send_sums(tile / each, kTileCols * (tile % each), sum);
    });
  }

  // Splits the rows that all blocks have now into the operand.
  MDOPS_D void split_rows(int steps) const {
    const int row = warp();
    const float* const from = rows(turn_) + row * p_.memory.width;
    float most = 0;
    unrolled<kClusterBlocks>([&](int b) { most = fmaxf(most, largest(turn_)[row * kClusterBlocks + b]); });
    const float scale = scale_for(most);
    for (int column = 4 * lane_index(); column < kStepDepth * steps; column += 4 * kWarp)
      split_into_operand(row, column, scale, *reinterpret_cast<const float4*>(from + column));
    if (lane_index() == 0) scales()[row] = scale;
    __syncthreads();
  }

  // Those rows times a layer's weights: own columns, the depth in slices.
  MDOPS_D Work layer_work(const PackedMatrix& matrix) const {
    const Share tiles(matrix.tiles, block_);
    const int slice = warp() % kClusterSlices, each = (matrix.steps + kClusterSlices - 1) / kClusterSlices;
    const int first = slice * each, steps = min(each, matrix.steps - first), end = tiles.first + tiles.count;
    return {
        matrix, first, first, steps, tiles.first + warp() / kClusterSlices, kClusterWarps / kClusterSlices,
        end};
  }

  MDOPS_D void multiply_rows(const Work& work) {
    split_rows(work.matrix.steps);
    const int first = Share(work.matrix.tiles, block_).first;
    float* const to = sums(warp() % kClusterSlices, 0);
    multiply(work,
             [&](int tile, const float (&sum)[4]) { store_sums(to + kTileCols * (tile - first), sum); });
    __syncthreads();
  }

  // The columns of the input's gradient.
  MDOPS_D Work gradient_work() const {
    const PackedMatrix& matrix = p_.packed.backward[0];
    const Share tiles(matrix.tiles, block_);
    return {matrix, 0, 0, matrix.steps, tiles.first + warp(), kClusterWarps, tiles.first + tiles.count};
  }

  // Constants of one of the own columns; `n` is -1 in the backward pass.
  struct OwnColumn {
    float inverse, bias, timestep, out_weight;
  };
  MDOPS_D OwnColumn own_column(const PackedMatrix& matrix, int n, int own) const {
    const Share tiles(matrix.tiles, block_);
    OwnColumn c{};
    if (own >= kTileCols * tiles.count) return c;
    const int column = kTileCols * tiles.first + own;
    c.inverse = weights_[matrix.columns_at() + column];
    if (n < 0) return c;
    c.bias = weights_[p_.packed.bias[n] + column], c.timestep = weights_[p_.packed.timestep[n] + column];
    if (n == net_.layers - 1) c.out_weight = weights_[p_.packed.out_weight + column];
    return c;
  }

  // Starts the work after product n, forward or backward.
  MDOPS_D void begin_after(int n, bool backward) {
    if (!backward && n < net_.layers - 1) return begin(layer_work(p_.packed.forward[n + 1]));
    const int below = backward ? n - 1 : n;
    begin(below > 0 ? layer_work(p_.packed.backward[below]) : gradient_work());
  }

  // Calls finish(column, own column, number of the product, its constants) -> x for each own column of this
  // warp's row, and sends x and its maximum to all blocks. `c`: of the lane's first column.
  MDOPS_D void finish_row(const PackedMatrix& matrix, int n, bool backward, OwnColumn c, int slices,
                          int numbers, const auto& finish) {
    const int row = warp(), lane = lane_index(), next = turn_ ^ 1;
    const Share tiles(matrix.tiles, block_);
    const float unscale = inverse_power(scales()[row]);
    float most = 0;
    for (int own = lane; own < kTileCols * tiles.count; own += kWarp) {
      if (own >= kWarp) c = own_column(matrix, backward ? -1 : n, own);
      const int column = kTileCols * tiles.first + own;
      float x = 0;
      for (int k = 0; k < slices; ++k) x += sums(k, row)[own];
      x = finish(column, own, x * c.inverse * unscale, c);
      most = fmaxf(most, fabsf(x));
      give(rows(next) + row * p_.memory.width + column, x);
    }
    most = warp_largest(most);
    if (lane == 0) give(largest(next) + row * kClusterBlocks + block_, most);
    turn_ = next;
    exchange(numbers * matrix.tiles, [&] { begin_after(n, backward); }, 4 * kClusterRows * kClusterBlocks);
  }

  // All blocks of the cluster wait for one another, and see what each has written. Work done `meanwhile` is
  // exempt: it may take longer.
  MDOPS_D void meet(const auto& meanwhile) {
    cluster_.barrier_arrive();
    meanwhile();
    cluster_.barrier_wait();
  }

  // A barrier counts what a block is sent, so that no fence has to wait for memory: two barriers alternate,
  // as a block may receive the next product's numbers while some of this one's are still on the way.
  MDOPS_D uint32_t barrier() const {
    return shared_address(at<char>(p_.memory.barriers)) + 8 * (exchanges_ & 1);
  }
  MDOPS_D void init_exchange() const {
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int k = 0; k < 2; ++k) init_barrier(shared_address(at<char>(p_.memory.barriers)) + 8 * k, 1);
    publish_barriers();
  }
  // Waits for this many tiles of sums or rows from all blocks, and `more` bytes.
  MDOPS_D void exchange(int tiles, const auto& meanwhile, int more = 0) {
    const int bytes = 4 * kClusterRows * kTileCols * tiles + more;
    if (threadIdx.x == 0) expect_bytes(barrier(), bytes);
    meanwhile();
    wait_in_cluster(barrier(), exchanges_ >> 1 & 1);
    ++exchanges_;
  }
  MDOPS_D void send_sums(int to, int column, const float (&sum)[4]) const {
    const float* const place =
        sums(block_, 0) + column + lane_index() / 4 * p_.memory.stride + 2 * (lane_index() % 4);
    const uint32_t address = address_in_block(shared_address(place), to);
    const uint32_t counted = address_in_block(barrier(), to);
#pragma unroll
    for (int half = 0; half < 2; ++half)
      asm volatile(
          "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(
              address + 4 * 8 * half * p_.memory.stride),
          "f"(sum[2 * half]), "f"(sum[2 * half + 1]), "r"(counted)
          : "memory");
  }

  // Writes to the same place in all blocks.
  MDOPS_D void give(const float* place, float x) const {
    const uint32_t own = shared_address(place);
    const uint32_t counted = barrier();
#pragma unroll
    for (int b = 0; b < kClusterBlocks; ++b)
      asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(
                       own + away_[b]),
                   "f"(x), "r"(counted + away_[b])
                   : "memory");
  }

  MDOPS_D void finish_layer(int n, const OwnColumn& first) {
    const int last = net_.layers - 1, row = warp();
    const float* const before = rows(turn_) + row * p_.memory.width;
    double output = 0;
    const auto finish = [&](int column, int own, float x, const OwnColumn& c) {
      float residual = 0, value, slope;
      if (n > 0 && net_.residual[n] && column < net_.neurons[n])
        residual = before[column >= net_.neurons[n - 1] ? column - net_.neurons[n - 1] : column];
      with_activation(net_.activation, [&]<Activation kind>() {
        layer_value<kind>(x, c.bias, c.timestep, residual, net_.threshold, &value, &slope);
      });
      slopes(n, row)[own] = slope;
      if (n < last) return value;
      return end_of_net(value, slope, c.out_weight, scale_, &output);
    };
    finish_row(p_.packed.forward[n], n, false, first, n == 0 ? kClusterBlocks : kClusterSlices, 1, finish);
    if (n < last) return;
    output = warp_sum(output);
    if (lane_index() == 0) p_.call.output[(first_row_ + row) * kClusterBlocks + block_] = output;
  }

  // From the gradient before the activation of layer n to that of layer n - 1.
  MDOPS_D void finish_backward(int n, const OwnColumn& first) {
    const int last = net_.layers - 1, row = warp(), width = net_.neurons[n - 1];
    const float* const above = grads(turn_) + row * p_.memory.width;
    float* const keep = n > 1 && net_.residual[n - 1] ? grads(turn_ ^ 1) + row * p_.memory.width : nullptr;
    const auto finish = [&](int column, int own, float x, const OwnColumn&) {
      if (net_.residual[n] && column < width)
        for (int c = column; c < net_.neurons[n]; c += width)
          x += n == last ? scale_ * weights_[p_.packed.out_weight + c] : above[c];
      if (keep) give(keep + column, x);
      return before_activation(x, slopes(n - 1, row)[own]);
    };
    finish_row(p_.packed.backward[n], n, true, first, kClusterSlices, keep ? 2 : 1, finish);
  }

  // Replaces the input by its gradient.
  MDOPS_D void input_gradient(const Work& work) {
    split_rows(work.matrix.steps);
    multiply(work, [&](int tile, const float (&sum)[4]) {
      const int row = lane_index() / 4, column = kTileCols * tile + 2 * (lane_index() % 4);
      const float2 inverse = *reinterpret_cast<const float2*>(weights_ + work.matrix.columns_at() + column);
      unrolled<2>([&](int half) {
        const float unscale = inverse_power(scales()[row + 8 * half]);
        float* const to = p_.call.inputs + (first_row_ + row + 8 * half) * net_.inputs + column;
        *reinterpret_cast<float2*>(to) =
            make_float2(sum[2 * half] * inverse.x * unscale, sum[2 * half + 1] * inverse.y * unscale);
      });
    });
  }

  MDOPS_D int warp() const { return threadIdx.x / kWarp; }

  const ClusterArgs& p_;
  const GpuNetShape& net_;
  const cooperative_groups::cluster_group cluster_;
  char* const shared_;
  const float* const weights_;
  const float scale_;
  const int64_t first_row_;
  const int block_;
  int turn_;                       // the buffer of rows written last
  int exchanges_;                  // number so far
  Steps next_;                     // of B, first for the next product
  uint32_t away_[kClusterBlocks];  // offset of a block's shared memory from this one's
};

#endif

template <int Parts>
__global__ void __launch_bounds__(kClusterThreads, 1) cluster_kernel(const __grid_constant__ ClusterArgs p) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  extern __shared__ __align__(16) char shared[];
  const int type = p.call.tile_type[blockIdx.x / kClusterBlocks];
  if (type < 0) return follow_kernels();
  ClusterBlock<Parts>(p, shared, type).run([] { follow_kernels(); });
#endif
}

}  // namespace mdops
