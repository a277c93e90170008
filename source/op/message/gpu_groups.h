// Backward passes of messages whose seconds are of the group of their first: a block has a group, and takes
// the sums by Q itself, so that no row of h goes through memory.
//
// A warp has a first, and leaves the h of its rows in shared memory. With all warps' rows there the block
// adds them to the group's sums, one after the other. A bit for each row says which second it has.
#pragma once

#include "message/gpu_tensor.h"

namespace mdops {

namespace gpu_message {

constexpr int kWindow = 128;  // seconds that the bits are of at once

// Shared memory behind that of `TensorShared`: of each warp 16 rows of h, then of each second of a window the
// bits of the rows.
struct GroupShared {
  int row, rows, words;  // numbers in a row of h, with what keeps rows in other banks

  __host__ __device__ GroupShared(int columns, int warps)
      : row(columns + 8), rows(16 * warps), words(warps / 2) {}
  __host__ __device__ int64_t bytes() const { return 4 * (int64_t{rows} * row + kWindow * words); }
};

template <int kEights, Pass pass, bool kAny>
class GroupTeam : TensorTeam<kEights, pass, kAny, true> {
  using Base = TensorTeam<kEights, pass, kAny, true>;
  static constexpr int kRows = 16, kWarps = warps_of(pass, kEights), kWords = kWarps / 2;

 public:
  __device__ GroupTeam(const MessageArgs<float>& args, const Memory<float>& memory, Columns columns)
      : Base(args, memory, columns, 1), shared_(columns.end - columns.begin, kWarps) {
    const TensorShared before(pass, 8 * kEights, columns.end - columns.begin);
    rows_ = reinterpret_cast<float*>(net_memory()) + before.weights + kWarps * before.sums;
    bits_ = reinterpret_cast<unsigned*>(rows_ + shared_.rows * shared_.row);
    this->staged_ = rows_ + threadIdx.x / kWarp * kRows * shared_.row, this->staged_row_ = shared_.row;
    clear();
  }

  __device__ void run_group(int64_t group) {
    this->group_begin_ = this->args_.group_offsets[group],
    this->group_end_ = this->args_.group_offsets[group + 1];
    const int64_t begin = this->group_begin_, end = this->group_end_, all = this->all_;
    for (int64_t k = begin * all + threadIdx.x; k < end * all; k += blockDim.x) this->args_.by_q[k] = 0.0f;
    for (int64_t f = begin + threadIdx.x / kWarp; f - threadIdx.x / kWarp < end; f += kWarps) {
      const bool is_there = f < end;
      const RowsOfFirst<float> rows(this->args_, is_there ? f : begin);
      if (is_there) this->begin_first(f);
      int64_t row = is_there ? rows.begin : rows.end;
      for (;; row += kRows) {
        if (!__syncthreads_or(row < rows.end)) break;
        const int64_t own = row + lane_index();
        const int64_t second = lane_index() < kRows && own < rows.end ? this->args_.second[own] - begin : -1;
        if (row < rows.end) this->add_rows(row, rows.end);
        for (int64_t from = 0; from < end - begin; from += kWindow) add_window(from, second);
        clear();
      }
      if (!is_there) continue;
      __syncwarp();
      this->write_sums(rows.is_wrong);
      __syncwarp();
    }
    __syncthreads();
  }

 private:
  __device__ void clear() const {
    for (int k = threadIdx.x; k < kWindow * kWords; k += blockDim.x) bits_[k] = 0;
  }

  // What all warps' rows have for seconds `from` and so many more of the group; the lane's row has `second`.
  __device__ void add_window(int64_t from, int64_t second) {
    if (from > 0) {
      clear();
      __syncthreads();
    }
    const int row = threadIdx.x / kWarp * kRows + lane_index();
    if (second >= from && second < from + kWindow)
      atomicOr(bits_ + (second - from) * kWords + row / 32, 1u << row % 32);
    __syncthreads();
    const int fours = (this->columns_.end - this->columns_.begin) / 4;
    const int count = static_cast<int>(min(int64_t{kWindow}, this->group_end_ - this->group_begin_ - from));
    float* const sums = this->args_.by_q + (this->group_begin_ + from) * this->all_ + this->columns_.begin;
    for (int at = threadIdx.x; at < count * fours; at += blockDim.x) {
      const int place = at / fours, column = 4 * (at % fours);
      add_second(place, column, reinterpret_cast<float4*>(sums + place * int64_t{this->all_} + column));
    }
    __syncthreads();
  }

