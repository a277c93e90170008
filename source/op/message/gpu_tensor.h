// Messages of float32 by the tensor cores, to float32's accuracy (common/gpu_tf32.h).
//
// A team of warps has a first. Of its rows a warp takes 16 at once, whose x stays in registers, in its two
// parts; the weights lie in shared memory as the products read them. Eight columns after the other
// go from the product to all that is made of them. In the backward passes what they give for x is their
// product with the transposed weights: the sums of one product lie in registers just as the next one takes
// its left side, if of each eight numbers of the depth place t is number 2 t and place t + 4 the next.
//
// Tensor cores round sums towards zero: so each product of eight columns begins at zero, and sums of several
// are added in the usual way.
//
// Weights that do not fit into shared memory go in several runs, of some of the columns each.
#pragma once

#include <algorithm>

#include "common/gpu_barrier.h"
#include "common/gpu_tf32.h"
#include "gemm/gpu_memory.h"
#include "message/gpu_number.h"

namespace mdops {

namespace gpu_message {

// Columns of a run.
struct Columns {
  int begin, end;

  __host__ __device__ int eights() const { return (end - begin) / 8; }
};

// Warps of a block, and blocks of a multiprocessor at once: what registers warps have follows from both.
__host__ __device__ constexpr int warps_of(Pass pass, int eights) {
  if (pass == Pass::second || eights > 8) return 8;
  if (eights > 4) return 12;
  return pass == Pass::backward ? 8 : 16;
}
__host__ __device__ constexpr int blocks_of(Pass pass, int eights) {
  return pass == Pass::backward && eights <= 4 ? 2 : 1;
}

constexpr int kStep = 37;  // blocks between turns

__device__ __forceinline__ float of_two(const float2& two, int k) {
  return k ? two.y : two.x;
}

// Shared memory of a block: the weights, transposed behind them in backward passes, and of each warp sums of
// what is sent and of what is by P.
struct TensorShared {
  int64_t weights, sums;

  __host__ __device__ TensorShared(Pass pass, int inputs, int columns)
      : weights(int64_t{inputs} * columns * 2), sums(2 * columns) {
    if (pass != Pass::forward) weights *= 2;
  }
  int64_t bytes(int warps) const { return 4 * (weights + warps * sums); }
};

// kStaged: the rows of h go to shared memory, too, for the sums by Q of a group (gpu_groups.h).
template <int kEights, Pass pass, bool kAny, bool kStaged = false>
class TensorTeam {
  static constexpr int kInputs = 8 * kEights;
  static constexpr bool kIsSecond = pass == Pass::second, kIsForward = pass == Pass::forward;

 public:
  __device__ TensorTeam(const MessageArgs<float>& args, const Memory<float>& memory, Columns columns,
                        int team)
      : args_(args),
        memory_(memory),
        columns_(columns),
        all_(static_cast<int>(args.columns())),
        sent_(static_cast<int>(args.sent)),
        warps_(team),
        warp_(threadIdx.x / kWarp % team),
        barrier_(1 + threadIdx.x / kWarp / team) {
    const int width = columns.end - columns.begin;
    const TensorShared shared(pass, kInputs, width);
    float* const memory_of_block = reinterpret_cast<float*>(net_memory());
    weight_ = reinterpret_cast<const uint4*>(memory_of_block);
    transposed_ = weight_ + kInputs * width / 2;
    team_sums_ = memory_of_block + shared.weights +
                 static_cast<int64_t>(threadIdx.x / kWarp / team * team) * shared.sums;
    sums_ = team_sums_ + warp_ * shared.sums;
  }

  // The weights to shared memory, in two parts: of each eight of the depth and of the columns four numbers a
  // lane.
  __device__ static void place_weights(const MessageArgs<float>& args, Columns columns) {
    const int eights = columns.eights(), count = kEights * eights * kWarp;
    uint4* const to = reinterpret_cast<uint4*>(net_memory());
    const int64_t all = args.columns();
    for (int at = threadIdx.x; at < count; at += blockDim.x) {
      const int lane = at % kWarp, eight = at / kWarp % kEights, n = at / kWarp / kEights;
      const int g = lane / 4, t = lane % 4;
      const float* const from = args.weight + (8 * eight + 2 * t) * all + columns.begin + 8 * n + g;
      split_to(to[at].x, to[at].z, from[0]);
      split_to(to[at].y, to[at].w, from[all]);
    }
    for (int at = threadIdx.x; !kIsForward && at < count; at += blockDim.x) {
      const int lane = at % kWarp, eight = at / kWarp % kEights, n = at / kWarp / kEights;
      const int g = lane / 4, t = lane % 4;
      const float* const from = args.weight + (8 * eight + g) * all + columns.begin + 8 * n + 2 * t;
      split_to(to[count + at].x, to[count + at].z, from[0]);
      split_to(to[count + at].y, to[count + at].w, from[1]);
    }
  }

