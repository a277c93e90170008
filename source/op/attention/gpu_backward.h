// Attention's gradients by tensor cores, for heads up to 128 wide.
//
// A block has one head of one sequence. It loops over tiles of several groups of 16 keys. These and their
// values stay in shared memory while it loops over the queries in steps of 32 or 16. As many queries are
// loaded at a time as fit (16-bit numbers one step ahead):
//
//   K, V        (keys, D) parts      Q, G      (queries, D) parts, G the gradient of the result
//
//   a warp, for its group of keys (`multiply`):
//     S^T, T^T (16, step) = K Q^T, V G^T   lane l has keys l / 4 and l / 4 + 8, queries 8 n + 2 (l % 4) and
//                                          the next in unit n
//     P, X as attention.h has them         X, as parts, goes to shared memory: (keys, step)
//     dV (16, D) += P^T G, dK += X^T Q     in registers until the tile's last queries
//   then, after a barrier, for some of the step's queries and columns (units of 16):
//     dQ += X K                            over the tile's keys; over tiles the same thread sums in device
//                                          memory
//
// Only this block writes the results of its head of its sequence: no atomics, a fixed order.
#pragma once

#include "attention/gpu_forward.h"
#include "common/gpu_unroll.h"

namespace mdops::gpu_attention {

// Queries at a time: half as many if the sums of wide heads leave few registers.
template <class N, int D>
constexpr int kQueryStep = D >= 64 && N::kSplit ? 16 : 32;

// Groups of 16 keys in a tile, a warp each, and how many blocks share a multiprocessor: most atoms'
// neighbours are one tile of narrow heads in float32. (Two warps a group, one with the sums of the values'
// gradients and one with the keys', took 1.2 to 1.9 times as long.)
template <class N, int D>
constexpr int kBackwardWarps = D > 64      ? 8
                               : N::kSplit ? 6
                                           : 4;
template <class N, int D>
constexpr int kBackwardBlocks = D > 64      ? 1
                                : N::kSplit ? 2
                                            : 3;
// The same for sequences of slightly more keys, for which a second tile would take as long as the first.
template <class N, int D>
constexpr int kLongerWarps = D <= 64 && N::kSplit ? 7 : kBackwardWarps<N, D>;
constexpr int kMostQueries = 128;  // in shared memory at a time

// The sequence lengths of a launch; blocks of other sequences end at once.
struct Lengths {
  int above = -1, most = INT32_MAX;
};

template <class N, int D, int Step>
struct BackwardMemory {
  static constexpr int kStep = Step, kStepGroups = Step / kGroup;
  int keys;     // of a tile: 16 per warp
  int queries;  // in shared memory, whole steps; one step if there are two stages
  int gates;

  MDOPS_HD int apart() const { return keys * 2 * D; }
  MDOPS_HD int values() const { return N::kParts * apart(); }
  // Queries and gradients: numbers without splitting are copied while the step before is multiplied.
  static constexpr int kStages = N::kSplit ? 1 : 2;
  MDOPS_HD int queries_apart() const { return queries * 2 * D; }
  MDOPS_HD int query_rows(int stage) const { return 2 * values() + stage * 2 * N::kParts * queries_apart(); }
  MDOPS_HD int grad_rows(int stage) const { return query_rows(stage) + N::kParts * queries_apart(); }
  MDOPS_HD int slopes_apart() const { return keys * 2 * kStep; }
  MDOPS_HD int slopes() const { return query_rows(kStages); }  // X
  // Floats: inverse scales of groups of keys, values, X, queries and gradients; then logsumexp and delta of
  // each stage.
  static constexpr int kQueryGroups = kMostQueries / kGroup;
  MDOPS_HD int scales() const { return slopes() + N::kParts * slopes_apart(); }
  MDOPS_HD int query_scales() const { return scales() + 4 * 3 * kMostWarps; }
  MDOPS_HD int rows() const { return query_scales() + 4 * 2 * kQueryGroups; }
  // Switch and gate of the keys, then of the queries; their gradients' sums: of the keys, then each warp's of
  // the queries. The last of (gates + 1) columns is the switch's.
  MDOPS_HD int columns() const { return gates + 1; }
  MDOPS_HD int key_factors() const { return rows() + 4 * 2 * queries * kStages; }
  MDOPS_HD int query_factors() const { return key_factors() + 4 * columns() * keys; }
  MDOPS_HD int key_sums() const { return query_factors() + 4 * columns() * queries * kStages; }
  MDOPS_HD int query_sums() const { return key_sums() + 4 * columns() * keys; }
  MDOPS_HD int size(bool factors) const {
    return factors ? query_sums() + 4 * columns() * kStep * (keys / kGroup) : key_factors();
  }
};

// (16 x 8 Units) = A B^T: A has 16 rows of one tile, B the first 8 Units rows of another.
template <class N, int D, int Units>
MDOPS_D void product_of_rows(float (&c)[Units][4], const char* a, int a_apart, int a_row, const char* b,
                             int b_apart) {
  unrolled<Units, 4>([&](int n, int k) { c[n][k] = 0; });
#pragma unroll
  for (int step = 0; step < D / 16; ++step) {
    uint32_t left[N::kParts][4];
    load_parts<N>(left, a, a_apart, place_by_rows<D>(a_row, 16 * step));
#pragma unroll
    for (int pair = 0; pair < Units / 2; ++pair) {
      uint32_t right[N::kParts][4];
      load_parts<N>(right, b, b_apart, place_by_columns<D>(16 * pair, 16 * step));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if constexpr (N::kParts == 2) {
          float part[4] = {};
          multiply_parts<N>(part, left, right, half);
#pragma unroll
          for (int k = 0; k < 4; ++k) c[2 * pair + half][k] += part[k];
        } else {
          multiply_parts<N>(c[2 * pair + half], left, right, half);
        }
      }
    }
  }
}

