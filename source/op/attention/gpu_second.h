// The second derivative by tensor cores, for heads up to 128 wide, in float32.
//
// The two passes are the first derivative's (gpu_backward.h) with additional directions: a block has one head
// of one sequence, or of a tile of its keys if sequences are few, and two teams of warps, each warp with 16
// keys. Each team loads 16 queries at a time, and has its own numbers of queries and sums over them. At the
// end of a tile of keys the first team adds the second one's sums to its own.
//
//   K, V and their directions    (keys, D) parts       Q, its direction, G    (16, D) parts, twice
//
//   change    o' without its last term: sums over the keys of the coefficients of V, and of its direction;
//             and the mean of z'
//   second    the gradients' changes: of q summed like o', of k and v in registers
//
// attention.h has the formulas, `pair_gradients` those of one pair.
#pragma once

#include "attention/gpu_backward.h"
#include "common/gpu_unroll.h"

namespace mdops::gpu_attention {

enum class SecondPass { change, second };

template <class N, int D>
struct SecondMemory {
  int keys;  // of a tile: 16 per warp of each team
  int gates;

  static constexpr int kTeams = 2, kStep = kGroup, kQueryApart = kStep * 2 * D,
                       kQueryTile = N::kParts * kQueryApart;
  MDOPS_HD int apart() const { return keys * 2 * D; }
  MDOPS_HD int tile() const { return N::kParts * apart(); }
  MDOPS_HD int queries() const { return 4 * tile(); }  // after K, its direction, V, its direction
  MDOPS_HD int slopes_apart() const { return keys * 2 * kStep; }
  MDOPS_HD int slopes_tile() const { return N::kParts * slopes_apart(); }
  MDOPS_HD int slopes() const { return queries() + kTeams * 3 * kQueryTile; }
  // Floats: inverse scales of the four tensors of keys; for each team, of both slopes and the three of
  // queries.
  MDOPS_HD int scales() const { return slopes() + kTeams * 2 * slopes_tile(); }
  static constexpr int kTeamScales = 2 * kMostWarps + 4;
  MDOPS_HD int rows() const { return scales() + 4 * (4 * kMostWarps + kTeams * kTeamScales); }
  // Each team has four numbers of its queries. Gate and switch and their directions, of the keys and of the
  // queries; sums of the keys, and of each warp.
  MDOPS_HD int columns() const { return gates + 1; }
  MDOPS_HD int key_factors() const { return rows() + kTeams * 4 * 4 * kStep; }
  MDOPS_HD int query_factors() const { return key_factors() + 4 * 2 * columns() * keys; }
  MDOPS_HD int key_sums() const { return query_factors() + kTeams * 4 * 2 * columns() * kStep; }
  MDOPS_HD int query_sums() const { return key_sums() + kTeams * 4 * columns() * keys; }
  MDOPS_HD int size() const { return query_sums() + kTeams * 4 * columns() * kStep * (keys / kGroup); }
};

// The first team adds the second one's sums through shared memory. All threads of the block must call it.
template <int Units>
MDOPS_D void add_second_team(float (&sum)[Units][4], float* memory, bool active, int team, int thread,
                             int threads) {
  __syncthreads();
  if (active && team == 1)
    unrolled<Units, 4>([&](int unit, int k) { memory[(4 * unit + k) * threads + thread] = sum[unit][k]; });
  __syncthreads();
  if (active && team == 0)
    unrolled<Units, 4>([&](int unit, int k) { sum[unit][k] += memory[(4 * unit + k) * threads + thread]; });
}

template <class T, class N, int D, SecondPass Pass, class Have>
__global__ void __launch_bounds__(kMostWarps* kWarp, 1)
    second_kernel(TensorArgs<T> p, GradientArgs<T> g, Directions<T> u, SecondMemory<N, D> layout,
                  TileSums<T> sums_of_tiles, Blocks blocks, const int64_t* bias_at, Wide wide) {
  using Layout = SecondMemory<N, D>;
  static_assert(std::is_same_v<T, float>, "sums over tiles of keys are kept in the results");
  constexpr bool kSecond = Pass == SecondPass::second;
  constexpr int kStep = Layout::kStep, kQueryApart = Layout::kQueryApart, kTeams = Layout::kTeams;
  char* const memory = block_memory();
  const TileBlock b = tile_block(p, blocks, bias_at);
  const int length = b.item.length, lane = lane_index();
  // In the team: its warps, and this one; its threads.
  const int warps = blockDim.x / kWarp / kTeams, team = threadIdx.x / kWarp / warps,
            warp = threadIdx.x / kWarp % warps, threads = warps * kWarp, thread = threadIdx.x % threads;
  const bool has_bias = Have::bias(p), switched = Have::switches(p);
  const int gates = Have::gates(p), columns = gates + 1, apart = layout.apart();
  const bool has_factors = switched || gates > 0;
  const char *const keys = memory, *const key_changes = keys + layout.tile(),
                    *const values = key_changes + layout.tile(),
                    *const value_changes = values + layout.tile();
  char* const queries = memory + layout.queries() + team * 3 * Layout::kQueryTile;
  const char *const query_changes = queries + Layout::kQueryTile, *const grads =
                                                                      query_changes + Layout::kQueryTile;
  char* const slopes = memory + layout.slopes() + team * 2 * layout.slopes_tile();
  float* const scales = reinterpret_cast<float*>(memory + layout.scales());
  float *const slope_scales = scales + 4 * kMostWarps + team * Layout::kTeamScales, *const query_scales =
                                                                                        slope_scales +
                                                                                        2 * kMostWarps;
  float* const row_numbers = reinterpret_cast<float*>(memory + layout.rows()) + team * 4 * kStep;
  float* const key_factors = reinterpret_cast<float*>(memory + layout.key_factors());
  float* const all_query_factors = reinterpret_cast<float*>(memory + layout.query_factors());
  float* const query_factors = all_query_factors + team * 2 * columns * kStep;
  float* const all_key_sums = reinterpret_cast<float*>(memory + layout.key_sums());
  float* const key_sums = all_key_sums + team * columns * layout.keys;
  float* const query_sums = reinterpret_cast<float*>(memory + layout.query_sums()) +
                            team * columns * kStep * (layout.keys / kGroup);
  const RowsOf<T> of_keys[] = {keys_of(p, b, p.k, wide), keys_of(p, b, u.k, wide), values_of(p, b, p.v, wide),
                               values_of(p, b, u.v, wide)};
  const RowsOf<T> of_queries[] = {keys_of(p, b, p.q, wide), keys_of(p, b, u.q, wide),
                                  outs_of(p, b, g.grad_out, wide)};
  // Loads factors and, `columns` further, their directions, if any.
  const auto load_all_factors = [&](int first, int rows, int room, float* to) {
    load_factors(p, first, rows, room, to + gates * room, to);
    TensorArgs<T> directions = p;
    directions.switches = u.switches, directions.gate = u.gate;
    if (u.gate == nullptr) directions.gates = 0;
    float* const changes = to + columns * room;
    for (int k = threadIdx.x; k < columns * room; k += blockDim.x)
      if (k < gates * room ? u.gate == nullptr : u.switches == nullptr) changes[k] = 0;
    load_factors(directions, first, rows, room, changes + gates * room, changes);
  };

  // Where sums over this block's keys go.
  const int part = b.first / static_cast<int>(kPlanTile);
  T* const of_rows = part ? sums_of_tiles.rows_of(part) : kSecond ? g.grad_q : g.grad_grad_out;
  float* const numbers = part ? sums_of_tiles.numbers_of(part) : kSecond ? g.parts : g.mean;

  for (int tile = b.first; tile < b.last; tile += layout.keys) {
    const int count = min(layout.keys, b.last - tile), groups = (count + kGroup - 1) / kGroup;
    const bool first_tile = tile == b.first, last_tile = tile + layout.keys >= b.last, active = warp < groups;
    __syncthreads();
    for (int task = threadIdx.x / kWarp; task < 4 * groups; task += kTeams * warps) {
      const int group = task / 4, which = task % 4;
      GroupLoad<T, D> rows;
      rows.load(of_keys[0]
                    .or_else(which == 1, of_keys[1])
                    .or_else(which == 2, of_keys[2])
                    .or_else(which == 3, of_keys[3]),
                tile + group * kGroup, count - group * kGroup);
      const float inverse =
          rows.template store<N>(memory + which * layout.tile() + group * kGroup * 2 * D, apart);
      if (lane == 0) scales[which * kMostWarps + group] = inverse;
    }
    if (has_factors) {
      load_all_factors(b.item.begin + tile, count, layout.keys, key_factors);
      for (int k = threadIdx.x; k < kTeams * columns * layout.keys; k += blockDim.x) all_key_sums[k] = 0;
    }
    float dk[kSecond ? D / 8 : 1][4] = {}, dv[kSecond ? D / 8 : 1][4] = {};

    for (int step = 0; step < length; step += kTeams * kStep) {
      const int query = step + team * kStep;  // the team's first
      __syncthreads();                        // nobody needs the last queries any longer
      for (int which = warp; which < (kSecond ? 3 : 2); which += warps) {
        GroupLoad<T, D> rows;
        rows.load(of_queries[0].or_else(which == 1, of_queries[1]).or_else(which == 2, of_queries[2]), query,
                  length - query);
        const float inverse = rows.template store<N>(queries + which * Layout::kQueryTile, kQueryApart);
        if (lane == 0) query_scales[which] = inverse;
      }
      if (thread < kStep) {
        const bool in_bounds = query + thread < length;
        const int64_t at = static_cast<int64_t>(b.item.begin + query + thread) * p.heads + b.head;
        row_numbers[thread] = in_bounds ? usable(g.logsumexp[at]) : 0.0f;
        if (kSecond) {
          row_numbers[kStep + thread] = in_bounds ? g.delta[at] : 0.0f;
          row_numbers[2 * kStep + thread] = in_bounds ? g.mean[at] : 0.0f;
          row_numbers[3 * kStep + thread] = in_bounds ? g.delta_change[at] : 0.0f;
        }
      }
      if (has_factors)
        for (int of = 0, first = step; of < kTeams; ++of, first += kStep)
          load_all_factors(b.item.begin + first, min(kStep, length - first), kStep,
                           all_query_factors + of * 2 * columns * kStep);
      __syncthreads();

      if (active && query < length) {
        const int row = kGroup * warp;
        float s[2][4], s1[2][4], t[2][4] = {}, t1[2][4] = {};
        const auto product = [&](const char* left, int of_left, const char* right, int of_right, float factor,
                                 bool adds, float (&to)[2][4]) {
          float c[2][4];
          product_of_rows<N, D>(c, left, apart, row, right, kQueryApart);
          factor *= scales[of_left * kMostWarps + warp] * query_scales[of_right];
          unrolled<2, 4>([&](int n, int k) { to[n][k] = factor * c[n][k] + (adds ? to[n][k] : 0.0f); });
        };
        product(keys, 0, queries, 0, p.scale, false, s);
        product(keys, 0, query_changes, 1, p.scale, false, s1);
        product(key_changes, 1, queries, 0, p.scale, true, s1);
        if constexpr (kSecond) {
          product(values, 2, grads, 2, 1.0f, false, t);
          product(value_changes, 3, grads, 2, 1.0f, false, t1);
        }
        // For each pair: the coefficients of sums over keys, of V and G, of gate and switch.
        float of_tensor[2][4], of_change[2][4], of_value[2][4], e[2][4], e1[2][4], w[2][4], w1[2][4];
        const int l0 = kGroup * warp + lane / 4, j0 = 2 * (lane % 4);
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            const int l = l0 + k / 2 * 8, j = j0 + 8 * n + k % 2;
            const bool real = tile + l < length && query + j < length;
            PairInputs<float> i{s[n][k], t[n][k], 1, 1, s1[n][k], t1[n][k], 0, 0};
            const int64_t at =
                b.head * p.bias_size + b.item.bias + static_cast<int64_t>(query + j) * length + tile + l;
            if (has_bias && real) {
              i.s += number(p.bias[at]);
              if (u.bias) i.s1 += number(u.bias[at]);
            }
            if (switched) {
              const float* const of_key = key_factors + gates * layout.keys + l;
              const float* const of_query = query_factors + gates * kStep + j;
              i.a = of_key[0] * of_query[0];
              i.a1 = of_key[0] * of_query[columns * kStep] + of_key[columns * layout.keys] * of_query[0];
            }
            if (gates > 0) {
              i.c = 0;
#pragma unroll
              for (int m = 0; m < gates; ++m) {
                const float* const of_key = key_factors + m * layout.keys + l;
                const float* const of_query = query_factors + m * kStep + j;
                i.c += of_key[0] * of_query[0];
                i.c1 += of_key[0] * of_query[columns * kStep] + of_key[columns * layout.keys] * of_query[0];
              }
            }
            const float logsumexp = row_numbers[j];
            if constexpr (kSecond) {
              PairGradients<float> r{};
              if (real)
                r = pair_gradients<true>(i, p.shift, switched, logsumexp, row_numbers[kStep + j],
                                         row_numbers[2 * kStep + j], row_numbers[3 * kStep + j]);
              of_tensor[n][k] = r.x1, of_change[n][k] = r.x, of_value[n][k] = r.pm1;
              e[n][k] = r.e, e1[n][k] = r.e1, w[n][k] = r.b, w1[n][k] = r.b1;
              if (has_bias && real) put(g.grad_bias + at, r.x1);
            } else {
              const PairChange<float> r =
                  real ? pair_change(i, p.shift, switched, logsumexp) : PairChange<float>{};
              of_tensor[n][k] = r.of_v, of_change[n][k] = r.pm, of_value[n][k] = r.mean;
            }
          }
        // Sums over this warp's keys, and over these queries.
        const auto add_sums = [&](const float (&x)[2][4], const float* of_key, const float* of_query,
                                  float (&to_queries)[2][2], float (&to_keys)[2]) {
          unrolled<2, 4>([&](int n, int k) {
            to_queries[n][k % 2] += x[n][k] * of_key[k / 2 * 8];
            to_keys[k / 2] += x[n][k] * of_query[8 * n + k % 2];
          });
        };
        if constexpr (!kSecond) {
          float to_queries[2][2];
          unrolled<2, 2>([&](int n, int h) { to_queries[n][h] = of_value[n][h] + of_value[n][h + 2]; });
          query_sums[warp * kStep + query_of_lane<2>(lane)] = sum_of_queries(to_queries);
        } else if (has_factors) {
#pragma unroll
          for (int m = 0; m < columns; ++m) {
            const bool last = m == gates;
            if (last && !switched) break;
            const float* const of_key = key_factors + m * layout.keys + l0;
            const float* const of_query = query_factors + m * kStep + j0;
            float to_queries[2][2] = {}, to_keys[2] = {};
            add_sums(last ? w1 : e1, of_key, of_query, to_queries, to_keys);
            add_sums(last ? w : e, of_key + columns * layout.keys, of_query + columns * kStep, to_queries,
                     to_keys);
            query_sums[(warp * columns + m) * kStep + query_of_lane<2>(lane)] = sum_of_queries(to_queries);
#pragma unroll
            for (int h = 0; h < 2; ++h) {
              const float sum = quad_sum(to_keys[h]);
              if (lane % 4 == 0) key_sums[m * layout.keys + l0 + 8 * h] += sum;
            }
          }
        }
        const auto spread = [&](int which, const float (&x)[2][4], const char* right, int of_right,
                                bool adds) {
          const float scale = scale_of_units<N>(x), inverse = inverse_power(scale);
          uint32_t left[N::kParts][4];
          as_operand<N>(x[0], x[1], scale, left);
          if (lane == 0) slope_scales[which * kMostWarps + warp] = inverse;
          unrolled<N::kParts, 4>([&](int part, int k) {
            *reinterpret_cast<uint32_t*>(slopes + which * layout.slopes_tile() +
                                         part * layout.slopes_apart() +
                                         piece_place<kStep>(kGroup * warp + lane / 4 + k % 2 * 8, k / 2) +
                                         lane % 4 * 4) = left[part][k];
          });
          if constexpr (kSecond)
            add_product<N, D>(dk, left, right, kQueryApart, 0, inverse * query_scales[of_right]);
        };
        spread(0, of_tensor, queries, 0, true);
        spread(1, of_change, query_changes, 1, true);
        if constexpr (kSecond) {
          const float scale = scale_of_units<N>(of_value);
          uint32_t left[N::kParts][4];
          as_operand<N>(of_value[0], of_value[1], scale, left);
          add_product<N, D>(dv, left, grads, kQueryApart, 0, inverse_power(scale) * query_scales[2]);
        }
      }
      __syncthreads();

      // Sums over the keys: of o' or of the gradient by q.
      const int width = kSecond ? p.width : p.value_width;
      const float factor = kSecond && last_tile ? p.scale : 1.0f;
      for (int pair = warp; pair < D / 16 && query < length; pair += warps) {
        float sum[1][2][4], more[1][2][4];
        const int first = kSecond ? 0 : 2;
        query_gradient<N, D, kStep, 1>(slopes, layout.slopes_apart(), memory + first * layout.tile(), apart,
                                       slope_scales, scales + first * kMostWarps, groups, 0, pair, sum);
        query_gradient<N, D, kStep, 1>(slopes + layout.slopes_tile(), layout.slopes_apart(),
                                       memory + (first + 1) * layout.tile(), apart, slope_scales + kMostWarps,
                                       scales + (first + 1) * kMostWarps, groups, 0, pair, more);
        unrolled<2, 4>([&](int half, int k) { sum[0][half][k] += more[0][half][k]; });
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int j = query + lane / 4 + 8 * h;
          if (j >= length) continue;
          T* const row =
              of_rows + (kSecond ? p.key(b.item.begin + j, b.head) : p.row(b.item.begin + j, b.head, width));
          const bool at_once = kSecond ? wide.keys : wide.values;
          if (!first_tile) add_row_of_units(row, 16 * pair, width, at_once, sum[0], h);
          put_row_of_units(row, 16 * pair, width, at_once, sum[0], h, factor);
        }
      }
      const int sums = kSecond ? (has_factors ? columns : 0) : 1;
      for (int k = thread; k < sums * kStep; k += threads) {
        const int column = k / kStep, j = query + k % kStep;
        if (j >= length || (kSecond && column == gates && !switched)) continue;
        const int64_t row = b.item.begin + j;
        float* const at =
            numbers + (kSecond ? (static_cast<int64_t>(b.head) * p.rows + row) * columns + column
                               : row * p.heads + b.head);
        float sum = first_tile ? 0.0f : *at;
        for (int w = 0; w < groups; ++w) sum += query_sums[(w * sums + column) * kStep + j - query];
        *at = sum;
      }
    }
    if constexpr (kSecond) {
      float* const free = reinterpret_cast<float*>(memory + layout.queries());
      static_assert(kTeams * 3 * Layout::kQueryTile >= 4 * kWarp * D / 2 * 4, "room for four warps' sums");
      add_second_team(dk, free, active, team, thread, threads);
      add_second_team(dv, free, active, team, thread, threads);
      for (int k = threadIdx.x; has_factors && k < columns * layout.keys; k += blockDim.x)
        all_key_sums[k] += all_key_sums[columns * layout.keys + k];
      __syncthreads();
      if (active && team == 0) {
        put_rows(b, g.grad_k + p.key(b.item.begin, b.head), p.key_stride, p.width, wide.keys,
                 tile + kGroup * warp, dk, p.scale);
        put_rows(b, g.grad_v + p.value(b.item.begin, b.head), p.value_stride, p.value_width, wide.values,
                 tile + kGroup * warp, dv, 1.0f);
      }
      if (has_factors) put_key_sums(p, g, b, tile, count, layout.keys, all_key_sums);
    }
  }
}

