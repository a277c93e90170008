// Messages of any widths and type of number: a warp a first, eight of its rows at once, a lane two columns.
// Numbers of the rows stand in shared memory, those of the eight side by side, so that a weight is read once
// for them all.
#pragma once

#include "gemm/gpu_memory.h"
#include "message/gpu_number.h"

namespace mdops::gpu_message {

constexpr int kPlainWarps = 4, kPlainRows = 8, kPlainColumns = 2;

template <class T>
struct alignas(16) PlainNumbers {
  T of[kPlainRows];
};

// What a warp has in shared memory: h by columns, x and what goes along it by inputs, and the sums by P and
// those sent.
template <class T>
struct PlainShared {
  PlainNumbers<T>*h, *x, *along;
  T *by_p, *sent;

  __device__ PlainShared(const MessageArgs<T>& args, Pass pass, T* from) {
    h = reinterpret_cast<PlainNumbers<T>*>(from);
    x = h + (pass == Pass::forward ? 0 : args.columns());
    along = x + args.inputs;
    by_p = reinterpret_cast<T*>(along + (pass == Pass::second ? args.inputs : 0));
    sent = by_p + args.columns();
  }

  static int64_t numbers(const MessageArgs<T>& args, Pass pass) {
    const int64_t of_inputs = args.inputs * (pass == Pass::second ? 2 : 1);
    const int64_t of_columns = pass == Pass::forward ? 0 : args.columns();
    return kPlainRows * (of_inputs + of_columns + blocks_for(2 * args.columns(), kPlainRows));
  }
};

template <class T, Pass pass>
class PlainRows {
 public:
  __device__ PlainRows(const MessageArgs<T>& args, const Memory<T>& memory, T* shared)
      : args_(args), memory_(memory), columns_(args.columns()), own_(args, pass, shared) {}

  __device__ void run(int64_t f) {
    const RowsOfFirst<T> rows(args_, f);
    const T nothing = rows.is_wrong ? not_a_number<T>() : T(0);
    for (int64_t c = lane_index(); c < columns_; c += kWarp) own_.by_p[c] = own_.sent[c] = nothing;
    for (int64_t r = rows.begin; r < rows.end; r += kPlainRows) {
      f_ = f, first_ = r;
      count_ = static_cast<int>(rows.end - r < kPlainRows ? rows.end - r : kPlainRows);
      add_rows();
    }
    for (int64_t c = lane_index(); c < columns_; c += kWarp) {
      if (pass != Pass::backward && c < args_.sent) args_.to_sent[f * args_.sent + c] = own_.sent[c];
      if (pass != Pass::forward) args_.by_p[f * columns_ + c] = own_.by_p[c];
    }
  }

 private:
  using Sums = T[kPlainColumns][kPlainRows];

  __device__ void add_rows() {
    place(args_.x, own_.x);
    if constexpr (pass == Pass::second) place(args_.along_x, own_.along);
    __syncwarp();
    T by_weight[kPlainRows] = {};
    for (int64_t begin = 0; begin < columns_; begin += kPlainColumns * kWarp) {
      Sums z = {}, v = {};
      multiply(own_.x, args_.inputs, args_.weight, columns_, begin, z);
      if constexpr (pass == Pass::second)
        multiply(own_.along, args_.inputs, args_.weight, columns_, begin, v);
#pragma unroll
      for (int j = 0; j < kPlainColumns; ++j) {
        const int64_t c = begin + j * kWarp + lane_index();
        if (c < columns_) finish_column(c, z[j], v[j], by_weight);
      }
    }
    if constexpr (pass == Pass::forward) {
      __syncwarp();
      return;
    }
#pragma unroll
    for (int i = 0; i < kPlainRows; ++i) {
      const T sum = warp_sum(by_weight[i]);
      if (i < count_ && lane_index() == 0) args_.by_row_weight[first_ + i] = sum;
    }
    __syncwarp();
    for (int64_t begin = 0; begin < args_.inputs; begin += kPlainColumns * kWarp) {
      Sums by_x = {};
      multiply(own_.h, columns_, memory_.transposed, args_.inputs, begin, by_x);
#pragma unroll
      for (int j = 0; j < kPlainColumns; ++j) {
        const int64_t k = begin + j * kWarp + lane_index();
#pragma unroll
        for (int i = 0; i < kPlainRows; ++i) {
          const int64_t at = (first_ + i) * args_.inputs + k;
          if (i >= count_ || k >= args_.inputs) continue;
          args_.by_x[at] =
              pass == Pass::backward && args_.kept ? args_.grad_kept[at] + by_x[j][i] : by_x[j][i];
        }
      }
    }
    __syncwarp();
  }

  // Zeros stand for rows behind the last.
  __device__ void place(const T* x, PlainNumbers<T>* to) const {
    for (int64_t k = lane_index(); k < args_.inputs; k += kWarp) {
      PlainNumbers<T> found;
#pragma unroll
      for (int i = 0; i < kPlainRows; ++i)
        found.of[i] = i < count_ ? x[(first_ + i) * args_.inputs + k] : T(0);
      to[k] = found;
    }
  }

