// C = A B for many rows of A, aligned to four numbers, by Hopper's tensor cores in float16 to float32's
// accuracy: a number is scale (high + low), 22 bits as with two TF32, at twice their rate.
//
// The scales are powers of two: one for a column of B, and one for each 64 numbers of a row of A. A block has
// some columns of B in shared memory, their high and low parts. Each of its warpgroups takes units of 64 rows
// of A, and once B is there waits for no other. While the tensor cores compute 64 of the depth, a warpgroup
// splits the next 64, and loads those after them. A lane has four adjacent numbers of 16 of the depth, and of
// 16 columns: B's columns are in that order.
//
// Tensor cores round sums towards zero: so sums over 64 of the depth begin at zero, with the small products
// first.
#pragma once

#include "common/gpu.h"
#include "common/gpu_floats.h"
#include "common/gpu_unroll.h"
#include "common/gpu_warp.h"
#include "common/gpu_wgmma.h"
#include "common/rows.h"
#include "gemm/gpu_memory.h"
#include "gemm/gpu_parts.h"
#include "linear/gpu_matrix.h"
#include "so2_layer/gpu_multiply_rows.h"

namespace mdops::gpu_linear {

constexpr int kHalfRows = 64, kHalfDepth = 64, kHalfSteps = kHalfDepth / 16, kHalfAlignment = 1024;
constexpr int kHalfRow = 2 * kHalfDepth;  // bytes of a column's part in shared memory

// Sets of split rows: with many columns, the next rows are split while the tensor cores use the last.
MDOPS_HD constexpr int half_sets(int columns, bool one) {
  return !one && columns > 64 ? 2 : 1;
}
// Two to four warpgroups, as registers allow: with `one` chunk of depth there are no sums over chunks.
MDOPS_HD constexpr int half_threads(int columns, bool one) {
  return kGroupThreads * (2 + (columns <= 64) + one);
}
MDOPS_HD constexpr int64_t half_part(int columns) {
  return static_cast<int64_t>(columns) * kHalfRow;
}
inline int64_t shared_for_halves(int columns, int64_t depth) {
  return blocks_for(depth, kHalfDepth) *
             (2 * half_part(columns) + columns * static_cast<int64_t>(sizeof(float))) +
         kHalfAlignment;
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Four numbers, or zeros; volatile, so that the load is issued here.
MDOPS_D float4 load_four(const float* from, bool in_bounds) {
  float4 x{0, 0, 0, 0};
#ifdef __CUDACC__
  asm volatile(
      "{\n.reg .pred there;\nsetp.ne.b32 there, %5, 0;\n"
      "mov.f32 %0, 0f00000000;\nmov.f32 %1, 0f00000000;\nmov.f32 %2, 0f00000000;\nmov.f32 %3, 0f00000000;\n"
      "@there ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4];\n}"
      : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
      : "l"(from), "r"(static_cast<int>(in_bounds)));
#else
  if (in_bounds) x = *reinterpret_cast<const float4*>(from);
#endif
  return x;
}

MDOPS_D float largest_of(const float4& x) {
  return fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w)));
}

// The column of C at a column of B in shared memory.
MDOPS_D int column_of_half(int n) {
  return n / 16 * 16 + n % 8 / 2 * 4 + n / 8 % 2 * 2 + n % 2;
}

// `kOne`: the depth is no more than 64.
template <int kColumns, bool kOne>
class HalfRows {
 public:
  MDOPS_D explicit HalfRows(const RowArgs& args, char* memory)
      : args_(args),
        parts_(memory),
        depth_(static_cast<int>(args.depth)),
        chunks_(kOne ? 1 : (depth_ + kHalfDepth - 1) / kHalfDepth),
        group_(warp_index() / kGroupWarps),
        lane_(lane_index()) {
    unscale_ = reinterpret_cast<float*>(parts_ + 2 * chunks_ * half_part(kColumns));
  }

  // Columns from `column` on, for units `begin` to `end` of 64 rows of a coefficient; coefficients follow
  // each other.
  MDOPS_D void run(int64_t column, int begin, int end) {
    column_ = column;
    const int units = static_cast<int>((args_.rows + kHalfRows - 1) / kHalfRows);
    for (int at = begin; at < end;) {
      const int degree = args_.coefficients.count > 1 ? degree_of(at / units) : 0;
      const int stop = args_.coefficients.count > 1 ? min(end, (degree + 1) * (degree + 1) * units) : end;
      if (at > begin) __syncthreads();  // no thread still reads the old matrix
      int own = at + group_, n = 0;     // the unit and the chunk to multiply
      int next = own, chunk = 0;        // and those to load
      const auto ask = [&] {
        if (chunk == 0) go_to(min(next, stop - 1), units);
        load(chunk);
        if (++chunk == chunks_) chunk = 0, next += kGroups;
      };
      const auto split_next = [&]<int kSet>() {
        split_rows<kSet>();
        ask();
      };
      ask();
      split_columns(args_.b.data + degree * args_.coefficients.b);
      if constexpr (kSets == 2) split_next.template operator()<0>();
      float c[kColumns / 2];
      const auto multiply = [&]<int kSet>() {
        float now[kColumns / 2];
        if constexpr (kSets == 1) split_next.template operator()<0>();
        begin_set<kSet>(now, n);
        if constexpr (kSets == 2) split_next.template operator()<1 - kSet>();
        add<kSet>(c, now, n);
        if (++n == chunks_) store(c, own, units), n = 0, own += kGroups;
      };
      while (own < stop) {
        multiply.template operator()<0>();
        if (kSets == 2 && own < stop) multiply.template operator()<kSets - 1>();
      }
      at = stop;
    }
  }

