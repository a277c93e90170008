// Attention in float64 by the tensor cores, forward and gradients. A warp has 16 rows of one head of a
// sequence, and loops over the sequence some eights of rows at a time, which it reads from the caches: that
// is faster than the products. No warp waits for another.
//
//   Lane l = 4 g + t has rows g and g + 8 of products, and in each eight of their columns 2 t and 2 t + 1. In
//   each eight of the depth it uses numbers 2 t and 2 t + 1, instead of t and t + 4 (common/gpu_mma.h). So
//   results for a pair are already the operand of the next product. In each sixteen columns of a sum a lane
//   has the four from 4 t on, so that it reads two adjacent ones of other rows.
#pragma once

#include "attention/gpu_plain.h"
#include "common/gpu_mma.h"

namespace mdops::gpu_attention {

constexpr int kDoubleWarps = 4, kDoubleThreads = kDoubleWarps * kWarp;
constexpr int kDoubleWidth = 128, kDoubleEights = kDoubleWidth / 8, kDoubleSixteens = kDoubleEights / 2;
constexpr int kDoubleAhead = 2;  // sixteens of columns that are loaded in advance

// A lane's numbers of rows by eights of columns.
template <int kEights>
using DoubleTile = double[kEights][4];

// Some rows of a tensor. Rows after the last read the last.
struct DoubleRows {
  const double* first;
  int64_t stride;
  int count, width;

  MDOPS_D const double* row(int k) const { return first + min(k, count - 1) * stride; }
};

struct DoubleLane {
  int g = lane_index() / 4, t = lane_index() % 4;

  // For number k of four in an eight.
  MDOPS_D int row(int k) const { return g + k / 2 * 8; }
  MDOPS_D int column(int eight, int k) const { return 8 * eight + 2 * t + k % 2; }
};

MDOPS_D double2 two_of(const double* at) {
  return *reinterpret_cast<const double2*>(at);
}

// Products of 16 rows with others, summed over their width.
template <int kEights>
MDOPS_D void pair_products(const DoubleRows& own, const DoubleRows& others, DoubleTile<kEights>& found) {
  const DoubleLane lane;
  const double *const first = own.row(lane.g) + 2 * lane.t, *const second = own.row(lane.g + 8) + 2 * lane.t;
  const double* from[kEights];
#pragma unroll
  for (int n = 0; n < kEights; ++n) {
    from[n] = others.row(8 * n + lane.g) + 2 * lane.t;
#pragma unroll
    for (int k = 0; k < 4; ++k) found[n][k] = 0;
  }
#pragma unroll 2
  for (int d = 0; d < own.width; d += 8) {
    const double2 x = two_of(first + d), y = two_of(second + d);
    const double a[4] = {x.x, y.x, x.y, y.y};
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
      const double2 b = two_of(from[n] + d);
      multiply_add(found[n], a, b.x, b.y);
    }
  }
}

// sums += coefficients of 16 rows and other rows times these other rows.
template <int kEights>
MDOPS_D void add_products(const DoubleTile<kEights>& coefficients, const DoubleRows& others,
                          DoubleTile<kDoubleEights>& sums) {
  const DoubleLane lane;
#pragma unroll
  for (int n = 0; n < kEights; ++n) {
    if (8 * n >= others.count) break;
    const auto& c = coefficients[n];
    const double a[4] = {c[0], c[2], c[1], c[3]};
    const double* const first = others.row(lane.column(n, 0)) + 2 * lane.g;
    const double* const second = others.row(lane.column(n, 1)) + 2 * lane.g;
    double2 x[kDoubleAhead + 1], y[kDoubleAhead + 1];
    const auto ask = [&](int m) {
      if (m >= kDoubleSixteens || 16 * m >= others.width) return;
      x[m % (kDoubleAhead + 1)] = two_of(first + 16 * m);
      y[m % (kDoubleAhead + 1)] = two_of(second + 16 * m);
    };
#pragma unroll
    for (int m = 0; m < kDoubleAhead; ++m) ask(m);
#pragma unroll
    for (int m = 0; m < kDoubleSixteens; ++m) {
      if (16 * m >= others.width) break;
      ask(m + kDoubleAhead);
      const double2 b0 = x[m % (kDoubleAhead + 1)], b1 = y[m % (kDoubleAhead + 1)];
      multiply_add(sums[2 * m], a, b0.x, b1.x), multiply_add(sums[2 * m + 1], a, b0.y, b1.y);
    }
  }
}

