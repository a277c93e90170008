// Moments after the last layer of coordinates, without rows of M columns in the backward pass
// (mathematics.md, "Layers in coordinates"): products by tensor cores, to the accuracy of float32.
// With u = (x, o) of that layer, of 32 I columns, and Z = (X, O) above each other,
//
//   forward    end_kernel        y = u Z + c, r of its length, and T = sum_j R_j (w r y + b)
//   backward   turn_kernel       H = w G Z^T of each atom from T's gradient G; Q = Z Z^T, q = c Z^T
//              end_back_kernel   from these, R and u to the gradients by u and R; delta = do.o
#pragma once

#include "attention_moments/gpu_kernels.h"
#include "common/gpu_unroll.h"

namespace mdops::gpu_attention_moments {

using gpu_attention_layer::column_of, gpu_attention_layer::FeatureRows, gpu_attention_layer::kGroup,
    gpu_attention_layer::kRowWarps, gpu_attention_layer::kWidestRow, gpu_attention_layer::row_of;

constexpr int kEndWarps = 12, kEndThreads = kEndWarps * kWarp;
constexpr int kTeam = 2, kTeams = kEndWarps / kTeam;  // warps that share an atom, and teams of a block
constexpr int kComponents = 4;                        // of R

// Numbers of a block of these kernels after the columns of kJoinBias.
enum OfEndColumns { kNorm = 1, kNormBias = 2, kSquareBias = 0 };

// sum += (x B)^T, features as rows: in tile t of 16, number k of sum[2 t + h] is feature l / 4, + 8 for k >=
// 2, of row 8 h + 2 (l % 4) + k % 2. B is in shared memory as A of this product (`fill_factor`, Across).
template <int Steps, int Tiles>
MDOPS_D void add_product_across(Rows<2 * Tiles>& sum, const Rows<2 * Steps>& x, const char* factor,
                                float inverse) {
  const float scale = gpu_attention::scale_of_units<Parts>(x), by = inverse * inverse_power(scale);
#pragma unroll
  for (int step = 0; step < Steps; ++step) {
    uint32_t b[2][4];
    gpu_attention::as_operand<Parts>(x[2 * step], x[2 * step + 1], scale, b);
#pragma unroll
    for (int tile = 0; tile < Tiles; ++tile) {
      const uint4* const at =
          reinterpret_cast<const uint4*>(factor) + (step * Tiles + tile) * 2 * kWarp + lane_index();
      const uint4 first = at[0], second = at[kWarp];
      const uint32_t high[4] = {first.x, first.y, first.z, first.w};
      const uint32_t low[4] = {second.x, second.y, second.z, second.w};
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float c[4] = {};
        multiply_16<false>(c, low, b[0][h], b[0][h + 2]);
        multiply_16<false>(c, high, b[1][h], b[1][h + 2]);
        multiply_16<false>(c, high, b[0][h], b[0][h + 2]);
#pragma unroll
        for (int k = 0; k < 4; ++k) sum[2 * tile + h][k] += by * c[k];
      }
    }
  }
}

// T^T of some of an atom's rows, without w and b. Number k of tile t is feature l / 4 of it, + 8 for k >= 2,
// and component 2 (l % 4) + k % 2 of four by R's high parts and four by its low ones. Also the sum of R's
// component l / 4 % 4 over this lane's rows.
template <int F>
struct AtomSums {
  static constexpr int kNumbers = 4 * F + 1;
  float moments[F][4], whole;

  MDOPS_D void each(const auto& f) {
    unrolled<F, 4>([&](int tile, int k) { f(4 * tile + k, moments[tile][k]); });
    f(4 * F, whole);
  }
};

// y^T of 16 rows, in the layout of `add_product_across`.
template <int I, int F>
MDOPS_D void end_of_rows(const JoinArgs& p, const char* memory, const BlockNumbers& numbers, int64_t first,
                         int count, Rows<2 * F>& y) {
  unrolled<2 * F, 4>([&](int unit, int k) {
    y[unit][k] = numbers.of_columns[kJoinBias][16 * (unit / 2) + lane_index() / 4 + k / 2 * 8];
  });
  Rows<2 * I> x;
  load_rows<FullRows<I>>(x, p.x + first * p.stride, 16 * I, count, p.stride);
  add_product_across<I, F>(y, x, memory, numbers.inverse[0]);
  asm volatile("" ::: "memory");  // loads o after x is used: saves registers
  load_rows<FullRows<I>>(x, p.o + first * 16 * I, 16 * I, count, 16 * I);
  add_product_across<I, F>(y, x, memory + Factor<I, 2 * F>::kBytes, numbers.inverse[1]);
}