// A warp for each row of a tile: kRowBlocks blocks. `own` is this warp's.
constexpr int kRowBlocks = kPlanTile / (kPlainThreads / kWarp);

template <class T>
MDOPS_D TileBlock row_block(const TensorArgs<T>& p, int* own) {
  const TileBlock b = tile_block(p, {}, nullptr, blockIdx.x / kRowBlocks);
  *own = b.first + blockIdx.x % kRowBlocks * (kPlainThreads / kWarp) + threadIdx.x / kWarp;
  return b;
}

// A lane's numbers of a row up to 128 wide: every 32nd. All loads start before one is waited for.
struct LaneNumbers {
  static constexpr int kEach = kTileWidth / kWarp;
  float x[kEach];

  MDOPS_D LaneNumbers(const float* row, int width) {
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      const int e = lane_index() + k * kWarp;
      x[k] = e < width ? row[e] : 0.0f;
    }
  }
  MDOPS_D void put(float* row, int width) const {
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      const int e = lane_index() + k * kWarp;
      if (e < width) row[e] = x[k];
    }
  }
  // Adds those of a sequence's other tiles, from the same place on.
  MDOPS_D void add_tiles(const TileSums<float>& sums, int tiles, int64_t at, int width) {
    for (int tile = 1; tile < tiles; ++tile) {
      const LaneNumbers more(sums.rows_of(tile) + at, width);
#pragma unroll
      for (int k = 0; k < kEach; ++k) x[k] += more.x[k];
    }
  }
};