// Writes factor_r times the sums of row r, for `count` rows.
MDOPS_D void put_sums(double* to, int64_t stride, int count, int width, const DoubleTile<kDoubleEights>& sums,
                      const double (&factors)[2]) {
  const DoubleLane lane;
#pragma unroll
  for (int m = 0; m < kDoubleSixteens; ++m) {
    if (16 * m >= width) break;
#pragma unroll
    for (int k = 0; k < 4; k += 2) {
      if (lane.row(k) >= count) continue;
      double2* const four = reinterpret_cast<double2*>(to + lane.row(k) * stride + 16 * m + 4 * lane.t);
      const double factor = factors[k / 2];
      four[0] = {factor * sums[2 * m][k], factor * sums[2 * m + 1][k]};
      four[1] = {factor * sums[2 * m][k + 1], factor * sums[2 * m + 1][k + 1]};
    }
  }
}

MDOPS_D PlainBlock double_block(const TensorArgs<double>& p) {
  return plain_block(p, static_cast<int>(blockIdx.x) * kDoubleWarps + warp_index());
}

// Rows of a sequence, from its `first` on, of q and k, of v, and of results.
MDOPS_D DoubleRows keys_of(const TensorArgs<double>& p, const PlainBlock& b, const double* tensor,
                           TileRows rows) {
  return {tensor + p.key(b.item.begin + rows.first, b.head), p.key_stride, rows.count, p.width};
}
MDOPS_D DoubleRows values_of(const TensorArgs<double>& p, const PlainBlock& b, const double* tensor,
                             TileRows rows) {
  return {tensor + p.value(b.item.begin + rows.first, b.head), p.value_stride, rows.count, p.value_width};
}
MDOPS_D DoubleRows results_of(const TensorArgs<double>& p, const PlainBlock& b, const double* tensor,
                              TileRows rows) {
  return {tensor + p.row(b.item.begin + rows.first, b.head, p.value_width),
          static_cast<int64_t>(p.heads) * p.value_width, rows.count, p.value_width};
}

inline __global__ void __launch_bounds__(kDoubleThreads)
    double_forward_kernel(TensorArgs<double> p, ForwardResults<double> results) {
  constexpr int kEights = 4;
  const PlainBlock b = double_block(p);
  if (b.count == 0) return;
  const DoubleLane lane;
  const TileRows own{b.own, b.count};
  const double lowest = -static_cast<double>(__int_as_float(0x7f800000));
  double largest[2], total[2];
  largest[0] = largest[1] = p.absent ? 0.0 : lowest;
  total[0] = total[1] = p.absent ? p.absent[b.item.sequence] : 0.0;
  DoubleTile<kDoubleEights> sums = {};
  for (int other = 0; other < b.item.length; other += 8 * kEights) {
    const TileRows others{other, min(8 * kEights, b.item.length - other)};
    DoubleTile<kEights> z, factors;
    pair_products<kEights>(keys_of(p, b, p.q, own), keys_of(p, b, p.k, others), z);
    double now[2] = {largest[0], largest[1]}, part[2] = {}, old[2];
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int row = lane.row(k), column = lane.column(n, k);
        PairInputs<double> i{};
        i.s = z[n][k];
        const bool real = row < b.count && column < others.count;
        if (real) finish_inputs<false>(p, Directions<double>{}, b, own.first + row, other + column, &i);
        z[n][k] = real ? logit(i.s, i.a, p.shift, p.switches != nullptr) : lowest;
        factors[n][k] = real ? i.c * i.a : 0.0;
        now[k / 2] = max(now[k / 2], z[n][k]);
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      now[h] = join_lanes<4>(now[h], [](double a, double c) { return a > c ? a : c; });
      const double base = now[h] == lowest ? 0.0 : now[h];
      old[h] = exp(largest[h] - base), largest[h] = now[h], now[h] = base;
    }
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const double e = z[n][k] == lowest ? 0.0 : exp(z[n][k] - now[k / 2]);
        part[k / 2] += e, z[n][k] = e * factors[n][k];
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) total[h] = total[h] * old[h] + quad_sum(part[h]);
#pragma unroll
    for (int m = 0; m < kDoubleEights; ++m) {
#pragma unroll
      for (int k = 0; k < 4; ++k) sums[m][k] *= old[k / 2];
    }
    add_products<kEights>(z, values_of(p, b, p.v, others), sums);
  }
  const double inverse[2] = {inverse_of_sum(total[0]), inverse_of_sum(total[1])};
  put_sums(results.out + p.row(b.item.begin + b.own, b.head, p.value_width),
           static_cast<int64_t>(p.heads) * p.value_width, b.count, p.value_width, sums, inverse);
  if (lane.t != 0) return;
