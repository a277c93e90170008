// Messages whose rows connect all pairs of a group's nodes, as angles connect an atom's edges: a team of
// warps has a group.
//
// A warp combines 16 seconds with one first after the other, or with two at once. So it reads the seconds'
// rows of Q once, and sums the gradients by Q: each lane has its columns of both in shared memory, which no
// other lane accesses. No row of h goes through memory, and warps wait for each other only if several share a
// group. The last seconds, which would not fill 16 rows, go a few at a time with several firsts, again in a
// lane's own columns. Each step loads the next step's data. Kept columns come first: their rows are x or
// gradients by x, which are in registers then.
//
// Where x is a number times a vector, as for angles that begin with their cosines, neither z nor the gradient
// by the number takes a matrix product.
#pragma once

#include "common/gpu_copy.h"
#include "common/gpu_unroll.h"
#include "message/gpu_prefetch.h"
#include "message/gpu_tensor.h"

namespace mdops::gpu_message {

constexpr int kGroupEights = 8;  // for wider rows, weights and rows of Q do not fit into shared memory

constexpr int kFewestGroupWarps = 8;

// The last seconds of a group may go a few at a time with several firsts, instead of 16 with one. With the
// edges of atoms in water, a warp then has an eighth fewer steps backward, and a fourteenth fewer forward.
__host__ __device__ constexpr int seconds_of_few(Pass pass) {
  return pass == Pass::backward ? 4 : 8;
}
constexpr int kFirstsOfFew = 4;  // in a step

// The most warps of a block, which sets how many registers they have.
__host__ __device__ constexpr int most_group_warps(Pass pass, int eights, bool outer) {
  if (outer) return 16;
  return pass == Pass::forward || (pass == Pass::backward && eights <= 4) ? 12 : 8;
}
// Firsts that a warp has at once: with gradients by x for two, registers would suffice for only eight warps.
__host__ __device__ constexpr int firsts_at_once(Pass pass, int eights) {
  return pass == Pass::forward && eights <= 4 ? 2 : 1;
}

// Shared memory, in numbers. A block has the weights, followed by their transpose in backward passes, and the
// scales. A warp has rows of Q, of gradients by Q, and of u_Q, for 16 seconds each. For each first it also
// has prefetched data: 16 rows of x, and two small buffers of P, u_P, the gradient by sums, and two weights
// of each of 16 rows. Where x is a number times a vector, a block has the vector after the scales, and its
// product with the weights before them; the rows' numbers are in the small buffers.
struct GroupShared {
  int weights, q, rows, small, firsts, of_scales;

  __host__ __device__ GroupShared(Pass pass, int inputs, int columns, int sent, bool outer)
      : weights(outer ? columns : inputs * columns * (pass == Pass::forward ? 1 : 2)),
        q(16 * columns *
          (pass == Pass::forward    ? 1
           : pass == Pass::backward ? 2
                                    : 3)),
        rows(outer ? 0 : 16 * inputs),
        small((pass == Pass::second ? 2 : 1) * (columns + 16) + (pass == Pass::forward ? 0 : sent) +
              (outer ? 3 : 2) * 16),
        firsts(firsts_at_once(pass, inputs / 8)),
        of_scales(outer ? 2 * inputs : inputs) {}
  __host__ __device__ int of_block() const { return weights + of_scales; }
  __host__ __device__ int of_warp() const { return q + firsts * (rows + 2 * small); }
  int64_t bytes(int warps) const { return 4 * (of_block() + int64_t{warps} * of_warp()); }
};

// A power of two for products of two numbers of at most these sizes in all lanes, and a function's slope, at
// most 1.13. It also keeps the first of the two finite.
MDOPS_D Power power_of(unsigned largest_a, unsigned largest_b) {
  const int a = static_cast<int>(largest_a >> 23), b = static_cast<int>(largest_b >> 23);
  const int power = max(min(min(kLargest + 253 - a - b, 253 - a), 100), -100);
  const float scale = __int_as_float((max(a, b) < 255 ? power + 127 : 127) << 23);
  return {scale, inverse_power(scale)};
}

template <int kEights, Pass pass, Way way, bool kOuter>
class GroupTeam {
  static_assert(!kOuter || pass != Pass::second);
  static constexpr int kInputs = 8 * kEights, kSixteens = kEights / 2, kFours = kInputs / 4;
  static constexpr int kFirsts = firsts_at_once(pass, kEights), kParts = parts_of(way);
  static constexpr bool kIsSecond = pass == Pass::second, kIsForward = pass == Pass::forward;
  // Whether h is scaled, and whether its power of two is known beforehand.
  static constexpr bool kHasPower = !kIsForward && !kOuter;
  static constexpr bool kKnowsPower = kHasPower && pass == Pass::backward;
  // For few seconds: seconds of a step, and firsts of 16 rows.
  static constexpr int kFew = seconds_of_few(pass), kFewFirsts = 16 / kFew;
  static constexpr bool kTakesFew = !kIsSecond && kFirsts * kFewFirsts == kFirstsOfFew;

 public:
  __device__ GroupTeam(const MessageArgs<float>& args, const Memory<float>& memory, float weight_inverse,
                       int team)
      : args_(args),
        memory_(memory),
        all_(static_cast<int>(args.columns())),
        sent_(static_cast<int>(args.sent)),
        team_(team),
        member_(threadIdx.x / kWarp % team),
        weight_inverse_(weight_inverse),
        threshold_(threshold_of(args)),
        writes_z_(!kIsForward && (args.by_z || memory.dz || memory.of_scales)),
        shared_(pass, kInputs, all_, sent_, kOuter) {
    float* const of_block = reinterpret_cast<float*>(net_memory());
    weight_ = reinterpret_cast<const uint4*>(of_block) + lane_index();
    transposed_ = weight_ + kInputs * all_ / 4;
    product_ = of_block + 4 * (lane_index() % 4);
    scales_ = of_block + shared_.weights + 4 * (lane_index() % 4);
    q_ = reinterpret_cast<float4*>(of_block + shared_.of_block() + threadIdx.x / kWarp * shared_.of_warp()) +
         lane_index();
    x_ = reinterpret_cast<float*>(q_ - lane_index()) + shared_.q;
    by_q_ = q_ + all_ / 16 * 2 * kWarp;
    small_ = x_ + kFirsts * shared_.rows;
    if constexpr (kKnowsPower) {
      unsigned largest = 0;
      for (int k = lane_index(); k < args.kept; k += kWarp)
        largest = max(largest, size_of(of_block[shared_.weights + k]));
      scale_size_ = warp_largest(largest);
    }
  }

