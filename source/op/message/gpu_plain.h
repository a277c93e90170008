// Messages of any widths and type of number: a warp a first, or the warps of a block where there are few of
// them; eight rows at once, a lane two columns of their products. Numbers of the rows stand in shared memory,
// those of the eight side by side, so that a weight is read once for them all. Functions have a loop over
// rows and columns of their own, whose code fits into the cache of instructions.
#pragma once

#include "gemm/gpu_memory.h"
#include "message/gpu_number.h"

namespace mdops::gpu_message {

constexpr int kPlainWarps = 4, kPlainRows = 8, kPlainColumns = 2;
constexpr int kPlainFirsts = 32;  // so many a multiprocessor and more have a warp each

// Of each row one; room behind them spreads lanes over the banks.
template <class T>
struct alignas(16) PlainNumbers {
  T of[kPlainRows + 16 / sizeof(T)];
};

// What a warp has in shared memory: z, or later h, and v by columns; x and what goes along it by inputs; and
// the sums by P and those sent.
template <class T>
struct PlainShared {
  PlainNumbers<T>*z, *v, *x, *along;
  T *by_p, *sent;

  __device__ PlainShared(const MessageArgs<T>& args, bool is_second, T* from) {
    z = reinterpret_cast<PlainNumbers<T>*>(from);
    x = z + args.columns();
    v = x + args.inputs;
    along = v + (is_second ? args.columns() : 0);
    by_p = reinterpret_cast<T*>(along + (is_second ? args.inputs : 0));
    sent = by_p + args.columns();
  }

  // Of a warp.
  static int64_t bytes(const MessageArgs<T>& args, bool is_second) {
    const int64_t own = (args.columns() + args.inputs) * (is_second ? 2 : 1);
    const int64_t sums = 2 * args.columns() * static_cast<int64_t>(sizeof(T));
    return own * static_cast<int64_t>(sizeof(PlainNumbers<T>)) + blocks_for(sums, 16) * 16;
  }
};

template <class T, Pass pass>
class PlainRows {
 public:
  // `bytes`: of shared memory, from which a warp has them.
  __device__ PlainRows(const MessageArgs<T>& args, const Memory<T>& memory, char* shared, int64_t bytes)
      : args_(args),
        memory_(memory),
        columns_(args.columns()),
        bytes_(bytes),
        own_(args, kSecond, reinterpret_cast<T*>(shared)) {}