// Sums over the eight lanes that have the same queries, of eight numbers each, x[n][h] of query 8 n + 2 (l %
// 4) + h; lane l ends with that of query 8 (l / 8) + 2 (l % 4) + l / 4 % 2.
MDOPS_D float sum_of_queries(const float (&x)[4][2]) {
  const int lane = lane_index();
  float two[2][2], one[2];
  const int high = lane / 16;
#pragma unroll
  for (int n = 0; n < 2; ++n)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float mine = high ? x[2 + n][h] : x[n][h], other = high ? x[n][h] : x[2 + n][h];
      two[n][h] = mine + __shfl_xor_sync(kAllLanes, other, 16);
    }
  const int middle = lane / 8 % 2;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float mine = middle ? two[1][h] : two[0][h], other = middle ? two[0][h] : two[1][h];
    one[h] = mine + __shfl_xor_sync(kAllLanes, other, 8);
  }
  const int low = lane / 4 % 2;
  const float mine = low ? one[1] : one[0], other = low ? one[0] : one[1];
  return mine + __shfl_xor_sync(kAllLanes, other, 4);
}
// Sums over the eight lanes that have the same queries, x[n][h] of query 8 n + 2 (l % 4) + h; lane l ends
// with that of query 8 (l / 16) + 2 (l % 4) + l / 8 % 2.
MDOPS_D float sum_of_queries(const float (&x)[2][2]) {
  const int high = lane_index() / 16, middle = lane_index() / 8 % 2;
  float one[2];
#pragma unroll
  for (int h = 0; h < 2; ++h)
    one[h] = (high ? x[1][h] : x[0][h]) + __shfl_xor_sync(kAllLanes, high ? x[0][h] : x[1][h], 16);
  const float sum = (middle ? one[1] : one[0]) + __shfl_xor_sync(kAllLanes, middle ? one[0] : one[1], 8);
  return sum + __shfl_xor_sync(kAllLanes, sum, 4);
}
template <int Units>
MDOPS_HD int query_of_lane(int lane) {
  return Units == 4 ? 8 * (lane / 8) + 2 * (lane % 4) + lane / 4 % 2
                    : 8 * (lane / 16) + 2 * (lane % 4) + lane / 8 % 2;
}

// What pairs of a warp's 16 keys and a step's queries need besides their products, in shared memory. Factors
// and sums have a row for each column of the gate and one for the switch.
struct PairFactors {
  const float *logsumexp, *delta, *query_factors;  // of the step's queries; rows of `queries`
  const float* key_factors;                        // of the tile's keys, rows of `keys`
  float *query_sums, *key_sums;                    // the warp's own; the tile's
  int keys, queries = 0;
};

// A factor of unit n: of all queries, or one per 16.
MDOPS_D float of_unit(float factor, int) {
  return factor;
}
template <int Groups>
MDOPS_D float of_unit(const float (&factor)[Groups], int n) {
  return factor[n / 2];
}

