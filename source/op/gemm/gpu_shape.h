// A net on a GPU: its shape, how its weights are packed, and how many numbers its kernels take at once.
// Shared by host and device.
//
// Numbers of a matrix product stand as pairs of float16, x = scale * (high + low): 22 bits, as many as three
// TF32 products keep, at twice their rate. The scales are powers of two, one a row and one a column, that
// bring the largest number to 2^12 .. 2^13; so nothing overflows, and what is lost is below 2^-37 of it.
// Where TF32's accuracy is asked for, the high parts stand alone: 11 bits, one product in place of three.
// `parts`, everywhere, is how many there are, 2 or 1.
#pragma once

#include "common/activation.h"

namespace mdops {

constexpr int kStepDepth = 16;  // rows of B in one tensor-core instruction
constexpr int kTileCols = 8;    // and its columns
constexpr int kLargest = 12;    // the largest number of a row or a column is brought to 2^12 .. 2^13

// For the net as one stream (gpu_chain.h): the weights come in units of so many columns x 32 rows, or 64 rows
// with high parts only.
constexpr int kWideRow = 128;  // bytes of a unit's column: unit_depth numbers
constexpr int kChainLayers = 16;

// A block's rows; the most units of a layer's width, and a unit's columns; and the time of a round of blocks
// on an H100, in microseconds for three layers of 240, 256, 384 or 512. For one unit it is a guess, such that
// it is chosen where blocks of fewer rows would need more than one round.
struct ChainKind {
  int rows, units, unit_cols, time;

  MDOPS_HD constexpr int cols() const { return units * unit_cols; }
  MDOPS_HD constexpr bool by_rows() const { return rows == 128; }
  MDOPS_HD constexpr int last_units() const { return units > 2 ? units : 1; }  // see NetChain
};

constexpr ChainKind kChainKinds[] = {
    {128, 2, 120, 192}, {128, 2, 128, 216}, {96, 2, 128, 154}, {64, 2, 128, 107}, {32, 2, 128, 69},
    {96, 3, 128, 273},  {64, 3, 128, 163},  {64, 4, 128, 276}, {48, 4, 128, 192}, {128, 1, 128, 150}};
constexpr int kChains = sizeof(kChainKinds) / sizeof(ChainKind);

MDOPS_HD constexpr int unit_depth(int parts) {
  return kWideRow / 2 / parts;
}

// Where the parts of numbers k and k + 1 (k even) of a row are in an operand of the chain. A row is 128
// bytes, eight pieces of 16:
//
//   two parts:  piece 0 1 2 3: high parts of numbers 0-7, 8-15, 16-23, 24-31;  4 5 6 7: their low parts
//   one part:   piece 0 .. 7:  high parts of numbers 0-7, ..., 56-63
//
// and piece c of row r stands in place c ^ (r % 8), the 128-byte swizzle of the tensor cores:
//
//   row 0:  0 1 2 3 4 5 6 7
//   row 1:  1 0 3 2 5 4 7 6
//   row 2:  2 3 0 1 6 7 4 5   ...
//
// so that eight rows' pieces of one column lie in different banks. Eight rows are 1,024 bytes, which begin on
// a multiple of 1,024. Device memory has the same layout: a bulk copy is a copy of bytes.
MDOPS_HD constexpr int wide_place(int row, int k, int part = 0) {
  return row * kWideRow + (((k / 8 + 4 * part) ^ (row & 7)) << 4) + 2 * (k % 8);
}

template <class T>
MDOPS_HD constexpr T round_up(T n, int unit) {
  return (n + unit - 1) / unit * unit;
}

// A net of hidden layers and one output. A layer is  y = f(x W + b) t + r,  with t its timesteps. In a
// residual layer, r is x if it is as wide as its input, and [x, x] if twice as wide. The output layer is
// linear.
struct GpuNetShape {
  static constexpr int kMostLayers = 16;
  static constexpr int kInputUnit = 128;  // inputs are padded with zeros to a multiple: 2 unit_depth(1)
  int inputs;
  int layers;  // hidden ones
  int neurons[kMostLayers];
  bool residual[kMostLayers];  // of the first: unknown here
  Activation activation;
  float threshold;  // of silut

