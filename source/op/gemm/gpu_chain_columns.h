// The chain by columns of layers (gpu_chain.h): products are of transposes, layer^T = W^T A^T, as
// instructions take 64 columns of a layer by any number of rows that is a multiple of eight.
//
// Who holds what in a block of 384 threads (sizes for 96 rows, layers of up to 256 numbers and two parts):
//
//   warps 0-3    group 0   columns 0-63 and 128-191 of a layer in all rows: sums 2 x 64 x 96, 96 of a thread
//   warps 4-7    group 1   columns 64-127 and 192-255
//   warps 8, 9             a lane each: `fetch_weights`, `fetch_inputs`
//
//   shared memory   8 blocks of A, 96 rows x 32 numbers, 12 KiB each; 3 pairs of units of B, 32 KiB each
//   device memory   slopes of all layers but the last, numbers of a thread side by side with its neighbours'
#pragma once

#include "gemm/gpu_chain.h"

namespace mdops {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Sum or maximum of eight or four numbers each over the lanes with the same l % 4: lane l gets the result of
// number l / 4, or l / 8.
template <int Numbers, class T, class Join>
MDOPS_D T over_lanes(T (&x)[Numbers], const Join& join) {
  constexpr int lanes = kWarp / Numbers;  // per number
#pragma unroll
  for (int half = Numbers / 2; half > 0; half /= 2) {
    const bool upper = lane_index() / lanes & half;
#pragma unroll
    for (int k = 0; k < half; ++k) {
      const T other = __shfl_xor_sync(kAllLanes, upper ? x[k] : x[k + half], lanes * half);
      x[k] = join(upper ? x[k + half] : x[k], other);
    }
  }
  if (lanes == 8) x[0] = join(x[0], __shfl_xor_sync(kAllLanes, x[0], 4));
  return x[0];
}

MDOPS_D float larger(float a, float b) {
  return fmaxf(a, b);
}
MDOPS_D double added(double a, double b) {
  return a + b;
}

// A thread of a warpgroup has two columns in each of its units, `column(c)` and eight more, in a fourth of
// the block's rows, two of each eight. They are processed in turns of 32 rows, or of 16 if a block has 48:
// sum[of_turn (units q + c) + 4 k + 2 h + r] is column 8 h of unit c in row turn_rows q + 8 k + row_ + r.
// `Fixed`: the activation function, or kAnyActivation.
template <int Kind, int Fixed, int Parts>
class ColumnThread {
 public:
  MDOPS_D ColumnThread(const ChainArgs& p, const float* net, float scale, char* memory, int warp)
      : p_(p),
        net_(net),
        scale_(scale),
        warp_(warp),
        group_(warp / kGroupWarps),
        row_(2 * (lane_index() % 4)),
        first_row_(int64_t{blockIdx.x} * kRows),
        shared_(shared_address(memory)),
        memory_(memory),
        ring_{shared_ + Memory::kFull, shared_ + Memory::kEmpty},
        ring_a_{shared_ + Memory::kFullA, shared_ + Memory::kEmptyA} {}

  MDOPS_D void run() {
    const NetChain chain{p_.net, Parts, Memory::kKind};
    float sum[kNumbers];
    begin_rows();
    for (int m = 0; m < chain.products() - (kStoresEarlier ? 1 : 0); ++m) {
      MDOPS_STAGE_IF(chain.is_backward(m), net_down, net_up);
      const int n = chain.layer(m), chunks = chain.chunks(m);
      for (int chunk = 0; chunk < chunks; chunk += kUnits) {
        start(m, n, sum);
        multiply(m == 0, chain.blocks(m), min(kUnits, chunks - chunk), sum);
        if (!kStoresEarlier && chain.is_last(m)) store_units(chunk, chain.columns(m), sum);
      }
      if (!chain.is_backward(m))
        activate_layer(m, sum);
      else if (n > 0)
        pass_back(m, n - 1, sum);
    }
    if constexpr (kStoresEarlier) {
      MDOPS_STAGE(net_down);
      input_gradient(chain, sum);
    }
  }