 private:
  static constexpr int kThreads = half_threads(kColumns, kOne), kGroups = kThreads / kGroupThreads;
  static constexpr int kSets = half_sets(kColumns, kOne);

  // This lane's first row of a unit, and its coefficient.
  MDOPS_D int64_t row_of(int unit, int units, int& coefficient) const {
    coefficient = args_.coefficients.count > 1 ? unit / units : 0;
    return static_cast<int64_t>(unit - coefficient * units) * kHalfRows + warp_index() % kGroupWarps * 16 +
           lane_ / 4;
  }
  MDOPS_D void go_to(int unit, int units) {
    int coefficient;
    const int64_t row = row_of(unit, units, coefficient);
    const float* const a = args_.a.data + coefficient * args_.coefficients.a + 4 * (lane_ % 4);
    unrolled<2>([&](int h) { from_[h] = a + min(row + 8 * h, args_.rows - 1) * args_.a.line; });
  }

  // Loads a chunk of the depth of these rows.
  MDOPS_D void load(int chunk) {
    unrolled<kHalfSteps, 2>([&](int step, int h) {
      const int k = chunk * kHalfDepth + 16 * step;
      numbers_[step][h] = load_four(from_[h] + k, k + 4 * (lane_ % 4) < depth_);
    });
  }

  template <int kSet>
  MDOPS_D void split_rows() {
    unrolled<2>([&](int h) {
      float largest = 0;
      unrolled<kHalfSteps>([&](int step) { largest = fmaxf(largest, largest_of(numbers_[step][h])); });
      const float scale = scale_for(quad_largest(largest));
      by_row_[kSet][h] = inverse_power(scale);
      unrolled<kHalfSteps>([&](int step) {
        uint2 parts[2];
        split(scale * numbers_[step][h], parts);
        high_[kSet][step][h] = parts[0].x, high_[kSet][step][h + 2] = parts[0].y;
        low_[kSet][step][h] = parts[1].x, low_[kSet][step][h + 2] = parts[1].y;
      });
    });
  }

  // Four numbers of the depth of the column of b at n in shared memory.
  MDOPS_D float4 of_column(const float* b, int n, int k) const {
    const int64_t column = column_ + column_of_half(n), deep = args_.b.deep;
    const bool in_bounds = column < args_.columns && k < depth_;
    const float* const from = in_bounds ? b + column * args_.b.line + k * deep : b;
    const float4 x = deep == 1 ? *reinterpret_cast<const float4*>(from)
                               : float4{from[0], from[deep], from[2 * deep], from[3 * deep]};
    return in_bounds ? x : float4{0, 0, 0, 0};
  }

  // A warp has a chunk of eight columns: four times 16 of the depth of each.
  MDOPS_D void split_columns(const float* b) const {
    constexpr int kEights = kColumns / 8;
    const int t = lane_ % 4;
    for (int at = static_cast<int>(threadIdx.x) / kWarp; at < chunks_ * kEights; at += kThreads / kWarp) {
      const int chunk = at / kEights, n = at % kEights * 8 + lane_ / 4;
      float4 x[kHalfSteps];
      float largest = 0;
      unrolled<kHalfSteps>(
          [&](int step) { x[step] = of_column(b, n, chunk * kHalfDepth + 16 * step + 4 * t); });
      unrolled<kHalfSteps>([&](int step) { largest = fmaxf(largest, largest_of(x[step])); });
      const float scale = scale_for(quad_largest(largest));
      if (t == 0) unscale_[chunk * kColumns + n] = inverse_power(scale);
      char* const row = parts_ + 2 * chunk * half_part(kColumns) + n * kHalfRow + 4 * t;
      unrolled<kHalfSteps>([&](int step) {
        uint2 parts[2];
        split(scale * x[step], parts);
        unrolled<2, 2>([&](int part, int half) {
          *reinterpret_cast<uint32_t*>(row + part * half_part(kColumns) + 16 * ((2 * step + half) ^ n % 8)) =
              half ? parts[part].y : parts[part].x;
        });
      });
    }
    fence_shared();
    __syncthreads();
  }