  // Columns of layer n and of its input in the packed matrices.
  MDOPS_HD int cols(int n) const { return round_up(neurons[n], kStepDepth); }
  MDOPS_HD int depth(int n) const { return n ? cols(n - 1) : inputs; }
};

// One matrix of a packed net: fragments [k / 16][n / 8][lane] of 8 bytes a part, then 1 / scale of each
// column. Of the 16 rows and 8 columns of B, lane l holds rows 2 (l % 4) + {0, 1, 8, 9} of column l / 4, as
// `mma.sync` m16n8k16 expects.
struct PackedMatrix {
  int64_t at;  // in floats
  int parts;
  int steps, tiles;  // of kStepDepth rows, of kTileCols columns
  MDOPS_HD int64_t columns_at() const { return at + static_cast<int64_t>(steps) * tiles * 32 * 2 * parts; }
  MDOPS_HD int64_t end() const { return columns_at() + tiles * kTileCols; }
};

constexpr int widest(int layers, const int* neurons) {
  int most = 0;
  for (int n = 0; n < layers; ++n) most = neurons[n] > most ? neurons[n] : most;
  return most;
}

// Whether a kind of chain takes the net: a row of a layer must fit into one block, and no narrower kind with
// as many rows takes it. Residual layers are unknown when nets are packed: those twice as wide as their input
// are refused later.
constexpr bool takes(const ChainKind& kind, int layers, const int* neurons) {
  const int most = widest(layers, neurons), units = most > 256 ? (most + 127) / 128 : 2;
  if (layers > kChainLayers) return false;
  if (!kind.by_rows()) return kind.units == units && most <= kind.cols();
  return most <= 256 && kind.cols() == (most <= 128 ? 128 : most <= 240 ? 240 : 256);
}
constexpr bool takes(const ChainKind& kind, const GpuNetShape& net) {
  return takes(kind, net.layers, net.neurons);
}

inline bool residuals_fit_chain(const GpuNetShape& net) {
  bool good = true;
  for (int n = 1; n < net.layers; ++n)  // half a doubled layer must be whole columns of eight
    good &= !net.residual[n] || net.neurons[n] == net.neurons[n - 1] || net.neurons[n - 1] % 8 == 0;
  return good;
}

// The products of a net in the order in which a row needs them: the layers forward, then backward, down to
// the input's gradient. Each has a number of units of B, in this order: tiles of columns, as wide as the
// layer or, for the input, `last_units` or what is left; in a tile, pairs of blocks of rows, padded with
// zeros; in a pair, the units' columns; then its blocks.
struct NetChain {
  const GpuNetShape& net;
  int parts;
  ChainKind kind;

  MDOPS_HD int products() const { return 2 * net.layers; }
  MDOPS_HD bool is_backward(int m) const { return m >= net.layers; }
  MDOPS_HD int layer(int m) const { return is_backward(m) ? 2 * net.layers - 1 - m : m; }
  MDOPS_HD int depth(int m) const { return is_backward(m) ? net.cols(layer(m)) : net.depth(m); }
  MDOPS_HD int columns(int m) const { return is_backward(m) ? net.depth(layer(m)) : net.cols(m); }
  MDOPS_HD int blocks(int m) const { return round_up(depth(m), 2 * unit_depth(parts)) / unit_depth(parts); }
  MDOPS_HD bool is_last(int m) const { return m == products() - 1; }
  // Units next to each other, in all and in a tile.
  MDOPS_HD int chunks(int m) const { return (columns(m) + kind.unit_cols - 1) / kind.unit_cols; }
  MDOPS_HD int width(int m) const { return is_last(m) ? kind.last_units() : chunks(m); }
  MDOPS_HD int units(int m) const { return blocks(m) * chunks(m); }
  MDOPS_HD int units() const {
    int sum = 0;
    for (int m = 0; m < products(); ++m) sum += units(m);
    return sum;
  }
};

constexpr int kLargestParts = 32;  // of a layer's weights, in which packing finds the largest

// Where the parts of a packed net are, in floats.
struct GpuNet {
  PackedMatrix forward[GpuNetShape::kMostLayers], backward[GpuNetShape::kMostLayers];
  int64_t bias[GpuNetShape::kMostLayers], timestep[GpuNetShape::kMostLayers], out_weight, out_bias;
  int64_t units[kChains], unit_scales;  // of kinds of chain that take the net; 1 / scale of each product
  int64_t largest;                      // what packing finds of the layers' weights (gpu_pack.h)
  int64_t size;