  // Fills the block's shared memory. Returns the inverse of the weights' power of two.
  __device__ static float place_weights(const MessageArgs<float>& args) {
    const Columns columns{0, static_cast<int>(args.columns())};
    float* const to = reinterpret_cast<float*>(net_memory());
    float* const scales = to + GroupShared(pass, kInputs, columns.end, 0, kOuter).weights;
    for (int k = threadIdx.x; k < args.kept; k += blockDim.x) scales[k] = args.scale[k];
    if constexpr (!kOuter) return TensorTeam<kEights, pass, way, false>::place_weights(args, columns);
    for (int k = threadIdx.x; k < columns.end; k += blockDim.x) to[k] = args.weight[k];
    for (int k = threadIdx.x; k < kInputs; k += blockDim.x) scales[kInputs + k] = args.outer.vector[k];
    __syncthreads();
    return 1.0f;
  }

  __device__ void run(int64_t group) {
    begin_ = args_.group_offsets[group];
    const int end = args_.group_offsets[group + 1];
    if (begin_ == end) return;
    from_ = args_.first_offsets[begin_], size_ = args_.first_offsets[begin_ + 1] - from_;
    if (!is_right(end)) return write(begin_, end, not_a_number<float>());
    last_ = begin_ + size_;
    write(last_, end, 0.0f);
    few_ = kTakesFew ? few_seconds() : 0;
    int second = begin_;
    add_seconds<false>(second);
    if constexpr (kTakesFew) {
      if (few_) add_seconds<true>(second);
    }
  }

 private:
  // A lane's rows of the 16 that each first has with the seconds; with few seconds, rows of a first and of
  // the next ones.
  template <bool is_few>
  struct Rows {
    static constexpr bool kIsFew = is_few;

    int first, second;                                   // the first ones
    float weight[kFirsts][2], along_weight[kFirsts][2];  // zero for missing rows
    float number[kFirsts][2];                            // the same; NaN for a wrong row
    bool is_wrong[kFirsts][2];                           // of another first or second
    bool has_sums;                                       // whether the lane sums columns of a first
    float *by_p, *to_sent;                               // where those of the first 16 go

    // The first and second of the t-th first and the lane's row h.
    MDOPS_D int first_of(int t, int h) const {
      return first + (kIsFew ? kFewFirsts * t + (lane_index() / 4 + 8 * h) / kFew : t);
    }
    MDOPS_D int second_of(int h) const {
      return second + (kIsFew ? lane_index() / 4 % kFew : lane_index() / 4 + 8 * h);
    }
  };

  // The lane's data for sixteen columns in shared memory: of Q and of gradients by Q, of the weights, and of
  // the first's small buffer.
  template <bool is_few>
  struct Place {
    float4 *q, *by_q;
    const uint4 *weight, *transposed;
    const float* small;

    MDOPS_D void go_on(int sixteens) {
      q += 2 * kWarp * sixteens, by_q += 2 * kWarp * sixteens;
      small += (is_few ? 8 * kWarp : 16) * sixteens;
      weight += 2 * kSixteens * kWarp * sixteens, transposed += kEights * kWarp * sixteens;
    }
  };

  // The row of a first and a second: below the firsts' offsets, which have 32 bits.
  MDOPS_D int row_of(int first, int second) const {
    return from_ + (first - begin_) * size_ + second - begin_;
  }
  // A row's numbers from the lane's four on, in an array of `width` columns.
  template <class T>
  MDOPS_D static T* in_row(T* rows, int row, int width) {
    return rows + int64_t{row} * width + 4 * (lane_index() % 4);
  }
  MDOPS_D int row_of(const auto& at, int t, int h) const {
    return row_of(at.first_of(t, h), at.second_of(h));
  }
  MDOPS_D bool is_there(const auto& at, int t, int h) const {
    return at.first_of(t, h) < last_ && at.second_of(h) < last_;
  }

  // How many seconds go a few at a time: those after the last full 16, if that saves steps of a warp. One
  // more step accounts for reading and writing rows of Q.
  MDOPS_D int few_seconds() const {
    const auto over = [](int a, int b) { return (a + b - 1) / b; };
    const int left = size_ % 16, steps = over(left, kFew) * (over(size_, kFirstsOfFew * team_) + 1);
    return steps < over(size_, kFirsts * team_) ? left : 0;
  }

  // Seconds from `second` on: 16 at a time, or the few after these.
  template <bool is_few>
  MDOPS_D void add_seconds(int& second) {
    constexpr int at_once = is_few ? kFew : 16, firsts = is_few ? kFirstsOfFew : kFirsts;
    const int own = begin_ + firsts * member_, step = firsts * team_;
    // Other lanes continue the sums of firsts, and read what was stored.
    if constexpr (is_few && kIsForward) wait();
    // Loads the first step's data; few seconds reuse the memory of the 16 before.
    if (own < last_) ask<is_few>(own, second);
    for (; is_asked<is_few>(second); second += at_once) {
      begin_seconds<is_few>(second);
      for (int f = own; f < last_; f += step) {
        const bool goes_on = f + step < last_;
        add_firsts<is_few>(f, second, goes_on ? f + step : own, goes_on ? second : second + at_once);
      }
      if constexpr (!kIsForward) write_by_q<is_few>(second);
    }
    if constexpr (is_few && kIsForward) __syncwarp();
  }
  // Whether there are steps for these seconds, of 16 or of few.
  template <bool is_few>
  MDOPS_D bool is_asked(int second) const {
    return last_ - second > (is_few ? 0 : few_);
  }