  __device__ void run(int64_t f) {
    const RowsOfFirst<float> rows(args_, f);
    begin_first(f);
    for (int64_t row = rows.begin + 16 * warp_; row < rows.end; row += 16 * warps_) add_rows(row, rows.end);
    wait();
    write_sums(rows.is_wrong);
    wait();
  }

 protected:
  __device__ void begin_first(int64_t f) {
    const int column = columns_.begin + 2 * (lane_index() % 4);
    first_ = f, p_ = args_.p + f * all_ + column, grad_sent_ = args_.grad_sent + f * sent_ + column;
    if (kIsSecond) along_p_ = args_.along_p + f * all_ + column;
    for (int c = lane_index(); c < 2 * (columns_.end - columns_.begin); c += kWarp) sums_[c] = 0.0f;
    __syncwarp();
  }

  __device__ void wait() const {
    if (warps_ == 1)
      __syncwarp();
    else
      sync_threads(barrier_, warps_ * kWarp);
  }

  // What the warps have found, one after the other.
  __device__ void write_sums(bool is_wrong) const {
    const int width = columns_.end - columns_.begin;
    const TensorShared shared(pass, kInputs, width);
    for (int c = threadIdx.x % (warps_ * kWarp); c < width; c += warps_ * kWarp) {
      const int column = columns_.begin + c;
      float sent = is_wrong ? not_a_number<float>() : 0.0f, by_p = sent;
      for (int w = 0; w < warps_; ++w) {
        const float* const own = team_sums_ + w * shared.sums;
        if (pass != Pass::backward) sent += own[c];
        if (!kIsForward) by_p += own[width + c];
      }
      if (pass != Pass::backward && column < sent_) args_.to_sent[first_ * sent_ + column] = sent;
      if (!kIsForward) args_.by_p[first_ * all_ + column] = by_p;
    }
  }

  // 16 rows, of which those from `end` on are not there: their x, weights and gradients are zero, and so is
  // what they add to sums. A row is none of numbers if it is of another first or has a wrong second.
  __device__ __forceinline__ void add_rows(int64_t row, int64_t end) {
    row_ = row + lane_index() / 4, left_ = static_cast<int>(min(end - row_, int64_t{16}));
    const Places at = places();
    TensorRows<kEights> x, along[1];
    load_rows(x, at, args_.x);
    if constexpr (kIsSecond) load_rows(*along, at, args_.along_x);
    float by_weight[2] = {}, by_x[kIsForward ? 1 : kEights][4] = {};
    const int eights = columns_.eights(), sent = min(max(sent_ - columns_.begin, 0) / 8, eights);
    add_columns<true>(0, sent, x, along, at, by_weight, by_x);
    add_columns<false>(sent, eights, x, along, at, by_weight, by_x);
    if constexpr (!kIsForward) write_inputs(by_x, by_weight);
  }

 private:
  // Where a lane's two rows are, and what belongs to them.
  struct Places {
    bool is_wrong[2], has_second[2];
    const float *q[2], *along_q[2];
    int64_t kept;  // of the first row in arrays of what is kept
    float weight[2], along_weight[2];
  };

  // What a lane reads for two columns of its rows, asked for while the two before are worked on.
  struct Given {
    float2 p, along_p, factor;  // factor: the gradient of what is sent, or the scale of what is kept
    float2 q[2], along_q[2];
    float2 kept[2], along[2];  // x, or in backward passes gradients, of columns that are kept
  };

  __device__ __forceinline__ bool is_there(int h) const { return 8 * h < left_; }

