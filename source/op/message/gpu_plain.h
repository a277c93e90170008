// Messages of any widths and type of number: a warp a first, a row after the other, a lane a column.
#pragma once

#include "gemm/gpu_memory.h"
#include "message/gpu_number.h"

namespace mdops::gpu_message {

constexpr int kPlainWarps = 4;

// Of a warp, a number a column each: of the row, and sums over the rows.
constexpr int kPlainRows = 3;

template <class T>
class PlainRow {
 public:
  __device__ PlainRow(const MessageArgs<T>& args, const Memory<T>& memory, T* shared)
      : args_(args),
        memory_(memory),
        columns_(args.columns()),
        values_(shared),
        by_p_(shared + columns_),
        sent_(shared + 2 * columns_) {}

  template <Pass pass>
  __device__ void run(int64_t f) {
    const RowsOfFirst<T> rows(args_, f);
    const T nothing = rows.is_wrong ? not_a_number<T>() : T(0);
    for (int64_t c = lane_index(); c < columns_; c += kWarp) by_p_[c] = sent_[c] = nothing;
    for (int64_t r = rows.begin; r < rows.end; ++r) add_row<pass>(f, r);
    for (int64_t c = lane_index(); c < columns_; c += kWarp) {
      if (pass != Pass::backward && c < args_.sent) args_.to_sent[f * args_.sent + c] = sent_[c];
      if (pass != Pass::forward) args_.by_p[f * columns_ + c] = by_p_[c];
    }
  }

 private:
  template <Pass pass>
  __device__ void add_row(int64_t f, int64_t r) {
    const int64_t second = args_.second[r];
    const bool right = is_right(args_, r, f, second);
    const T* const q = right && second >= 0 ? args_.q + second * columns_ : nullptr;
    const T* const along_q = q && pass == Pass::second ? args_.along_q + second * columns_ : nullptr;
    const T weight = args_.row_weight[r];
    const T along_weight = pass == Pass::second ? args_.along_row_weight[r] : T(0);
    T by_weight = 0;
    for (int64_t c = lane_index(); c < columns_; c += kWarp) {
      Number<T> n{};
      n.z =
          right ? product(args_.x, r, c) + args_.p[f * columns_ + c] + (q ? q[c] : T(0)) : not_a_number<T>();
      if (pass == Pass::second)
        n.v = product(args_.along_x, r, c) + args_.along_p[f * columns_ + c] + (along_q ? along_q[c] : T(0));
      const bool is_sent = c < args_.sent;
      const int64_t kept = r * args_.kept + c - args_.sent;
      const T scale = is_sent ? T(0) : args_.scale[c - args_.sent];
      T grad = 0;
      if (pass != Pass::forward) {
        grad = is_sent ? args_.grad_sent[f * args_.sent + c] : args_.grad_kept[kept];
        n.grad = (is_sent ? weight : scale) * grad;
        n.extra = is_sent ? along_weight * grad : T(0);
      }
      with_activation(args_.activation, [&]<Activation kind>() { evaluate<pass, kind>(args_.threshold, n); });
      const T of_v = pass == Pass::second ? n.sv : n.y;
      if (is_sent) {
        sent_[c] += weight * of_v + along_weight * n.y;
        by_weight += grad * of_v;
      } else {
        if (pass != Pass::backward)
          args_.to_kept[kept] = (pass == Pass::second ? args_.along_x : args_.x)[kept] + scale * of_v;
        if (memory_.of_scales) memory_.of_scales[kept] = grad * of_v;
      }
      if (pass == Pass::forward) continue;
      values_[c] = n.h, by_p_[c] += n.h;
      if (args_.by_z) args_.by_z[r * columns_ + c] = n.h;
      if (memory_.dz) memory_.dz[r * columns_ + c] = n.dz;
    }
    if (pass == Pass::forward) return;
    by_weight = warp_sum(by_weight);
    if (lane_index() == 0) args_.by_row_weight[r] = by_weight;
    __syncwarp();
    for (int64_t k = lane_index(); k < args_.inputs; k += kWarp) {
      T sum = 0;
      for (int64_t c = 0; c < columns_; ++c) sum += values_[c] * args_.weight[k * columns_ + c];
      if (pass == Pass::backward && args_.kept) sum += args_.grad_kept[r * args_.kept + k];
      args_.by_x[r * args_.inputs + k] = sum;
    }
    __syncwarp();
  }

  __device__ T product(const T* x, int64_t r, int64_t c) const {
    T sum = 0;
    for (int64_t k = 0; k < args_.inputs; ++k)
      sum += x[r * args_.inputs + k] * args_.weight[k * columns_ + c];
    return sum;
  }

  const MessageArgs<T>& args_;
  const Memory<T>& memory_;
  const int64_t columns_;
  T *values_, *by_p_, *sent_;
};

template <class T, Pass pass>
__global__ void __launch_bounds__(kPlainWarps* kWarp) plain_kernel(MessageArgs<T> args, Memory<T> memory) {
  T* const own = reinterpret_cast<T*>(net_memory()) + threadIdx.x / kWarp * kPlainRows * args.columns();
  PlainRow<T> row(args, memory, own);
  const int64_t warps = static_cast<int64_t>(gridDim.x) * (blockDim.x / kWarp);
  for (int64_t f = static_cast<int64_t>(blockIdx.x) * (blockDim.x / kWarp) + threadIdx.x / kWarp;
       f < args.firsts; f += warps)
    row.template run<pass>(f);
  finish_rows(args, memory);
}

template <class T>
void run_plain(const Gpu& gpu, const MessageArgs<T>& args, const Memory<T>& memory) {
  const int64_t bytes = kPlainRows * args.columns() * static_cast<int64_t>(sizeof(T));
  const int warps = kPlainWarps * bytes > gpu.limits().shared_bytes ? 1 : kPlainWarps;
  const int64_t most = 16 * gpu.limits().multiprocessors, wanted = blocks_for(args.firsts, warps);
  const int64_t blocks = wanted < 1 ? 1 : wanted < most ? wanted : most;
  const auto launch = [&](auto kernel) {
    gpu.launch(kernel, blocks, warps * kWarp, warps * bytes, args, memory);
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