  // Whether the first size_ firsts of the group have size_ rows each, and the others none.
  __device__ bool is_right(int end) const {
    bool right =
        from_ >= 0 && size_ >= 0 && size_ <= end - begin_ && from_ + int64_t{size_} * size_ <= args_.rows;
    for (int f = begin_ + lane_index(); right && f < end; f += kWarp)
      right = args_.first_offsets[f + 1] == from_ + min(f + 1 - begin_, size_) * size_;
    return __all_sync(kAllLanes, right);
  }

  // Writes one value to all results of firsts [begin, end).
  __device__ void write(int64_t begin, int64_t end, float value) const {
    const auto fill = [&](float* to, int64_t width) {
      const int thread = member_ * kWarp + lane_index();
      for (int64_t k = begin * width + thread; k < end * width; k += team_ * kWarp) to[k] = value;
    };
    if (pass != Pass::backward) fill(args_.to_sent, sent_);
    if (pass != Pass::forward) fill(args_.by_p, all_), fill(args_.by_q, all_);
  }

  template <bool is_few>
  __device__ void begin_seconds(int second) {
    constexpr float4 nothing{0.0f, 0.0f, 0.0f, 0.0f};
    // Several at once, as nothing else runs during these reads.
#pragma unroll 4
    for (int n = 0; n < all_ / 16; ++n)
#pragma unroll
      for (int h = 0; h < (is_few ? 1 : 2); ++h) {
        const int row = second + (is_few ? lane_index() / 4 % kFew : lane_index() / 4 + 8 * h);
        const int64_t at = int64_t{row} * all_ + 16 * n + 4 * (lane_index() % 4);
        row_of_q(0, n, h) = row < last_ ? read_four(args_.q + at) : nothing;
        if constexpr (!kIsForward) row_by_q(n, h) = nothing;
        if constexpr (kIsSecond) row_of_q(2, n, h) = row < last_ ? read_four(args_.along_q + at) : nothing;
      }
  }

  // The gradient by Q: sums over the team's warps, in order; for few seconds also over lanes.
  template <bool is_few>
  __device__ void write_by_q(int second) const {
    wait();
    for (int at = member_; at < all_ / (is_few ? 16 : 8); at += team_) {
      const int n = is_few ? at : at / 2, h = is_few ? 0 : at % 2, row = second + lane_index() / 4 + 8 * h;
      const float4* from = &row_by_q(n, h) - member_ * (shared_.of_warp() / 4);
      float4 sum{0.0f, 0.0f, 0.0f, 0.0f};
      if (is_few && lane_index() >= 4 * kFew) continue;
      for (int w = 0; w < team_; ++w, from += shared_.of_warp() / 4)
        for (int lane = 0; lane < (is_few ? kWarp : 1); lane += 4 * kFew) {
          const float4& own = from[lane];
          sum = {sum.x + own.x, sum.y + own.y, sum.z + own.z, sum.w + own.w};
        }
      if (row < last_) write_four(args_.by_q + int64_t{row} * all_ + 16 * n + 4 * (lane_index() % 4), sum);
    }
    wait();
  }

  __device__ void wait() const {
    if (team_ > 1)
      sync_threads(1 + threadIdx.x / kWarp / team_, team_ * kWarp);
    else
      __syncwarp();
  }

  // The lane's four columns of Q (0) or of u_Q (2), for its row h; and between these, of the gradient by Q.
  MDOPS_D float4& row_of_q(int which, int n, int h) const {
    return q_[(2 * (which * (all_ / 16) + n) + h) * kWarp];
  }
  MDOPS_D float4& row_by_q(int n, int h) const { return by_q_[(2 * n + h) * kWarp]; }

  // The place of four of a row's numbers among 16 rows, such that eight lanes that read consecutive rows
  // access different banks.
  MDOPS_D static int place_in_rows(int row, int four) { return 4 * (row * kFours + (four ^ (row % 2 * 4))); }
  MDOPS_D float4 four_of_row(int t, int h, int n) const {
    const int place = place_in_rows(lane_index() / 4 + 8 * h, 4 * n + lane_index() % 4);
    return *reinterpret_cast<const float4*>(x_ + t * shared_.rows + place);
  }

