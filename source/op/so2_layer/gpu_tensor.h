// Layers of float32 by the tensor cores, to float32's accuracy (common/gpu_tf32.h), of 32 channels.
//
// A warp takes 16 edges at once. The rows of m = 0 stand in registers, in two parts of TF32 each, then those
// of both m = -1 and m = 1, for which U and V are read once. The weights lie in shared memory once, in
// float32, and are cut into two parts as they are read: so there is room for all, and the transposed products
// read them, too. Rows of weights are four numbers apart beyond a multiple of 32, so that a product's reads
// meet in no bank.
//
// What a lane has of z is what it has of x: so factors and their gradients stay with the lane, in its own
// places of shared memory.
//
// Tensor cores round sums towards zero: small products are summed up apart.
#pragma once

#include <algorithm>

#include "common/gpu_tf32.h"
#include "common/rows.h"
#include "gemm/gpu_memory.h"
#include "so2_layer/gpu_plain.h"

namespace mdops {

namespace gpu_so2 {

constexpr int kTensorChannels = 32, kTensorWarps = 8, kTile = 16;
constexpr int kFour = kTensorChannels / 8;  // eights of a row of channels

// Where weights stand in shared memory, and the warps' numbers behind them.
template <int kDegrees>
struct Layout {
  static constexpr int kMiddle = kFour * (kDegrees + 1), kSide = kFour * kDegrees;  // in eights
  static constexpr int kMiddleRow = 8 * kMiddle + 4, kBothRow = 16 * kSide + 4, kGateRow = 8 * kSide + 4;
  static constexpr int kBoth = 8 * kMiddle * kMiddleRow, kGate = kBoth + 8 * kSide * kBothRow;
  static constexpr int kWeights = kGate + 8 * kFour * kGateRow;
  // Of a warp: s, factors, and in backward passes their gradients; of each eight columns four numbers a lane.
  static constexpr int kFactors = kFour, kSlopes = kFactors + kSide;
  static __host__ __device__ constexpr int eights(bool back) { return kSlopes + (back ? kSide : 0); }
  static __host__ __device__ constexpr int bytes(bool back) {
    return 4 * (kWeights + kTensorWarps * eights(back) * 4 * kWarp);
  }
};

// A matrix in shared memory, or its transpose.
template <bool kTransposed>
struct Weights {
  const float* base;
  int row;

  // A lane's two numbers of eight n of the columns, eight k of the depth, in two parts.
  __device__ __forceinline__ uint4 at(int k, int n) const {
    const int g = lane_index() / 4, t = lane_index() % 4;
    float2 two;
    if constexpr (kTransposed) {
      two = *reinterpret_cast<const float2*>(base + (8 * n + g) * row + 8 * k + 2 * t);
    } else {
      const float* const from = base + (8 * k + 2 * t) * row + 8 * n + g;
      two = {from[0], from[row]};
    }
    uint4 b;
    split_to(b.x, b.z, two.x);
    split_to(b.y, b.w, two.y);
    return b;
  }
};

// A lane's numbers of eight columns: two of row l / 4, two of row l / 4 + 8.
struct Four {
  float v[4];
};

template <int kEights>
__device__ __forceinline__ void split_rows(TensorRows<kEights>& to, int eight, const Four& from) {
  split_to(to.high[eight][0], to.low[eight][0], from.v[0]);
  split_to(to.high[eight][1], to.low[eight][1], from.v[2]);
  split_to(to.high[eight][2], to.low[eight][2], from.v[1]);
  split_to(to.high[eight][3], to.low[eight][3], from.v[3]);
}

// Eight columns of rows times a matrix.
template <int kEights, bool kTransposed>
__device__ __forceinline__ Four multiply(const TensorRows<kEights>& rows, const Weights<kTransposed>& matrix,
                                         int n) {
  float large[4] = {}, small[2][4] = {};
#pragma unroll
  for (int k = 0; k < kEights; ++k) multiply_parts(large, small, rows.high[k], rows.low[k], matrix.at(k, n));
  Four found;
#pragma unroll
  for (int k = 0; k < 4; ++k) found.v[k] = large[k] + (small[0][k] + small[1][k]);
  return found;
}

struct Two {
  Four negative, positive;
};

// Eight columns of both signs: [a U - b V, a V + b U] of the rows a of m = -1 and b of m = 1; transposed
// [a U^T + b V^T, b U^T - a V^T].
template <int kEights, bool kTransposed>
__device__ __forceinline__ Two multiply_both(const TensorRows<kEights>& a, const TensorRows<kEights>& b,
                                             const Weights<kTransposed>& u, const Weights<kTransposed>& v,
                                             int n) {
  float of_sum[4] = {}, first[4] = {}, second[4] = {}, small[3][2][4] = {};
  const TensorRows<kEights>&from = kTransposed ? b : a, &less = kTransposed ? a : b;
#pragma unroll
  for (int k = 0; k < kEights; ++k) {
    const uint4 of_u = u.at(k, n), of_v = v.at(k, n);
    multiply_parts(first, small[0], from.high[k], from.low[k], of_u);
    multiply_parts(second, small[1], less.high[k], less.low[k], of_v);
    multiply_parts(of_sum, small[2], from.high[k], from.low[k], of_v);
    multiply_parts(of_sum, small[2], less.high[k], less.low[k], of_u);
  }
  Two found;
  Four &sum = kTransposed ? found.negative : found.positive,
       &rest = kTransposed ? found.positive : found.negative;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    sum.v[k] = of_sum[k] + (small[2][0][k] + small[2][1][k]);
    rest.v[k] = first[k] - second[k] + (small[0][0][k] + small[0][1][k]) - (small[1][0][k] + small[1][1][k]);
  }
  return found;
}

template <int kDegrees, bool kBack, bool kGated>
class Tile {
  using Places = Layout<kDegrees>;
  static constexpr int kMiddle = Places::kMiddle, kSide = Places::kSide;
  static constexpr int kNumbers = 8 * (kMiddle + 2 * kSide);  // of an edge