#pragma unroll
  for (int h = 0; h < 2; ++h)
    if (lane.row(2 * h) < b.count)
      results.logsumexp[static_cast<int64_t>(b.item.begin + b.own + lane.row(2 * h)) * p.heads + b.head] =
          largest[h] + log(total[h]);
}

// The gradient by q, with that by bias; by k; or by v. The first two have their side's part of the gradients
// by gates, up to kGates of them, and switch.
enum class DoubleSum { queries, keys, values };
constexpr int kFewGates = 3;

template <DoubleSum kOf, int kGates>
__global__ void __launch_bounds__(kDoubleThreads)
    double_gradient_kernel(TensorArgs<double> p, GradientArgs<double> g) {
  constexpr int kEights = 2;
  constexpr bool kQueries = kOf == DoubleSum::queries, kValues = kOf == DoubleSum::values;
  const PlainBlock b = double_block(p);
  if (b.count == 0) return;
  const DoubleLane lane;
  const TileRows own{b.own, b.count};
  const bool switched = p.switches != nullptr;
  DoubleTile<kDoubleEights> sums = {};
  double part[kGates + 1][2] = {};
  for (int other = 0; other < b.item.length; other += 8 * kEights) {
    const TileRows others{other, min(8 * kEights, b.item.length - other)};
    const TileRows queries = kQueries ? own : others, keys = kQueries ? others : own;
    const DoubleRows q = keys_of(p, b, p.q, queries), k_rows = keys_of(p, b, p.k, keys);
    const DoubleRows grad = results_of(p, b, g.grad_out, queries), v = values_of(p, b, p.v, keys);
    DoubleTile<kEights> s, t = {};
    pair_products<kEights>(kQueries ? q : k_rows, kQueries ? k_rows : q, s);
    if constexpr (!kValues) pair_products<kEights>(kQueries ? grad : v, kQueries ? v : grad, t);
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int row = lane.row(k), column = lane.column(n, k);
        PairGradients<double> pair{};
        if (row < b.count && column < others.count) {
          const int j = queries.first + (kQueries ? row : column), l = keys.first + (kQueries ? column : row);
          PairInputs<double> i{};
          i.s = s[n][k], i.t = t[n][k];
          finish_inputs<false>(p, Directions<double>{}, b, j, l, &i);
          const int64_t of_query = static_cast<int64_t>(b.item.begin + j) * p.heads + b.head;
          pair = pair_gradients<false>(i, p.shift, switched, g.logsumexp[of_query],
                                       kValues ? 0.0 : g.delta[of_query], 0.0, 0.0);
          if (kQueries && g.grad_bias)
            g.grad_bias[b.head * p.bias_size + b.item.bias + static_cast<int64_t>(j) * b.item.length + l] =
                pair.x;
          if constexpr (!kValues) {
            // By the other row's gate and switch.
            const int64_t at = b.item.begin + other + column;
#pragma unroll
            for (int m = 0; m < kGates; ++m) {
              if (m >= p.gates) break;
              part[m][k / 2] += pair.e * p.gate[at * p.gates + m];
            }
            if (switched) part[kGates][k / 2] += pair.b * p.switches[at];
          }
        }
        s[n][k] = kValues ? pair.pm : pair.x;
      }
    }
    add_products<kEights>(s, kValues ? grad : kQueries ? k_rows : q, sums);
  }
  const int row = b.item.begin + b.own;
  if constexpr (!kValues) {
    double* const parts =
        g.parts + (static_cast<int64_t>((kQueries ? 0 : p.heads) + b.head) * p.rows + row) * (p.gates + 1);
    if (p.gate != nullptr || switched) {
#pragma unroll
      for (int m = 0; m <= kGates; ++m) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const double sum = quad_sum(part[m][h]);
          const bool is_asked = m < p.gates || m == kGates;
          if (is_asked && lane.t == 0 && lane.row(2 * h) < b.count)
            parts[lane.row(2 * h) * (p.gates + 1) + min(m, p.gates)] = sum;
        }
      }
    }
  }
  const double scale = kValues ? 1.0 : p.scale, factors[2] = {scale, scale};
  if constexpr (kValues)
    put_sums(g.grad_v + p.value(row, b.head), p.value_stride, b.count, p.value_width, sums, factors);
  else
    put_sums((kQueries ? g.grad_q : g.grad_k) + p.key(row, b.head), p.key_stride, b.count, p.width, sums,
             factors);
}

}  // namespace mdops::gpu_attention