  // Starts loading a step's data, if there is such a step.
  template <bool is_few>
  MDOPS_D void ask(int first, int second) {
    turn_ ^= 1;
    if (!is_asked<is_few>(second)) return;
    if constexpr (is_few)
      ask_for_few(first, second);
    else
      ask_for_firsts(first, second);
  }
  MDOPS_D void ask_for_firsts(int first, int second) {
#pragma unroll
    for (int t = 0; t < kFirsts; ++t) {
      const bool is_first = first + t < last_;
      const int count = is_first ? min(last_ - second, 16) : 0;
      const int f = is_first ? first + t : first, row = row_of(f, second);
      const float* const x = args_.x + int64_t{row} * kInputs + 4 * lane_index();
#pragma unroll
      for (int k = 0; !kOuter && k < 16 * kFours / kWarp; ++k) {
        const int four = k * kWarp + lane_index();
        copy_to_shared<16>(x_ + t * shared_.rows + place_in_rows(four / kFours, four % kFours),
                           x + 4 * kWarp * k, four < count * kFours);
      }
      float* to = small_ + (turn_ * kFirsts + t) * shared_.small;
      const auto all_of = [&](const float* from, int numbers) {
        from += int64_t{f} * numbers + 4 * lane_index();
#pragma unroll 1
        for (int k = 4 * lane_index(); k < numbers; k += 4 * kWarp, from += 4 * kWarp)
          copy_to_shared<16>(to + k, from, true);
        to += numbers;
      };
      all_of(args_.p, all_);
      if constexpr (kIsSecond) all_of(args_.along_p, all_);
      if constexpr (!kIsForward) all_of(args_.grad_sent, sent_);
      const bool there = lane_index() < count;
      if (lane_index() < 16) ask_for_row(to, there ? row + lane_index() : row, there);
    }
  }
  // Loads the single numbers of the lane's row of 16, to `to` and on.
  MDOPS_D void ask_for_row(float* to, int row, bool there) const {
    to += lane_index();
    copy_to_shared<4>(to, args_.row_weight + row, there);
    to += 16;
    if constexpr (kIsSecond || kOuter) {
      copy_to_shared<4>(to, (kOuter ? args_.outer.number : args_.along_row_weight) + row, there);
      to += 16;
    }
    copy_to_shared<4>(to, args_.first + row, there);
    copy_to_shared<4>(to + 16, args_.second + row, there);
    if (!kIsForward && args_.kept && there) prefetch(args_.grad_kept + int64_t{row} * kInputs);
  }
  // The same for few seconds and several firsts. Q and the gradients by Q then take half of their memory:
  // both rows of a lane have one second. The other half holds P and the gradient by sums, for each 16
  // columns; of two steps in turn, or forward of both side by side.
  MDOPS_D void ask_for_few(int first, int second) {
    const int lane = lane_index();
    int row;
    const auto is_row = [&](int of_tile, int k) {  // sets `row`; if missing, to another one
      const int f = first + of_tile + k / kFew;
      const bool there = f < last_ && second + k % kFew < last_;
      row = there ? row_of(f, second + k % kFew) : row_of(first, second);
      return there;
    };
#pragma unroll
    for (int t = 0; t < kFirsts; ++t) {
#pragma unroll
      for (int k = 0; !kOuter && k < 16 * kFours / kWarp; ++k) {
        const int four = k * kWarp + lane;
        const bool there = is_row(kFewFirsts * t, four / kFours);
        copy_to_shared<16>(x_ + t * shared_.rows + place_in_rows(four / kFours, four % kFours),
                           args_.x + int64_t{row} * kInputs + four % kFours * 4, there);
      }
      float* const ends = small_ + (turn_ * kFirsts + t + 1) * shared_.small - (kOuter ? 64 : 48);
      const bool there = is_row(kFewFirsts * t, lane % 16);
      if (lane < 16) ask_for_row(ends, row, there);
    }
    // Eight lanes per first.
    const bool is_first = first + lane / 8 < last_;
    const int f = is_first ? first + lane / 8 : first, column = 4 * (lane % 8);
    float* const to = few() + column / 16 * 8 * kWarp + 16 * (lane / 8) + column % 16;
    const auto all_of = [&](float* to, const float* from, int numbers) {
      from += int64_t{f} * numbers;
#pragma unroll 1
      for (int c = column; c < numbers; c += 32, to += 16 * kWarp) copy_to_shared<16>(to, from + c, is_first);
    };
    all_of(to, args_.p, all_);
    if constexpr (!kIsForward) all_of(to + 16 * kFirstsOfFew, args_.grad_sent, sent_);
  }
  // The step's first number in that half.
  MDOPS_D float* few() const {
    float* const own = reinterpret_cast<float*>((!kIsForward && turn_ ? by_q_ : q_) - lane_index() + kWarp);
    return own + (kIsForward ? turn_ * 16 * kFirstsOfFew : 0);
  }
  MDOPS_D void take_asked() const {
    wait_for_copies();
    __syncwarp();
  }

  // One step: the rows of firsts and seconds; `next_`: those of the next step.
  template <bool is_few>
  MDOPS_D void add_firsts(int first, int second, int next_first, int next_second) {
    Rows<is_few> at;
    at.first = first, at.second = second;
    // Rows of the gradient by x', to which those by x are added.
    float4 kept[kFirsts][kSixteens][2] = {};
    if constexpr (pass == Pass::backward) {
      unrolled<kFirsts, kSixteens, 2>([&](int t, int n, int h) {
        kept[t][n][h] = row_in_memory(args_.kept ? args_.grad_kept : nullptr, at, t, h, n);
      });
    }
    take_asked();
    HalfRows<kSixteens, kParts> x[kFirsts], along[kFirsts];
#pragma unroll
    for (int t = 0; t < kFirsts; ++t)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = lane_index() / 4 + 8 * h;
        const float* const ends = small_ + (turn_ * kFirsts + t + 1) * shared_.small - 32 + row;
        at.weight[t][h] = ends[kIsSecond || kOuter ? -32 : -16];
        at.along_weight[t][h] = kIsSecond ? ends[-16] : 0.0f;
        const bool is_right =
            __float_as_int(ends[0]) == at.first_of(t, h) && __float_as_int(ends[16]) == at.second_of(h);
        at.is_wrong[t][h] = is_there(at, t, h) && !is_right;
        if constexpr (kOuter) at.number[t][h] = at.is_wrong[t][h] ? not_a_number<float>() : ends[-16];
      }
    if constexpr (!kOuter) load_rows(x, at, [&](int t, int h, int n) { return four_of_row(t, h, n); });
    if constexpr (kIsSecond)
      load_rows(along, at, [&](int t, int h, int n) { return row_in_memory(args_.along_x, at, t, h, n); });
    // Sums over the rows of a first, in four columns; for few seconds, a lane has two of these.
    const int which = is_few ? own_sum_of_few() : own_sum<4 * kFirsts>();
    at.has_sums = which >= 0 && first + which / 4 < last_;
    const auto place_of_sums = [&](float* to, int width) {
      return to + int64_t{first + which / 4} * width + 4 * (lane_index() % 4) + which % 4;
    };
    if constexpr (!kIsForward) at.by_p = place_of_sums(args_.by_p, all_);
    if constexpr (pass != Pass::backward) at.to_sent = place_of_sums(args_.to_sent, sent_);
    float by_weight[kFirsts][2] = {}, by_x[kFirsts][kIsForward || kOuter ? 1 : kEights][4] = {};
    const float* const small =
        is_few ? few() + lane_index() / 4 / kFew * 16 : small_ + turn_ * kFirsts * shared_.small;
    const Place<is_few> place{q_, by_q_, weight_, transposed_, small + 4 * (lane_index() % 4)};
    if (args_.kept) {
      Place<is_few> own = place;
      own.go_on(sent_ / 16);
      Power power;
      if constexpr (kKnowsPower) {
        float largest[4] = {};
        unrolled<kFirsts, kSixteens, 2, 4>([&](int t, int n, int h, int k) {
          const float grad = of_four(kept[t][n][h], k);
          by_x[t][2 * n + k / 2][2 * h + k % 2] = grad, largest[k] = max(largest[k], fabsf(grad));
        });
        power = power_of(scale_size_, warp_largest(size_of(largest_of(largest))));
      }
#pragma unroll
      for (int n = 0; n < kSixteens; ++n) {
        float4 rows[kFirsts][2], vector;
        if constexpr (kOuter) vector = *reinterpret_cast<const float4*>(scales_ + kInputs + 16 * n);
        unrolled<kFirsts, 2>([&](int t, int h) {
          if constexpr (kIsForward && kOuter) {
            const float by = at.number[t][h];
            rows[t][h] = {by * vector.x, by * vector.y, by * vector.z, by * vector.w};
          } else if constexpr (kIsForward) {
            rows[t][h] = four_of_row(t, h, n);
          } else {
            rows[t][h] = kIsSecond ? row_in_memory(args_.grad_kept, at, t, h, n) : kept[t][n][h];
          }
          if constexpr (pass == Pass::backward && kOuter) by_x[t][0][h] += dot(rows[t][h], vector);
        });
        add_columns<false>(own, sent_ / 16 + n, n, at, x, along, rows, power, by_weight, by_x);
        own.go_on(1);
      }
    }
    Power power;
    if constexpr (kKnowsPower) {
      power = power_of(largest_weight(at), largest_grad<is_few>());
      unrolled<kFirsts, 2>([&](int t, int h) { at.weight[t][h] *= power.scale; });
    }
    __syncwarp();
    ask<is_few>(next_first, next_second);
    const float4 nothing[kFirsts][2] = {};
    Place<is_few> own = place;
#pragma unroll 1
    for (int n = 0; n < sent_ / 16; ++n, own.go_on(1))
      add_columns<true>(own, n, 0, at, x, along, nothing, power, by_weight, by_x);
    if constexpr (!kIsForward) write_inputs(at, by_x, by_weight);
  }