// Turns s and t, K Q^T and V G^T without their factors, of keys tile + row .. + 15 and 8 Units queries, into
// P and X for the gradients of v and q. Also adds to the gradients of gate, switch and bias.
template <class Have, class T, int Units, class Factor>
MDOPS_D void step_gradients(const TensorArgs<T>& p, const GradientArgs<T>& g, const TileBlock& b,
                            const PairFactors& f, int tile, int row, int query, const Factor& factor,
                            const Factor& value_factor, float (&s)[Units][4], float (&t)[Units][4]) {
  constexpr int step = 8 * Units;
  const bool has_bias = Have::bias(p), switched = Have::switches(p), has_gate = Have::gates(p) > 0;
  const bool has_factors = switched || has_gate;
  const int gates = Have::gates(p);
  const int lane = lane_index(), length = b.last, in_step = 2 * (lane % 4), in_tile = row + lane / 4;
  const int l0 = tile + in_tile, j0 = query + in_step;
  const auto of_queries = [&](const float* numbers, int n) {
    return *reinterpret_cast<const float2*>(numbers + in_step + 8 * n);
  };
  const auto bias_at = [&](int j, int l) {
    return b.head * p.bias_size + b.item.bias + static_cast<int64_t>(j) * length + l;
  };
  float w_key[2] = {1, 1};
  if (switched)
#pragma unroll
    for (int h = 0; h < 2; ++h) w_key[h] = f.key_factors[gates * f.keys + in_tile + 8 * h];
  float e[Units][4], of_switch[Units][4];  // each pair's part of the gradients of gate and switch
#pragma unroll
  for (int n = 0; n < Units; ++n) {
    const float2 sums = of_queries(f.logsumexp, n), deltas = of_queries(f.delta, n);
    const float logsumexp[2] = {usable(sums.x), usable(sums.y)}, delta[2] = {deltas.x, deltas.y};
    float w_query[2] = {1, 1};
    if (switched) {
      const float2 two = of_queries(f.query_factors + gates * f.queries, n);
      w_query[0] = two.x, w_query[1] = two.y;
    }
    float c[4] = {};
    if (has_gate)
#pragma unroll 3
      for (int i = 0; i < gates; ++i) {
        const float* const of_key = f.key_factors + i * f.keys + in_tile;
        const float2 two = of_queries(f.query_factors + i * f.queries, n);
        c[0] += of_key[0] * two.x, c[1] += of_key[0] * two.y;
        c[2] += of_key[8] * two.x, c[3] += of_key[8] * two.y;
      }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int l = l0 + k / 2 * 8, j = j0 + 8 * n + k % 2;
      float logit = of_unit(factor, n) * s[n][k];
      if (has_bias && l < length && j < length) logit += number(p.bias[bias_at(j, l)]);
      const float raised = logit + p.shift;
      const float a = switched ? w_key[k / 2] * w_query[k % 2] : 1.0f;
      if (switched) logit = raised * a;
      const float gated = has_gate ? c[k] * a : a;
      const float prob = exponential(logit - logsumexp[k % 2]);
      s[n][k] = prob * gated;
      const float of_value = of_unit(value_factor, n) * t[n][k];
      const float y = prob * (gated * of_value - delta[k % 2]);
      t[n][k] = y * a;
      if (has_factors) {
        const float pt = prob * of_value;
        e[n][k] = pt * a;
        of_switch[n][k] = weighted(y, raised) + (has_gate ? pt * c[k] : pt);
      }
    }
  }
  if (query + step > length || tile + row + kGroup > length) {
    unrolled<Units, 4>([&](int n, int k) {
      if (l0 + k / 2 * 8 >= length || j0 + 8 * n + k % 2 >= length) {
        s[n][k] = 0;
        t[n][k] = 0;
        if (has_factors) e[n][k] = of_switch[n][k] = 0;
      }
    });
  }
  if (has_bias) {
    unrolled<Units, 4>([&](int n, int k) {
      const int l = l0 + k / 2 * 8, j = j0 + 8 * n + k % 2;
      if (l < length && j < length) put(g.grad_bias + bias_at(j, l), t[n][k]);
    });
  }
  if (!has_factors) return;