// Adds 16 rows of an atom to its sums.
template <int I, int F>
MDOPS_D void add_rows(const JoinArgs& p, const char* memory, const BlockNumbers& numbers, int atom,
                      int64_t first, int count, AtomSums<F>& sums) {
  float r[2][2];  // of R, for the rows that are y^T's columns
  unrolled<2, 2>([&](int h, int i) {
    const int row = 8 * h + 2 * (lane_index() % 4) + i;
    r[h][i] = row < count ? p.environment[kComponents * (first + row) + lane_index() / 4 % 4] : 0.0f;
  });
  Rows<2 * F> y;
  end_of_rows<I, F>(p, memory, numbers, first, count, y);
  // |x| < M^1/2 < 16, and 2^9 16 = 2^13, the limit of parts.
  constexpr float kScale = 512, kInverse = 1 / kScale;
  static_assert(kWidestRow < 256);
  float deviation[2][2];
  unrolled<2, 2>([&](int h, int i) {
    float squares = 0;
#pragma unroll
    for (int tile = 0; tile < F; ++tile)
      squares += y[2 * tile + h][i] * y[2 * tile + h][i] + y[2 * tile + h][2 + i] * y[2 * tile + h][2 + i];
    for (int lanes = 4; lanes < kWarp; lanes *= 2) squares += __shfl_xor_sync(kAllLanes, squares, lanes);
    deviation[h][i] = 1 / sqrtf(squares / p.features + p.eps);
    const int row = 8 * h + 2 * (lane_index() % 4) + i;
    if (lane_index() < 4 && row < count) {
      p.deviation[first + row] = deviation[h][i];
      p.atom[first + row] = __int_as_float(atom);
    }
  });
  const float four[4] = {r[0][0], r[0][1], r[1][0], r[1][1]};
  const float scale = gpu_attention::scale_of_bits(warp_largest(gpu_attention::largest_of<4>(four)));
  uint32_t b[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    uint32_t parts[2];
    gpu_attention::split_pair<Parts>(scale * r[h][0], scale * r[h][1], parts);
    b[h] = lane_index() < kWarp / 2 ? parts[0] : parts[1];
    sums.whole += r[h][0] + r[h][1];
  }
  const float by = kInverse * inverse_power(scale);
#pragma unroll
  for (int tile = 0; tile < F; ++tile) {
    float x[2][4], c[4] = {};
    unrolled<2, 4>([&](int h, int k) { x[h][k] = y[2 * tile + h][k] * (kScale * deviation[h][k % 2]); });
    uint32_t a[2][4];
    gpu_attention::as_operand<Parts>(x[0], x[1], 1.0f, a);
    multiply_16<false>(c, a[1], b[0], b[1]);
    multiply_16<false>(c, a[0], b[0], b[1]);
#pragma unroll
    for (int k = 0; k < 4; ++k) sums.moments[tile][k] += by * c[k];
  }
}

// One warp writes T of an atom from its sums.
template <int F>
MDOPS_D void store_moments(const JoinArgs& p, const BlockNumbers& numbers, int atom, bool bad,
                           const AtomSums<F>& sums, float* out) {
  const int lane = lane_index(), component = 2 * (lane % 2), half = lane % 4 / 2;
  const float own = quad_sum(sums.whole);  // of component l / 4 % 4
  float whole[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) whole[i] = __shfl_sync(kAllLanes, own, 4 * (component + i));
  float* const to = out + kComponents * static_cast<int64_t>(atom) * p.features;
#pragma unroll
  for (int tile = 0; tile < F; ++tile) {
    float total[4];
#pragma unroll
    for (int k = 0; k < 4; ++k)
      total[k] = sums.moments[tile][k] + __shfl_xor_sync(kAllLanes, sums.moments[tile][k], 2);
    const int feature = 16 * tile + lane / 4 + 8 * half;
    if (feature >= p.features) continue;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float of_feature = half ? total[2 + i] : total[i];
      to[(component + i) * p.features + feature] =
          bad ? not_a_number<float>()
              : numbers.of_columns[kNorm][feature] * of_feature +
                    numbers.of_columns[kNormBias][feature] * whole[i];
    }
  }
}

// Sums of a team's other warps for its first warp.
template <int F>
struct TeamSums {
  float number[kTeams][kTeam - 1][AtomSums<F>::kNumbers][kWarp];
};

