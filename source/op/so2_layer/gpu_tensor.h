// Layers of float32 with 32 channels on the tensor cores: three products of TF32's two parts, to float32's
// accuracy (common/gpu_tf32.h), or one.
//
// A warp computes 16 edges at once: their rows of m = 0, and then those of m = -1 and m = 1 together, so that
// U and V are read once. The rows are in registers. Four eights of a product's columns are summed side by
// side (two of each sign), so that no sum waits for another. For each four, the rows are split into two parts
// of TF32 again: registers have no room for the parts of all. The weights are in shared memory in the order
// in which lanes read them, in two parts if these fit: one read for three products. Backward passes have the
// transposed weights there, and the weights that give the factors.
//
// A lane has the same entries of sums and of x: so factors stay with the lane, in its own slots of shared
// memory. A lane reads and writes four numbers side by side, two of each of two eights: the weights' rows and
// columns are in that order.
//
// Tensor cores round sums towards zero: small products are summed separately.
#pragma once

#include <algorithm>

#include "common/gpu_tf32.h"
#include "common/gpu_unroll.h"
#include "common/rows.h"
#include "gemm/gpu_memory.h"
#include "so2_layer/gpu_gates.h"

namespace mdops::gpu_so2 {

constexpr int kTensorChannels = 32, kTile = 16;
constexpr int kFour = kTensorChannels / 8;  // eights of channels in a row, and of columns at once

// The parts of a number: one; two; or two, with those of the weights stored in shared memory.
enum class Parts { one, two, two_stored };

// A lane's two numbers of an 8 x 8 block of a matrix.
template <Parts kParts>
struct Weights {
  using Stored = float2;
  static MDOPS_D Stored stored(float a, float b) { return {a, b}; }
  static MDOPS_D uint4 parts(const Stored& two) {
    uint4 found;
    split_to(found.x, found.z, two.x);
    split_to(found.y, found.w, two.y);
    return found;
  }
};
template <>
struct Weights<Parts::one> {
  using Stored = float2;
  static MDOPS_D Stored stored(float a, float b) {
    return {__uint_as_float(split(a).high), __uint_as_float(split(b).high)};
  }
  static MDOPS_D uint4 parts(const Stored& two) {
    return {__float_as_uint(two.x), __float_as_uint(two.y), 0, 0};
  }
};
template <>
struct Weights<Parts::two_stored> {
  using Stored = uint4;
  static MDOPS_D Stored stored(float a, float b) { return Weights<Parts::two>::parts({a, b}); }
  static MDOPS_D uint4 parts(const Stored& two) { return two; }
};

// Warps of a block. There are fewer for degree 3, whose rows take more registers and slots for factors.
MDOPS_HD constexpr int tensor_warps(int degrees) {
  return degrees < 3 ? 12 : 8;
}

// Offsets of weights in shared memory, in blocks of 8 x 8 numbers. Back: W, U, V and G are transposed, and
// followed by the columns of W for the scalars, and by G.
template <int kDegrees, bool kBack, bool kGated>
struct Layout {
  static constexpr int kMiddle = kFour * (kDegrees + 1), kSide = kFour * kDegrees;  // in eights
  static constexpr int kU = kMiddle * kMiddle, kV = kU + kSide * kSide, kGate = kV + kSide * kSide;
  static constexpr int kScalars = kGate + (kGated ? kFour * kSide : 0);
  static constexpr int kGateAgain = kScalars + (kBack && kGated ? kMiddle * kFour : 0);
  static constexpr int kPlaces = kGateAgain + (kBack && kGated ? kFour * kSide : 0);
  static constexpr int kOwn = kGated ? kSide * 4 * kWarp : 0;  // of a warp, for factors
  template <Parts kParts>
  static constexpr int kWeights =
      kPlaces * kWarp * static_cast<int>(sizeof(typename Weights<kParts>::Stored));
  template <Parts kParts>
  static constexpr int kBytes =
      kWeights<kParts> + tensor_warps(kDegrees) * kOwn * static_cast<int>(sizeof(float));
};

// Lane l's numbers of eight columns: two of row l / 4, two of row l / 4 + 8.
struct Four {
  float v[4];
};

// The same for a sum of products, large and small ones separate.
struct Sum {
  float large[4] = {}, small[4] = {};