  // The largest weight of a step's rows, and the largest gradient by its firsts' sums.
  MDOPS_D unsigned largest_weight(const auto& at) const {
    unsigned largest = 0;
    unrolled<kFirsts, 2>([&](int t, int h) { largest = max(largest, size_of(at.weight[t][h])); });
    return warp_largest(largest);
  }
  template <bool is_few>
  MDOPS_D unsigned largest_grad() const {
    unsigned largest = 0;
#pragma unroll
    for (int t = 0; t < kFirsts; ++t) {
      const float* const grads =
          is_few ? few() + 16 * kFirstsOfFew : small_ + (turn_ * kFirsts + t) * shared_.small + all_;
#pragma unroll 1
      for (int k = 4 * lane_index(); k < (is_few ? kFirstsOfFew : 1) * sent_; k += 4 * kWarp) {
        // For few, each 16 columns have 64 numbers.
        const int place = is_few ? k / 64 * 8 * kWarp + k % 64 : k;
        const float4 four = *reinterpret_cast<const float4*>(grads + place);
#pragma unroll
        for (int n = 0; n < 4; ++n) largest = max(largest, size_of(of_four(four, n)));
      }
    }
    return warp_largest(largest);
  }

  // Four columns of a row; zeros if the row is missing or `rows` is null.
  MDOPS_D float4 row_in_memory(const float* rows, const auto& at, int t, int h, int n) const {
    constexpr float4 nothing{0.0f, 0.0f, 0.0f, 0.0f};
    if (!rows || !is_there(at, t, h)) return nothing;
    return read_four(in_row(rows, row_of(at, t, h), kInputs) + 16 * n);
  }