 private:
  using Memory = ChainMemory<Kind>;
  static constexpr int kRows = Memory::kRows, kUnits = Memory::kKind.units;
  static constexpr int kTurnRows = kRows % 32 ? 16 : 32, kTurns = kRows / kTurnRows;
  static constexpr int kEights = kTurnRows / 8;  // of a turn's rows
  static constexpr int kOfTurn = kTurnRows / 2;  // numbers of a unit
  static constexpr int kNumbers = kOfTurn * kUnits * kTurns;
  static constexpr int kUnitCols = Memory::kKind.unit_cols, kUnitBytes = Memory::kUnitBytes;
  // The last product goes unit by unit, and one is stored while the next is multiplied; in wider layers,
  // whose units take longer, as many at a time as there are sums for.
  static constexpr bool kStoresEarlier = Memory::kKind.last_units() == 1;
  static constexpr int kAllEights = Memory::kKind.cols() / 8;       // of a layer
  static constexpr int kAtOnce = kUnits == 3 ? 1 : 64 / kTurnRows;  // units, see for_numbers
  using Steps = ChainSteps<Parts>;
  static constexpr int kBlockDepth = Steps::kDepth, kBlockSteps = Steps::kOfBlock;

  // Calls f(q, c, x) for x = sum + of_turn (units q + c) if unit c has columns of the warp, for `kAtOnce`
  // units at a time. The numbers move to where the code expects them: registers have no index, and many
  // copies of the code would be slow to fetch. Calls begin() and end(q) before and after all units of a turn.
  MDOPS_D void for_numbers(int columns, float (&sum)[kNumbers], const auto& begin, const auto& f,
                           const auto& end) const {
    static_assert(kUnits % kAtOnce == 0);
#pragma unroll 1
    for (int q = 0; q < kTurns; ++q) {
      begin();
#pragma unroll 1
      for (int c = 0; c < kUnits; c += kAtOnce) {
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k)
          if (8 * eight(c + k) < columns) f(q, c + k, sum + kOfTurn * k);
        turn_round<kOfTurn * kAtOnce>(sum);
      }
      end(q);
    }
  }
  MDOPS_D void for_numbers(int columns, float (&sum)[kNumbers], const auto& f) const {
    for_numbers(columns, sum, [] {}, f, [](int) {});
  }

  // Columns of a layer in eights: the first of the warp's sixteen in unit c, of which `column` is this
  // thread's.
  MDOPS_D int eight(int c) const { return 16 * c + 2 * warp_; }
  MDOPS_D int column(int c) const { return 8 * eight(c) + lane_index() / 4; }

  // The numbers of this thread's two columns of unit c.
  MDOPS_D float2 constants(int64_t at, int c) const {
    const float* own = net_ + at + column(c);
    return make_float2(__ldg(own), __ldg(own + 8));
  }

  // Per-row data, and this thread's two numbers of it.
  MDOPS_D float* of_rows(int at) const { return reinterpret_cast<float*>(memory_ + at); }
  MDOPS_D float2 own_rows(int at, int q, int k) const {
    return *reinterpret_cast<const float2*>(of_rows(at) + kTurnRows * q + 8 * k + row_);
  }
  // The row whose number `over_lanes` gives this lane.
  MDOPS_D int row_of_lane(int q) const {
    const int number = lane_index() * 2 * kEights / kWarp;
    return kTurnRows * q + 8 * (number / 2) + row_ + number % 2;
  }
  static MDOPS_D void raise(float* to, float x) {
    atomicMax(reinterpret_cast<int*>(to), __float_as_int(x));  // no number is below zero
  }