template <int I, int F>
constexpr int kEndBytes = kJoinBytes<I, 2 * F> + static_cast<int>(sizeof(BlockNumbers) + sizeof(TeamSums<F>));

// A team of warps takes an atom; each warp takes its groups of 16 rows in turn.
template <int I, int F>
__global__ void __launch_bounds__(kEndThreads, 1) end_kernel(JoinArgs p, float* out) {
  char* const memory = gpu_attention::block_memory();
  BlockNumbers& numbers = block_numbers(kJoinBytes<I, 2 * F>);
  TeamSums<F>& others = *reinterpret_cast<TeamSums<F>*>(&numbers + 1);
  fill_columns(numbers, kNorm, p.norm, p.features), fill_columns(numbers, kNormBias, p.norm_bias, p.features);
  fill_join<I, 2 * F, true, kEndThreads>(p, memory, numbers);
  __syncthreads();
  const bool bad = gpu_attention::is_bad(p.bad);
  const int team = threadIdx.x / kWarp / kTeam, member = threadIdx.x / kWarp % kTeam, lane = lane_index();
  const int rows = bad ? 0 : min(max(*p.last, 0), p.rows), apart = gridDim.x * kTeams;
  auto& own = others.number[team];
  // Few atoms are spread over all blocks.
  for (int64_t atom = blockIdx.x + static_cast<int64_t>(gridDim.x) * team; atom < p.atoms; atom += apart) {
    const int end = bad ? 0 : p.offsets[atom + 1];
    const int following = bad || atom + apart >= p.atoms ? rows : p.offsets[atom + apart];
    AtomSums<F> sums{};
    int first = (bad ? 0 : p.offsets[atom]) + kGroup * member;
    while (first < end) {
      const int next = first + kGroup * kTeam;
      ask_for_join<I>(p, next < end ? next : following + kGroup * member, rows);
      add_rows<I, F>(p, memory, numbers, static_cast<int>(atom), first, min(kGroup, end - first), sums);
      first = next;
    }
    if (member > 0) sums.each([&](int k, float x) { own[member - 1][k][lane] = x; });
    sync_threads(team + 1, kTeam * kWarp);
    for (int other = 0; member == 0 && other < kTeam - 1; ++other)
      sums.each([&](int k, float& x) { x += own[other][k][lane]; });
    sync_threads(team + 1, kTeam * kWarp);  // before the others write the next atom's sums
    if (member == 0) store_moments<F>(p, numbers, static_cast<int>(atom), bad, sums, out);
  }
}

// Row `row` of Z, and c after it.
template <int I>
MDOPS_D const float* row_of_weights(const JoinArgs& p, int row) {
  if (row < 16 * I) return p.inner + row * p.features;
  return row < 32 * I ? p.out + (row - 16 * I) * p.features : p.bias;
}

// Stores H of an atom's four rows of y, half h of 16 rows, as operands. Lane l has component l / 4 % 4.
template <int I>
MDOPS_D void store_turned(const BackArgs& p, int h, int64_t atom, const Rows<4 * I>& y) {
  const int lane = lane_index(), component = lane / 4 % 4;
  uint32_t largest = 0;
  unrolled<4 * I, 2>([&](int unit, int i) { largest = gpu_attention::larger(largest, y[unit][2 * h + i]); });
  for (int lanes = 1; lanes < kWarp / 2; lanes *= 2)
    largest = max(largest, __shfl_xor_sync(kAllLanes, largest, lanes));
  const float scale = gpu_attention::scale_of_bits(largest);
  const bool in_bounds = atom < p.atoms;
  if (in_bounds && lane % 16 == 0)
    p.turned.numbers[kTurnedNumbers * atom + kTurnedInverse] = inverse_power(scale);
#pragma unroll
  for (int step = 0; step < 2 * I; ++step) {
    uint32_t of_u[2][2], of_r[2][2];  // [part][unit]
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float (&two)[4] = y[2 * step + j];
      uint32_t parts[2];
      gpu_attention::split_pair<Parts>(scale * two[2 * h], scale * two[2 * h + 1], parts);
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        // For R H a lane has two components of a column: it swaps with the lane of the other component, which
        // has the same columns, and each keeps one.
        const uint32_t own = parts[part], other = __shfl_xor_sync(kAllLanes, own, 4);
        of_u[part][j] = own;
        of_r[part][j] = component % 2 ? other >> 16 | (own & 0xffff0000u) : (own & 0xffffu) | other << 16;
      }
    }
    if (!in_bounds) continue;
    const int64_t at = (atom * 2 * I + step) * kWarp;
    const int column = 2 * (lane % 4) + component % 2;
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      p.turned.of_u[at + 16 * part + lane % 16] = make_uint2(of_u[part][0], of_u[part][1]);
      p.turned.of_r[at + 4 * column + 2 * part + component / 2] = make_uint2(of_r[part][0], of_r[part][1]);
    }
  }
}