  __device__ __forceinline__ Places places() const {
    Places found;
    const int column = columns_.begin + 2 * (lane_index() % 4);
    found.kept = row_ * kInputs + column - sent_;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int64_t row = row_ + 8 * h;
      int64_t second = is_there(h) ? args_.second[row] : -1;
      found.is_wrong[h] = is_there(h) && (!is_right(args_, row, first_, second) || !is_of_group(second));
      found.has_second[h] = second >= 0 && !found.is_wrong[h];
      if (!found.has_second[h]) second = 0;
      found.q[h] = args_.q + second * all_ + column;
      if constexpr (kIsSecond) found.along_q[h] = args_.along_q + second * all_ + column;
      found.weight[h] = is_there(h) ? args_.row_weight[row] : 0.0f;
      found.along_weight[h] = kIsSecond && is_there(h) ? args_.along_row_weight[row] : 0.0f;
    }
    return found;
  }
  __device__ bool is_of_group(int64_t second) const {
    return !kStaged || second < 0 || (second >= group_begin_ && second < group_end_);
  }

  __device__ void load_rows(TensorRows<kEights>& to, const Places& at, const float* x) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float* const from = x + (row_ + 8 * h) * kInputs + 2 * (lane_index() % 4);
#pragma unroll
      for (int eight = 0; eight < kEights; ++eight) {
        float2 two = is_there(h) ? read_two(from + 8 * eight) : float2{0.0f, 0.0f};
        if (at.is_wrong[h]) two.x = two.y = not_a_number<float>();
        split_to(to.high[eight][h], to.low[eight][h], two.x);
        split_to(to.high[eight][h + 2], to.low[eight][h + 2], two.y);
      }
    }
  }

  // The products with eight columns.
  __device__ void multiply(float (&z)[4], const TensorRows<kEights>& rows, int n) const {
    float small[2][4] = {};
#pragma unroll
    for (int k = 0; k < 4; ++k) z[k] = 0.0f;
#pragma unroll
    for (int eight = 0; eight < kEights; ++eight)
      multiply_parts(z, small, rows.high[eight], rows.low[eight],
                     weight_[(n * kEights + eight) * kWarp + lane_index()]);
#pragma unroll
    for (int k = 0; k < 4; ++k) z[k] += small[0][k] + small[1][k];
  }

  // Adds a lane's numbers of two columns to the sums over the warp's rows: lanes with the bit 4 go on with
  // the second one.
  __device__ void add_to_sums(float* sums, int n, float a, float b) const {
    const bool is_second = lane_index() & 4;
    float own = is_second ? b : a;
    own += __shfl_xor_sync(kAllLanes, is_second ? a : b, 4);
    own += __shfl_xor_sync(kAllLanes, own, 8);
    own += __shfl_xor_sync(kAllLanes, own, 16);
    if (lane_index() < 8) sums[8 * n + 2 * (lane_index() % 4) + lane_index() / 4] += own;
  }

  template <bool kIsSent>
  __device__ __forceinline__ void load(Given& given, const Places& at, int n) const {
    constexpr float2 nothing{0.0f, 0.0f};
    given.p = read_two(p_ + 8 * n);
    if constexpr (kIsSecond) given.along_p = read_two(along_p_ + 8 * n);
    if constexpr (!kIsSent)
      given.factor = read_two(args_.scale + columns_.begin + 2 * (lane_index() % 4) - sent_ + 8 * n);
    else if constexpr (!kIsForward)
      given.factor = read_two(grad_sent_ + 8 * n);
    const float* const kept = (kIsForward ? args_.x : args_.grad_kept) + at.kept + 8 * n;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      given.q[h] = at.has_second[h] ? read_two(at.q[h] + 8 * n) : nothing;
      if constexpr (kIsSecond)
        given.along_q[h] = at.has_second[h] ? read_two(at.along_q[h] + 8 * n) : nothing;
      if constexpr (kIsSent) continue;
      given.kept[h] = is_there(h) ? read_two(kept + 8 * h * kInputs) : nothing;
      if constexpr (kIsSecond)
        given.along[h] = is_there(h) ? read_two(args_.along_x + at.kept + 8 * n + 8 * h * kInputs) : nothing;
    }
  }

  // Eights [begin, end) of the columns, which are all sent or all kept.
  template <bool kIsSent, int kCount>
  __device__ __forceinline__ void add_columns(int begin, int end, const TensorRows<kEights>& x,
                                              const TensorRows<kEights>* along, const Places& at,
                                              float (&by_weight)[2], float (&by_x)[kCount][4]) {
    if (begin >= end) return;
    Given next;
    load<kIsSent>(next, at, begin);
#pragma unroll 1
    for (int n = begin; n < end; ++n) {
      const Given given = next;
      if (n + 1 < end) load<kIsSent>(next, at, n + 1);
      float z[4], v[4];
      multiply(z, x, n);
      if constexpr (kIsSecond) multiply(v, *along, n);

      Number<float> numbers[4];
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          Number<float>& own = numbers[2 * h + k];
          own.z = z[2 * h + k] + (of_two(given.p, k) + of_two(given.q[h], k));
          if constexpr (kIsSecond)
            own.v = v[2 * h + k] + (of_two(given.along_p, k) + of_two(given.along_q[h], k));
          if constexpr (kIsForward) continue;
          own.grad = of_two(given.factor, k) * (kIsSent ? at.weight[h] : of_two(given.kept[h], k));
          own.extra = kIsSent ? at.along_weight[h] * of_two(given.factor, k) : 0.0f;
        }
      evaluate_all<pass, kAny>(args_.activation, args_.threshold, numbers);
      float of_sent[2] = {}, of_p[2] = {};
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const Number<float>& own = numbers[2 * h + k];
          const float of_v = kIsSecond ? own.sv : own.y;
          of_p[k] += own.h;
          if constexpr (!kIsSent) continue;
          of_sent[k] += at.weight[h] * of_v + (kIsSecond ? at.along_weight[h] * own.y : 0.0f);
          if constexpr (!kIsForward) by_weight[h] += of_two(given.factor, k) * of_v;
        }
      write_rows<kIsSent>(given, at, numbers, n);
      if constexpr (pass != Pass::backward && kIsSent) add_to_sums(sums_, n, of_sent[0], of_sent[1]);
      if constexpr (!kIsForward) {
        add_to_sums(sums_ + columns_.end - columns_.begin, n, of_p[0], of_p[1]);
        add_to_inputs(by_x, numbers, n);
      }
    }
  }

  // What the rows have of eight columns.
  template <bool kIsSent>
  __device__ __forceinline__ void write_rows(const Given& given, const Places& at,
                                             const Number<float> (&numbers)[4], int n) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const Number<float>&first = numbers[2 * h], &other = numbers[2 * h + 1];
      if constexpr (kStaged)
        write_two(staged_ + (8 * h + lane_index() / 4) * staged_row_ + 8 * n + 2 * (lane_index() % 4),
                  first.h, other.h);
      if (!is_there(h)) continue;
      if constexpr (!kIsSent) {
        const float a = kIsSecond ? first.sv : first.y, b = kIsSecond ? other.sv : other.y;
        const int64_t kept = at.kept + 8 * n + 8 * h * kInputs;
        if constexpr (pass != Pass::backward) {
          const float2 added = kIsSecond ? given.along[h] : given.kept[h];
          write_two(args_.to_kept + kept, added.x + given.factor.x * a, added.y + given.factor.y * b);
        }
        if (!kIsForward && memory_.of_scales)
          write_two(memory_.of_scales + kept, given.kept[h].x * a, given.kept[h].y * b);
      }
      if constexpr (kIsForward) continue;
      const int64_t of_row = (row_ + 8 * h) * all_ + columns_.begin + 8 * n + 2 * (lane_index() % 4);
      if (args_.by_z) write_two(args_.by_z + of_row, first.h, other.h);
      if (kIsSecond && memory_.dz) write_two(memory_.dz + of_row, first.dz, other.dz);
    }
  }

  // The products of eight columns' h with the transposed weights.
  template <int kCount>
  __device__ void add_to_inputs(float (&by_x)[kCount][4], const Number<float> (&numbers)[4], int n) const {
    uint32_t high[4], low[4];
#pragma unroll
    for (int k = 0; k < 4; ++k)  // a has rows side by side, the numbers have columns
      split_to(high[k % 2 * 2 + k / 2], low[k % 2 * 2 + k / 2], numbers[k].h);
#pragma unroll
    for (int eight = 0; eight < kCount; ++eight) {
      const uint4 b = transposed_[(n * kEights + eight) * kWarp + lane_index()];
      float now[4] = {};
      multiply_8(now, low, b.x, b.y);
      multiply_8(now, high, b.z, b.w);
      multiply_8(now, high, b.x, b.y);
#pragma unroll
      for (int k = 0; k < 4; ++k) by_x[eight][k] += now[k];
    }
  }

  // What the rows have for x and their weights, added to that of the runs before.
  template <int kCount>
  __device__ void write_inputs(const float (&by_x)[kCount][4], const float (&by_weight)[2]) const {
    const int t = lane_index() % 4;
    const bool goes_on = columns_.begin > 0, adds_kept = !kIsSecond && !goes_on && args_.kept;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int64_t row = row_ + 8 * h;
      const float of_row = quad_sum(by_weight[h]);
      if (!is_there(h)) continue;
      if (t == 0) args_.by_row_weight[row] = of_row + (goes_on ? args_.by_row_weight[row] : 0.0f);
      const float* const added = goes_on ? args_.by_x : adds_kept ? args_.grad_kept : nullptr;
#pragma unroll
      for (int eight = 0; eight < kCount; ++eight) {
        const int64_t at = row * kInputs + 8 * eight + 2 * t;
        float a = by_x[eight][2 * h], b = by_x[eight][2 * h + 1];
        if (added) a += added[at], b += added[at + 1];
        write_two(args_.by_x + at, a, b);
      }
    }
  }

 protected:
  const MessageArgs<float>& args_;
  const Memory<float>& memory_;
  const Columns columns_;
  const int all_, sent_, warps_, warp_, barrier_;
  const uint4 *weight_, *transposed_;
  float *team_sums_, *sums_;
  // Of the first, from the lane's first column on.
  const float *p_ = nullptr, *along_p_ = nullptr, *grad_sent_ = nullptr;
  int64_t first_ = 0, row_ = 0;  // the lane's first row
  int left_ = 0;                 // rows from it on
  // Of whole groups: where a warp's rows of h go, so wide, and the group's firsts.
  float* staged_ = nullptr;
  int staged_row_ = 0;
  int64_t group_begin_ = 0, group_end_ = 0;
};