  // Address in A of this lane's row of the four 8 x 8 matrices that are two eights of columns in eight rows:
  // their high parts, then their low ones. If the product does not use the low parts, they are in the free
  // blocks after the layer. The next eight rows are kEightRows further.
  static constexpr int kEightRows = 8 * kWideRow;
  MDOPS_D int place(int first, int shift = kAllEights) const {
    constexpr int eights = kBlockDepth / 8;
    const int row = lane_index() % 8, part = lane_index() / 16;
    int e = first + lane_index() / 8 % 2;
    e -= e < shift ? 0 : shift;
    const int at =
        e / eights * Memory::kBlockBytes + wide_place(row, 8 * (e % eights), Parts == 2 ? part : 0);
    static_assert(Memory::kBlocks % 2 == 0);
    return Parts == 2 ? at : at + part * (Memory::kBlocks / 2 * Memory::kBlockBytes);
  }

  // A number for each pair of rows of a column.
  MDOPS_D float2* slopes(int n, int eight, int q, int k) const {
    const int64_t layer = static_cast<int64_t>(blockIdx.x) * (p_.net.layers - 1) + n;
    return p_.slopes + ((layer * kAllEights + eight) * (kRows / 8) + kEights * q + k) * kWarp + lane_index();
  }

  // Sets the scales of the input's rows, and clears the maxima of all rows.
  MDOPS_D void begin_rows() const {
    const int row = threadIdx.x;
    if (row < kRows) {
      set_scales(row, p_.bound[first_row_ + row], 0);
      for (int n = 0; n < p_.net.layers - 1; ++n) of_rows(Memory::kSteep)[n * kRows + row] = 0;
    }
    sync_groups();
  }
  MDOPS_D void set_scales(int row, float largest, int product) const {
    const float scale = scale_for(largest), inverse = inverse_power(scale);
    of_rows(Memory::kScale)[row] = scale;
    of_rows(Memory::kUnscale)[row] = inverse;
    of_rows(Memory::kFactor)[row] = inverse * net_[p_.unit_scales + product];
    of_rows(Memory::kLargest)[row] = 0;
  }

  // Initial sums of a product: zero, or the gradient through a residual layer's skip, which the sums already
  // hold if it is not the last layer. In a layer twice as wide a thread has both halves if they are whole
  // units; else they go through the memory of its slopes, which are no longer needed.
  MDOPS_D void start(int m, int n, float (&sum)[kNumbers]) const {
    const bool residual = m >= p_.net.layers && n > 0 && p_.net.residual[n];
    const bool last = n == p_.net.layers - 1;
    const int shift = residual ? input_shift(p_.net, n, kAllEights) : kAllEights;
    if (residual && !last) {
      if (kUnits % 2 == 0 && shift == kAllEights / 2)
        add_own_halves(sum);
      else if (shift < kAllEights)
        add_halves(n, shift, sum);
      return;
    }
#pragma unroll
    for (int c = 0; c < kUnits; ++c) {
      float2 x = make_float2(0, 0);
      if (residual) {
        const float2 w = constants(p_.out_weight, c);
        x = make_float2(scale_ * w.x, scale_ * w.y);
        if (shift < kAllEights) {
          const bool in[2] = {eight(c) < shift, eight(c) + 1 < shift};
          const float* other = net_ + p_.out_weight + column(c) + 8 * shift;
          x.x = in[0] ? scale_ * (w.x + __ldg(other)) : 0;
          x.y = in[1] ? scale_ * (w.y + __ldg(other + 8)) : 0;
        }
      }
#pragma unroll
      for (int q = 0; q < kTurns; ++q)
#pragma unroll
        for (int k = 0; k < kOfTurn; ++k) sum[kOfTurn * (kUnits * q + c) + k] = k / 2 % 2 ? x.y : x.x;
    }
  }
  MDOPS_D void add_own_halves(float (&sum)[kNumbers]) const {
    constexpr int half = kUnits / 2 * kOfTurn;
#pragma unroll
    for (int q = 0; q < kTurns; ++q)
#pragma unroll
      for (int k = 0; k < half; ++k) {
        float* const x = sum + kOfTurn * kUnits * q + k;
        x[0] += x[half], x[half] = 0;
      }
  }
  MDOPS_D void add_halves(int n, int shift, float (&sum)[kNumbers]) const {
    for_numbers(8 * kAllEights, sum, [&](int q, int c, float* x) {
#pragma unroll
      for (int k = 0; k < 2 * kEights; ++k)
        *slopes(n, eight(c) + k % 2, q, k / 2) = make_float2(x[2 * k], x[2 * k + 1]);
    });
    sync_groups();
    for_numbers(8 * kAllEights, sum, [&](int q, int c, float* x) {
#pragma unroll
      for (int k = 0; k < 2 * kEights; ++k) {
        const int e = eight(c) + k % 2;
        float2 a = make_float2(0, 0), b = a;
        if (e < shift) a = *slopes(n, e, q, k / 2), b = *slopes(n, e + shift, q, k / 2);
        x[2 * k] = a.x + b.x, x[2 * k + 1] = a.y + b.y;
      }
    });
  }

