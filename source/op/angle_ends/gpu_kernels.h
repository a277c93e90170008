// What messages along angles add for their edges, on a GPU: for float32 by the tensor cores, like messages
// (gpu_tensor.h), else a thread per number.
//
// A warp has an atom, and processes 16 of its rows at once. Forward, these stay in registers, and sixteen
// columns at a time are made of them; backward, the gradient by x is summed over the columns in registers.
#pragma once

#include "angle_ends/angle_ends.h"
#include "common/gpu_divide.h"
#include "common/gpu_unroll.h"
#include "message/gpu_tensor.h"

namespace mdops::gpu_angle_ends {

using namespace gpu_message;

constexpr int kThreads = 256, kEndWarps = kThreads / kWarp, kEndBlocks = 2;  // blocks per multiprocessor
constexpr int kAhead = 4;  // sixteens of gradients that a warp prefetches: it is limited by memory

template <class T, class F>
__global__ void __launch_bounds__(kThreads)
    number_kernel(AngleEndsArgs<T> args, int64_t count, int64_t columns, F make) {
  const int64_t k = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (k >= count) return;
  const auto [row, column] = divided(k, columns);
  make(args, row, column);
}

// A warp's 16 rows from `row` on, of which those from `end` on are missing, and an atom's rows.
struct EndRows {
  int64_t row;  // the lane's first one
  bool is_there[2], is_right[2];

  MDOPS_D EndRows(const AngleEndsArgs<float>& args, int64_t atom, int64_t first, int64_t end)
      : row(first + lane_index() / 4) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      is_there[h] = row + 8 * h < end;
      is_right[h] = !is_there[h] || args.index[row + 8 * h] == atom;
    }
  }
  // Four numbers of the lane's row h, from column c on of those of four lanes.
  MDOPS_D float4 four(const float* x, int64_t width, int h, int c) const {
    if (!is_there[h]) return {0.0f, 0.0f, 0.0f, 0.0f};
    return read_four(x + (row + 8 * h) * width + c + 4 * (lane_index() % 4));
  }
  MDOPS_D void write(float* x, int64_t width, int h, int c, float4 four) const {
    if (!is_right[h]) four.x = four.y = four.z = four.w = not_a_number<float>();
    if (is_there[h]) write_four(x + (row + 8 * h) * width + c + 4 * (lane_index() % 4), four);
  }
};

// The rows of an atom; none if its offsets are wrong.
struct AtomRows {
  int64_t begin, end;
  bool is_wrong;

  MDOPS_D AtomRows(const AngleEndsArgs<float>& args, int64_t atom)
      : begin(args.offsets[atom]), end(args.offsets[atom + 1]) {
    is_wrong = begin < 0 || begin > end || end > args.rows;
    if (is_wrong) begin = end = 0;
  }
};

// Copies the weights to shared memory, in the backward pass followed by their transpose; returns the inverse
// of their power.
template <int kEights, Pass pass>
MDOPS_D float place_end_weights(const AngleEndsArgs<float>& args) {
  MessageArgs<float> of_weights{};
  of_weights.weight = args.weight, of_weights.sent = 2 * args.columns;
  return TensorTeam<kEights, pass, Way::silu, false>::place_weights(of_weights,
                                                                    {0, static_cast<int>(2 * args.columns)});
}

// Sets rows after those of the last atom to zero.
template <int kEights>
MDOPS_D void finish_end_rows(const AngleEndsArgs<float>& args) {
  const int64_t last = args.offsets[args.atoms], threads = int64_t{gridDim.x} * kThreads;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const auto fill = [&](float* to, int64_t width) {
    for (int64_t k = max(last, int64_t{0}) * width + thread; to && k < args.rows * width; k += threads)
      to[k] = args.index[k / width] == -1 ? 0.0f : not_a_number<float>();
  };
  fill(args.p, args.columns), fill(args.q, args.columns), fill(args.by_x, 8 * kEights);
}