// 16 rows a warp: of w G for four atoms, or of Z and c.
template <int I, int F>
__global__ void __launch_bounds__(kRowThreads, 1) turn_kernel(BackArgs p) {
  using Features = FeatureRows<true, F>;  // of T; weights may be unaligned
  constexpr int kColumns = 32 * I, kAtoms = kGroup / kComponents;
  char* const memory = gpu_attention::block_memory();
  BlockNumbers& numbers = block_numbers(Factor<F, 4 * I>::kBytes);
  fill_columns(numbers, kJoinBias, p.bias, p.features);
  fill_columns(numbers, kNorm, p.norm, p.features), fill_columns(numbers, kNormBias, p.norm_bias, p.features);
  const float inverse = fill_factor<F, 4 * I>(memory, p.features, kColumns, &numbers.largest,
                                              [&](int k, int n) { return row_of_weights<I>(p, n)[k]; });
  const int of_atoms = (p.atoms + kAtoms - 1) / kAtoms, groups = of_atoms + kColumns / kGroup + 1;
  for (int group = blockIdx.x * kRowWarps + threadIdx.x / kWarp; group < groups;
       group += gridDim.x * kRowWarps) {
    Rows<2 * F> x;
    Rows<4 * I> y{};
    if (group >= of_atoms) {
      const int row = kGroup * (group - of_atoms), count = min(kGroup, kColumns + 1 - row);
      load_rows<FeatureRows<false, F>>(x, row_of_weights<I>(p, row), p.features, count, p.features);
      add_product<F, 4 * I>(y, x, memory, inverse);
      store_rows<FullRows<2 * I>>(y, p.turned.square + row * kColumns, kColumns, count, kColumns);
      continue;
    }
    const int64_t atom = static_cast<int64_t>(group) * kAtoms;
    const int count = kComponents * static_cast<int>(min(static_cast<int64_t>(kAtoms), p.atoms - atom));
    load_rows<Features>(x, p.grad + kComponents * atom * p.features, p.features, count, p.features);
    float along[2];
    const auto store_along = [&](int which, int from) {
      sum_rows<2 * F>(
          along, [&](int unit, int k) { return x[unit][k] * numbers.of_columns[from][column_of(unit, k)]; });
#pragma unroll
      for (int h = 0; h < 2; ++h)
        if (lane_index() % 4 == 0 && row_of(2 * h) < count)
          p.turned.numbers[kTurnedNumbers * (atom + row_of(2 * h) / 4) + which + row_of(2 * h) % 4] =
              along[h];
    };
    store_along(kAlongNormBias, kNormBias);
    with_columns<2 * F>(x, numbers.of_columns[kNorm], [](float& g, float w) { g *= w; });
    store_along(kAlongBias, kJoinBias);
    add_product<F, 4 * I>(y, x, memory, inverse);
#pragma unroll
    for (int h = 0; h < 2; ++h) store_turned<I>(p, h, atom + row_of(2 * h) / 4, y);
  }
}

// The atoms of a lane's two rows, and of the warp's 16.
struct GroupAtoms {
  uint32_t own[2], lowest, highest;

  MDOPS_D GroupAtoms(const BackArgs& p, int64_t first, int count) {
#pragma unroll
    for (int h = 0; h < 2; ++h)
      own[h] = min(max(__float_as_int(p.atom[first + min(row_of(2 * h), count - 1)]), 0), p.atoms - 1);
    highest = warp_largest(max(own[0], own[1]));
    lowest = ~warp_largest(~min(own[0], own[1]));
  }

  // Calls f(atom) for each of the warp's atoms; f(h) says whether lane's row h is the atom's.
  MDOPS_D void each(const auto& f) const {
    for (uint32_t atom = lowest;;) {
      f(static_cast<int64_t>(atom), [&](int h) { return own[h] == atom; });
      if (atom == highest) break;
      uint32_t next = 0;
#pragma unroll
      for (int h = 0; h < 2; ++h)
        if (own[h] > atom) next = max(next, ~own[h]);
      atom = ~warp_largest(next);
    }
  }
};