  // Products of the rows with a lane's columns of a matrix (depth, width).
  static __device__ void multiply(const PlainNumbers<T>* rows, int64_t depth, const T* matrix, int64_t width,
                                  int64_t begin, Sums& sums) {
    const T* of[kPlainColumns];
#pragma unroll
    for (int j = 0; j < kPlainColumns; ++j) {
      const int64_t c = begin + j * kWarp + lane_index();
      of[j] = matrix + (c < width ? c : width - 1);
    }
    for (int64_t k = 0; k < depth; ++k) {
      const PlainNumbers<T> row = rows[k];
#pragma unroll
      for (int j = 0; j < kPlainColumns; ++j) {
        const T weight = of[j][k * width];
#pragma unroll
        for (int i = 0; i < kPlainRows; ++i) sums[j][i] += row.of[i] * weight;
      }
    }
  }

  // What is made of a column of the products.
  __device__ void finish_column(int64_t c, const T (&z)[kPlainRows], const T (&v)[kPlainRows],
                                T (&by_weight)[kPlainRows]) {
    const bool is_sent = c < args_.sent;
    const T scale = is_sent ? T(0) : args_.scale[c - args_.sent];
    const T p = args_.p[f_ * columns_ + c];
    const T along_p = pass == Pass::second ? args_.along_p[f_ * columns_ + c] : T(0);
    T sent = own_.sent[c], by_p = own_.by_p[c];
    PlainNumbers<T> h{};
#pragma unroll
    for (int i = 0; i < kPlainRows; ++i) {
      if (i >= count_) continue;
      const int64_t r = first_ + i, second = args_.second[r], kept = r * args_.kept + c - args_.sent;
      const bool right = is_right(args_, r, f_, second), has_second = right && second >= 0;
      const T weight = args_.row_weight[r];
      const T along_weight = pass == Pass::second ? args_.along_row_weight[r] : T(0);
      Number<T> n{};
      n.z = right ? z[i] + p + (has_second ? args_.q[second * columns_ + c] : T(0)) : not_a_number<T>();
      if (pass == Pass::second)
        n.v = v[i] + along_p + (has_second ? args_.along_q[second * columns_ + c] : T(0));
      T grad = 0;
      if (pass != Pass::forward) {
        grad = is_sent ? args_.grad_sent[f_ * args_.sent + c] : args_.grad_kept[kept];
        n.grad = (is_sent ? weight : scale) * grad;
        n.extra = is_sent ? along_weight * grad : T(0);
      }
      with_activation(args_.activation, [&]<Activation kind>() { evaluate<pass, kind>(args_.threshold, n); });
      const T of_v = pass == Pass::second ? n.sv : n.y;
      if (is_sent) {
        sent += weight * of_v + along_weight * n.y;
        by_weight[i] += grad * of_v;
      } else {
        if (pass != Pass::backward)
          args_.to_kept[kept] = (pass == Pass::second ? args_.along_x : args_.x)[kept] + scale * of_v;
        if (memory_.of_scales) memory_.of_scales[kept] = grad * of_v;
      }
      if (pass == Pass::forward) continue;
      h.of[i] = n.h, by_p += n.h;
      if (args_.by_z) args_.by_z[r * columns_ + c] = n.h;
      if (memory_.dz) memory_.dz[r * columns_ + c] = n.dz;
    }
    own_.sent[c] = sent;
    if (pass == Pass::forward) return;
    own_.by_p[c] = by_p, own_.h[c] = h;
  }

  const MessageArgs<T>& args_;
  const Memory<T>& memory_;
  const int64_t columns_;
  const PlainShared<T> own_;
  int64_t f_ = 0, first_ = 0;
  int count_ = 0;
};

template <class T, Pass pass>
__global__ void __launch_bounds__(kPlainWarps* kWarp)
    plain_kernel(MessageArgs<T> args, Memory<T> memory, int64_t numbers) {
  T* const own = reinterpret_cast<T*>(net_memory()) + threadIdx.x / kWarp * numbers;
  PlainRows<T, pass> rows(args, memory, own);
  const int64_t warps = static_cast<int64_t>(gridDim.x) * (blockDim.x / kWarp);
  for (int64_t f = static_cast<int64_t>(blockIdx.x) * (blockDim.x / kWarp) + threadIdx.x / kWarp;
       f < args.firsts; f += warps)
    rows.run(f);
  finish_rows(args, memory);
}

template <class T, Pass pass>
void run_plain(const Gpu& gpu, const MessageArgs<T>& args, const Memory<T>& memory) {
  const int64_t numbers = PlainShared<T>::numbers(args, pass), bytes = numbers * sizeof(T);
  int warps = kPlainWarps;
  while (warps > 1 && warps * bytes > gpu.limits().shared_bytes) warps /= 2;
  const int64_t most = 16 * gpu.limits().multiprocessors, wanted = blocks_for(args.firsts, warps);
  const int64_t blocks = wanted < 1 ? 1 : wanted < most ? wanted : most;
  gpu.launch(plain_kernel<T, pass>, blocks, warps * kWarp, warps * bytes, args, memory, numbers);
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