  // sum += A B, for B the next blocks of `width` units. The tensor cores sum two blocks, 64 products of two
  // parts or 128 of one, and round towards zero; the rest is added in float32.
  MDOPS_D void multiply(bool streamed, int blocks, int width, float (&sum)[kNumbers]) {
    RowFactors by;
    load_factors(by);
#pragma unroll 1
    for (int block = 0; block < blocks; block += 2) {
      if (streamed) ring_a_.wait();
#pragma unroll
      for (int c = 0; c < kUnits; ++c) {
        if (c >= width) break;
        float part[kRows / 2];
        begin_unit(block, part);
        end_unit(c, by, part, sum);
      }
      if (streamed) ring_a_.release();
    }
  }

  // part = B^T A^T for 16 columns of A at a time, of two blocks; the small parts first.
  MDOPS_D void begin_unit(int block, float (&part)[kRows / 2]) const {
    ring_.wait();
    const uint64_t b0 = unit_of_b(0), b1 = unit_of_b(1);
    const uint64_t a0 = block_of_a(block), a1 = block_of_a(block + 1);
    begin_products();
    if constexpr (Parts == 2) {
#pragma unroll
      for (int k = 0; k < 2 * kBlockSteps; ++k) {
        multiply_unit(part, Steps::at(b0, b1, k), Steps::at(a0, a1, k) + Steps::kLowParts, k > 0);
        multiply_unit(part, Steps::at(b0, b1, k) + Steps::kLowParts, Steps::at(a0, a1, k), 1);
      }
    }
#pragma unroll
    for (int k = 0; k < 2 * kBlockSteps; ++k)
      multiply_unit(part, Steps::at(b0, b1, k), Steps::at(a0, a1, k), Parts == 2 || k > 0);
  }

  // The factors of a product's sums in the thread's rows; they stay in registers during the product.
  using RowFactors = float2[kRows / 8];
  MDOPS_D void load_factors(RowFactors& by) const {
#pragma unroll
    for (int e = 0; e < kRows / 8; ++e) by[e] = own_rows(Memory::kFactor, e / kEights, e % kEights);
  }

  // Adds the products to unit c's sums.
  MDOPS_D void end_unit(int c, const RowFactors& by, float (&part)[kRows / 2], float (&sum)[kNumbers]) {
    end_products(part);
    ring_.release();
#pragma unroll
    for (int e = 0; e < kRows / 8; ++e) {
      float* const to = sum + kOfTurn * (kUnits * (e / kEights) + c) + 4 * (e % kEights);
      to[0] += part[4 * e] * by[e].x, to[1] += part[4 * e + 1] * by[e].y;
      to[2] += part[4 * e + 2] * by[e].x, to[3] += part[4 * e + 3] * by[e].y;
    }
  }