  // Starts now = a set of rows times a chunk of B; `add` waits for it.
  template <int kSet>
  MDOPS_D void begin_set(float (&now)[kColumns / 2], int chunk) const {
    const int steps = min(kHalfSteps, (depth_ - chunk * kHalfDepth + 15) / 16);
    if (steps == 4)
      begin_steps<kSet, 4>(now, chunk);
    else if (steps == 3)
      begin_steps<kSet, 3>(now, chunk);
    else if (steps == 2)
      begin_steps<kSet, 2>(now, chunk);
    else
      begin_steps<kSet, 1>(now, chunk);
  }
  // The same for kSteps times 16 of the depth.
  template <int kSet, int kSteps>
  MDOPS_D void begin_steps(float (&now)[kColumns / 2], int chunk) const {
    const uint64_t high = matrix_of_rows<kHalfRow>(parts_ + 2 * chunk * half_part(kColumns));
    const uint64_t low = matrix_of_rows<kHalfRow>(parts_ + (2 * chunk + 1) * half_part(kColumns));
    begin_products();
    unrolled<kSteps>([&](int step) {
      multiply_rows(now, low_[kSet][step], high + 2 * step, step > 0);
      multiply_rows(now, high_[kSet][step], low + 2 * step, 1);
    });
    unrolled<kSteps>([&](int step) { multiply_rows(now, high_[kSet][step], high + 2 * step, 1); });
    commit_products();
  }

  // c (+)= the product started by begin_set.
  template <int kSet>
  MDOPS_D void add(float (&c)[kColumns / 2], float (&now)[kColumns / 2], int chunk) const {
    wait_for_products<0>();
    fence_operands(now);
    const float* const by_column = unscale_ + chunk * kColumns + 2 * (lane_ % 4);
    unrolled<kColumns / 8>([&](int e) {
      const float2 by = *reinterpret_cast<const float2*>(by_column + 8 * e);
      unrolled<2>([&](int h) {
        const float more = by_row_[kSet][h] * by.x * now[4 * e + 2 * h];
        const float next = by_row_[kSet][h] * by.y * now[4 * e + 2 * h + 1];
        c[4 * e + 2 * h] = kOne || chunk == 0 ? more : c[4 * e + 2 * h] + more;
        c[4 * e + 2 * h + 1] = kOne || chunk == 0 ? next : c[4 * e + 2 * h + 1] + next;
      });
    });
  }

  MDOPS_D void store(const float (&c)[kColumns / 2], int unit, int units) const {
    int coefficient;
    const int64_t row = row_of(unit, units, coefficient), column = column_ + 4 * (lane_ % 4);
    const bool fours = args_.columns % 4 == 0 && args_.c_line % 4 == 0 && column_ + kColumns <= args_.columns;
    unrolled<2>([&](int h) {
      if (row + 8 * h >= args_.rows) return;
      const int64_t begin = coefficient * args_.coefficients.c + (row + 8 * h) * args_.c_line + column;
      float* const place = args_.c + begin;
      const float* const added = args_.added ? args_.added + begin : nullptr;
      if (fours) {
        if (added) {
          float4 more[kColumns / 16];
          unrolled<kColumns / 16>(
              [&](int e) { more[e] = __ldcs(reinterpret_cast<const float4*>(added + 16 * e)); });
          unrolled<kColumns / 16>([&](int e) {
            const float4 four = four_of(c, h, 2 * e);
            *reinterpret_cast<float4*>(place + 16 * e) = {four.x + more[e].x, four.y + more[e].y,
                                                          four.z + more[e].z, four.w + more[e].w};
          });
          return;
        }
#pragma unroll
        for (int e = 0; e < kColumns / 8; e += 2)
          *reinterpret_cast<float4*>(place + 8 * e) = four_of(c, h, e);
        return;
      }
      unrolled<kColumns / 8, 2>([&](int e, int k) {
        const int at = e / 2 * 16 + e % 2 * 2 + k;
        if (column + at < args_.columns) place[at] = c[4 * e + 2 * h + k] + (added ? added[at] : 0.0f);
      });
    });
  }
  static MDOPS_D float4 four_of(const float (&c)[kColumns / 2], int h, int e) {
    return {c[4 * e + 2 * h], c[4 * e + 2 * h + 1], c[4 * e + 4 + 2 * h], c[4 * e + 5 + 2 * h]};
  }

  const RowArgs& args_;
  char* const parts_;  // for each chunk the high parts, then the low ones
  float* unscale_;     // for each chunk of the columns
  const int depth_, chunks_, group_, lane_;
  int64_t column_ = 0;
  const float* from_[2] = {};
  float4 numbers_[kHalfSteps][2];
  uint32_t high_[kSets][kHalfSteps][4], low_[kSets][kHalfSteps][4];
  float by_row_[kSets][2];  // a chunk's inverse scales
};

#endif

template <int kColumns, bool kOne>
__global__ void __launch_bounds__(half_threads(kColumns, kOne), 1)
    halves_kernel(const __grid_constant__ RowArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  char* const memory = net_memory();
  HalfRows<kColumns, kOne> own(args, memory + (-reinterpret_cast<uintptr_t>(memory) & (kHalfAlignment - 1)));
  const int64_t units = (args.rows + kHalfRows - 1) / kHalfRows * args.coefficients.count;
  const int64_t down = gridDim.x / args.wide, block = blockIdx.x / args.wide;
  own.run(static_cast<int64_t>(blockIdx.x % args.wide) * kColumns, static_cast<int>(block * units / down),
          static_cast<int>((block + 1) * units / down));
#endif
}

}  // namespace mdops::gpu_linear
