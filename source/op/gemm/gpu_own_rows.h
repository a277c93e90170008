// A net for given rows x (N, D): its one output and the gradient by x, by the kernels of models' nets
// (gpu_run.h). The launches of a call, for rows in memory at once:
//
//   packing, two kernels or one   weights in the layout of the net's kernels, for this call
//   begin_rows_kernel             x to the net's input: times a power of two for each row, in parts
//   the net                       one kernel, of clusters or as a chain; or one a product
//   end_rows_kernel               the output with its bias, and the gradient without padded columns
//
// A row of x with NaN or infinity has only NaN as results; such a weight makes all results NaN.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "common/early.h"
#include "gemm/gpu_run.h"
#include "gemm/net.h"

namespace mdops {

constexpr int kOwnThreads = 128;  // a warp per row

struct OwnRows {
  const float* x;
  float *value, *gradient;
  int64_t rows, first;  // of all, and the first in memory
  int columns;
  int64_t out_bias;  // in the packed net
  int output_parts;

  // Whether rows of x and of the gradient are read and written in fours: they are aligned to 16 bytes.
  MDOPS_HD bool in_fours() const { return columns % 4 == 0; }
};

constexpr int kAtOnce = 8;  // loads of a lane in flight

// A warp calls f(k, x) for numbers k .. k + 3 of a row, for each multiple k of four below `end`; zeros from
// `columns` on.
template <bool Fours, class F>
MDOPS_D void for_fours(const float* row, int columns, int end, const F& f) {
  for (int first = 4 * lane_index(); first < end; first += kAtOnce * 4 * kWarp) {
    float4 x[kAtOnce];
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      const int k = first + n * 4 * kWarp;
      x[n] = make_float4(0, 0, 0, 0);
      if constexpr (Fours) {
        if (k < columns) x[n] = __ldg(reinterpret_cast<const float4*>(row + k));
      } else {
        if (k < columns) x[n].x = __ldg(row + k);
        if (k + 1 < columns) x[n].y = __ldg(row + k + 1);
        if (k + 2 < columns) x[n].z = __ldg(row + k + 2);
        if (k + 3 < columns) x[n].w = __ldg(row + k + 3);
      }
    }
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n)
      if (const int k = first + n * 4 * kWarp; k < end) f(k, x[n]);
  }
}

template <int Parts, bool Fours>
__global__ void __launch_bounds__(kOwnThreads)
    begin_rows_kernel(const __grid_constant__ NetArgs net, OwnRows p) {
  follow_kernels();
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * kOwnThreads + threadIdx.x) / kWarp;
  if (row >= net.rows) return;
  const int columns = p.first + row < p.rows ? p.columns : 0;  // none for rows that pad a tile
  const float* const x = p.x + (p.first + row) * p.columns;
  Largest largest{0, 0};
  for_fours<Fours>(x, columns, columns, [&](int, const float4& own) {
    largest.meet(own.x), largest.meet(own.y), largest.meet(own.z), largest.meet(own.w);
  });
  largest.meet_lanes(1);
  const float zero = largest.zero;
  const InputRow<Parts> out = begin_row<Parts>(net, row, largest.size);
  for_fours<Fours>(x, columns, net.net.inputs, [&](int k, const float4& own) {
    out.store(k, own.x + zero, own.y + zero, own.z + zero, own.w + zero);
  });
}

static __global__ void __launch_bounds__(kOwnThreads)
    end_rows_kernel(const __grid_constant__ NetArgs net, OwnRows p) {
  follow_kernels();
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * kOwnThreads + threadIdx.x) / kWarp;
  if (row >= net.rows || p.first + row >= p.rows) return;
  const float* const from = net.inputs + row * net.net.inputs;
  float* const to = p.gradient + (p.first + row) * p.columns;
  const auto copied = [](const auto& x) { return x; };
  if (p.in_fours())
    map_numbers<kAtOnce>(reinterpret_cast<const float4*>(from), p.columns / 4, reinterpret_cast<float4*>(to),
                         copied);
  else
    map_numbers<kAtOnce>(from, p.columns, to, copied);
  if (lane_index() > 0) return;
  double sum = net.nets[p.out_bias];
  for (int k = 0; k < p.output_parts; ++k) sum += net.output[row * p.output_parts + k];
  p.value[p.first + row] = static_cast<float>(sum);
}

// The net's shape, if these kernels take it: one output, one activation function, a first layer that does
// not add its input. The last layer of `shape` is the output layer.
inline std::optional<GpuNetShape> own_net(const NetShape& shape) {
  const int hidden = shape.layers - 1;
  if (hidden < 1 || hidden > GpuNetShape::kMostLayers || shape.neurons[hidden] != 1 || shape.residual[0] ||
      shape.features >= kMostMatrix)
    return std::nullopt;
  GpuNetShape net{};
  net.inputs = round_up(static_cast<int>(shape.features), GpuNetShape::kInputUnit), net.layers = hidden;
  net.activation = shape.activation[0], net.threshold = static_cast<float>(shape.threshold[0]);
  bool same = true;
  for (int n = 0; n < hidden; ++n) {
    net.neurons[n] = shape.neurons[n], net.residual[n] = shape.residual[n];
    same &= shape.activation[n] == shape.activation[0] && shape.threshold[n] == shape.threshold[0];
  }
  return same && matrices_fit(net) ? std::optional(net) : std::nullopt;
}