template <int kEights>
__global__ void __launch_bounds__(kThreads, kEndBlocks)
    end_kernel(const __grid_constant__ AngleEndsArgs<float> args) {
  constexpr int kInputs = 8 * kEights, kSixteens = kEights / 2;
  const float weight_inverse = place_end_weights<kEights, Pass::forward>(args);
  const uint4* const weight = reinterpret_cast<const uint4*>(net_memory()) + lane_index();
  const int columns = static_cast<int>(args.columns), own = 4 * (lane_index() % 4);
  const int64_t warps = int64_t{gridDim.x} * kEndWarps;
  for (int64_t atom = int64_t{blockIdx.x} * kEndWarps + threadIdx.x / kWarp; atom < args.atoms;
       atom += warps) {
    const AtomRows of(args, atom);
    for (int64_t first = of.begin; first < of.end; first += 16) {
      const EndRows rows(args, atom, first, of.end);
      float4 given[2][kSixteens];
      unsigned largest = 0;
      unrolled<2, kSixteens>([&](int h, int n) {
        given[h][n] = rows.four(args.x, kInputs, h, 16 * n);
#pragma unroll
        for (int k = 0; k < 4; ++k) largest = max(largest, size_of(of_four(given[h][n], k)));
      });
      const float scale = scale_of(warp_largest(largest)), inverse = inverse_power(scale) * weight_inverse;
      HalfRows<kSixteens, 2> x;
      unrolled<2, kSixteens>([&](int h, int n) {
        const float4& four = given[h][n];
        x.set(n, h, scale * four.x, scale * four.y, scale * four.z, scale * four.w);
      });
#pragma unroll 2
      for (int n = 0; n < columns / 8; ++n) {
        const bool is_p = 16 * n < columns;
        float4 of_atom{0.0f, 0.0f, 0.0f, 0.0f};
        if (is_p) of_atom = read_four(args.of_atom + atom * columns + 16 * n + own);
        float large[2][4] = {}, small[2][4] = {};
        unrolled<kSixteens, 2>([&](int k, int u) {
          multiply_parts(large[u], small[u], x, k, weight[((2 * n + u) * kSixteens + k) * kWarp]);
        });
        const auto sum = [&](int u, int k) { return (large[u][k] + small[u][k]) * inverse; };
#pragma unroll
        for (int h = 0; h < 2; ++h)
          rows.write(is_p ? args.p : args.q, columns, h, is_p ? 16 * n : 16 * n - columns,
                     {sum(0, 2 * h) + of_atom.x, sum(0, 2 * h + 1) + of_atom.y, sum(1, 2 * h) + of_atom.z,
                      sum(1, 2 * h + 1) + of_atom.w});
      }
    }
  }
  finish_end_rows<kEights>(args);
}

template <int kEights>
__global__ void __launch_bounds__(kThreads, kEndBlocks)
    end_gradient_kernel(const __grid_constant__ AngleEndsArgs<float> args) {
  constexpr int kInputs = 8 * kEights;
  const float weight_inverse = place_end_weights<kEights, Pass::backward>(args);
  const int columns = static_cast<int>(args.columns), sixteens = columns / 8, lane = lane_index();
  const uint4* const transposed =
      reinterpret_cast<const uint4*>(net_memory()) + kInputs * 2 * columns / 4 + lane;
  const int64_t warps = int64_t{gridDim.x} * kEndWarps;
  for (int64_t atom = int64_t{blockIdx.x} * kEndWarps + threadIdx.x / kWarp; atom < args.atoms;
       atom += warps) {
    const AtomRows of(args, atom);
    const float nothing = of.is_wrong ? not_a_number<float>() : 0.0f;
    float* const by_atom = args.by_atom + atom * columns;
    for (int c = lane; of.begin == of.end && c < columns; c += kWarp) by_atom[c] = nothing;
    for (int64_t first = of.begin; first < of.end; first += 16) {
      const EndRows rows(args, atom, first, of.end);
      float by_x[1][kEights][4] = {};
      const auto add_sixteen = [&](const float4(&grads)[2], int n) {
        Number<float> numbers[8];
        float of_atom[4];
        unrolled<2, 4>([&](int h, int k) { numbers[k / 2 * 4 + 2 * h + k % 2].h = of_four(grads[h], k); });
#pragma unroll
        for (int k = 0; k < 4; ++k) of_atom[k] = of_four(grads[0], k) + of_four(grads[1], k);
        const float inverse = bring_to_size(numbers).inverse * weight_inverse;
        add_to_inputs<2>(by_x, numbers, transposed + n * kEights * kWarp, inverse);
        if (16 * n >= columns) return;
        const float sum = sum_over_rows(of_atom);
        const int which = own_sum<4>();
        if (which < 0) return;
        float* const to = by_atom + 16 * n + 4 * (lane % 4) + which;
        // Each lane has its column for all rows, so that their order is fixed.
        if (first == of.begin)
          *to = sum;
        else
          atomicAdd(to, sum);
      };
      float4 ahead[kAhead][2];
      const auto ask = [&](float4(&to)[2], int n) {
        if (n >= sixteens) return;
        const bool is_p = 16 * n < columns;
#pragma unroll
        for (int h = 0; h < 2; ++h)
          to[h] = rows.four(is_p ? args.grad_p : args.grad_q, columns, h, is_p ? 16 * n : 16 * n - columns);
      };
#pragma unroll
      for (int k = 0; k < kAhead; ++k) ask(ahead[k], k);
#pragma unroll 1
      for (int begin = 0; begin < sixteens; begin += kAhead)
#pragma unroll
        for (int k = 0; k < kAhead; ++k) {
          const int n = begin + k;
          if (n >= sixteens) break;
          const float4 now[2] = {ahead[k][0], ahead[k][1]};
          ask(ahead[k], n + kAhead);
          add_sixteen(now, n);
        }
      unrolled<2, kEights / 2>([&](int h, int n) {
        const float *const a = by_x[0][2 * n] + 2 * h, *const b = by_x[0][2 * n + 1] + 2 * h;
        rows.write(args.by_x, kInputs, h, 16 * n, {a[0], a[1], b[0], b[1]});
      });
    }
  }
  finish_end_rows<kEights>(args);
}