  // Splits rows for products; all have one power of two.
  MDOPS_D void load_rows(HalfRows<kSixteens, kParts> (&to)[kFirsts], const auto& at,
                         const auto& four_at) const {
    float4 rows[kFirsts][2][kSixteens];
    float largest[4] = {};
    unrolled<kFirsts, 2, kSixteens>([&](int t, int h, int n) {
      rows[t][h][n] = four_at(t, h, n);
#pragma unroll
      for (int k = 0; k < 4; ++k) largest[k] = max(largest[k], fabsf(of_four(rows[t][h][n], k)));
    });
    const float scale = scale_of(warp_largest(size_of(largest_of(largest))));
#pragma unroll
    for (int t = 0; t < kFirsts; ++t) {
      to[t].inverse = inverse_power(scale) * weight_inverse_;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float by = at.is_wrong[t][h] ? not_a_number<float>() : scale;
#pragma unroll
        for (int n = 0; n < kSixteens; ++n) {
          const float4& four = rows[t][h][n];
          to[t].set(n, h, by * four.x, by * four.y, by * four.z, by * four.w);
        }
      }
    }
  }

  // Of four maxima found side by side.
  MDOPS_D static float largest_of(const float (&x)[4]) { return max(max(x[0], x[1]), max(x[2], x[3])); }

  MDOPS_D static float dot(const float4& a, const float4& b) {
    return a.x * b.x + a.y * b.y + (a.z * b.z + a.w * b.w);
  }

  // z in the lane's part of 16 columns: p + q + the products. Columns `u` and rows `h` are at 4 u + 2 h and
  // the next.
  MDOPS_D void multiply(float (&z)[kFirsts][8], const HalfRows<kSixteens, kParts> (&rows)[kFirsts],
                        const uint4* weight, const float4 (&p)[kFirsts][2], const float4 (&q)[2]) const {
    float large[kFirsts][2][4] = {}, small[kFirsts][2][4] = {};
    unrolled<kSixteens, 2>([&](int k, int u) {
      const uint4 b = weight[(u * kSixteens + k) * kWarp];
#pragma unroll
      for (int t = 0; t < kFirsts; ++t) multiply_parts(large[t][u], small[t][u], rows[t], k, b);
    });
    unrolled<kFirsts, 2, 4>([&](int t, int u, int k) {
      const int four = 2 * u + k % 2;
      z[t][4 * u + k] = of_four(p[t][k / 2], four) + of_four(q[k / 2], four) +
                        (large[t][u][k] + small[t][u][k]) * rows[t].inverse;
    });
  }

  // Four columns of a small buffer: P (0), u_P (1), or the gradient by sums (the last).
  template <bool is_few>
  MDOPS_D float4 small_four(const Place<is_few>& place, int t, int h, int which) const {
    const int behind = is_few ? 16 * (kFewFirsts * t + 8 * h / kFew + kFirstsOfFew * which)
                              : t * shared_.small + which * all_;
    return *reinterpret_cast<const float4*>(place.small + behind);
  }

  // Sixteen columns: all sent, or all kept, from the kept sixteen `of_kept` on with rows `kept`: x or
  // gradients. In the backward pass `power` is known, and the rows' weights already contain it; h is scaled
  // from where it is computed.
  template <bool kIsSent, bool is_few, int kCount>
  MDOPS_D void add_columns(const Place<is_few>& place, int n, int of_kept, const Rows<is_few>& at,
                           const HalfRows<kSixteens, kParts> (&x)[kFirsts],
                           const HalfRows<kSixteens, kParts> (&along)[kFirsts],
                           const float4 (&kept)[kFirsts][2], Power power, float (&by_weight)[kFirsts][2],
                           float (&by_x)[kFirsts][kCount][4]) {
    constexpr bool is_weighed_last = pass == Pass::backward && kIsSent;
    // factor: the gradient by sums, or the scale of kept columns
    float4 p[kFirsts][2], along_p[kFirsts][2], q[2], along_q[2], factor[kFirsts][2];
    float z[kFirsts][8], v[kFirsts][8];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      q[h] = is_few && h ? q[0] : place.q[h * kWarp];
      if constexpr (kIsSecond) along_q[h] = place.q[(all_ / 16 * 4 + h) * kWarp];
    }
    unrolled<kFirsts, 2>([&](int t, int h) {
      if (h && !is_few) {  // both rows have one first
        p[t][1] = p[t][0], along_p[t][1] = along_p[t][0], factor[t][1] = factor[t][0];
        return;
      }
      p[t][h] = small_four(place, t, h, 0);
      if constexpr (kIsSecond) along_p[t][h] = small_four(place, t, h, 1);
      if constexpr (!kIsSent)
        factor[t][h] = *reinterpret_cast<const float4*>(scales_ + 16 * of_kept);
      else if constexpr (!kIsForward)
        factor[t][h] = small_four(place, t, h, kIsSecond ? 2 : 1);
      if constexpr (kKnowsPower && !kIsSent) factor[t][h] = times(power.scale, factor[t][h]);
    });
    float4 product;
    if constexpr (kOuter) {
      product = *reinterpret_cast<const float4*>(product_ + 16 * n);
      unrolled<kFirsts, 8>([&](int t, int k) {
        const int four = k / 4 * 2 + k % 2, h = k / 2 % 2;
        z[t][k] = of_four(p[t][h], four) + of_four(q[h], four) + at.number[t][h] * of_four(product, four);
      });
    } else {
      multiply(z, x, place.weight, p, q);
    }
    if constexpr (kIsSecond) multiply(v, along, place.weight, along_p, along_q);
    Number<float> numbers[8 * kFirsts];
    unrolled<kFirsts, 8>([&](int t, int k) {
      Number<float>& own = numbers[8 * t + k];
      const int four = k / 4 * 2 + k % 2, h = k / 2 % 2;
      own.z = z[t][k];
      if constexpr (kIsSecond) own.v = v[t][k];
      if constexpr (kIsForward) return;
      own.grad = of_four(factor[t][h], four);
      if constexpr (!is_weighed_last) own.grad *= kIsSent ? at.weight[t][h] : of_four(kept[t][h], four);
      own.extra = kIsSent ? at.along_weight[t][h] * of_four(factor[t][h], four) : 0.0f;
    });
    evaluate_all<pass, way == Way::any>(args_.activation, threshold_, numbers);
    // Sums over a lane's rows, for each first.
    constexpr int of_lane = is_few ? 2 : 1;
    float of_sent[4 * kFirsts * of_lane] = {}, of_p[4 * kFirsts * of_lane] = {};
    unrolled<kFirsts, 2, 4>([&](int t, int h, int four) {
      Number<float>& own = numbers[8 * t + four / 2 * 4 + 2 * h + four % 2];
      const float of_v = kIsSecond ? own.sv : own.y;
      if constexpr (is_weighed_last) own.h *= at.weight[t][h];
      const int place = 4 * (is_few ? 2 * t + h : t) + four;
      of_p[place] = is_few || h == 0 ? own.h : of_p[place] + own.h;
      if constexpr (!kIsSent) return;
      of_sent[place] += at.weight[t][h] * of_v + (kIsSecond ? at.along_weight[t][h] * own.y : 0.0f);
      if constexpr (!kIsForward)
        by_weight[t][h] += is_weighed_last ? own.y_grad : of_four(factor[t][h], four) * of_v;
    });
    if constexpr (!kIsForward) {
      if constexpr (kIsSecond) {
        power = bring_to_size(numbers);
#pragma unroll
        for (float& sum : of_p) sum *= power.scale;
      }
#pragma unroll
      for (int h = 0; h < (is_few ? 1 : 2); ++h) {
        float4& sum = place.by_q[h * kWarp];
        float4 all = sum;
#pragma unroll
        for (int t = 0; t < kFirsts; ++t) {
          const float by = kHasPower ? power.inverse : 1.0f;
          float4 own = four_of(numbers, t, h, [](const auto& a) { return a.h; });
          if constexpr (is_few) {  // both rows have one second
            const float4 more = four_of(numbers, t, 1, [](const auto& a) { return a.h; });
            own = {own.x + more.x, own.y + more.y, own.z + more.z, own.w + more.w};
          }
          // Explicit fma, so that rounding does not depend on other uses of h.
          all = {fmaf(by, own.x, all.x), fmaf(by, own.y, all.y), fmaf(by, own.z, all.z),
                 fmaf(by, own.w, all.w)};
        }
        sum = all;
      }
      if constexpr (kOuter) {
        unrolled<kFirsts, 2>([&](int t, int h) {
          by_x[t][0][h] += dot(four_of(numbers, t, h, [](const auto& a) { return a.h; }), product);
        });
      } else {
        add_to_inputs<kParts>(by_x, numbers, place.transposed, power.inverse * weight_inverse_);
      }
      write_sums(at, at.by_p, n, of_p, power.inverse);
    }
    if constexpr (pass != Pass::backward && kIsSent) write_sums(at, at.to_sent, n, of_sent, 1.0f);
    write_rows<kIsSent>(at, n, of_kept, factor, kept, numbers, power.inverse);
  }

  MDOPS_D static float4 times(float a, const float4& x) { return {a * x.x, a * x.y, a * x.z, a * x.w}; }

  // Adds 16 columns' sums over the seconds, times `by`, to those of the seconds before. A lane has the same
  // column in every step of 16, or of few, so that the order is fixed.
  template <bool is_few, int kCount>
  MDOPS_D void write_sums(const Rows<is_few>& at, float* to, int n, float (&x)[kCount], float by) const {
    float sums[is_few ? 2 : 1];
    if constexpr (is_few)
      sum_over_few(x, sums);
    else
      sums[0] = sum_over_rows(x);
    if (!at.has_sums) return;
#pragma unroll
    for (int k = 0; k < (is_few ? 2 : 1); ++k) {
      const float sum = sums[k] * by;
      if (at.second == begin_)
        to[16 * n + k] = sum;
      else
        atomicAdd(to + 16 * n + k, sum);
    }
  }
  // Sums over the lanes with a first's rows, for four columns of each of a lane's firsts: as in
  // sum_over_rows, half of the numbers goes to the lane that keeps them.
  template <int kCount>
  MDOPS_D static void sum_over_few(float (&x)[kCount], float (&sums)[2]) {
    static_assert(2 * kFew == kCount);
    keep_half<kFew>(x, 4), keep_half<kFew / 2>(x, 8);
    if constexpr (kFew == 8) keep_half<2>(x, 16);
    sums[0] = x[0], sums[1] = x[1];
  }
  template <int kHalf, int kCount>
  MDOPS_D static void keep_half(float (&x)[kCount], int lanes) {
    const bool keeps_last = lane_index() & lanes;
#pragma unroll
    for (int k = 0; k < kHalf; ++k) {
      const float given = keeps_last ? x[k] : x[k + kHalf], kept = keeps_last ? x[k + kHalf] : x[k];
      x[k] = kept + __shfl_xor_sync(kAllLanes, given, lanes);
    }
  }
  // The index of the first of both sums, with four columns per first.
  MDOPS_D static int own_sum_of_few() {
    const int lane = lane_index();
    if constexpr (kFew == 4) return 4 * (lane / 16 + (lane & 4) / 2) + (lane & 8) / 4;
    return 4 * ((lane & 4) / 2 + (lane & 8) / 8) + (lane & 16) / 8;
  }

  // Writes the rows' results in sixteen columns.
  template <bool kIsSent, class Rows>
  MDOPS_D void write_rows(const Rows& at, int n, int of_kept, const float4 (&factor)[kFirsts][2],
                          const float4 (&kept)[kFirsts][2], const Number<float> (&numbers)[8 * kFirsts],
                          float inverse) const {
    if (!(pass != Pass::backward && !kIsSent) && !writes_z_) return;
    unrolled<kFirsts, 2>([&](int t, int h) {
      if (!is_there(at, t, h)) return;
      const auto own = [&](const auto& f) { return four_of(numbers, t, h, f); };
      const int row = row_of(at, t, h);
      if constexpr (!kIsSent) {
        const float4 y = own([](const auto& number) { return kIsSecond ? number.sv : number.y; });
        const int place = 16 * of_kept;
        if constexpr (pass != Pass::backward) {
          const float4 added = kIsSecond ? row_in_memory(args_.along_x, at, t, h, of_kept) : kept[t][h];
          const float4& c = factor[t][h];
          write_four(in_row(args_.to_kept, row, kInputs) + place,
                     {added.x + c.x * y.x, added.y + c.y * y.y, added.z + c.z * y.z, added.w + c.w * y.w});
        }
        const float4& grad = kept[t][h];
        if (!kIsForward && memory_.of_scales)
          write_four(in_row(memory_.of_scales, row, kInputs) + place,
                     {grad.x * y.x, grad.y * y.y, grad.z * y.z, grad.w * y.w});
      }
      if constexpr (kIsForward) return;
      if (args_.by_z)
        write_four(in_row(args_.by_z, row, all_) + 16 * n,
                   times(inverse, own([](const auto& number) { return number.h; })));
      if (kIsSecond && memory_.dz)
        write_four(in_row(memory_.dz, row, all_) + 16 * n, own([](const auto& number) { return number.dz; }));
    });
  }

  // Writes the gradients by x and by the rows' weights.
  template <class Rows, int kCount>
  MDOPS_D void write_inputs(const Rows& at, const float (&by_x)[kFirsts][kCount][4],
                            const float (&by_weight)[kFirsts][2]) const {
    unrolled<kFirsts, 2>([&](int t, int h) {
      const float of_row = quad_sum(by_weight[t][h]);
      if constexpr (kOuter) {
        const float by_number = quad_sum(by_x[t][0][h]);
        if (!is_there(at, t, h) || lane_index() % 4) return;
        const int row = row_of(at, t, h);
        args_.by_row_weight[row] = of_row, args_.outer.by_number[row] = by_number;
        return;
      }
      float4 sums[kOuter ? 1 : kSixteens];
#pragma unroll
      for (int n = 0; n < (kOuter ? 0 : kSixteens); ++n) {
        const float *const a = by_x[t][2 * n] + 2 * h, *const b = by_x[t][2 * n + 1] + 2 * h;
        sums[n] = {a[0], a[1], b[0], b[1]};
      }
      if (!is_there(at, t, h)) return;
      const int row = row_of(at, t, h);
      if (lane_index() % 4 == 0) args_.by_row_weight[row] = of_row;
#pragma unroll
      for (int n = 0; n < (kOuter ? 0 : kSixteens); ++n)
        write_four(in_row(args_.by_x, row, kInputs) + 16 * n, sums[n]);
    });
  }

  const MessageArgs<float>& args_;
  const Memory<float>& memory_;
  const int all_, sent_, team_, member_;
  const float weight_inverse_, threshold_;
  const bool writes_z_;
  const GroupShared shared_;
  const uint4 *weight_, *transposed_;  // the lane's
  float4 *q_, *by_q_;
  const float *product_, *scales_;
  float *x_, *small_;
  unsigned scale_size_ = 0;                         // the largest scale of kept columns
  int turn_ = 1;                                    // of the small buffers
  int begin_ = 0, last_ = 0, from_ = 0, size_ = 0;  // the group's firsts with rows, and its rows
  int few_ = 0;                                     // of its seconds
};