template <int kEights, Pass pass, bool kAny>
__global__ void __launch_bounds__(warps_of(pass, kEights) * kWarp, blocks_of(pass, kEights))
    tensor_kernel(const __grid_constant__ MessageArgs<float> args,
                  const __grid_constant__ Memory<float> memory, Columns columns, int team) {
  using Team = TensorTeam<kEights, pass, kAny>;
  Team::place_weights(args, columns);
  __syncthreads();
  Team own(args, memory, columns, team);
  const int teams = warps_of(pass, kEights) / team;
  // Firsts side by side in one block: as the edges of an atom they share their seconds. Turn by turn other
  // blocks have those that an atom begins with, which have the most rows.
  const int64_t blocks = gridDim.x, runs = (args.firsts + teams - 1) / teams;
  for (int64_t turn = 0; turn * blocks < runs; ++turn) {
    const int64_t run = turn * blocks + (blockIdx.x + kStep * turn) % blocks;
    const int64_t f = run * teams + threadIdx.x / kWarp / team;
    if (f < args.firsts) own.run(f);
  }
  if (columns.begin == 0) finish_rows(args, memory);
}

// Whether there are kernels for numbers so many, which are read by twos.
inline bool by_tensor_cores(const Gpu& gpu, const MessageArgs<float>& args) {
  const bool is_wide = args.inputs == 32 || args.inputs == 64 || args.inputs == 128;
  bool is_placed = true;
  for (const float* from : {args.x, args.p, args.q, args.scale, args.grad_sent, args.grad_kept, args.along_x,
                            args.along_p, args.along_q})
    is_placed &= reinterpret_cast<uintptr_t>(from) % sizeof(float2) == 0;
  return gpu.limits().capability >= 80 && is_wide && is_placed && args.sent % 8 == 0 && args.columns() > 0;
}

template <int kEights, Pass pass, bool kAny>
void run_tensor(const Gpu& gpu, const MessageArgs<float>& args, const Memory<float>& memory) {
  const int columns = gpu.int32_of("weight", args.columns()), warps = warps_of(pass, kEights);
  int width = columns;
  while (TensorShared(pass, 8 * kEights, width).bytes(warps) > gpu.limits().shared_bytes && width > 8)
    width = static_cast<int>(blocks_for(width / 8, 2)) * 8;
  const int64_t chip = gpu.limits().multiprocessors * blocks_of(pass, kEights);
  // Few firsts have several warps each.
  int team = 1;
  for (int more = 2; more <= warps / 2; ++more)
    if (warps % more == 0 && args.firsts * more <= chip * warps) team = more;
  const int64_t blocks = std::clamp<int64_t>(blocks_for(args.firsts, warps / team), 1, chip);
  for (int begin = 0; begin < columns; begin += width) {
    const Columns run{begin, std::min(begin + width, columns)};
    gpu.launch(tensor_kernel<kEights, pass, kAny>, blocks, warps * kWarp,
               TensorShared(pass, 8 * kEights, run.end - run.begin).bytes(warps), args, memory, run, team);
  }
}

}  // namespace gpu_message

}  // namespace mdops