  // The last product, unit by unit: while one unit is multiplied, the one before is stored from its own sums,
  // a turn's rows for each two blocks. (No branch there: the compiler would wait for the products.)
  MDOPS_D void input_gradient(const NetChain& chain, float (&sum)[kNumbers]) {
    const int m = chain.products() - 1, units = chain.chunks(m), blocks = chain.blocks(m);
    const int columns = chain.columns(m);
    int stored = kTurns;  // of the unit before
    RowFactors by;
    load_factors(by);
#pragma unroll 1
    for (int first = 0; first < units; first += 2) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int unit = first + c;
        if (unit >= units) break;
#pragma unroll
        for (int k = 0; k < kOfTurn * kTurns; ++k)
          sum[kOfTurn * (kUnits * (k / kOfTurn) + c) + k % kOfTurn] = 0;
        int block = 0;
#pragma unroll 1
        for (; block < min(blocks, 2 * kTurns); block += 2) {
          float part[kRows / 2];
          begin_unit(block, part);
          store_turn(1 - c, unit - 1, stored++, columns, sum);
          end_unit(c, by, part, sum);
        }
        while (stored < kTurns) store_turn(1 - c, unit - 1, stored++, columns, sum);
#pragma unroll 1
        for (; block < blocks; block += 2) {
          float part[kRows / 2];
          begin_unit(block, part);
          end_unit(c, by, part, sum);
        }
        stored = 0;
      }
    }
    for (; stored < kTurns; ++stored)
      units % 2 ? store_turn(0, units - 1, stored, columns, sum)
                : store_turn(1, units - 1, stored, columns, sum);
  }

  // Stores turn q of a unit of the gradient, if there is one, from the sums of c; the next turn's then
  // replace them.
  MDOPS_D void store_turn(int c, int unit, int q, int columns, float (&sum)[kNumbers]) const {
#pragma unroll
    for (int k = 0; k < kTurnRows / 16; ++k)
      store_rows(sum + kOfTurn * c + 8 * k, unit, kTurnRows * q + 16 * k, q < kTurns, columns);
#pragma unroll
    for (int k = 0; k < kOfTurn * (kTurns - 1); ++k) {
      const int at = kOfTurn * (kUnits * (k / kOfTurn) + c) + k % kOfTurn;
      sum[at] = sum[at + kOfTurn * kUnits];
    }
  }

  // Stores the gradient's units from `first` on.
  MDOPS_D void store_units(int first, int columns, const float (&sum)[kNumbers]) const {
#pragma unroll
    for (int c = 0; c < kUnits; ++c) {
      if (kUnitCols * (first + c) + 64 * group_ >= columns) return;
#pragma unroll
      for (int k = 0; k < kRows; k += 16)
        store_rows(sum + kOfTurn * (kUnits * (k / kTurnRows) + c) + k % kTurnRows / 2, first + c, k, true,
                   columns);
    }
  }

  // Stores 16 rows of the group's columns of a unit of the gradient, eight numbers a thread, through shared
  // memory, so that neighbouring lanes write neighbouring columns. Piece k of a row, 16 bytes, is at k ^ 2
  // (row / 2 % 4).
  MDOPS_D void store_rows(const float* own, int unit, int first, bool counts, int columns) const {
    float* const stage = of_rows(Memory::kStage) + group_ * (kStageRows * 64);
    const int lane = lane_index(), thread = threadIdx.x % kGroupThreads, piece = 4 * (thread % 16);
    const int column = kUnitCols * unit + 64 * group_ + piece;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const int row = k / 4 * 8 + row_ + k % 2, at = 16 * (warp_ % 4) + 8 * (k / 2 % 2) + lane / 4;
      stage[64 * row + (at ^ row / 2 % 4 * 8)] = own[k];
    }
    sync_group(group_);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int row = 8 * k + thread / 16;
      const float4 x = *reinterpret_cast<const float4*>(stage + 64 * row + (piece ^ row / 2 % 4 * 8));
      if (counts && column < columns)
        __stcg(reinterpret_cast<float4*>(p_.inputs + (first_row_ + first + row) * columns + column), x);
    }
    sync_group(group_);
  }

  MDOPS_D uint64_t block_of_a(int block) const {
    return wide_matrix(shared_ + block % Memory::kBlocks * Memory::kBlockBytes);
  }
  // Of the current pair.
  MDOPS_D uint64_t unit_of_b(int block) const {
    const int at = ring_.slot * Memory::kPairBytes + block * kUnitBytes + group_ * (kUnitBytes / 2);
    return wide_matrix(shared_ + Memory::kUnits + at);
  }

  // x of layer n, product n, becomes f(x) and the next product's A; for the last layer, the output, and the
  // gradient before its activation.
  MDOPS_D void activate_layer(int n, float (&sum)[kNumbers]) {
    with_layer<Fixed>(p_.net, n, [&]<Activation kind, bool Last, bool Residual>() {
      activate_columns<kind, Last, Residual>(n, sum);
    });
    write_a(n, n, nullptr, sum, added_later(p_.net, n), [](int, int, int, float2 x) { return x; });
  }

  // Reads the residual layer's input in two eights of columns and eight rows from A: the thread's pairs of
  // rows.
  MDOPS_D void read_input(int at, float2 unscale, float2 (&input)[2]) const {
    uint32_t x[4];
    load_transposed(x, shared_ + at);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float2 high = __half22float2(*reinterpret_cast<const __half2*>(x + h));
      const float2 low = __half22float2(*reinterpret_cast<const __half2*>(x + 2 + h));
      input[h] = make_float2(unscale.x * (high.x + low.x), unscale.y * (high.y + low.y));
    }
  }

  template <Activation kind, bool Last, bool Residual>
  MDOPS_D void activate_columns(int n, float (&sum)[kNumbers]) const {
    const bool residual = Residual && n > 0 && p_.net.residual[n];
    const int shift = residual ? input_shift(p_.net, n, kAllEights) : 0;
    float largest[2 * kEights], steepest[2 * kEights];
    double output[2 * kEights];
    const auto begin = [&] {
#pragma unroll
      for (int k = 0; k < 2 * kEights; ++k) largest[k] = steepest[k] = 0, output[k] = 0;
    };
    const auto turn = [&](int q, int c, float* x) {
      const float2 both_bias = constants(p_.bias[n], c), both_timesteps = constants(p_.timestep[n], c);
      const float2 both_out = Last ? constants(p_.out_weight, c) : make_float2(0, 0);
      const int from = Residual ? place(eight(c), shift) + kEights * q * kEightRows : 0;
#pragma unroll
      for (int k = 0; k < kEights; ++k) {
        float2 input[2] = {};
        if (Residual && residual) read_input(from + k * kEightRows, own_rows(Memory::kUnscale, q, k), input);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float bias = h ? both_bias.y : both_bias.x,
                      timestep = h ? both_timesteps.y : both_timesteps.x;
          const float out = h ? both_out.y : both_out.x;
          if (Residual && eight(c) + h >= 2 * shift) input[h] = make_float2(0, 0);  // not of that layer
          float2 value, slope;
          float* const own = x + 4 * k + 2 * h;
          layer_value<kind>(own[0], bias, timestep, input[h].x, p_.net.threshold, &value.x, &slope.x);
          layer_value<kind>(own[1], bias, timestep, input[h].y, p_.net.threshold, &value.y, &slope.y);
          if constexpr (Last) {
            value = make_float2(end_of_net(value.x, slope.x, out, scale_, output + 2 * k),
                                end_of_net(value.y, slope.y, out, scale_, output + 2 * k + 1));
          } else {
            *slopes(n, eight(c) + h, q, k) = slope;
            steepest[2 * k] = fmaxf(steepest[2 * k], fabsf(slope.x));
            steepest[2 * k + 1] = fmaxf(steepest[2 * k + 1], fabsf(slope.y));
          }
          own[0] = value.x, own[1] = value.y;
          largest[2 * k] = fmaxf(largest[2 * k], fabsf(value.x));
          largest[2 * k + 1] = fmaxf(largest[2 * k + 1], fabsf(value.y));
        }
      }
    };
    for_numbers(p_.net.cols(n), sum, begin, turn, [&](int q) {
      const int row = row_of_lane(q);
      raise(of_rows(Memory::kLargest) + row, over_lanes(largest, larger));
      if constexpr (Last)
        p_.output[kChainWarps * (first_row_ + row) + warp_] = over_lanes(output, added);
      else
        raise(of_rows(Memory::kSteep) + n * kRows + row, over_lanes(steepest, larger));
    });
  }

  // From the gradient of layer n's values to that before its activation. Its bound is the product of bounds:
  // a bound too large by up to 2^10 costs nothing.
  MDOPS_D void pass_back(int m, int n, float (&sum)[kNumbers]) {
#pragma unroll
    for (int q = 0; q < kTurns; ++q) {
      float largest[2 * kEights] = {};
#pragma unroll
      for (int k = 0; k < kOfTurn * kUnits; ++k) {
        float& of_row = largest[k / 4 % kEights * 2 + k % 2];
        of_row = fmaxf(of_row, fabsf(sum[kOfTurn * kUnits * q + k]));
      }
      raise(of_rows(Memory::kLargest) + row_of_lane(q), over_lanes(largest, larger));
    }
    write_a(m, n, of_rows(Memory::kSteep) + n * kRows, sum, false, [&](int e, int q, int k, float2 x) {
      const float2 slope = *slopes(n, e, q, k);
      return make_float2(before_activation(x.x, slope.x), before_activation(x.y, slope.y));
    });
  }

  // Writes f of product m's sums, layer n, as the next product's A, once no thread needs the last one's.
  // Multiplies the rows' maxima by `times`, a bound of their growth, unless null. The low parts are kept for
  // a residual layer even if the product does not use them.
  MDOPS_D void write_a(int m, int n, const float* times, float (&sum)[kNumbers], bool keep_low,
                       const auto& f) {
    sync_groups();
    if (const int row = threadIdx.x; row < kRows)
      set_scales(row, of_rows(Memory::kLargest)[row] * (times ? times[row] : 1.f), m + 1);
    sync_groups();
    const int columns = p_.net.cols(n);
    for_numbers(round_up(columns, 2 * kBlockDepth), sum, [&](int q, int c, float* x) {
      const bool counts = 8 * eight(c) < columns;  // zeros pad to two blocks
      const uint32_t to = shared_ + place(eight(c)) + kEights * q * kEightRows;
#pragma unroll
      for (int k = 0; k < kEights; ++k) {
        const float2 scale = own_rows(Memory::kScale, q, k);
        uint32_t parts[2][2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          float2 v = make_float2(0, 0);
          if (counts) v = f(eight(c) + h, q, k, make_float2(x[4 * k + 2 * h], x[4 * k + 2 * h + 1]));
          split(scale.x * v.x, scale.y * v.y, parts[h]);
        }
        if (Parts == 2 || keep_low)
          asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                           to + k * kEightRows),
                       "r"(parts[0][0]), "r"(parts[1][0]), "r"(parts[0][1]), "r"(parts[1][1])
                       : "memory");
        else
          asm volatile(
              "stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(to + k * kEightRows),
              "r"(parts[0][0]), "r"(parts[1][0])
              : "memory");
      }
    });
    fence_shared();
    sync_groups();
  }

  const ChainArgs& p_;
  const float* const net_;
  const float scale_;
  const int warp_, group_, row_;
  const int64_t first_row_;
  const uint32_t shared_;
  char* const memory_;
  Ring<Memory::kSlots> ring_;
  Ring<Memory::kSlotsA> ring_a_;
};

#endif

}  // namespace mdops