// Replaces the sums of o' by o': subtracts the mean of z' times o. Also G.o, G.o'.
template <class T>
__global__ void __launch_bounds__(kPlainThreads)
    finish_change_kernel(TensorArgs<T> p, GradientArgs<T> g, TileSums<T> sums) {
  int j;
  const TileBlock b = row_block(p, &j);
  if (j >= b.last) return;
  const int tiles = sums.count(b.item.length), width = p.value_width;
  const int64_t row = p.row(b.item.begin + j, b.head, 1), at = row * width;
  const LaneNumbers out(g.out + at, width), grad(g.grad_out + at, width);
  LaneNumbers x(g.grad_grad_out + at, width);
  float mean = g.mean[row], delta = 0, change = 0;
  for (int tile = 1; tile < tiles; ++tile) mean += sums.numbers_of(tile)[row];
  x.add_tiles(sums, tiles, at, width);
#pragma unroll
  for (int k = 0; k < LaneNumbers::kEach; ++k) {
    x.x[k] -= mean * out.x[k];
    delta += grad.x[k] * out.x[k], change += grad.x[k] * x.x[k];
  }
  x.put(g.grad_grad_out + at, width);
  delta = warp_sum(delta), change = warp_sum(change);
  if (lane_index() == 0) g.mean[row] = mean, g.delta[row] = delta, g.delta_change[row] = change;
}

// Adds the sums of tiles to the gradient by q and the queries' part of those by gate and switch.
template <class T>
__global__ void __launch_bounds__(kPlainThreads)
    add_tiles_kernel(TensorArgs<T> p, GradientArgs<T> g, TileSums<T> sums) {
  int j;
  const TileBlock b = row_block(p, &j);
  const int tiles = sums.count(b.item.length);
  if (tiles == 1 || j >= b.last) return;
  const int64_t row = p.key(b.item.begin + j, b.head);
  LaneNumbers x(g.grad_q + row, p.width);
  x.add_tiles(sums, tiles, row, p.width);
  x.put(g.grad_q + row, p.width);
  const int column = lane_index();
  if (!g.parts || column > p.gates || (column == p.gates && !p.switches)) return;
  const int64_t at = (static_cast<int64_t>(b.head) * p.rows + b.item.begin + j) * (p.gates + 1) + column;
  for (int tile = 1; tile < tiles; ++tile) g.parts[at] += sums.numbers_of(tile)[at];
}

}  // namespace mdops::gpu_attention
