// Attention's gradients by the products of warpgroups, on Hopper (sm_90a): float32 by two parts, heads 65 to
// 128 wide. As in gpu_backward.h, a block has one head of one sequence and loops over its keys in tiles of
// 128, and for each tile over the queries, 32 at a time. Two warpgroups, 64 keys each, a warp 16 of them:
//
//   S^T, T^T (64, 32)  = K Q^T, V G^T           from shared memory
//   dV (64, 128)      += P^T G, dK += X^T Q     P and X from registers
//   dQ^T (64, 32)      = K^T X                  group w: columns 64 w .. + 63 of the head, all keys
//
// and in shared memory
//
//   K, V   parts of (128, 128)     two blocks each of 64 columns: rows of 128 bytes, swizzled
//   Q, G   parts of (32, 128)      the same
//   X      parts of (128, 32)      rows of 64 bytes
//   raw    Q and G of the next step, float32 by `cp.async`: a thread reads only its own copies
//
// An operand's depth may run along its rows or across them: all products use the same K, V, Q, G and X.
// Scales: per 16 keys of K and of V; per step of Q, of G, and of X, which is multiplied by the inverse scale
// of K (over their maximum), so that products over all keys have one factor; per warp of P.
#pragma once

#include "attention/gpu_backward.h"
#include "common/gpu_unroll.h"

namespace mdops::gpu_attention {

constexpr int kTileWidth = 128;  // of a head, padded with zeros

struct GroupMemory {
  static constexpr int kKeys = 128, kStep = 32, kGroups = 2, kThreads = kGroups * 4 * kWarp;
  static constexpr int kKeyBlock = kKeys * kBlockRow, kStepBlock = kStep * kBlockRow;
  static constexpr int kKeyPart = 2 * kKeyBlock, kStepPart = 2 * kStepBlock, kSlopePart = kKeys * 2 * kStep;
  static constexpr int kValues = 2 * kKeyPart, kQueries = 2 * kValues, kGrads = kQueries + 2 * kStepPart;
  static constexpr int kSlopes = kGrads + 2 * kStepPart, kRaw = kSlopes + 2 * kSlopePart;
  static constexpr int kRawTensor = kStep * kTileWidth * 4;
  // Floats: inverse scales of the groups of K and of V; each warp's largest of Q, G and X; logsumexp and
  // delta.
  static constexpr int kScales = kRaw + 2 * kRawTensor, kLargest = kScales + 4 * 2 * kMostWarps;
  static constexpr int kRows = kLargest + 4 * 3 * kMostWarps;
  int gates;

  MDOPS_HD int columns() const { return gates + 1; }
  MDOPS_HD int key_factors() const { return kRows + 4 * 2 * kStep; }
  MDOPS_HD int query_factors() const { return key_factors() + 4 * columns() * kKeys; }
  MDOPS_HD int key_sums() const { return query_factors() + 4 * columns() * kStep; }
  MDOPS_HD int query_sums() const { return key_sums() + 4 * columns() * kKeys; }
  // Includes alignment to a multiple of 1,024.
  MDOPS_HD int size(bool factors) const {
    return kAlignment + (factors ? query_sums() + 4 * columns() * kStep * kMostWarps : key_factors());
  }
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Where piece `piece` of a row is in a part with blocks of `block_bytes`.
MDOPS_D int place_in_blocks(int block_bytes, int row, int piece) {
  return piece / 8 * block_bytes + piece_place<kBlockColumns>(row, piece % 8);
}

// Per-row numbers of a step's queries, in registers on the way to shared memory, loaded by a block of
// `Threads` threads.
template <class T, int Step, int Threads>
struct StepNumbers {
  static constexpr int kFactors = ((kMostGate + 1) * Step + Threads - 1) / Threads;
  static_assert(2 * Step <= Threads);
  float row_number;        // of the thread's row: logsumexp, or delta
  float factor[kFactors];  // of gate and switch