#pragma unroll 4
  for (int i = 0; i <= gates; ++i) {
    const bool last = i == gates;
    if (last && !switched) break;
    const float* const of_key = f.key_factors + i * f.keys + in_tile;
    const float low = of_key[0], high = of_key[8];
    float to_queries[Units][2], to_keys[2] = {};
#pragma unroll
    for (int n = 0; n < Units; ++n) {
      const float2 two = of_queries(f.query_factors + i * f.queries, n);
      float x[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) x[k] = last ? of_switch[n][k] : e[n][k];
      to_queries[n][0] = x[0] * low + x[2] * high, to_queries[n][1] = x[1] * low + x[3] * high;
      to_keys[0] += x[0] * two.x + x[1] * two.y, to_keys[1] += x[2] * two.x + x[3] * two.y;
    }
    f.query_sums[i * step + query_of_lane<Units>(lane)] = sum_of_queries(to_queries);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float sum = quad_sum(to_keys[h]);
      if (lane % 4 == 0) f.key_sums[i * f.keys + in_tile + 8 * h] += sum;
    }
  }
}

// dQ of 16 Units queries from `row` on and columns 16 pair .. 16 pair + 15: X K over the tile's keys.
// `slopes` is X of Step queries, by keys.
template <class N, int D, int Step, int Units>
MDOPS_D void query_gradient(const char* slopes, int slopes_apart, const char* keys, int apart,
                            const float* slope_scales, const float* key_scales, int groups, int row, int pair,
                            float (&sum)[Units][2][4]) {
  unrolled<Units, 2, 4>([&](int m, int half, int k) { sum[m][half][k] = 0; });
  for (int group = 0; group < groups; ++group) {
    const float factor = N::kBfloat ? 1.0f : slope_scales[group] * inverse_of<N>(key_scales + group);
    uint32_t right[N::kParts][4];
    load_parts_transposed<N>(right, keys, apart, place_by_rows<D>(kGroup * group, 16 * pair));
#pragma unroll
    for (int m = 0; m < Units; ++m) {
      uint32_t left[N::kParts][4];
      load_parts_transposed<N>(left, slopes, slopes_apart,
                               place_by_columns<Step>(kGroup * group, row + 16 * m));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if constexpr (N::kBfloat) {
          multiply_parts<N>(sum[m][half], left, right, half);
        } else {
          float part[4] = {};
          multiply_parts<N>(part, left, right, half);
#pragma unroll
          for (int k = 0; k < 4; ++k) sum[m][half][k] += factor * part[k];
        }
      }
    }
  }
}

// Writes delta_j = G_j.o_j of a block's queries to device memory, unless it is there already (no `out`).
template <class T, int D>
MDOPS_D void delta_of_rows(const TensorArgs<T>& p, const GradientArgs<T>& g, const TileBlock& b,
                           const RowsOf<T>& grads, const RowsOf<T>& outs) {
  using Load = GroupLoad<T, D>;
  for (int first = b.first + threadIdx.x / kWarp * kGroup; first < b.last;
       first += blockDim.x / kWarp * kGroup) {
    const auto sums = [&](const auto& load) {
#pragma unroll
      for (int i = 0; i < Load::kEach; ++i) {
        const int j = first + Load::row_of(i), column = 8 * Load::piece_of(i);
        Eight<T> grad, out;
        load(grad, grads, j, column);
        load(out, outs, j, column);
        float sum = 0;
#pragma unroll
        for (int k = 0; k < 8; ++k) sum += grad.number_at(k) * out.number_at(k);
        sum = warp_sum<Load::kPieces>(sum);
        if (Load::piece_of(i) == 0 && j < b.last)
          g.delta[static_cast<int64_t>(b.item.begin + j) * p.heads + b.head] = sum;
      }
    };
    if (grads.wide)
      sums([&](Eight<T>& x, const RowsOf<T>& from, int j, int column) {
        x.load_wide(from, j, j < b.last, column);
      });
    else
      sums([&](Eight<T>& x, const RowsOf<T>& from, int j, int column) {
        x.load_narrow(from, j, j < b.last, column);
      });
  }
  __syncthreads();
}

// Writes sums of a warp's 16 rows from `first` on, times a factor, to a sequence's rows of a gradient.
template <class T, int Units>
MDOPS_D void put_rows(const TileBlock& b, T* to, int stride, int width, bool wide, int first,
                      const float (&sums)[Units][4], float factor) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int l = first + lane_index() / 4 + 8 * h;
    if (l < b.last) put_row_of_units(to + static_cast<int64_t>(l) * stride, 0, width, wide, sums, h, factor);
  }
}