// Whether groups are contiguous, and no first after them has rows.
__device__ inline bool are_groups(const MessageArgs<float>& args) {
  const int64_t last = args.group_offsets[args.groups];
  bool is_right = args.group_offsets[0] == 0 && last >= 0 && last <= args.firsts;
  is_right = is_right && args.first_offsets[last] == args.first_offsets[args.firsts];
  for (int64_t g = threadIdx.x; g < args.groups; g += blockDim.x)
    is_right &= args.group_offsets[g] <= args.group_offsets[g + 1];
  return !__syncthreads_or(!is_right);
}

template <int kEights, Pass pass, Way way, bool kOuter>
__global__ void __launch_bounds__(most_group_warps(pass, kEights, kOuter) * kWarp, 1)
    group_kernel(const __grid_constant__ MessageArgs<float> args,
                 const __grid_constant__ Memory<float> memory, int team) {
  const bool is_right = are_groups(args);
  if (is_right) {
    using Team = GroupTeam<kEights, pass, way, kOuter>;
    const float inverse = Team::place_weights(args);
    Team own(args, memory, inverse, team);
    const int64_t teams = gridDim.x * static_cast<int64_t>(blockDim.x / kWarp / team);
    const int64_t first = blockIdx.x + int64_t{gridDim.x} * (threadIdx.x / kWarp / team);
    for (int64_t g = first; g < args.groups; g += teams) own.run(g);
  }
  // Firsts after the groups have zero sums; with wrong groups all sums are NaN.
  const int64_t begin = is_right ? args.group_offsets[args.groups] : 0;
  const float value = is_right ? 0.0f : not_a_number<float>();
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const auto fill = [&](float* to, int64_t width) {
    for (int64_t k = begin * width + thread; k < args.firsts * width; k += int64_t{gridDim.x} * blockDim.x)
      to[k] = value;
  };
  if (pass != Pass::forward) fill(args.by_p, args.columns()), fill(args.by_q, args.columns());
  if (pass != Pass::backward) fill(args.to_sent, args.sent);
  kOuter ? finish_outer_rows(args) : finish_rows(args, memory);
}

