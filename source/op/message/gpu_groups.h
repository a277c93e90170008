// Messages whose rows lie between all pairs of a group's things, as angles do between an atom's edges: a team
// of warps has a group.
//
// A warp takes 16 seconds for one first after the other. So it reads their rows of Q once, and sums up what
// is by Q: each lane has its columns of both in shared memory, where no other lane looks. No row of h goes
// through memory, and warps wait for each other only where several have a group.
#pragma once

#include "message/gpu_tensor.h"

namespace mdops {

namespace gpu_message {

constexpr int kGroupEights = 8;  // of wider rows weights and rows of Q do not fit into shared memory

constexpr int kFewestGroupWarps = 8;

// Warps of a block at most: what registers they have follows.
__host__ __device__ constexpr int most_group_warps(Pass pass, int eights) {
  if (pass == Pass::forward) return 12;
  return pass == Pass::backward && eights <= 4 ? 12 : 8;
}

template <int kEights, Pass pass, bool kAny>
class GroupTeam : TensorTeam<kEights, pass, kAny, true> {
  using Base = TensorTeam<kEights, pass, kAny, true>;

 public:
  __device__ GroupTeam(const MessageArgs<float>& args, const Memory<float>& memory, Columns columns,
                       float weight_inverse, int team)
      : Base(args, memory, columns, weight_inverse, 1), team_(team), member_(threadIdx.x / kWarp % team) {}

  __device__ void run(int64_t group) {
    const int64_t begin = this->args_.group_offsets[group], end = this->args_.group_offsets[group + 1];
    if (begin == end) return;
    const int64_t from = this->args_.first_offsets[begin], size = this->args_.first_offsets[begin + 1] - from;
    if (!is_right(begin, end, from, size)) return write(begin, end, not_a_number<float>());
    write(begin + size, end, 0.0f);
    // What a step needs is asked for during the step before.
    const int64_t last = begin + size;
    const auto ask = [&](int64_t f, int64_t second, int asked) {
      const int64_t row = from + (f - begin) * size + second - begin;
      this->ask(f, row, static_cast<int>(min(last - second, int64_t{16})), asked);
    };
    int asked = 0;
    if (begin + member_ < last) ask(begin + member_, begin, asked);
    for (int64_t second = begin; second < last; second += 16) {
      begin_seconds(second, last);
      for (int64_t f = begin + member_; f < last; f += team_, asked ^= 1) {
        const int64_t rows = from + (f - begin) * size;
        this->take_asked(asked);
        this->begin_first(f, second > begin);
        this->add_rows(rows + second - begin, rows + size, [&] {
          __syncwarp();
          if (f + team_ < last)
            ask(f + team_, second, asked ^ 1);
          else if (second + 16 < last)
            ask(begin + member_, second + 16, asked ^ 1);
        });
        __syncwarp();
        this->write_sums(false);
        __syncwarp();
      }
      if (pass != Pass::forward) write_by_q(second, last);
    }
  }

 private:
  // Whether the group's firsts, so many as the first one has rows, have as many each, and the others none.
  __device__ bool is_right(int64_t begin, int64_t end, int64_t from, int64_t size) const {
    bool right = from >= 0 && size >= 0 && size <= end - begin && from + size * size <= this->args_.rows;
    for (int64_t f = begin + lane_index(); right && f < end; f += kWarp)
      right = this->args_.first_offsets[f + 1] == from + min(f + 1 - begin, size) * size;
    return __all_sync(kAllLanes, right);
  }

  // The same number for all that firsts [begin, end) have.
  __device__ void write(int64_t begin, int64_t end, float value) const {
    const auto fill = [&](float* to, int64_t width) {
      const int thread = member_ * kWarp + lane_index();
      for (int64_t k = begin * width + thread; k < end * width; k += team_ * kWarp) to[k] = value;
    };
    if (pass != Pass::backward) fill(this->args_.to_sent, this->sent_);
    if (pass != Pass::forward) fill(this->args_.by_p, this->all_), fill(this->args_.by_q, this->all_);
  }