  MDOPS_D Four all() const {
    return {large[0] + small[0], large[1] + small[1], large[2] + small[2], large[3] + small[3]};
  }
};

// Eight numbers of the depth for 16 rows, in two parts.
struct Depth {
  uint32_t high[4], low[4];

  MDOPS_D explicit Depth(const Four& from) {
    split_to(high[0], low[0], from.v[0]);
    split_to(high[1], low[1], from.v[2]);
    split_to(high[2], low[2], from.v[1]);
    split_to(high[3], low[3], from.v[3]);
  }

  MDOPS_D Depth operator-() const {
    Depth found(*this);
#pragma unroll
    for (int k = 0; k < 4; ++k) found.high[k] ^= 0x80000000u, found.low[k] ^= 0x80000000u;
    return found;
  }
};

template <Parts kParts>
MDOPS_D void add_product(Sum& to, const Depth& rows, const uint4& weights) {
  if constexpr (kParts != Parts::one) {
    multiply_8(to.small, rows.low, weights.x, weights.y);
    multiply_8(to.small, rows.high, weights.z, weights.w);
  }
  multiply_8(to.large, rows.high, weights.x, weights.y);
}

template <int kDegrees, bool kBack, bool kGated, Parts kParts>
class Tile {
  using Stored = typename Weights<kParts>::Stored;
  using Places = Layout<kDegrees, kBack, kGated>;
  static constexpr int kMiddle = Places::kMiddle, kSide = Places::kSide;
  static constexpr int kNumbers = 8 * (kMiddle + 2 * kSide);  // of an edge

 public:
  __device__ explicit Tile(const So2Args<float>& args)
      : args_(args), weights_(reinterpret_cast<const Stored*>(net_memory()) + lane_index()) {
    own_ = reinterpret_cast<float*>(net_memory() + Places::template kWeights<kParts>) +
           threadIdx.x / kWarp * Places::kOwn + 4 * lane_index();
  }

  // Copies the weights to the block's shared memory.
  static __device__ void place_weights(const So2Args<float>& args) {
    const float *const w = args.weight, *const both = args.both, *const gate = args.gate;
    constexpr int middle = 8 * kMiddle, side = 8 * kSide, row = 2 * side;
    if constexpr (kBack) {
      // With -V^T instead of V, both passes have the same products.
      place(0, kMiddle, kMiddle, [&](int k, int n) { return w[n * middle + k]; });
      place(Places::kU, kSide, kSide, [&](int k, int n) { return both[n * row + k]; });
      place(Places::kV, kSide, kSide, [&](int k, int n) { return -both[n * row + side + k]; });
      if constexpr (kGated) {
        place(Places::kGate, kSide, kFour, [&](int k, int n) { return gate[n * side + k]; });
        place(Places::kScalars, kMiddle, kFour, [&](int k, int n) { return w[k * middle + n]; });
        place(Places::kGateAgain, kFour, kSide, [&](int k, int n) { return gate[k * side + n]; });
      }
    } else {
      place(0, kMiddle, kMiddle, [&](int k, int n) { return w[k * middle + n]; });
      place(Places::kU, kSide, kSide, [&](int k, int n) { return both[k * row + n]; });
      place(Places::kV, kSide, kSide, [&](int k, int n) { return both[k * row + side + n]; });
      if constexpr (kGated)
        place(Places::kGate, kFour, kSide, [&](int k, int n) { return gate[k * side + n]; });
    }
  }

  __device__ void run(int64_t tile) {
    edge_ = tile * kTile + lane_index() / 4;
    if constexpr (kBack && kGated)
      backward();
    else
      forward(kBack ? args_.grad : args_.x);
  }

 private:
  // Writes value(k, n) of a matrix with `depth` eights of rows and `columns` eights of columns.
  static MDOPS_D void place(int begin, int depth, int columns, const auto& value) {
    Stored* const to = reinterpret_cast<Stored*>(net_memory()) + begin * kWarp;
    const int t = threadIdx.x % 4, g = threadIdx.x / 4 % 8;
#pragma unroll 4
    for (int k = threadIdx.x; k < depth * columns * kWarp; k += tensor_warps(kDegrees) * kWarp) {
      const int from = number(k / kWarp / columns, 2 * t), n = number(k / kWarp % columns, g);
      to[k] = Weights<kParts>::stored(value(from, n), value(from + 1, n));
    }
  }