  MDOPS_D void load(const TensorArgs<T>& p, const GradientArgs<T>& g, const TileBlock& b, int query,
                    bool factors) {
    row_number = 0;
    const int j = query + threadIdx.x % Step;
    if (threadIdx.x < 2 * Step && j < b.last)
      row_number = (threadIdx.x < Step ? g.logsumexp
                                       : g.delta)[static_cast<int64_t>(b.item.begin + j) * p.heads + b.head];
    if (!factors) return;
#pragma unroll
    for (int i = 0; i < kFactors; ++i) {
      const int k = i * Threads + threadIdx.x, column = k / Step, row = query + k % Step;
      factor[i] = 0;
      if (column > p.gates || row >= b.last) continue;
      const int64_t at = b.item.begin + row;
      if (column < p.gates)
        factor[i] = number(p.gate[at * p.gates + column]);
      else if (p.switches)
        factor[i] = number(p.switches[at]);
    }
  }
  // `factors` null if there are none.
  MDOPS_D void store(float* rows, float* factors, int columns) const {
    if (threadIdx.x < 2 * Step) rows[threadIdx.x] = row_number;
    if (factors == nullptr) return;
#pragma unroll
    for (int i = 0; i < kFactors; ++i)
      if (i * Threads + static_cast<int>(threadIdx.x) < columns * Step)
        factors[i * Threads + threadIdx.x] = factor[i];
  }
};

// The next step's rows of one tensor, copied unchanged to shared memory: row w + 8 i by warp w, and of each
// row numbers 4 l .. 4 l + 3 by lane l, the only one to read them.
struct RawRows {
  static constexpr int kEach = GroupMemory::kStep / kMostWarps;

  static MDOPS_D int row_of(int i) { return threadIdx.x / kWarp + kMostWarps * i; }
  static MDOPS_D char* place(char* raw, int i) {
    return raw + row_of(i) * (4 * kTileWidth) + 16 * lane_index();
  }

  static MDOPS_D void ask(const RowsOf<float>& from, int first, int rows, char* raw) {
    const int column = 4 * lane_index();
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const bool in_bounds = row_of(i) < rows && column < from.width;
      const float* const at =
          in_bounds ? from.first + (first + row_of(i)) * from.stride + column : from.first;
      if (from.wide) {
        copy_to_shared<16>(place(raw, i), at, in_bounds);
      } else {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const bool one = in_bounds && column + k < from.width;
          copy_to_shared<4>(place(raw, i) + 4 * k, one ? at + k : from.first, one);
        }
      }
    }
  }

  float x[4 * kEach];

  MDOPS_D void read(char* raw) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const float4 four = *reinterpret_cast<const float4*>(place(raw, i));
      x[4 * i] = four.x, x[4 * i + 1] = four.y, x[4 * i + 2] = four.z, x[4 * i + 3] = four.w;
    }
  }
  MDOPS_D void store(float scale, char* parts) const {
    const int lane = lane_index();
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      uint2 pair[2];
      split(make_float4(scale * x[4 * i], scale * x[4 * i + 1], scale * x[4 * i + 2], scale * x[4 * i + 3]),
            pair);
      char* const at = parts + place_in_blocks(GroupMemory::kStepBlock, row_of(i), lane / 2) + lane % 2 * 8;
#pragma unroll
      for (int part = 0; part < 2; ++part)
        *reinterpret_cast<uint2*>(at + part * GroupMemory::kStepPart) = pair[part];
    }
  }
};

#endif