// For a lane's two rows: components 2 (l % 2) and the next of R, and these as the operand of R H: the depth
// 16 is the four components as high, high, low and low parts, and for H as high, low, high and low ones.
struct EnvironmentRows {
  float2 two[2];
  uint32_t operand[4];
  float inverse;

  MDOPS_D EnvironmentRows(const float* environment, int64_t first, int count) {
    const int component = 2 * (lane_index() % 2);
#pragma unroll
    for (int h = 0; h < 2; ++h)
      two[h] = *reinterpret_cast<const float2*>(
          environment + kComponents * (first + min(row_of(2 * h), count - 1)) + component);
    const float four[4] = {two[0].x, two[0].y, two[1].x, two[1].y};
    const float scale = gpu_attention::scale_of_bits(warp_largest(gpu_attention::largest_of(four)));
    inverse = inverse_power(scale);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      uint32_t parts[2];
      gpu_attention::split_pair<Parts>(scale * two[h].x, scale * two[h].y, parts);
      operand[h] = parts[0], operand[2 + h] = parts[1];
    }
  }
};

// u of 16 rows.
template <int I>
MDOPS_D Operands<2 * I> joined_operands(const BackArgs& p, int64_t first, int count) {
  Rows<2 * I> x, o;
  load_rows<FullRows<I>>(x, p.x + first * p.stride, 16 * I, count, p.stride);
  load_rows<FullRows<I>>(o, p.o + first * 16 * I, 16 * I, count, 16 * I);
  Rows<4 * I> u;
  unrolled<4 * I, 4>(
      [&](int unit, int k) { u[unit][k] = unit < 2 * I ? x[unit % (2 * I)][k] : o[unit % (2 * I)][k]; });
  return Operands<2 * I>(u);
}

// For a lane's two rows, the factors of R H and u Q + q in the gradient by u.
struct RowFactors {
  float of_turned[2], of_square[2];
};

// Computes e, these factors and the gradient by R.
template <int I>
MDOPS_D RowFactors along_rows(const BackArgs& p, const GroupAtoms& atoms, const EnvironmentRows& r,
                              const Operands<2 * I>& u, int64_t first, int count) {
  const int lane = lane_index(), component = 2 * (lane % 2);
  float deviation[2];
  load_numbers(deviation, p.deviation + first, count);
  RowFactors found{};
  float2 by_r[2] = {};
  atoms.each([&](int64_t atom, const auto& mine) {
    const uint2* const turned = p.turned.of_u + atom * 2 * I * kWarp + lane;
    float sum[4] = {};
#pragma unroll
    for (int step = 0; step < 2 * I; ++step) {
      const uint2 b = turned[step * kWarp];
      float c[4] = {};
      multiply_16<false>(c, u.part[step][1], b.x, b.y);
      multiply_16<false>(c, u.part[step][0], b.x, b.y);
#pragma unroll
      for (int k = 0; k < 4; ++k) sum[k] += c[k];
    }
    const float* const numbers = p.turned.numbers + kTurnedNumbers * atom;
    const float2 bias = *reinterpret_cast<const float2*>(numbers + kAlongBias + component);
    const float2 norm_bias = *reinterpret_cast<const float2*>(numbers + kAlongNormBias + component);
    const float inverse = numbers[kTurnedInverse], by = inverse * u.inverse;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      // The high and the low part of a component are two lanes apart.
      const float x = sum[2 * h] + __shfl_xor_sync(kAllLanes, sum[2 * h], 2);
      const float y = sum[2 * h + 1] + __shfl_xor_sync(kAllLanes, sum[2 * h + 1], 2);
      const float2 e = make_float2(deviation[h] * (by * x + bias.x), deviation[h] * (by * y + bias.y));
      float along = r.two[h].x * e.x + r.two[h].y * e.y;
      along += __shfl_xor_sync(kAllLanes, along, 1);
      if (!mine(h)) continue;
      by_r[h] = make_float2(e.x + norm_bias.x, e.y + norm_bias.y);
      found.of_turned[h] = deviation[h] * inverse * r.inverse;
      found.of_square[h] = -(deviation[h] * deviation[h]) * (along / p.features);
    }
  });