  // The index in a row of number k of an eight: a lane has four side by side in two eights.
  static MDOPS_D int number(int eight, int k) {
    return 16 * (eight / 2) + 4 * (k / 2) + 2 * (eight % 2) + k % 2;
  }

  // y = x + f z for rows x; in backward passes without a gate x is the gradient.
  MDOPS_D void forward(const float* x) {
    {
      Four rows[kMiddle];
      load(rows, x, 0);
      if constexpr (kGated) {
        Four scalars[kFour];
        Sum sums[kFour];
        add_all(sums, rows, 0, kMiddle);
#pragma unroll
        for (int n = 0; n < kFour; ++n) scalars[n] = sums[n].all();
#pragma unroll
        for (int n = 0; n < kFour; n += 2)
          write(n, plus(rows[n], times(scalars[n], sigmoids(scalars[n]))),
                plus(rows[n + 1], times(scalars[n + 1], sigmoids(scalars[n + 1]))));
        keep_factors(scalars, Places::kGate);
      }
#pragma unroll 1
      for (int begin = kGated ? kFour : 0; begin < kMiddle; begin += kFour) {
        Sum z[kFour];
        add_all(z, rows, begin, kMiddle);
#pragma unroll
        for (int n = 0; n < kFour; n += 2) add(x, begin + n, z[n].all(), z[n + 1].all(), begin + n - kFour);
      }
    }
    Four negative[kSide], positive[kSide];
    load(negative, x, kMiddle), load(positive, x, kMiddle + kSide);
    sides(negative, positive,
          [&](int eight, const Four& a, const Four& b, int factor) { add(x, eight, a, b, factor); });
  }

  // With a gate: f z is the layer's y - x.
  MDOPS_D void backward() {
    const float* const grad = args_.grad;
    Four first[kFour];  // of dz
    {
      Four scalars[kFour];
      Sum sums[kFour];
      {
        Four rows[kMiddle];
        load(rows, args_.x, 0);
        add_all(sums, rows, Places::kScalars, kFour);
      }
#pragma unroll
      for (int n = 0; n < kFour; ++n) scalars[n] = sums[n].all(), sums[n] = Sum();
      keep_factors(scalars, Places::kGateAgain);
#pragma unroll 1
      for (int n = 0; n < kSide; n += 2) {
        Four slope[2] = {};
        add_slopes(slope, kFour + n), add_slopes(slope, kMiddle + n), add_slopes(slope, kMiddle + kSide + n);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          const Four f = kept(n + m);
#pragma unroll
          for (int k = 0; k < 4; ++k) slope[m].v[k] *= 1.0f - f.v[k];
          add_products(sums, Depth(slope[m]), Places::kGate + (n + m) * kFour);
        }
      }
      Four g[kFour];
      load(g, grad, 0);
#pragma unroll
      for (int n = 0; n < kFour; ++n) {
        const Four s = scalars[n], f = sigmoids(s);
        first[n] = sums[n].all();
#pragma unroll
        for (int k = 0; k < 4; ++k) first[n].v[k] += g[n].v[k] * f.v[k] * (1.0f + s.v[k] * (1.0f - f.v[k]));
      }
    }
    {
      Four dz[kMiddle];
      load(dz, grad, 0);
#pragma unroll
      for (int k = 0; k < kMiddle; ++k) dz[k] = k < kFour ? first[k % kFour] : times(dz[k], kept(k - kFour));
#pragma unroll 1
      for (int begin = 0; begin < kMiddle; begin += kFour) {
        Sum sums[kFour];
        add_all(sums, dz, begin, kMiddle);
#pragma unroll
        for (int n = 0; n < kFour; n += 2) add_plain(grad, begin + n, sums[n].all(), sums[n + 1].all());
      }
    }
    Four negative[kSide], positive[kSide];
    load(negative, grad, kMiddle), load(positive, grad, kMiddle + kSide);
#pragma unroll
    for (int k = 0; k < kSide; ++k) {
      const Four f = kept(k);
      negative[k] = times(negative[k], f), positive[k] = times(positive[k], f);
    }
    sides(negative, positive,
          [&](int eight, const Four& a, const Four& b, int) { add_plain(grad, eight, a, b); });
  }