// The warps of a block that fit into shared memory: an even number, or none.
template <int kEights, Pass pass>
int group_warps(const Gpu& gpu, const MessageArgs<float>& args) {
  const bool outer = args.outer.number;
  const GroupShared shared(pass, 8 * kEights, static_cast<int>(args.columns()), static_cast<int>(args.sent),
                           outer);
  int warps = most_group_warps(pass, kEights, outer);
  while (warps > 0 && shared.bytes(warps) > gpu.limits().shared_bytes) warps -= 2;
  return warps;
}

// How many warps share a group: the number with the lowest cost of the turns that all take, plus a third of a
// turn by which groups differ. Warps of a team also wait for each other.
inline int team_of(const MessageArgs<float>& args, int64_t chip, int warps, int firsts) {
  const int64_t size = std::max<int64_t>(1, args.firsts ? blocks_for(args.rows, args.firsts) : 1);
  int best = 1;
  double fewest = 0;
  for (int team = 1; team <= warps; ++team) {
    if (warps % team) continue;
    const int64_t turns = blocks_for(args.groups, chip * (warps / team));
    const int64_t steps = turns * blocks_for(size, firsts * team) + blocks_for(size, 3 * firsts * team);
    const double cost = (team > 1 ? 1.04 : 1.0) * static_cast<double>(steps);
    if (team == 1 || cost < fewest) best = team, fewest = cost;
  }
  return best;
}

template <int kEights, Pass pass, Way way, bool kOuter>
void run_groups(const Gpu& gpu, const MessageArgs<float>& args, const Memory<float>& memory) {
  const int columns = gpu.int32_of("weight", args.columns()), most = group_warps<kEights, pass>(gpu, args);
  const int64_t chip = gpu.limits().multiprocessors;
  const int team = team_of(args, chip, most, firsts_at_once(pass, kEights));
  // Few groups are spread over all multiprocessors.
  const int warps =
      static_cast<int>(std::min<int64_t>(most, team * std::max<int64_t>(1, blocks_for(args.groups, chip))));
  const int64_t blocks = std::clamp<int64_t>(blocks_for(args.groups, warps / team), 1, chip);
  const GroupShared shared(pass, 8 * kEights, columns, static_cast<int>(args.sent), kOuter);
  gpu.launch(group_kernel<kEights, pass, way, kOuter>, blocks, warps * kWarp, shared.bytes(warps), args,
             memory, team);
}

}  // namespace mdops::gpu_message