#pragma unroll
  for (int h = 0; h < 2; ++h)
    if (lane % 4 < 2 && row_of(2 * h) < count)
      *reinterpret_cast<float2*>(p.by_environment + kComponents * (first + row_of(2 * h)) + component) =
          by_r[h];
  return found;
}

// The gradient by units 2 `pair` and 2 `pair` + 1 of u.
template <int I>
MDOPS_D void gradient_of_pair(Rows<2>& by_u, const BackArgs& p, const char* memory,
                              const BlockNumbers& numbers, int pair, const GroupAtoms& atoms,
                              const EnvironmentRows& r, const Operands<2 * I>& u, const RowFactors& factors) {
  const uint4* const factor = reinterpret_cast<const uint4*>(memory) + 2 * pair * kWarp + lane_index();
  const float by = numbers.inverse[0] * u.inverse;
  Rows<2> sum{}, turned{};
  unrolled<2 * I, 2>([&](int step, int j) {
    const uint4 b = factor[(step * 4 * I + j) * kWarp];
    float c[4] = {};
    multiply_16<false>(c, u.part[step][1], b.x, b.y);
    multiply_16<false>(c, u.part[step][0], b.z, b.w);
    multiply_16<false>(c, u.part[step][0], b.x, b.y);
#pragma unroll
    for (int k = 0; k < 4; ++k) sum[j][k] += c[k];
  });
  atoms.each([&](int64_t atom, const auto& mine) {
    const uint2 two = p.turned.of_r[(atom * 2 * I + pair) * kWarp + lane_index()];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float c[4] = {};
      multiply_16<false>(c, r.operand, j ? two.y : two.x, j ? two.y : two.x);
#pragma unroll
      for (int k = 0; k < 4; ++k) turned[j][k] = mine(k / 2) ? c[k] : turned[j][k];
    }
  });
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const float2 bias =
        *reinterpret_cast<const float2*>(numbers.of_columns[kSquareBias] + column_of(2 * pair + j, 0));
#pragma unroll
    for (int k = 0; k < 4; ++k)
      by_u[j][k] = factors.of_turned[k / 2] * turned[j][k] +
                   factors.of_square[k / 2] * (by * sum[j][k] + (k % 2 ? bias.y : bias.x));
  }
}

template <int I>
__global__ void __launch_bounds__(kEndThreads, 1) end_back_kernel(BackArgs p) {
  using Pair = FullRows<1>;
  constexpr int kColumns = 32 * I;
  char* const memory = gpu_attention::block_memory();
  BlockNumbers& numbers = block_numbers(Factor<2 * I, 4 * I>::kBytes);
  fill_columns(numbers, kSquareBias, p.turned.square + kColumns * kColumns, kColumns);
  const float inverse = fill_factor<2 * I, 4 * I, false, kEndThreads>(
      memory, kColumns, kColumns, &numbers.largest,
      [&](int k, int n) { return p.turned.square[k * kColumns + n]; });
  if (threadIdx.x == 0) numbers.inverse[0] = inverse;
  __syncthreads();
  const int rows = min(max(*p.last, 0), p.rows);
  each_group(rows, [&](int64_t first, int count, int64_t next) {
    const GroupAtoms atoms(p, first, count);
    const EnvironmentRows r(p.environment, first, count);
    const Operands<2 * I> u = joined_operands<I>(p, first, count);
    ask_for_join<I>(p, next, rows);
    const RowFactors factors = along_rows<I>(p, atoms, r, u, first, count);
    Rows<2> by_u;
#pragma unroll 1
    for (int pair = 0; pair < I; ++pair) {
      gradient_of_pair<I>(by_u, p, memory, numbers, pair, atoms, r, u, factors);
      store_rows<Pair>(by_u, p.by_x + first * p.back_stride + 16 * pair, 16, count, p.back_stride);
    }
    float delta[2] = {};
#pragma unroll 1
    for (int pair = 0; pair < I; ++pair) {
      const int64_t at = first * 16 * I + 16 * pair;
      Rows<2> o;
      load_rows<Pair>(o, p.o + at, 16, count, 16 * I);
      gradient_of_pair<I>(by_u, p, memory, numbers, I + pair, atoms, r, u, factors);
      store_rows<Pair>(by_u, p.by_o + at, 16, count, 16 * I);
      unrolled<2, 4>([&](int j, int k) { delta[k / 2] += by_u[j][k] * o[j][k]; });
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) delta[h] = quad_sum(delta[h]);
    store_numbers(delta, p.delta + first, count);
  });
}

}  // namespace mdops::gpu_attention_moments