 public:
  __device__ explicit Tile(const So2Args<float>& args) : args_(args) {
    const float* const shared = reinterpret_cast<const float*>(net_memory());
    middle_ = shared, both_ = shared + Places::kBoth, gate_ = shared + Places::kGate;
    own_ = reinterpret_cast<float*>(net_memory()) + Places::kWeights +
           threadIdx.x / kWarp * Places::eights(kBack) * 4 * kWarp + 4 * lane_index();
  }

  // The block's weights to shared memory.
  static __device__ void place_weights(const So2Args<float>& args) {
    float* const shared = reinterpret_cast<float*>(net_memory());
    place(shared, args.weight, 8 * kMiddle, 8 * kMiddle, Places::kMiddleRow);
    place(shared + Places::kBoth, args.both, 8 * kSide, 16 * kSide, Places::kBothRow);
    if (kGated) place(shared + Places::kGate, args.gate, 8 * kFour, 8 * kSide, Places::kGateRow);
  }

  __device__ void run(int64_t tile) {
    edge_ = tile * kTile + lane_index() / 4;
    if constexpr (kBack)
      backward();
    else
      forward();
  }

 private:
  static __device__ void place(float* to, const float* from, int rows, int columns, int row) {
    for (int k = 4 * threadIdx.x; k < rows * columns; k += 4 * blockDim.x)
      *reinterpret_cast<float4*>(to + k / columns * row + k % columns) =
          __ldg(reinterpret_cast<const float4*>(from + k));
  }

  __device__ void forward() {
    {
      TensorRows<kMiddle> x;
      load(x, args_.x, 0);
      if constexpr (kGated) {
        const auto scalars = make_scalars(x);
#pragma unroll 1
        for (int n = kFour; n < kMiddle; ++n) {
          const Four z = multiply(x, middle(), n), f = sigmoids(multiply(scalars, gates(), n - kFour));
          keep(Places::kFactors + n - kFour, f);
          add(n, z, f);
        }
      } else {
#pragma unroll 1
        for (int n = 0; n < kMiddle; ++n) add(n, multiply(x, middle(), n));
      }
    }
    TensorRows<kSide> negative, positive;
    load(negative, args_.x, kMiddle), load(positive, args_.x, kMiddle + kSide);
#pragma unroll 1
    for (int n = 0; n < kSide; ++n) {
      const Two z = multiply_both(negative, positive, u(), v(), n);
      if constexpr (kGated) {
        const Four f = kept(Places::kFactors + n);
        add(kMiddle + n, z.negative, f), add(kMiddle + kSide + n, z.positive, f);
      } else {
        add(kMiddle + n, z.negative), add(kMiddle + kSide + n, z.positive);
      }
    }
  }