  __device__ __forceinline__ void add_second(int place, int column, float4* to) {
    const float4 before = *to;  // asked for at once
    float4 sum{0.0f, 0.0f, 0.0f, 0.0f};
    unsigned any = 0;
#pragma unroll
    for (int word = 0; word < kWords; ++word) {
      unsigned bits = bits_[place * kWords + word];
      any |= bits;
      for (; bits; bits &= bits - 1) {
        const int row = 32 * word + __ffs(bits) - 1;
        const float4 h = *reinterpret_cast<const float4*>(rows_ + row * shared_.row + column);
        sum.x += h.x, sum.y += h.y, sum.z += h.z, sum.w += h.w;
      }
    }
    if (any) *to = {before.x + sum.x, before.y + sum.y, before.z + sum.z, before.w + sum.w};
  }

  const GroupShared shared_;
  float* rows_;
  unsigned* bits_;
};

// Whether groups stand one behind the other, and no first behind them has rows.
__device__ inline bool are_groups(const MessageArgs<float>& args) {
  const int64_t last = args.group_offsets[args.groups];
  bool is_right = args.group_offsets[0] == 0 && last >= 0 && last <= args.firsts;
  is_right = is_right && args.first_offsets[last] == args.first_offsets[args.firsts];
  for (int64_t g = threadIdx.x; g < args.groups; g += blockDim.x)
    is_right &= args.group_offsets[g] <= args.group_offsets[g + 1];
  return !__syncthreads_or(!is_right);
}

template <int kEights, Pass pass, bool kAny>
__global__ void __launch_bounds__(warps_of(pass, kEights) * kWarp, blocks_of(pass, kEights))
    group_kernel(const __grid_constant__ MessageArgs<float> args,
                 const __grid_constant__ Memory<float> memory) {
  const Columns columns{0, static_cast<int>(args.columns())};
  const bool is_right = are_groups(args);
  if (is_right) {
    TensorTeam<kEights, pass, kAny>::place_weights(args, columns);
    __syncthreads();
    GroupTeam<kEights, pass, kAny> own(args, memory, columns);
    for (int64_t g = blockIdx.x; g < args.groups; g += gridDim.x) own.run_group(g);
  }
  // Firsts behind the groups have no sums; where these are wrong, none is a number.
  const int64_t begin = is_right ? args.group_offsets[args.groups] : 0;
  const float value = is_right ? 0.0f : not_a_number<float>();
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const auto fill = [&](float* to, int64_t width) {
    for (int64_t k = begin * width + thread; k < args.firsts * width; k += int64_t{gridDim.x} * blockDim.x)
      to[k] = value;
  };
  fill(args.by_p, args.columns()), fill(args.by_q, args.columns());
  if (pass == Pass::second) fill(args.to_sent, args.sent);
  finish_rows(args, memory);
}

template <int kEights, Pass pass>
int64_t group_bytes(const MessageArgs<float>& args) {
  const int columns = static_cast<int>(args.columns()), warps = warps_of(pass, kEights);
  return TensorShared(pass, 8 * kEights, columns).bytes(warps) + GroupShared(columns, warps).bytes();
}

template <int kEights, Pass pass, bool kAny>
void run_groups(const Gpu& gpu, const MessageArgs<float>& args, const Memory<float>& memory) {
  const int64_t blocks =
      std::clamp<int64_t>(args.groups, 1, gpu.limits().multiprocessors * blocks_of(pass, kEights));
  gpu.launch(group_kernel<kEights, pass, kAny>, blocks, warps_of(pass, kEights) * kWarp,
             group_bytes<kEights, pass>(args), args, memory);
}

}  // namespace gpu_message

}  // namespace mdops