template <class Have>
__global__ void __launch_bounds__(GroupMemory::kThreads, 1)
    group_backward_kernel(TensorArgs<float> p, GradientArgs<float> g, GroupMemory layout, Blocks blocks,
                          Wide wide) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using M = GroupMemory;
  using N = Numbers<float, 2>;
  constexpr int kStep = M::kStep, kUnits = kStep / 8, kKeys = M::kKeys;
  char* const memory = aligned_memory();
  const TileBlock b = tile_block(p, blocks, nullptr);
  const int length = b.last, lane = lane_index(), warp = threadIdx.x / kWarp, half = warp / 4;
  const int columns = layout.columns();
  const auto floats = [&](int at) { return reinterpret_cast<float*>(memory + at); };
  float *const scales = floats(M::kScales), *const rows = floats(M::kRows);
  uint32_t* const largest = reinterpret_cast<uint32_t*>(floats(M::kLargest));
  float *const key_factors = floats(layout.key_factors()), *const key_sums = floats(layout.key_sums());
  float *const query_factors = floats(layout.query_factors()), *const query_sums =
                                                                   floats(layout.query_sums());
  const bool switched = Have::switches(p), has_factors = switched || Have::gates(p) > 0;
  const auto of_q = [&] { return keys_of(p, b, p.q, wide); };
  const auto of_grad = [&] { return outs_of(p, b, g.grad_out, wide); };

  if (g.out) delta_of_rows<float, kTileWidth>(p, g, b, of_grad(), outs_of(p, b, g.out, wide));
  ask_for_coming(p, g, b, wide);

  for (int tile = 0; tile < length; tile += kKeys) {
    const int count = min(kKeys, length - tile);  // of its keys
    const int groups = (count + kGroup - 1) / kGroup;
    const bool first_tile = tile == 0, last_tile = tile + kKeys >= length;
    const int row = kGroup * warp;  // of the warp's 16 keys
    const bool active = warp < groups;
    __syncthreads();
    const auto ask = [&](int query) {
      RawRows::ask(of_q(), query, length - query, memory + M::kRaw);
      RawRows::ask(of_grad(), query, length - query, memory + M::kRaw + M::kRawTensor);
    };
    StepNumbers<float, kStep, M::kThreads> numbers;
    ask(0);
    numbers.load(p, g, b, 0, has_factors);
    // Zeros for missing keys, too: products over keys read all.
    for (int task = warp; task < 2 * kMostWarps; task += kMostWarps) {
      const int group = task % kMostWarps, is_value = task / kMostWarps;
      if (is_value && group >= groups) break;
      GroupLoad<float, kTileWidth> load;
      load.load(keys_of(p, b, p.k, wide).or_else(is_value, values_of(p, b, p.v, wide)), tile + group * kGroup,
                count - group * kGroup);
      char* const to = memory + is_value * M::kValues;
      const float inverse = load.template store_at<N>(M::kKeyPart, [&](int r, int piece) {
        return to + place_in_blocks(M::kKeyBlock, group * kGroup + r, piece);
      });
      if (lane == 0) scales[is_value * kMostWarps + group] = inverse;
    }
    if (has_factors) {
      load_factors(p, b.item.begin + tile, count, kKeys, key_factors + p.gates * kKeys, key_factors);
      for (int k = threadIdx.x; k < columns * kKeys; k += blockDim.x) key_sums[k] = 0;
    }
    float value_sums[16][4] = {}, key_grads[16][4] = {};

    for (int query = 0; query < length; query += kStep) {
      float inverse[2];
      {
        RawRows raw[2];
        wait_for_copies();
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          raw[k].read(memory + M::kRaw + k * M::kRawTensor);
          const uint32_t most = warp_largest(largest_of(raw[k].x));
          if (lane == 0) largest[k * kMostWarps + warp] = most;
        }
        __syncthreads();  // nobody needs the step before any longer
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          uint32_t most = 0;
#pragma unroll
          for (int w = 0; w < kMostWarps; ++w) most = max(most, largest[k * kMostWarps + w]);
          const float scale = scale_of_bits(most);
          inverse[k] = inverse_power(scale);
          raw[k].store(scale, memory + M::kQueries + k * (M::kGrads - M::kQueries));
        }
      }
      numbers.store(rows, has_factors ? query_factors : nullptr, columns);
      fence_shared();
      __syncthreads();
      if (query + kStep < length) {
        ask(query + kStep);
        numbers.load(p, g, b, query + kStep, has_factors);
      }
      const float q_inverse = inverse[0], grad_inverse = inverse[1];

      float s[kUnits][4], t[kUnits][4];
      {
        const auto multiply = [&](float (&sum)[kUnits][4], const char* of_keys, const char* of_step) {
          each_product<2>([&](int left, int right, bool first) {
#pragma unroll
            for (int block = 0; block < 2; ++block) {
              const uint64_t a = matrix_of_rows<kBlockRow>(of_keys + left * M::kKeyPart +
                                                           block * M::kKeyBlock + half * (M::kKeyBlock / 2));
              const uint64_t of_b =
                  matrix_of_rows<kBlockRow>(of_step + right * M::kStepPart + block * M::kStepBlock);
#pragma unroll
              for (int k = 0; k < kBlockColumns / 16; ++k)
                multiply_group<false, false>(sum, a + 2 * k, of_b + 2 * k, !first || block + k > 0);
            }
          });
          commit_products();
        };
        begin_products();
        multiply(s, memory, memory + M::kQueries);
        multiply(t, memory + M::kValues, memory + M::kGrads);
        wait_for_products<0>();
        fence_operands(s), fence_operands(t);
      }
      if (active) {
        const PairFactors factors{
            rows,     rows + kStep, query_factors, key_factors, query_sums + warp * columns * kStep,
            key_sums, kKeys,        kStep};
        step_gradients<Have>(p, g, b, factors, tile, row, query, p.scale * scales[warp] * q_inverse,
                             scales[kMostWarps + warp] * grad_inverse, s, t);
      } else {
        unrolled<kUnits, 4>([&](int n, int k) { s[n][k] = t[n][k] = 0; });
      }
      // What the warp's K was divided by, over the maximum of all; keys that are zeros use the minimum.
      float most_inverse = 0, least_inverse = __int_as_float(0x7f000000);