// Writes the gradients of gate and switch of a tile's keys, after a barrier behind the last query.
template <class T>
MDOPS_D void put_key_sums(const TensorArgs<T>& p, const GradientArgs<T>& g, const TileBlock& b, int tile,
                          int count, int room, const float* sums) {
  const int columns = p.gates + 1;
  for (int k = threadIdx.x; k < columns * count; k += blockDim.x) {
    const int column = k / count, l = k % count;
    if (column == p.gates && !p.switches) continue;
    g.parts[(static_cast<int64_t>(p.heads + b.head) * p.rows + b.item.begin + tile + l) * columns + column] =
        sums[column * room + l];
  }
}

// Prefetches all tensors that a block reads.
template <class T>
MDOPS_D void ask_for_coming(const TensorArgs<T>& p, const GradientArgs<T>& g, const TileBlock& b, Wide wide) {
  ask_for_coming(b, keys_of(p, b, p.q, wide));
  ask_for_coming(b, keys_of(p, b, p.k, wide));
  ask_for_coming(b, values_of(p, b, p.v, wide));
  ask_for_coming(b, outs_of(p, b, g.grad_out, wide));
  if (g.out) ask_for_coming(b, outs_of(p, b, g.out, wide));
}

// `sums` of dQ in float32, (rows, heads, width), if it needs several tiles of keys; null if grad_q itself can
// hold them.
template <class T, class N, int D, int Warps, int Step, class Have>
__global__ void __launch_bounds__(Warps* kWarp, kBackwardBlocks<N, D>)
    backward_kernel(TensorArgs<T> p, GradientArgs<T> g, BackwardMemory<N, D, Step> layout, Blocks blocks,
                    const int64_t* bias_at, Wide wide, float* sums, Lengths lengths) {
  using Layout = BackwardMemory<N, D, Step>;
  constexpr int kStep = Step, kUnits = Step / 8;
  constexpr bool kCopies = Layout::kStages == 2;
  char* const memory = block_memory();
  const TileBlock b = tile_block(p, blocks, bias_at);
  const int length = b.last, lane = lane_index(), warp = threadIdx.x / kWarp;
  if (length <= lengths.above || length > lengths.most) return;
  const int warps = blockDim.x / kWarp, apart = layout.apart(), columns = layout.columns();
  char *const keys = memory, *const values = memory + layout.values();
  char* const slopes = memory + layout.slopes();
  float* const scales = reinterpret_cast<float*>(memory + layout.scales());
  float* const query_scales = reinterpret_cast<float*>(memory + layout.query_scales());
  float* const key_factors = reinterpret_cast<float*>(memory + layout.key_factors());
  float* const key_sums = reinterpret_cast<float*>(memory + layout.key_sums());
  float* const query_sums = reinterpret_cast<float*>(memory + layout.query_sums());
  const bool switched = Have::switches(p), has_gate = Have::gates(p) > 0;
  const bool has_factors = switched || has_gate;

  // The block, hidden from the compiler so that it seems to change: addresses are then computed where they
  // are used, and take no registers elsewhere.
  const auto here = [&] {
    TileBlock same = b;
    same.item.begin = opaque(b.item.begin);
    return same;
  };

  if (g.out) delta_of_rows<T, D>(p, g, b, outs_of(p, b, g.grad_out, wide), outs_of(p, b, g.out, wide));
  if constexpr (D > 64) ask_for_coming(p, g, b, wide);
  // Loads queries and gradients from `query` on, and the numbers of their rows.
  const auto bring_queries = [&](int query, int stage) {
    const TileBlock at_rows = here();
    const auto of_q = keys_of(p, at_rows, p.q, wide);
    const auto of_grad = outs_of(p, at_rows, g.grad_out, wide);
    const int groups = min(layout.queries, round_up(length - query, kStep)) / kGroup;
    for (int task = warp; task < 2 * groups; task += warps) {
      const int group = task / 2, is_grad = task % 2, first = query + group * kGroup;
      bring_group<T, N, D>(
          memory + (is_grad ? layout.grad_rows(stage) : layout.query_rows(stage)) + group * kGroup * 2 * D,
          layout.queries_apart(), of_q.or_else(is_grad, of_grad), first, length - first,
          query_scales + is_grad * Layout::kQueryGroups + group);
    }
    const int room = layout.queries;
    float* const rows = reinterpret_cast<float*>(memory + layout.rows()) + stage * 2 * room;
    for (int k = threadIdx.x; k < 2 * room; k += blockDim.x) {
      const int j = query + k % room;
      const int64_t at = static_cast<int64_t>(at_rows.item.begin + min(j, length - 1)) * p.heads + b.head;
      copy_to_shared<4>(rows + k, (k < room ? g.logsumexp : g.delta) + at, j < length);
    }
    if (has_factors) {
      float* const factors =
          reinterpret_cast<float*>(memory + layout.query_factors()) + stage * columns * room;
      load_factors(p, at_rows.item.begin + query, min(room, length - query), room, factors + p.gates * room,
                   factors);
    }
  };

  for (int tile = 0; tile < length; tile += layout.keys) {
    const int count = min(layout.keys, length - tile);  // of its keys
    const int groups = (count + kGroup - 1) / kGroup;
    const bool first_tile = tile == 0, last_tile = tile + layout.keys >= length;
    __syncthreads();
    const TileBlock at_tile = here();
    for (int task = warp; task < 2 * groups; task += warps) {
      const int group = task / 2, is_value = task % 2;
      bring_group<T, N, D>(memory + is_value * layout.values() + group * kGroup * 2 * D, apart,
                           keys_of(p, at_tile, p.k, wide).or_else(is_value, values_of(p, at_tile, p.v, wide)),
                           tile + group * kGroup, count - group * kGroup,
                           scales + is_value * kMostWarps + group);
    }
    if (has_factors) {
      load_factors(p, at_tile.item.begin + tile, count, layout.keys, key_factors + p.gates * layout.keys,
                   key_factors);
      for (int k = threadIdx.x; k < columns * layout.keys; k += blockDim.x) key_sums[k] = 0;
    }
    const int row = kGroup * warp;  // of its 16 keys
    const bool active = warp < groups;
    float value_sums[D / 8][4] = {}, key_grads[D / 8][4] = {};

    if (kCopies) bring_queries(0, 0);
    for (int begin = 0; begin < length; begin += layout.queries) {
      const int stage = kCopies ? begin / kStep % 2 : 0, end = min(begin + layout.queries, length);
      if (!kCopies && (first_tile || length > layout.queries)) {
        if (begin > 0) __syncthreads();  // nobody needs those before any longer
        bring_queries(begin, 0);
      }
      wait_for_copies();
      __syncthreads();
      if (kCopies && end < length) bring_queries(end, 1 - stage);
      for (int query = begin; query < end; query += kStep) {
        const int in_room = query - begin;
        if (in_room > 0) __syncthreads();  // nobody needs the slopes before any longer
        const char* const queries = memory + layout.query_rows(stage) + in_room * 2 * D;
        const char* const grads = memory + layout.grad_rows(stage) + in_room * 2 * D;
        const float* const logsumexp =
            reinterpret_cast<const float*>(memory + layout.rows()) + stage * 2 * layout.queries + in_room;
        const float* const query_factors = reinterpret_cast<const float*>(memory + layout.query_factors()) +
                                           stage * columns * layout.queries + in_room;
        float q_factor[Layout::kStepGroups], grad_factor[Layout::kStepGroups];
#pragma unroll
        for (int group = 0; group < Layout::kStepGroups; ++group) {
          const float* const inverse = query_scales + in_room / kGroup + group;
          q_factor[group] = inverse_of<N>(inverse),
          grad_factor[group] = inverse_of<N>(inverse + Layout::kQueryGroups);
        }

        uint32_t slope_parts[Layout::kStepGroups][N::kParts][4];  // X as an operand
        float slope_inverse = 1;
        const auto multiply = [&] {
          float s[kUnits][4], t[kUnits][4];
          product_of_rows<N, D>(s, keys, apart, row, queries, layout.queries_apart());
          product_of_rows<N, D>(t, values, apart, row, grads, layout.queries_apart());
          const float key_factor = p.scale * inverse_of<N>(scales + warp);
          const float value_factor = inverse_of<N>(scales + kMostWarps + warp);
          float of_s[Layout::kStepGroups], of_t[Layout::kStepGroups];
#pragma unroll
          for (int group = 0; group < Layout::kStepGroups; ++group)
            of_s[group] = key_factor * q_factor[group], of_t[group] = value_factor * grad_factor[group];
          step_gradients<Have>(p, g, b,
                               {logsumexp, logsumexp + layout.queries, query_factors, key_factors,
                                query_sums + warp * columns * kStep, key_sums, layout.keys, layout.queries},
                               tile, row, query, of_s, of_t, s, t);
          const float scale = scale_of_units<N>(t);
          slope_inverse = inverse_power(scale);
          if (lane == 0) scales[2 * kMostWarps + warp] = slope_inverse;
#pragma unroll
          for (int group = 0; group < Layout::kStepGroups; ++group) {
            as_operand<N>(t[2 * group], t[2 * group + 1], scale, slope_parts[group]);
            unrolled<N::kParts, 4>([&](int part, int k) {
              *reinterpret_cast<uint32_t*>(slopes + part * layout.slopes_apart() +
                                           piece_place<kStep>(row + lane / 4 + k % 2 * 8, 2 * group + k / 2) +
                                           lane % 4 * 4) = slope_parts[group][part][k];
            });
            if (query + kGroup * group < length)
              add_product<N, D>(key_grads, slope_parts[group], queries, layout.queries_apart(),
                                kGroup * group, slope_inverse * q_factor[group]);
          }
          float value_scale = N::kBfloat ? 1.0f : static_cast<float>(1 << kLargest);
          if (has_factors) value_scale = scale_of_units<N>(s);
          const float inverse = inverse_power(value_scale);
#pragma unroll
          for (int group = 0; group < Layout::kStepGroups; ++group) {
            if (query + kGroup * group >= length) continue;
            uint32_t left[N::kParts][4];
            as_operand<N>(s[2 * group], s[2 * group + 1], value_scale, left);
            add_product<N, D>(value_sums, left, grads, layout.queries_apart(), kGroup * group,
                              inverse * grad_factor[group]);
          }
        };
        if (active) multiply();
        __syncthreads();

        const auto put_query_gradient = [&](int row, int pair, float (&unit)[2][4]) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const int j = query + row + lane / 4 + 8 * h;
            if (j >= length) continue;
            const int64_t at = p.key(opaque(b.item.begin) + j, b.head);
            float* const kept =
                std::is_same_v<T, float> ? reinterpret_cast<float*>(g.grad_q) + at : sums + at;
            if (!first_tile) add_row_of_units(kept, 16 * pair, p.width, wide.keys, unit, h);
            if (last_tile)
              put_row_of_units(g.grad_q + at, 16 * pair, p.width, wide.keys, unit, h, p.scale);
            else
              put_row_of_units(kept, 16 * pair, p.width, wide.keys, unit, h, 1.0f);
          }
        };
        constexpr int kPairs = D / 16, kAtOnce = kPairs < Warps ? 1 : Layout::kStepGroups;
        for (int task = warp; task < kPairs * (Layout::kStepGroups / kAtOnce); task += warps) {
          const int pair = task % kPairs, row = task / kPairs * kGroup;
          float sum[kAtOnce][2][4];
          query_gradient<N, D, kStep, kAtOnce>(slopes, layout.slopes_apart(), keys, apart,
                                               scales + 2 * kMostWarps, scales, groups, row, pair, sum);
#pragma unroll
          for (int m = 0; m < kAtOnce; ++m) put_query_gradient(row + kGroup * m, pair, sum[m]);
        }
        if (has_factors) {
          // By the last warps first, which have the fewest other sums.
          for (int k = blockDim.x - 1 - threadIdx.x; k < columns * kStep; k += blockDim.x) {
            const int column = k / kStep, j = query + k % kStep;
            if (j >= length || (column == p.gates && !switched)) continue;
            float* const to = g.parts +
                              (static_cast<int64_t>(b.head) * p.rows + opaque(b.item.begin) + j) * columns +
                              column;
            float sum = first_tile ? 0.0f : *to;
            for (int w = 0; w < groups; ++w) sum += query_sums[(w * columns + column) * kStep + j - query];
            *to = sum;
          }
        }
      }
    }

    if (active) {
      put_rows(b, g.grad_v + p.value(b.item.begin, b.head), p.value_stride, p.value_width, wide.values,
               tile + row, value_sums, 1.0f);
      put_rows(b, g.grad_k + p.key(b.item.begin, b.head), p.key_stride, p.width, wide.keys, tile + row,
               key_grads, p.scale);
    }
    if (has_factors) put_key_sums(p, g, b, tile, count, layout.keys, key_sums);
  }
}

}  // namespace mdops::gpu_attention