  // Adds g (y - x) for two eights of the columns.
  MDOPS_D void add_slopes(Four (&to)[2], int eight) const {
    Four g[2], x[2], y[2];
    load(g, args_.grad, eight), load(x, args_.x, eight), load(y, args_.result, eight);
    unrolled<2, 4>([&](int m, int k) { to[m].v[k] += g[m].v[k] * (y[m].v[k] - x[m].v[k]); });
  }

  // sums += rows times four eights of the columns of a matrix.
  template <int kDepth>
  MDOPS_D void add_all(Sum (&sums)[kFour], Four (&rows)[kDepth], int begin, int columns) const {
#pragma unroll
    for (int k = 0; k < kDepth; ++k) add_products(sums, Depth(anew(rows[k])), begin + k * columns);
  }

  MDOPS_D void add_products(Sum (&sums)[kFour], const Depth& rows, int begin) const {
#pragma unroll
    for (int n = 0; n < kFour; ++n) add_product<kParts>(sums[n], rows, at(begin + n));
  }

  // Makes the compiler split rows into parts each time, instead of keeping all parts.
  static MDOPS_D const Four& anew(Four& rows) {
#ifdef __CUDACC__
    asm volatile("" : "+f"(rows.v[0]), "+f"(rows.v[1]), "+f"(rows.v[2]), "+f"(rows.v[3]));
#endif
    return rows;
  }

  // Calls f(eight, two eights of a U - b V or of a V + b U, slot of their factors).
  MDOPS_D void sides(Four (&a)[kSide], Four (&b)[kSide], const auto& f) const {
#pragma unroll 1
    for (int begin = 0; begin < kSide; begin += 2) {
      Sum negative[2], positive[2];
#pragma unroll
      for (int k = 0; k < kSide; ++k) {
        const Depth own(anew(a[k])), other(anew(b[k])), turned = -other;
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const int place = k * kSide + begin + n;
          const uint4 u = at(Places::kU + place), v = at(Places::kV + place);
          add_product<kParts>(negative[n], own, u), add_product<kParts>(positive[n], own, v);
          add_product<kParts>(negative[n], turned, v), add_product<kParts>(positive[n], other, u);
        }
      }
      f(kMiddle + begin, negative[0].all(), negative[1].all(), begin);
      f(kMiddle + kSide + begin, positive[0].all(), positive[1].all(), begin);
    }
  }

  MDOPS_D void keep_factors(Four (&scalars)[kFour], int gate) const {
#pragma unroll 1
    for (int begin = 0; begin < kSide; begin += kFour) {
      Sum sums[kFour];
      add_all(sums, scalars, gate + begin, kSide);
#pragma unroll
      for (int n = 0; n < kFour; ++n) keep(begin + n, sigmoids(sums[n].all()));
    }
  }

  MDOPS_D uint4 at(int place) const { return Weights<kParts>::parts(weights_[place * kWarp]); }

  // Reads a lane's part of an even number of eights of an edge array's columns.
  template <int kEights>
  MDOPS_D void load(Four (&rows)[kEights], const float* array, int begin) const {
    const float* const from = array + edge_ * kNumbers + 8 * begin + 4 * (lane_index() % 4);
    constexpr float4 nothing{0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int k = 0; k < kEights; k += 2) {
      const float4 a = edge_ < args_.edges ? *reinterpret_cast<const float4*>(from + 8 * k) : nothing;
      const float4 b =
          edge_ + 8 < args_.edges ? *reinterpret_cast<const float4*>(from + 8 * kNumbers + 8 * k) : nothing;
      rows[k] = {a.x, a.y, b.x, b.y}, rows[k + 1] = {a.z, a.w, b.z, b.w};
    }
  }

  MDOPS_D void write(int eight, const Four& y, const Four& z) const {
    float* const to = args_.y + edge_ * kNumbers + 8 * eight + 4 * (lane_index() % 4);
    if (edge_ < args_.edges) *reinterpret_cast<float4*>(to) = {y.v[0], y.v[1], z.v[0], z.v[1]};
    if (edge_ + 8 < args_.edges)
      *reinterpret_cast<float4*>(to + 8 * kNumbers) = {y.v[2], y.v[3], z.v[2], z.v[3]};
  }

  // x + z for two eights, with the factors stored from slot `factor` on if there is a gate.
  MDOPS_D void add(const float* x, int eight, const Four& z, const Four& next, int factor) const {
    if constexpr (kGated)
      add_plain(x, eight, times(z, kept(factor)), times(next, kept(factor + 1)));
    else
      add_plain(x, eight, z, next);
  }
  MDOPS_D void add_plain(const float* x, int eight, const Four& z, const Four& next) const {
    Four rows[2];
    load(rows, x, eight);
    write(eight, plus(rows[0], z), plus(rows[1], next));
  }

  static MDOPS_D Four times(const Four& a, const Four& b) {
    return {a.v[0] * b.v[0], a.v[1] * b.v[1], a.v[2] * b.v[2], a.v[3] * b.v[3]};
  }
  static MDOPS_D Four plus(const Four& a, const Four& b) {
    return {a.v[0] + b.v[0], a.v[1] + b.v[1], a.v[2] + b.v[2], a.v[3] + b.v[3]};
  }
  static MDOPS_D Four sigmoids(const Four& a) {
    return {sigmoid(a.v[0]), sigmoid(a.v[1]), sigmoid(a.v[2]), sigmoid(a.v[3])};
  }

  // To the lane's own slots.
  MDOPS_D void keep(int eight, const Four& a) const {
    *reinterpret_cast<float4*>(own_ + eight * 4 * kWarp) = {a.v[0], a.v[1], a.v[2], a.v[3]};
  }
  MDOPS_D Four kept(int eight) const {
    const float4 a = *reinterpret_cast<const float4*>(own_ + eight * 4 * kWarp);
    return {a.x, a.y, a.z, a.w};
  }

  const So2Args<float>& args_;
  const Stored* weights_;  // a lane's
  float* own_;
  int64_t edge_ = 0;  // of the lane's first row
};