  GpuNet(const GpuNetShape& net, int parts) : size(0), parts_(parts) {
    for (int n = 0; n < net.layers; ++n) {
      forward[n] = matrix(net.depth(n), net.cols(n));
      backward[n] = matrix(net.cols(n), net.depth(n));
      bias[n] = columns(net, n);
      timestep[n] = columns(net, n);
    }
    out_weight = columns(net, net.layers - 1);
    out_bias = vector(4);
    size = round_up(size, kLine);
    for (int kind = 0; kind < kChains; ++kind) {
      units[kind] = -1;
      if (!takes(kChainKinds[kind], net)) continue;
      const int columns = kChainKinds[kind].unit_cols;
      for (int other = 0; other < kind; ++other)
        if (units[other] >= 0 && kChainKinds[other].unit_cols == columns) units[kind] = units[other];
      if (units[kind] >= 0) continue;
      units[kind] = size;
      size +=
          static_cast<int64_t>(NetChain{net, parts, kChainKinds[kind]}.units()) * (columns * kWideRow / 4);
    }
    unit_scales = vector(2 * net.layers);
    largest = vector(2 * kLargestParts * net.layers);
    size = round_up(size, kLine);
  }

  // Numbers of a vector of layer n: one a column, zero after the last.
  static int vector_columns(const GpuNetShape& net, int n) {
    int most = net.cols(n);
    for (const ChainKind& kind : kChainKinds)
      if (takes(kind, net) && kind.cols() > most) most = kind.cols();
    return most;
  }

 private:
  // Floats of a cache line: copies of units that begin with one need half as many requests.
  static constexpr int64_t kLine = 32;

  PackedMatrix matrix(int rows, int columns) {
    const PackedMatrix result{size, parts_, rows / kStepDepth, columns / kTileCols};
    size = result.end();
    return result;
  }
  int64_t columns(const GpuNetShape& net, int n) { return vector(vector_columns(net, n)); }
  int64_t vector(int n) {
    const int64_t at = size;
    size += round_up(n, 4);
    return at;
  }

  int parts_;
};

// The kernels use 32 bits for byte offsets in a matrix.
constexpr int64_t kMostMatrix = int64_t{1} << 28;
constexpr int kMostTileCols = 240;

inline bool matrices_fit(const GpuNetShape& net) {
  bool fit = true;
  for (int n = 0; n < net.layers; ++n)
    fit &= static_cast<int64_t>(net.depth(n)) * round_up(net.cols(n), kMostTileCols) <= kMostMatrix;
  return fit;
}

// Rows of a net's input, in tiles of one net each, for the net's output and its gradient.
struct NetArgs {
  const int32_t* tile_type;  // of each tile: which net, -1 if it has no row
  const float* nets;         // (types, net_size), packed
  int64_t net_size;
  const double* scale;  // (types,): the gradient is that of scale * output
  GpuNetShape net;
  int tile_rows;
  int rows;       // at most, whole tiles: rows of the arrays below
  float* inputs;  // (rows, net.inputs), as InputRow<input_parts> writes them; then their gradient, as floats
  float*
      bounds;  // (1 + 2 layers, rows): the largest number of every product's A: the input's; zeros at first
  double* output;  // (rows, output_parts): their sum is the output, without its bias
};

}  // namespace mdops