#pragma unroll
      for (int w = 0; w < kMostWarps; ++w) {
        const float one = scales[w];
        most_inverse = fmaxf(most_inverse, one);
        if (one > 0) least_inverse = fminf(least_inverse, one);
      }
      if (most_inverse == 0) most_inverse = least_inverse = 1;
      const float own_inverse = scales[warp] > 0 ? scales[warp] : least_inverse;
      const float key_inverse = own_inverse * inverse_power(most_inverse);
      {
        const float of_warp =
            key_inverse * __uint_as_float(warp_largest(largest_of(reinterpret_cast<float (&)[16]>(t))));
        if (lane == 0) largest[2 * kMostWarps + warp] = __float_as_uint(of_warp);
      }
      __syncthreads();
      uint32_t most = 0;
#pragma unroll
      for (int w = 0; w < kMostWarps; ++w) most = larger(most, __uint_as_float(largest[2 * kMostWarps + w]));
      const float slope_scale = scale_of_bits(most), slope_inverse = inverse_power(slope_scale);
      uint32_t slope_parts[2][2][4], value_parts[2][2][4];  // X and P as operands, 16 queries each
#pragma unroll
      for (int group = 0; group < 2; ++group) {
        as_operand<N>(t[2 * group], t[2 * group + 1], slope_scale * key_inverse, slope_parts[group]);
        unrolled<2, 4>([&](int part, int k) {
          *reinterpret_cast<uint32_t*>(memory + M::kSlopes + part * M::kSlopePart +
                                       piece_place<kStep>(row + lane / 4 + k % 2 * 8, 2 * group + k / 2) +
                                       lane % 4 * 4) = slope_parts[group][part][k];
        });
      }
      fence_shared();
      __syncthreads();
      float of_queries[kUnits][4];
      begin_products();
      each_product<2>([&](int left, int right, bool first) {
        const uint64_t a = matrix_of_rows<kBlockRow>(memory + left * M::kKeyPart + half * M::kKeyBlock);
        const uint64_t of_b = matrix_of_rows<2 * kStep>(memory + M::kSlopes + right * M::kSlopePart);
#pragma unroll
        for (int group = 0; group < kKeys / kGroup; ++group)
          multiply_group<false, true>(of_queries, a + group * (kGroup * kBlockRow / 16),
                                      of_b + group * (kGroup * 2 * kStep / 16), !first || group > 0);
      });
      commit_products();
      float value_scale = static_cast<float>(1 << kLargest);
      if (has_factors)
        value_scale = scale_of_bits(warp_largest(largest_of(reinterpret_cast<float (&)[16]>(s))));
      const float value_factor = inverse_power(value_scale) * grad_inverse;