  __device__ void backward() {
    if constexpr (kGated) {
      {
        TensorRows<kMiddle> x;
        load(x, args_.x, 0);
        const auto scalars = make_scalars(x);
#pragma unroll 1
        for (int n = kFour; n < kMiddle; ++n) {
          const Four z = multiply(x, middle(), n);
          keep(Places::kFactors + n - kFour, sigmoids(multiply(scalars, gates(), n - kFour)));
          keep(Places::kSlopes + n - kFour, times(z, given(args_.grad, n)));
        }
      }
      TensorRows<kSide> negative, positive;
      load(negative, args_.x, kMiddle), load(positive, args_.x, kMiddle + kSide);
#pragma unroll 1
      for (int n = 0; n < kSide; ++n) {
        const Two z = multiply_both(negative, positive, u(), v(), n);
        const Four f = kept(Places::kFactors + n), of_middle = kept(Places::kSlopes + n);
        const Four a = times(z.negative, given(args_.grad, kMiddle + n));
        const Four b = times(z.positive, given(args_.grad, kMiddle + kSide + n));
        Four slope;
#pragma unroll
        for (int k = 0; k < 4; ++k)
          slope.v[k] = (of_middle.v[k] + a.v[k] + b.v[k]) * f.v[k] * (1.0f - f.v[k]);
        keep(Places::kSlopes + n, slope);
      }
    }
    {
      TensorRows<kMiddle> dz;
      load_gradients(dz, 0);
      if constexpr (kGated) add_scalars(dz);
#pragma unroll 1
      for (int n = 0; n < kMiddle; ++n)
        write(n, plus(given(args_.grad, n), multiply(dz, Weights<true>{middle_, Places::kMiddleRow}, n)));
    }
    TensorRows<kSide> negative, positive;
    load_gradients(negative, kMiddle), load_gradients(positive, kMiddle + kSide);
    const Weights<true> u_back{both_, Places::kBothRow}, v_back{both_ + 8 * kSide, Places::kBothRow};
#pragma unroll 1
    for (int n = 0; n < kSide; ++n) {
      const Two found = multiply_both(negative, positive, u_back, v_back, n);
      write(kMiddle + n, plus(given(args_.grad, kMiddle + n), found.negative));
      write(kMiddle + kSide + n, plus(given(args_.grad, kMiddle + kSide + n), found.positive));
    }
  }

  // s as the gates take it; kept, too, and forward what its rows become is written.
  __device__ __forceinline__ TensorRows<kFour> make_scalars(const TensorRows<kMiddle>& x) {
    TensorRows<kFour> found;
#pragma unroll
    for (int n = 0; n < kFour; ++n) {
      const Four s = multiply(x, middle(), n);
      split_rows(found, n, s);
      if constexpr (kBack)
        keep(n, s);
      else
        add(n, s, sigmoids(s));
    }
    return found;
  }

  // The gradients of the scalars: the first rows of dz, of which nothing is there yet.
  __device__ __forceinline__ void add_scalars(TensorRows<kMiddle>& dz) {
    TensorRows<kSide> slopes;
#pragma unroll
    for (int n = 0; n < kSide; ++n) split_rows(slopes, n, kept(Places::kSlopes + n));
#pragma unroll
    for (int n = 0; n < kFour; ++n) {
      const Four s = kept(n), f = sigmoids(s), g = given(args_.grad, n);
      Four own = multiply(slopes, Weights<true>{gate_, Places::kGateRow}, n);
#pragma unroll
      for (int k = 0; k < 4; ++k) own.v[k] += g.v[k] * f.v[k] * (1.0f + s.v[k] * (1.0f - f.v[k]));
      split_rows(dz, n, own);
    }
  }

  __device__ Weights<false> middle() const { return {middle_, Places::kMiddleRow}; }
  __device__ Weights<false> gates() const { return {gate_, Places::kGateRow}; }
  __device__ Weights<false> u() const { return {both_, Places::kBothRow}; }
  __device__ Weights<false> v() const { return {both_ + 8 * kSide, Places::kBothRow}; }

  // A lane's numbers of eight columns of an array of edges.
  __device__ __forceinline__ Four given(const float* array, int eight) const {
    const float* const from = array + edge_ * kNumbers + 8 * eight + 2 * (lane_index() % 4);
    constexpr float2 nothing{0.0f, 0.0f};
    const float2 a = edge_ < args_.edges ? read_two(from) : nothing;
    const float2 b = edge_ + 8 < args_.edges ? read_two(from + 8 * kNumbers) : nothing;
    return {a.x, a.y, b.x, b.y};
  }