template <int kDegrees, bool kBack, bool kGated, Parts kParts>
__global__ void __launch_bounds__(tensor_warps(kDegrees) * kWarp, 1)
    tensor_kernel(const __grid_constant__ So2Args<float> args) {
  using Own = Tile<kDegrees, kBack, kGated, kParts>;
  Own::place_weights(args);
  __syncthreads();
  Own own(args);
  const int64_t tiles = (args.edges + kTile - 1) / kTile;
  // Consecutive tiles go to different multiprocessors: so few tiles use all.
  for (int64_t tile = blockIdx.x + static_cast<int64_t>(gridDim.x) * (threadIdx.x / kWarp); tile < tiles;
       tile += static_cast<int64_t>(gridDim.x) * (blockDim.x / kWarp))
    own.run(tile);
}

// Calls f.operator()<degrees>() for `degrees` from 1 to 3.
auto with_degrees(int64_t degrees, const auto& f) {
  if (degrees == 1) return f.template operator()<1>();
  if (degrees == 2) return f.template operator()<2>();
  return f.template operator()<3>();
}

inline bool by_tensor_cores(const Gpu& gpu, const So2Args<float>& args) {
  if (gpu.limits().capability < 80 || args.channels != kTensorChannels) return false;
  if (args.degrees < 1 || args.degrees > 3) return false;
  return with_degrees(args.degrees, [&]<int kDegrees>() {
    return Layout<kDegrees, true, true>::template kBytes<Parts::two> <= gpu.limits().shared_bytes;
  });
}

template <bool kBack, bool kGated>
void run_tensor(const Gpu& gpu, const So2Args<float>& args) {
  const int64_t blocks = std::min<int64_t>(blocks_for(args.edges, kTile), gpu.limits().multiprocessors);
  with_degrees(args.degrees, [&]<int kDegrees>() {
    using Places = Layout<kDegrees, kBack, kGated>;
    const auto launch = [&]<Parts kParts>() {
      gpu.launch(tensor_kernel<kDegrees, kBack, kGated, kParts>, blocks, tensor_warps(kDegrees) * kWarp,
                 Places::template kBytes<kParts>, args);
    };
    if (args.parts == 1)
      launch.template operator()<Parts::one>();
    else if (Places::template kBytes<Parts::two_stored> <= gpu.limits().shared_bytes)
      launch.template operator()<Parts::two_stored>();
    else
      launch.template operator()<Parts::two>();
  });
}

}  // namespace mdops::gpu_so2