  // The rows of a first, of which other warps have their own: this is the `member`-th of `team`, which stand
  // side by side in shared memory and add their sums up in that order.
  __device__ void run(int64_t f, int member, int team) {
    const RowsOfFirst<T> rows(args_, f);
    const T nothing = rows.is_wrong ? not_a_number<T>() : T(0);
    for (int64_t c = lane_index(); c < columns_; c += kWarp) own_.by_p[c] = own_.sent[c] = nothing;
    for (int64_t r = rows.begin + member * kPlainRows; r < rows.end; r += team * kPlainRows)
      add_rows(f, r, static_cast<int>(rows.end - r < kPlainRows ? rows.end - r : kPlainRows));
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

  __device__ void add_rows(int64_t f, int64_t first, int count) {
    const T* const x = args_.x + first * args_.inputs;
    place(x, count, own_.x);
    if constexpr (kSecond) place(args_.along_x + first * args_.inputs, count, own_.along);
    __syncwarp();
    multiply(own_.x, args_.inputs, args_.weight, columns_,
             [&](int64_t c, const T(&sums)[kPlainRows]) { keep(sums, own_.z[c]); });
    if constexpr (kSecond)
      multiply(own_.along, args_.inputs, args_.weight, columns_,
               [&](int64_t c, const T(&sums)[kPlainRows]) { keep(sums, own_.v[c]); });
    with_activation(args_.activation, [&]<Activation kind>() {
#pragma unroll 1
      for (int i = 0; i < count; ++i) finish_row<kind>(f, first + i, i);
    });
    __syncwarp();
    if constexpr (pass == Pass::forward) return;
    const T* const through = pass == Pass::backward && args_.kept ? args_.grad_kept : nullptr;
    multiply(own_.z, columns_, memory_.transposed, args_.inputs, [&](int64_t k, const T(&sums)[kPlainRows]) {
#pragma unroll
      for (int i = 0; i < kPlainRows; ++i) {
        const int64_t at = (first + i) * args_.inputs + k;
        if (i < count) args_.by_x[at] = through ? through[at] + sums[i] : sums[i];
      }
    });
    __syncwarp();
  }

  __device__ T sum_of_team(const T* own, int member, int team) const {
    const char* const first = reinterpret_cast<const char*>(own) - member * bytes_;
    T sum = 0;
    for (int k = 0; k < team; ++k) sum += *reinterpret_cast<const T*>(first + k * bytes_);
    return sum;
  }

  // Zeros stand for rows behind the last.
  __device__ void place(const T* x, int count, PlainNumbers<T>* to) const {
    for (int64_t k = lane_index(); k < args_.inputs; k += kWarp) {
      T found[kPlainRows];
#pragma unroll
      for (int i = 0; i < kPlainRows; ++i) found[i] = i < count ? x[i * args_.inputs + k] : T(0);
      keep(found, to[k]);
    }
  }
  static __device__ __forceinline__ void keep(const T (&from)[kPlainRows], PlainNumbers<T>& to) {
    PlainNumbers<T> made;
#pragma unroll
    for (int i = 0; i < kPlainRows; ++i) made.of[i] = from[i];
    to = made;
  }

  // to(c, sums) for each of a lane's columns of the product of the rows with a matrix (depth, width).
  template <class F>
  static __device__ __forceinline__ void multiply(const PlainNumbers<T>* rows, int64_t depth, const T* matrix,
                                                  int64_t width, const F& to) {
    for (int64_t begin = lane_index(); begin < width; begin += kPlainColumns * kWarp) {
      T sums[kPlainColumns][kPlainRows] = {};
      int64_t columns[kPlainColumns];
#pragma unroll
      for (int j = 0; j < kPlainColumns; ++j)
        columns[j] = begin + j * kWarp < width ? begin + j * kWarp : width - 1;
#pragma unroll 8
      for (int64_t k = 0; k < depth; ++k) {
        const PlainNumbers<T> row = rows[k];
#pragma unroll
        for (int j = 0; j < kPlainColumns; ++j) {
          const T weight = matrix[k * width + columns[j]];
#pragma unroll
          for (int i = 0; i < kPlainRows; ++i) sums[j][i] += row.of[i] * weight;
        }
      }
#pragma unroll
      for (int j = 0; j < kPlainColumns; ++j)
        if (begin + j * kWarp < width) to(begin + j * kWarp, sums[j]);
    }
  }

  // Row r, the i-th of eight, after its products.
  template <Activation kind>
  __device__ __forceinline__ void finish_row(int64_t f, int64_t r, int i) {
    const int64_t second = args_.second[r];
    const bool right = is_right(args_, r, f, second), has_second = right && second >= 0;
    const T weight = args_.row_weight[r], along_weight = kSecond ? args_.along_row_weight[r] : T(0);
    T by_weight = 0;
    for (int64_t c = lane_index(); c < columns_; c += kWarp) {
      const bool is_sent = c < args_.sent;
      const int64_t kept = r * args_.kept + c - args_.sent, at_first = f * columns_ + c,
                    at_second = second * columns_ + c;
      const T scale = is_sent ? T(0) : args_.scale[c - args_.sent];
      Number<T> n{};
      n.z = right ? own_.z[c].of[i] + args_.p[at_first] + (has_second ? args_.q[at_second] : T(0))
                  : not_a_number<T>();
      if constexpr (kSecond)
        n.v = own_.v[c].of[i] + args_.along_p[at_first] + (has_second ? args_.along_q[at_second] : T(0));
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
      own_.z[c].of[i] = n.h, own_.by_p[c] += n.h;
      if (args_.by_z) args_.by_z[r * columns_ + c] = n.h;
      if (memory_.dz) memory_.dz[r * columns_ + c] = n.dz;
    }
    if (pass == Pass::forward) return;
    by_weight = warp_sum(by_weight);
    if (lane_index() == 0) args_.by_row_weight[r] = by_weight;
  }

  const MessageArgs<T>& args_;
  const Memory<T>& memory_;
  const int64_t columns_, bytes_;
  const PlainShared<T> own_;
};

template <class T, Pass pass>
__global__ void __launch_bounds__(kPlainWarps* kWarp)
    plain_kernel(MessageArgs<T> args, Memory<T> memory, int64_t bytes_of_warp, int team) {
  const int warp = warp_index(), member = warp % team, teams = static_cast<int>(blockDim.x) / kWarp / team;
  PlainRows<T, pass> rows(args, memory, net_memory() + warp * bytes_of_warp, bytes_of_warp);
  for (int64_t f = static_cast<int64_t>(blockIdx.x) * teams + warp / team; f < args.firsts;
       f += static_cast<int64_t>(gridDim.x) * teams)
    rows.run(f, member, team);
  finish_rows(args, memory);
}

template <class T, Pass pass>
void run_plain(const Gpu& gpu, const MessageArgs<T>& args, const Memory<T>& memory) {
  const int64_t bytes = PlainShared<T>::bytes(args, pass == Pass::second);
  int warps = kPlainWarps;
  while (warps > 1 && warps * bytes > gpu.limits().shared_bytes) warps /= 2;
  const int64_t chip = gpu.limits().multiprocessors;
  const int team = args.firsts < chip * kPlainFirsts ? warps : 1;
  const int64_t most = 16 * chip, wanted = blocks_for(args.firsts * team, warps);
  const int64_t blocks = wanted < 1 ? 1 : wanted < most ? wanted : most;
  gpu.launch(plain_kernel<T, pass>, blocks, warps * kWarp, warps * bytes, args, memory, bytes, team);
}

template <class T>
void run_plain(const Gpu& gpu, const MessageArgs<T>& args, const Memory<T>& memory) {
  switch (pass_of(args)) {
    case Pass::forward:
      return run_plain<T, Pass::forward>(gpu, args, memory);
    case Pass::backward:
      return run_plain<T, Pass::backward>(gpu, args, memory);
    case Pass::second:
      return run_plain<T, Pass::second>(gpu, args, memory);
  }
}

}  // namespace mdops::gpu_message