template <class T, class F>
void by_numbers(const Gpu& gpu, const AngleEndsArgs<T>& args, int64_t rows, int64_t columns, const F& make) {
  if (rows * columns)
    gpu.launch_for(rows * columns, kThreads, number_kernel<T, F>, args, rows * columns, columns, make);
}

// Calls f.operator()<eights>() if there are tensor-core kernels; returns whether there are.
template <class T, class F>
bool by_tensor_ends(const Gpu& gpu, const AngleEndsArgs<T>& args, Pass pass, const F& f) {
  if constexpr (std::is_same_v<T, float>) {
    const int64_t bytes = 8 * args.inputs * args.columns * (pass == Pass::forward ? 1 : 2);
    const bool is_wide = args.inputs == 32 || args.inputs == 64;
    if (gpu.limits().capability < 80 || !is_wide || args.columns % 16 || !args.columns ||
        bytes > gpu.limits().shared_bytes)
      return false;
    const int64_t blocks = std::clamp<int64_t>(blocks_for(args.atoms, kEndWarps), 1,
                                               int64_t{kEndBlocks} * gpu.limits().multiprocessors);
    const auto run = [&](auto kernel) { gpu.launch(kernel, blocks, kThreads, bytes, args); };
    args.inputs == 32 ? run(f.template operator()<4>()) : run(f.template operator()<8>());
    return true;
  }
  return false;
}

template <class T>
struct MakeEnd {
  __device__ void operator()(const AngleEndsArgs<T>& args, int64_t row, int64_t c) const {
    make_end(args, row, c, not_a_number<T>());
  }
};
template <class T>
struct MakeByX {
  __device__ void operator()(const AngleEndsArgs<T>& args, int64_t row, int64_t k) const {
    make_by_x(args, row, k, not_a_number<T>());
  }
};
template <class T>
struct MakeByAtom {
  __device__ void operator()(const AngleEndsArgs<T>& args, int64_t atom, int64_t c) const {
    make_by_atom(args, atom, c, not_a_number<T>());
  }
};

template <class T>
void run_angle_ends(const Gpu& gpu, const AngleEndsArgs<T>& args) {
  if (!by_tensor_ends(gpu, args, Pass::forward, []<int kEights>() { return end_kernel<kEights>; }))
    by_numbers(gpu, args, args.rows, 2 * args.columns, MakeEnd<T>{});
}

template <class T>
void run_angle_end_gradients(const Gpu& gpu, const AngleEndsArgs<T>& args) {
  if (by_tensor_ends(gpu, args, Pass::backward, []<int kEights>() { return end_gradient_kernel<kEights>; }))
    return;
  by_numbers(gpu, args, args.rows, args.inputs, MakeByX<T>{});
  by_numbers(gpu, args, args.atoms, args.columns, MakeByAtom<T>{});
}

}  // namespace mdops::gpu_angle_ends

namespace mdops {
using gpu_angle_ends::run_angle_end_gradients, gpu_angle_ends::run_angle_ends;
}  // namespace mdops