  __device__ void begin_seconds(int64_t second, int64_t end) {
    this->second_ = second;
    constexpr float4 nothing{0.0f, 0.0f, 0.0f, 0.0f};
    for (int n = 0; n < this->columns_.sixteens(); ++n)
      for (int h = 0; h < 2; ++h) {
        const int64_t row = second + lane_index() / 4 + 8 * h;
        const int64_t at = row * this->all_ + 16 * n + 4 * (lane_index() % 4);
        this->row_of_q(0, n, h) = row < end ? read_four(this->args_.q + at) : nothing;
        if constexpr (pass != Pass::forward) this->row_of_q(1, n, h) = nothing;
        if constexpr (pass == Pass::second)
          this->row_of_q(2, n, h) = row < end ? read_four(this->args_.along_q + at) : nothing;
      }
  }

  // What is by Q: the sums of the team's warps, one after the other.
  __device__ void write_by_q(int64_t second, int64_t end) const {
    wait();
    for (int at = member_; at < 2 * this->columns_.sixteens(); at += team_) {
      const int n = at / 2, h = at % 2;
      const int64_t row = second + lane_index() / 4 + 8 * h;
      const float4* from = &this->row_of_q(1, n, h) - member_ * (this->of_warp_ / 4);
      float4 sum{0.0f, 0.0f, 0.0f, 0.0f};
      for (int w = 0; w < team_; ++w, from += this->of_warp_ / 4)
        sum = {sum.x + from->x, sum.y + from->y, sum.z + from->z, sum.w + from->w};
      if (row < end) write_four(this->args_.by_q + row * this->all_ + 16 * n + 4 * (lane_index() % 4), sum);
    }
    wait();
  }

  __device__ void wait() const {
    if (team_ > 1) sync_threads(1 + threadIdx.x / kWarp / team_, team_ * kWarp);
  }

  const int team_, member_;
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
__global__ void __launch_bounds__(most_group_warps(pass, kEights) * kWarp, 1)
    group_kernel(const __grid_constant__ MessageArgs<float> args,
                 const __grid_constant__ Memory<float> memory, int team) {
  const Columns columns{0, static_cast<int>(args.columns())};
  const bool is_right = are_groups(args);
  if (is_right) {
    const float inverse = TensorTeam<kEights, pass, kAny, true>::place_weights(args, columns);
    GroupTeam<kEights, pass, kAny> own(args, memory, columns, inverse, team);
    const int64_t teams = gridDim.x * static_cast<int64_t>(blockDim.x / kWarp / team);
    const int64_t first = blockIdx.x + int64_t{gridDim.x} * (threadIdx.x / kWarp / team);
    for (int64_t g = first; g < args.groups; g += teams) own.run(g);
  }
  // Firsts behind the groups have no sums; where these are wrong, none is a number.
  const int64_t begin = is_right ? args.group_offsets[args.groups] : 0;
  const float value = is_right ? 0.0f : not_a_number<float>();
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const auto fill = [&](float* to, int64_t width) {
    for (int64_t k = begin * width + thread; k < args.firsts * width; k += int64_t{gridDim.x} * blockDim.x)
      to[k] = value;
  };
  if (pass != Pass::forward) fill(args.by_p, args.columns()), fill(args.by_q, args.columns());
  if (pass != Pass::backward) fill(args.to_sent, args.sent);
  finish_rows(args, memory);
}

// Warps of a block, for which there is shared memory: an even number, or none.
template <int kEights, Pass pass>
int group_warps(const Gpu& gpu, const MessageArgs<float>& args) {
  const TensorShared shared(pass, 8 * kEights, static_cast<int>(args.columns()), true);
  int warps = most_group_warps(pass, kEights);
  while (warps > 0 && shared.bytes(warps) > gpu.limits().shared_bytes) warps -= 2;
  return warps;
}

template <int kEights, Pass pass, bool kAny>
void run_groups(const Gpu& gpu, const MessageArgs<float>& args, const Memory<float>& memory) {
  const int columns = gpu.int32_of("weight", args.columns()), warps = group_warps<kEights, pass>(gpu, args);
  const int64_t chip = gpu.limits().multiprocessors;
  // As many warps have a group as it takes for two turns of all.
  int team = 1;
  while (team < warps && (warps % team || args.groups * team < 2 * chip * warps)) ++team;
  const int64_t blocks = std::clamp<int64_t>(blocks_for(args.groups, warps / team), 1, chip);
  gpu.launch(group_kernel<kEights, pass, kAny>, blocks, warps * kWarp,
             TensorShared(pass, 8 * kEights, columns, true).bytes(warps), args, memory, team);
}

}  // namespace gpu_message

}  // namespace mdops
