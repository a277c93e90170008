// Messages of any width and number type, with products before and after the kernel (cuda.cu). A warp has a
// first, or all warps of a block if firsts are few; rows go one by one, and a lane has a column.
#pragma once

#include "gemm/gpu_memory.h"
#include "message/gpu_number.h"

namespace mdops::gpu_message {

constexpr int kPlainWarps = 4, kPlainBlocks = 8;  // of a block, and per multiprocessor at once
constexpr int kPlainFirsts = 32;                  // from so many per multiprocessor on, a warp has each

// The sums of a warp, one number per column each.
template <class T>
struct PlainSums {
  T *by_p, *sent;

  __device__ PlainSums(int64_t columns, int warp)
      : by_p(reinterpret_cast<T*>(net_memory()) + 2 * warp * columns), sent(by_p + columns) {}
};

// `by_z` holds x W at first; `dz` of the second pass holds u_x W.
template <class T, Pass pass>
class PlainRows {
 public:
  __device__ PlainRows(const MessageArgs<T>& args, const Memory<T>& memory)
      : args_(args), memory_(memory), columns_(args.columns()), own_(columns_, warp_index()) {}

  // The rows of a first that belong to warp `member` of a team. The warps' sums are added in order.
  __device__ void run(int64_t f, int member, int team) {
    const RowsOfFirst<T> rows(args_, f);
    const T nothing = rows.is_wrong ? not_a_number<T>() : T(0);
    for (int64_t c = lane_index(); c < columns_; c += kWarp) own_.by_p[c] = own_.sent[c] = nothing;
    with_activation(args_.activation, [&]<Activation kind>() {
      for (int64_t r = rows.begin + member; r < rows.end; r += team) add_row<kind>(f, r);
    });
    if (team > 1) __syncthreads();
    for (int64_t c = member * kWarp + lane_index(); c < columns_; c += team * kWarp) {
      if (pass != Pass::backward && c < args_.sent)
        args_.to_sent[f * args_.sent + c] = sum_of_team(own_.sent + c, member, team);
      if (pass != Pass::forward) args_.by_p[f * columns_ + c] = sum_of_team(own_.by_p + c, member, team);
    }
    if (team > 1) __syncthreads();
  }

 private:
  static constexpr bool kSecond = pass == Pass::second;

  __device__ T sum_of_team(const T* own, int member, int team) const {
    T sum = 0;
    for (int k = 0; k < team; ++k) sum += own[2 * (k - member) * columns_];
    return sum;
  }

  template <Activation kind>
  MDOPS_D void add_row(int64_t f, int64_t r) {
    const int64_t second = args_.second[r];
    const bool right = is_right(args_, r, f, second), has_second = right && second >= 0;
    const T weight = args_.row_weight[r], along_weight = kSecond ? args_.along_row_weight[r] : T(0);
    T by_weight = 0;
#pragma unroll 2
    for (int64_t c = lane_index(); c < columns_; c += kWarp) {
      const bool is_sent = c < args_.sent;
      const int64_t at = r * columns_ + c, at_first = f * columns_ + c, at_second = second * columns_ + c,
                    kept = r * args_.kept + c - args_.sent;
      const T scale = is_sent ? T(0) : args_.scale[c - args_.sent];
      Number<T> n{};
      n.z = right ? args_.by_z[at] + args_.p[at_first] + (has_second ? args_.q[at_second] : T(0))
                  : not_a_number<T>();
      if constexpr (kSecond)
        n.v = memory_.dz[at] + args_.along_p[at_first] + (has_second ? args_.along_q[at_second] : T(0));
      T grad = 0;
      if (pass != Pass::forward) {
        grad = is_sent ? args_.grad_sent[f * args_.sent + c] : args_.grad_kept[kept];
        n.grad = (is_sent ? weight : scale) * grad;
        n.extra = is_sent ? along_weight * grad : T(0);
      }
      evaluate<pass, kind>(args_.threshold, n);
      const T of_v = kSecond ? n.sv : n.y;
      if (is_sent) {
        own_.sent[c] += weight * of_v + along_weight * n.y;
        by_weight += grad * of_v;
      } else {
        if (pass != Pass::backward)
          args_.to_kept[kept] = (kSecond ? args_.along_x : args_.x)[kept] + scale * of_v;
        if (memory_.of_scales) memory_.of_scales[kept] = grad * of_v;
      }
      if (pass == Pass::forward) continue;
      own_.by_p[c] += n.h, args_.by_z[at] = n.h;
      if constexpr (kSecond) memory_.dz[at] = n.dz;
    }
    if (pass == Pass::forward) return;
    by_weight = warp_sum(by_weight);
    if (lane_index() == 0) args_.by_row_weight[r] = by_weight;
  }

  const MessageArgs<T>& args_;
  const Memory<T>& memory_;
  const int64_t columns_;
  const PlainSums<T> own_;
};

template <class T, Pass pass>
__global__ void __launch_bounds__(kPlainWarps* kWarp, kPlainBlocks)
    plain_kernel(MessageArgs<T> args, Memory<T> memory, int team) {
  const int warp = warp_index(), teams = static_cast<int>(blockDim.x) / kWarp / team;
  PlainRows<T, pass> rows(args, memory);
  for (int64_t f = static_cast<int64_t>(blockIdx.x) * teams + warp / team; f < args.firsts;
       f += static_cast<int64_t>(gridDim.x) * teams)
    rows.run(f, warp % team, team);
  finish_rows(args, memory);
}

template <class T>
void run_plain(const Gpu& gpu, const MessageArgs<T>& args, const Memory<T>& memory) {
  const int64_t bytes = 2 * args.columns() * static_cast<int64_t>(sizeof(T));
  const int warps = kPlainWarps * bytes > gpu.limits().shared_bytes ? 1 : kPlainWarps;
  const int64_t chip = gpu.limits().multiprocessors;
  const int team = args.firsts < chip * kPlainFirsts ? warps : 1;
  const int64_t most = 16 * chip, wanted = blocks_for(args.firsts * team, warps);
  const int64_t blocks = wanted < 1 ? 1 : wanted < most ? wanted : most;
  const auto launch = [&](auto kernel) {
    gpu.launch(kernel, blocks, warps * kWarp, warps * bytes, args, memory, team);
  };
  switch (pass_of(args)) {
    case Pass::forward:
      return launch(plain_kernel<T, Pass::forward>);
    case Pass::backward:
      return launch(plain_kernel<T, Pass::backward>);
    case Pass::second:
      return launch(plain_kernel<T, Pass::second>);
  }
}

}  // namespace mdops::gpu_message