#pragma unroll
      for (int group = 0; group < 2; ++group)
        as_operand<N>(s[2 * group], s[2 * group + 1], value_scale, value_parts[group]);

      wait_for_products<0>();
      fence_operands(of_queries);
      {
        const float by = slope_inverse * most_inverse * (last_tile ? p.scale : 1.0f),
                    earlier = last_tile ? p.scale : 1.0f;
        const int column = kBlockColumns * half + warp % 4 * kGroup + lane / 4;
        float* const first = g.grad_q + p.key(b.item.begin + query + 2 * (lane % 4), b.head) + column;
        const int rows_left = length - query - 2 * (lane % 4);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          if (column + 8 * h >= p.width) break;
          unrolled<kUnits, 2>([&](int n, int k) {
            if (8 * n + k >= rows_left) return;
            float* const to = first + static_cast<int64_t>(8 * n + k) * p.key_stride + 8 * h;
            float sum = by * of_queries[n][2 * h + k];
            if (!first_tile) sum += earlier * *to;
            *to = sum;
          });
        }
      }
      // dV, then dK, of 64 columns at a time.
      const auto add = [&](float (&sums)[16][4], const uint32_t (&left)[2][2][4], const char* from, int block,
                           float factor) {
        float product[8][4];
        begin_products();
        each_product<2>([&](int of_left, int of_right, bool first) {
          const uint64_t of_b =
              matrix_of_rows<kBlockRow>(from + of_right * M::kStepPart + block * M::kStepBlock);
#pragma unroll
          for (int group = 0; group < 2; ++group)
            multiply_group<false, true>(product, left[group][of_left],
                                        of_b + group * (kGroup * kBlockRow / 16), !first || group > 0);
        });
        commit_products();
        wait_for_products<0>();
        fence_operands(product);
        unrolled<8, 4>([&](int n, int k) { sums[8 * block + n][k] += factor * product[n][k]; });
      };
      const float key_factor = slope_inverse * q_inverse * inverse_power(key_inverse);
#pragma unroll
      for (int block = 0; block < 2; ++block) {
        add(value_sums, value_parts, memory + M::kGrads, block, value_factor);
        add(key_grads, slope_parts, memory + M::kQueries, block, key_factor);
      }
      if (has_factors) {
        for (int k = threadIdx.x; k < columns * kStep; k += blockDim.x) {
          const int column = k / kStep, j = query + k % kStep;
          if (j >= length || (column == p.gates && !switched)) continue;
          float* const to =
              g.parts + (static_cast<int64_t>(b.head) * p.rows + b.item.begin + j) * columns + column;
          float sum = first_tile ? 0.0f : *to;
          for (int w = 0; w < groups; ++w) sum += query_sums[(w * columns + column) * kStep + j - query];
          *to = sum;
        }
      }
    }

    if (active) {
      put_rows(b, g.grad_v + p.value(b.item.begin, b.head), p.value_stride, p.value_width, wide.values,
               tile + row, value_sums, 1.0f);
      put_rows(b, g.grad_k + p.key(b.item.begin, b.head), p.key_stride, p.width, wide.keys, tile + row,
               key_grads, p.scale);
    }
    if (has_factors) put_key_sums(p, g, b, tile, count, kKeys, key_sums);
  }
#endif
}

}  // namespace mdops::gpu_attention