  __device__ __forceinline__ void write(int eight, const Four& y) const {
    float* const to = args_.y + edge_ * kNumbers + 8 * eight + 2 * (lane_index() % 4);
    if (edge_ < args_.edges) write_two(to, y.v[0], y.v[1]);
    if (edge_ + 8 < args_.edges) write_two(to + 8 * kNumbers, y.v[2], y.v[3]);
  }

  template <int kEights>
  __device__ __forceinline__ void load(TensorRows<kEights>& rows, const float* array, int begin) const {
#pragma unroll
    for (int k = 0; k < kEights; ++k) split_rows(rows, k, given(array, begin + k));
  }

  // g times its factors, of the rows from an eight on; the scalars' are left out.
  template <int kEights>
  __device__ __forceinline__ void load_gradients(TensorRows<kEights>& rows, int begin) const {
    constexpr int kNone = kGated && kEights == kMiddle ? kFour : 0;
#pragma unroll
    for (int k = kNone; k < kEights; ++k) {
      const Four g = given(args_.grad, begin + k);
      split_rows(rows, k, kGated ? times(g, kept(Places::kFactors + k - kNone)) : g);
    }
  }

  // x + z f, and x + z.
  __device__ __forceinline__ void add(int eight, const Four& z, const Four& f) const {
    write(eight, plus(given(args_.x, eight), times(z, f)));
  }
  __device__ __forceinline__ void add(int eight, const Four& z) const {
    write(eight, plus(given(args_.x, eight), z));
  }

  static __device__ __forceinline__ Four times(const Four& a, const Four& b) {
    return {a.v[0] * b.v[0], a.v[1] * b.v[1], a.v[2] * b.v[2], a.v[3] * b.v[3]};
  }
  static __device__ __forceinline__ Four plus(const Four& a, const Four& b) {
    return {a.v[0] + b.v[0], a.v[1] + b.v[1], a.v[2] + b.v[2], a.v[3] + b.v[3]};
  }
  static __device__ __forceinline__ Four sigmoids(const Four& a) {
    return {sigmoid(a.v[0]), sigmoid(a.v[1]), sigmoid(a.v[2]), sigmoid(a.v[3])};
  }

  // The lane's own places.
  __device__ __forceinline__ void keep(int eight, const Four& a) const {
    *reinterpret_cast<float4*>(own_ + eight * 4 * kWarp) = {a.v[0], a.v[1], a.v[2], a.v[3]};
  }
  __device__ __forceinline__ Four kept(int eight) const {
    const float4 a = *reinterpret_cast<const float4*>(own_ + eight * 4 * kWarp);
    return {a.x, a.y, a.z, a.w};
  }

  const So2Args<float>& args_;
  const float *middle_, *both_, *gate_;
  float* own_;
  int64_t edge_ = 0;  // of the lane's first row
};

template <int kDegrees, bool kBack, bool kGated>
__global__ void __launch_bounds__(kTensorWarps* kWarp, 1)
    tensor_kernel(const __grid_constant__ So2Args<float> args) {
  Tile<kDegrees, kBack, kGated>::place_weights(args);
  __syncthreads();
  Tile<kDegrees, kBack, kGated> own(args);
  const int64_t tiles = (args.edges + kTile - 1) / kTile;
  // Neighbouring tiles go to different multiprocessors: so a few fill them all.
  for (int64_t tile = blockIdx.x + static_cast<int64_t>(gridDim.x) * (threadIdx.x / kWarp); tile < tiles;
       tile += static_cast<int64_t>(gridDim.x) * kTensorWarps)
    own.run(tile);
}

inline bool by_tensor_cores(const Gpu& gpu, const So2Args<float>& args) {
  return gpu.limits().capability >= 80 && args.channels == kTensorChannels && args.degrees == 2 &&
         Layout<2>::bytes(args.grad != nullptr) <= gpu.limits().shared_bytes;
}

template <bool kBack, bool kGated>
void run_tensor(const Gpu& gpu, const So2Args<float>& args) {
  const int64_t blocks = std::min<int64_t>(blocks_for(args.edges, kTile), gpu.limits().multiprocessors);
  gpu.launch(tensor_kernel<2, kBack, kGated>, blocks, kTensorWarps * kWarp, Layout<2>::bytes(kBack), args);
}

}  // namespace gpu_so2

}  // namespace mdops
