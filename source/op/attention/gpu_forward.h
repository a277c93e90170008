// Attention by tensor cores (mma.sync, from sm_80 on), for heads up to 128 wide.
//
// A block has one head of one sequence, or 64 queries of it. Keys and values are in shared memory as parts
// (gpu_tiles.h), the whole sequence if it fits, else chunk by chunk. Each warp has 16 queries, in registers,
// and loops over the keys independently, 32 at a time:
//
//   s (16 x 32) = Q K^T    lane l has rows l / 4 and l / 4 + 8, columns 8 n + 2 (l % 4) and the next,
//                          n = 0..3
//   maximum and sum of each row so far; o is rescaled if the maximum grew
//   o (16 x D) += P V      P's units in registers are already the A operand
//
// So during a chunk warps do not wait for each other.
#pragma once

#include "attention/gpu_tiles.h"
#include "common/gpu_unroll.h"

namespace mdops::gpu_attention {

constexpr int kKeyStep = 32, kMostWarps = 8;

// The layout of a chunk of keys in shared memory.
template <class N, int D>
struct ForwardMemory {
  int keys;  // capacity, a multiple of kKeyStep
  int gates;

  MDOPS_HD int apart() const { return keys * 2 * D; }  // from one part to the next
  MDOPS_HD int values() const { return N::kParts * apart(); }
  MDOPS_HD int scales() const { return 2 * values(); }  // of K's groups, then of V's
  MDOPS_HD int switches() const { return scales() + 2 * (keys / kGroup) * 4; }
  MDOPS_HD int gate() const { return switches() + keys * 4; }  // (gates, keys)
  MDOPS_HD int size() const { return gate() + gates * keys * 4; }
};

// The work of a block of the tensor-core kernels: queries first .. last of a sequence.
struct TileBlock {
  WorkItem item;
  int head, first, last;
  int coming, coming_rows;  // rows of the sequence for a later block in this one's place
};

// Of a launch: whether each block has a whole sequence, and how many sequences run at once.
struct Blocks {
  bool whole;
  int sequences;
};

// A block has a whole sequence of a head, or 64 queries of one.
template <class T>
MDOPS_D TileBlock tile_block(const TensorArgs<T>& p, Blocks blocks, const int64_t* bias_at,
                             int block = blockIdx.x) {
  const int head = block % p.heads, index = block / p.heads;
  TileBlock b{};
  b.head = head;
  // Loads start before anything waits.
  const int bad = threadIdx.x < kPrepareBlocks ? p.bad[threadIdx.x] : 0;
  if (blocks.whole) {
    const int next = min(index + blocks.sequences, p.sequences - 1);
    b.item.sequence = index, b.item.begin = p.offsets[index];
    b.item.length = b.last = p.offsets[index + 1] - b.item.begin;
    if (p.bias) b.item.bias = bias_at[index];
    b.coming = p.offsets[next], b.coming_rows = p.offsets[next + 1] - b.coming;
  } else if (index < p.items) {
    const int4 item = reinterpret_cast<const int4*>(p.plan)[1 + index];
    // Both at once, so that the item's load does not wait for the count.
    if ((index < p.plan[0]) & (item.x >= 0) && is_sound(p, item)) {
      b.item = work_item(p, index);
      b.first = b.item.first, b.last = min(b.item.length, b.first + static_cast<int>(kPlanTile));
    }
  }
  if (__syncthreads_or(bad)) b.item.length = b.first = b.last = b.coming_rows = 0;
  return b;
}

// Which tensors allow reads and writes of 16 bytes: those with the width of queries and keys, and of values.
struct Wide {
  bool keys, values;
};

// A sequence's rows of q, k and tensors of the same layout; of v; of o.
template <class T>
MDOPS_D RowsOf<T> keys_of(const TensorArgs<T>& p, const TileBlock& b, const T* tensor, Wide wide) {
  return {tensor + p.key(b.item.begin, b.head), p.key_stride, p.width, wide.keys};
}
template <class T>
MDOPS_D RowsOf<T> values_of(const TensorArgs<T>& p, const TileBlock& b, const T* tensor, Wide wide) {
  return {tensor + p.value(b.item.begin, b.head), p.value_stride, p.value_width, wide.values};
}
template <class T>
MDOPS_D RowsOf<T> outs_of(const TensorArgs<T>& p, const TileBlock& b, const T* tensor, Wide wide) {
  return {tensor + p.row(b.item.begin, b.head, p.value_width), p.heads * p.value_width, p.value_width,
          wide.values};
}

// Prefetches a tensor's rows of the next sequence during this one's products.
template <class T>
MDOPS_D void ask_for_coming(const TileBlock& b, const RowsOf<T>& own) {
  const int lines = (own.width * static_cast<int>(sizeof(T)) + 127) / 128;
  const T* const first = own.first + static_cast<int64_t>(b.coming - b.item.begin) * own.stride;
  for (int k = threadIdx.x; k < b.coming_rows * lines; k += blockDim.x)
    prefetch_line(first + static_cast<int64_t>(k / lines) * own.stride +
                  k % lines * (128 / static_cast<int>(sizeof(T))));
}

// Loads the keys' switch and gate, for 0 <= l < rows.
template <class T>
MDOPS_D void load_factors(const TensorArgs<T>& p, int first_row, int rows, int room, float* switches,
                          float* gate) {
  if (p.switches)
    for (int l = threadIdx.x; l < room; l += blockDim.x)
      switches[l] = l < rows ? number(p.switches[first_row + l]) : 0.0f;
  for (int k = threadIdx.x; k < p.gates * room; k += blockDim.x) {
    const int c = k / room, l = k % room;
    gate[k] = l < rows ? number(p.gate[static_cast<int64_t>(first_row + l) * p.gates + c]) : 0.0f;
  }
}

// Further factors of pairs: those that the arguments have, if there may be `Options`;
template <bool Options>
struct GivenFactors {
  template <class T>
  static MDOPS_D bool bias(const TensorArgs<T>& p) {
    return Options && p.bias;
  }
  template <class T>
  static MDOPS_D bool switches(const TensorArgs<T>& p) {
    return Options && p.switches;
  }
  template <class T>
  static MDOPS_D int gates(const TensorArgs<T>& p) {
    return Options ? p.gates : 0;
  }
};
// or those known at compile time, and no bias.
template <int Gates, bool Switches>
struct KnownFactors {
  template <class T>
  static MDOPS_D constexpr bool bias(const TensorArgs<T>&) {
    return false;
  }
  template <class T>
  static MDOPS_D constexpr bool switches(const TensorArgs<T>&) {
    return Switches;
  }
  template <class T>
  static MDOPS_D constexpr int gates(const TensorArgs<T>&) {
    return Gates;
  }
};

// For products of warpgroups, or of warps alone. Parts of keys and values are rows, or blocks of 64 columns.
template <class N, int D, bool Groups>
MDOPS_D int place_of_piece(const ForwardMemory<N, D>& layout, int row, int piece) {
  if constexpr (Groups)
    return piece / 8 * (layout.keys * kBlockRow) + piece_place<kBlockColumns>(row, piece % 8);
  else
    return piece_place<D>(row, piece);
}

// `Groups`: with products of warpgroups, on Hopper.
template <class T, class N, int D, class Have, bool Groups>
__global__ void __launch_bounds__(kMostWarps* kWarp, D <= 64 ? 2 : 1)
    forward_kernel(TensorArgs<T> p, ForwardResults<T> results, ForwardMemory<N, D> layout, Blocks blocks,
                   const int64_t* bias_at, Wide wide) {
  char* const memory = Groups ? aligned_memory() : block_memory();
  constexpr int kSteps = D / 16;
  constexpr int kUnits = kKeyStep / 8, kGroups = kKeyStep / kGroup;
  const TileBlock b = tile_block(p, blocks, bias_at);
  const int length = b.item.length, lane = lane_index(), warp = threadIdx.x / kWarp;
  const int warps = blockDim.x / kWarp, apart = layout.apart();
  float* const scales = reinterpret_cast<float*>(memory + layout.scales());
  float* const switches = reinterpret_cast<float*>(memory + layout.switches());
  float* const gate = reinterpret_cast<float*>(memory + layout.gate());
  const char *const keys = memory, *const values = memory + layout.values();
  const int groups = layout.keys / kGroup;
  const bool has_bias = Have::bias(p), switched = Have::switches(p), gated = Have::gates(p) > 0;
  const int gates = Have::gates(p);
  const bool has_factors = switched || gated;
  const float lowest = __int_as_float(0xff800000);
  const auto queries = keys_of(p, b, p.q, wide), of_k = keys_of(p, b, p.k, wide);
  const auto of_v = values_of(p, b, p.v, wide);

  for (int strip0 = b.first; strip0 < b.last; strip0 += kGroup * warps) {
    const int strip = strip0 + kGroup * warp;
    const bool active = Groups || strip < b.last;  // warps of a group multiply together
    uint32_t q[kSteps][N::kParts][4];
    float q_inverse = p.scale;
    if (active) {
      float x[kSteps][8];  // rows lane / 4, + 8; columns 2 (lane % 4), + 1, + 8, + 9 of each step
      const int row0 = strip + lane / 4, column0 = 2 * (lane % 4);
      if (queries.wide) {
        unrolled<kSteps, 4>([&](int step, int k) {
          const int row = row0 + k % 2 * 8, column = column0 + 16 * step + k / 2 * 8;
          float2 two = make_float2(0, 0);
          if (row < length && column < p.width)
            two = two_numbers(queries.first + row * queries.stride + column);
          x[step][2 * k] = two.x, x[step][2 * k + 1] = two.y;
        });
      } else {
        unrolled<kSteps, 8>([&](int step, int k) {
          const int row = row0 + k / 2 % 2 * 8, column = column0 + 16 * step + k / 4 * 8 + k % 2;
          x[step][k] =
              row < length && column < p.width ? number(queries.first[row * queries.stride + column]) : 0.0f;
        });
      }
      float scale = 1;
      if constexpr (N::kSplit) {
        scale = scale_of_bits(warp_largest(largest_of<8 * kSteps>([&](int k) { return x[k / 8][k % 8]; })));
        q_inverse *= inverse_power(scale);
      }
      unrolled<kSteps, 4>([&](int step, int k) {
        uint32_t pair[N::kParts];
        split_pair<N>(scale * x[step][2 * k], scale * x[step][2 * k + 1], pair);
#pragma unroll
        for (int part = 0; part < N::kParts; ++part) q[step][part][k] = pair[part];
      });
    }
    float o[D / 8][4] = {}, largest[2], total[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      largest[h] = p.absent ? 0.0f : lowest;
      total[h] = p.absent && lane % 4 == 0 ? p.absent[b.item.sequence]
                                           : 0.0f;  // in one lane, as lanes are summed later
    }
    float w_query[2] = {1, 1};
    if (switched)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int j = strip + lane / 4 + 8 * h;
        w_query[h] = j < length ? number(p.switches[b.item.begin + j]) : 0.0f;
      }

    for (int chunk = 0; chunk < length; chunk += layout.keys) {
      const int count = min(layout.keys, length - chunk),
                filled = round_up(count, Groups ? kKeyStep : kGroup);
      if (strip0 == b.first || length > layout.keys) {
        __syncthreads();  // nobody needs the last chunk any longer
        for (int task = warp; task < 2 * (filled / kGroup); task += warps) {
          const int group = task / 2, is_value = task % 2;
          char* const to = memory + is_value * layout.values();
          bring_group<T, N, D>(
              apart, of_k.or_else(is_value, of_v), chunk + group * kGroup, count - group * kGroup,
              scales + is_value * groups + group, [&](int row, int piece) {
                return to + place_of_piece<N, D, Groups>(layout, group * kGroup + row, piece);
              });
        }
        if (has_factors) load_factors(p, b.item.begin + chunk, count, layout.keys, switches, gate);
        wait_for_copies();
        if constexpr (Groups) fence_shared();
        __syncthreads();
        if (strip0 == b.first && chunk == 0) {
          ask_for_coming(b, queries);
          ask_for_coming(b, of_k);
          ask_for_coming(b, of_v);
        }
      }
      if (!active) continue;
      for (int key = 0; key < count; key += kKeyStep) {
        float s[kUnits][4];
        if constexpr (Groups) {
          begin_products();
          each_product<N::kParts>([&](int of_query, int of_key, bool is_first) {
#pragma unroll
            for (int step = 0; step < kSteps; ++step)
              multiply_group<false, false>(
                  s, q[step][of_query],
                  matrix_of_rows<kBlockRow>(keys + of_key * apart +
                                            (step / 4 * layout.keys + key) * kBlockRow) +
                      2 * (step % 4),
                  !is_first || step > 0);
          });
          commit_products();
          wait_for_products<0>();
          fence_operands(s);
        }
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
          float* const s0 = s[2 * group];
          float* const s1 = s[2 * group + 1];
          if constexpr (!Groups) {
#pragma unroll
            for (int k = 0; k < 4; ++k) s0[k] = s1[k] = 0;
            if (key + kGroup * group >= filled) continue;
          }
#pragma unroll
          for (int step = 0; step < (Groups ? 0 : kSteps); ++step) {
            uint32_t b_parts[N::kParts][4];
            load_parts<N>(b_parts, keys, apart, place_by_columns<D>(key + kGroup * group, 16 * step));
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              if constexpr (N::kParts == 2) {
                float c[4] = {};
                multiply_parts<N>(c, q[step], b_parts, half);
#pragma unroll
                for (int k = 0; k < 4; ++k) s[2 * group + half][k] += c[k];
              } else {
                multiply_parts<N>(s[2 * group + half], q[step], b_parts, half);
              }
            }
          }
          const float factor = q_inverse * inverse_of<N>(scales + key / kGroup + group);
#pragma unroll
          for (int k = 0; k < 4; ++k) s0[k] *= factor, s1[k] *= factor;
        }
        const int l0 = key + 2 * (lane % 4);
        if (has_bias) {
          unrolled<kUnits, 4>([&](int n, int k) {
            const int j = strip + lane / 4 + k / 2 * 8, l = chunk + l0 + 8 * n + k % 2;
            if (j < length && l < length)
              s[n][k] +=
                  number(p.bias[b.head * p.bias_size + b.item.bias + static_cast<int64_t>(j) * length + l]);
          });
        }
        if (switched) {
          unrolled<kUnits, 4>([&](int n, int k) {
            s[n][k] = (s[n][k] + p.shift) * (w_query[k / 2] * switches[l0 + 8 * n + k % 2]);
          });
        }
        if (key + kKeyStep > count) {
          unrolled<kUnits, 4>([&](int n, int k) {
            if (l0 + 8 * n + k % 2 >= count) s[n][k] = lowest;
          });
        }
        float now[2] = {largest[0], largest[1]};
        unrolled<kUnits, 4>([&](int n, int k) { now[k / 2] = fmaxf(now[k / 2], s[n][k]); });
        bool grew = false;
        float base[2], old[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          now[h] = quad_largest(now[h]);
          grew |= now[h] > largest[h];
          base[h] = now[h] == lowest ? 0.0f : now[h];
          old[h] = exponential(largest[h] - base[h]);
          largest[h] = now[h];
        }
        if (__any_sync(kAllLanes, grew)) {
#pragma unroll
          for (int h = 0; h < 2; ++h) total[h] *= old[h];
          unrolled<D / 8, 4>([&](int n, int k) { o[n][k] *= old[k / 2]; });
        }
        unrolled<kUnits, 4>([&](int n, int k) {
          s[n][k] = exponential(s[n][k] - base[k / 2]);
          total[k / 2] += s[n][k];
        });
        if (switched) {
          unrolled<kUnits, 4>(
              [&](int n, int k) { s[n][k] *= w_query[k / 2] * switches[l0 + 8 * n + k % 2]; });
        }
        if (gated) {
          float c[kUnits][4] = {};
#pragma unroll 3
          for (int i = 0; i < gates; ++i) {
            float of_query[2];
#pragma unroll
            for (int h = 0; h < 2; ++h) {
              const int j = min(strip + lane / 4 + 8 * h, length - 1);
              of_query[h] = number(p.gate[static_cast<int64_t>(b.item.begin + j) * gates + i]);
            }
            unrolled<kUnits, 4>([&](int n, int k) {
              c[n][k] += of_query[k / 2] * gate[i * layout.keys + l0 + 8 * n + k % 2];
            });
          }
          unrolled<kUnits, 4>([&](int n, int k) { s[n][k] *= c[n][k]; });
        }
        if constexpr (Groups) {
          // The inverse scale of V, so that products over all keys have one factor.
#pragma unroll
          for (int n = 0; n < kUnits; ++n) {
            const float of_values = scales[groups + key / kGroup + n / 2];
#pragma unroll
            for (int k = 0; k < 4; ++k) s[n][k] *= of_values;
          }
        }
        // Without factors no number exceeds 1.
        float scale = N::kBfloat ? 1.0f : static_cast<float>(1 << kLargest);
        if (has_factors || Groups) scale = scale_of_units<N>(s);
        const float inverse = inverse_power(scale);
        if constexpr (Groups) {
          uint32_t a[kGroups][N::kParts][4];
#pragma unroll
          for (int group = 0; group < kGroups; ++group)
            as_operand<N>(s[2 * group], s[2 * group + 1], scale, a[group]);
          const auto multiply = [&](auto& sum, int block, bool add) {
            each_product<N::kParts>([&](int of_pair, int of_value, bool is_first) {
#pragma unroll
              for (int group = 0; group < kGroups; ++group)
                multiply_group<false, true>(
                    sum, a[group][of_pair],
                    matrix_of_rows<kBlockRow>(
                        values + of_value * apart + (block * layout.keys + key + group * kGroup) * kBlockRow,
                        layout.keys * kBlockRow),
                    add || !is_first || group > 0);
            });
          };
          begin_products();
          float product[2][8][4];
          multiply(product[0], 0, false), multiply(product[1], 1, false);
          commit_products();
          wait_for_products<0>();
#pragma unroll
          for (int block = 0; block < 2; ++block) {
            fence_operands(product[block]);
            unrolled<8, 4>([&](int n, int k) { o[8 * block + n][k] += inverse * product[block][n][k]; });
          }
        } else {
#pragma unroll
          for (int group = 0; group < 2; ++group) {
            if (key + kGroup * group >= filled) continue;
            uint32_t a[N::kParts][4];
            as_operand<N>(s[2 * group], s[2 * group + 1], scale, a);
            add_product<N, D>(o, a, values, apart, key + kGroup * group,
                              inverse * inverse_of<N>(scales + groups + key / kGroup + group));
          }
        }
      }
    }
    if (!active) continue;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float sum = quad_sum(total[h]), inverse = inverse_of_sum(sum);
      const int j = strip + lane / 4 + 8 * h;
      if (j >= b.last) continue;
      const int row = b.item.begin + j;
      T* const to = results.out + p.row(row, b.head, p.value_width);
      put_row_of_units(to, 0, p.value_width, wide.values, o, h, inverse);
      if (lane % 4 == 0)
        results.logsumexp[static_cast<int64_t>(row) * p.heads + b.head] = largest[h] + logf(sum);
    }
  }
}

}  // namespace mdops::gpu_attention