// Whether these are faster than products of layers with a kernel after each, by a count of their work at an
// H100's rates, in ns: launches; bytes through memory, of packed weights and of rows; operations, here on
// units of 120 columns. So they do not serve many rows of few columns, which are padded here, nor few rows of
// large weights.
inline bool own_rows_pay(const GpuNetShape& net, int64_t inputs, int64_t rows, int parts) {
  constexpr double launch = 2500, byte = 1 / 2400.0, multiply_add = 2 / 64e3, of_parts = 2 / 500e3;
  double weights = 0, units = 0, numbers = 0, before = static_cast<double>(inputs);
  for (int n = 0; n < net.layers; ++n) {
    const double columns = net.neurons[n];
    weights += before * columns, numbers += 10 * columns + 3 * before;
    units += static_cast<double>(net.depth(n)) * round_up(net.cols(n), 120);
    before = columns;
  }
  const double n = static_cast<double>(rows), products = parts == 2 ? 3 : 1;
  const double own = 5 * launch + byte * (20 * weights + n * 4 * (2.0 * inputs + 4.0 * net.inputs)) +
                     n * 2 * products * of_parts * units;
  const double others =
      (5 * net.layers + 4) * launch + byte * (8 * weights + n * 4 * numbers) + n * 2 * multiply_add * weights;
  return own < others;
}

template <int Parts>
class OwnRowsCall {
 public:
  OwnRowsCall(const Gpu& gpu, const GpuNetShape& net, const OwnRows& rows)
      : gpu_(gpu),
        kernel_(choose_net_kernel<Parts>(net, rows.rows, gpu.limits())),
        packed_(net, Parts),
        rows_(rows) {
    const int64_t all = blocks_for(rows.rows, kernel_.tile_rows) * kernel_.tile_rows;
    args_.net = net, args_.tile_rows = kernel_.tile_rows, args_.net_size = packed_.size;
    args_.rows = static_cast<int>(std::min<int64_t>(all, rows_at_once(kernel_, gpu.limits())));
    rows_.out_bias = packed_.out_bias, rows_.output_parts = kernel_.output_parts;
  }

  bool runs() const { return kernel_.kind != NetKernel::none; }

  int64_t bytes() {
    return Workspace::bytes([&](Workspace& space) { divide(space); });
  }

  // The last of `layers` is the output layer.
  void run(const std::vector<LayerWeights>& layers, void* memory) {
    Workspace space(static_cast<char*>(memory));
    divide(space);
    NetPacker<Parts>(gpu_, args_.net, layers, net_, rows_.columns)
        .pack_for(kernel_, {tiles_, scale_, tiles()});
    for (; rows_.first < rows_.rows; rows_.first += args_.rows) {
      const int64_t left = std::min<int64_t>(args_.rows, rows_.rows - rows_.first);
      const int64_t count = blocks_for(left, kernel_.tile_rows),
                    blocks = blocks_for(count * kernel_.tile_rows * kWarp, kOwnThreads);
      gpu_.launch_early(rows_.in_fours() ? begin_kernel<true>() : begin_kernel<false>(), blocks, kOwnThreads,
                        0, args_, rows_);
      run_net<Parts>(gpu_, args_, memory_, count, kernel_.kind);
      gpu_.launch_early(end_rows_kernel, blocks, kOwnThreads, 0, args_, rows_);
    }
  }

 private:
  int tiles() const { return args_.rows / args_.tile_rows; }

  template <bool Fours>
  auto begin_kernel() const {
    return kernel_.input_parts ? begin_rows_kernel<Parts, Fours> : begin_rows_kernel<0, Fours>;
  }

  void divide(Workspace& space) {
    args_.nets = net_ = space.take<float>(packed_.size);
    args_.scale = scale_ = space.take<double>(1);
    args_.tile_type = tiles_ = space.take<int32_t>(tiles());
    args_.inputs = space.take<float>(int64_t{args_.rows} * args_.net.inputs);
    args_.bounds = space.take<float>(int64_t{args_.rows} * (1 + 2 * args_.net.layers));
    args_.output = space.take<double>(int64_t{args_.rows} * kernel_.output_parts);
    memory_.take(space, kernel_, args_.net, args_.rows);
  }

  const Gpu& gpu_;
  const NetKernel kernel_;
  const GpuNet packed_;
  OwnRows rows_;
  NetArgs args_{};
  NetMemory memory_{};
  float* net_ = nullptr;
  double* scale_ = nullptr;
  int32_t* tiles_ = nullptr;
};

}  // namespace mdops
