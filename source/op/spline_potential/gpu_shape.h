// Shapes of the inference step on a GPU: the order of the descriptor's features, the packed nets, and the
// memory of a chunk of atoms. Shared by host and device.
//
// Numbers of a matrix product stand as pairs of float16, x = scale * (high + low): 22 bits, as many as three
// TF32 products keep, at twice their rate. The scales are powers of two, one a row and one a column, that
// bring the largest number to 2^12 .. 2^13; so nothing overflows, and what is lost is below 2^-37 of it.
// Where TF32's accuracy is asked for, the high parts stand alone: 11 bits, one product in place of three.
// `parts`, everywhere, is how many there are, 2 or 1.
#pragma once

#include <cstdint>

#include "spline_potential/spline_potential.h"

namespace mdops {

constexpr int kStepDepth = 16;  // rows of B in one tensor-core instruction
constexpr int kTileCols = 8;    // and its columns
constexpr int kLargest = 12;    // the largest number of a row or a column is brought to 2^12 .. 2^13

// Of the net as one stream (gpu_chain.h): the weights come in units of 120 columns x 32 rows, or 64 rows
// where the high parts stand alone; a layer is at most two units wide.
constexpr int kWideRow = 128;  // bytes of a unit's column: unit_depth numbers
constexpr int kUnitCols = 120, kUnitBytes = kUnitCols * kWideRow;
constexpr int kChainCols = 2 * kUnitCols, kChainLayers = 8;

MDOPS_HD constexpr int unit_depth(int parts) {
  return kWideRow / 2 / parts;
}

MDOPS_HD int round_up(int n, int unit) {
  return (n + unit - 1) / unit * unit;
}

// D[l][k] for l < M2 and k >= l as features of the first layer: row after row of l, k from 4 floor(l / 4) on,
// so that every row starts and ends on four numbers. The entries k < l have no weight. Then come the `extra`
// inputs, then zeros.
struct Features {
  int width, axis;  // M rounded up to 4, and M2

  explicit MDOPS_HD Features(const FittingShape& net) : width(round_up(net.width, 4)), axis(net.axis) {}
  static MDOPS_HD int first(int l) { return l & ~3; }
  // Where D[l][k = 0] would stand: the row's numbers are at row(l) + k.
  MDOPS_HD int row(int l) const {
    const int g = l / 4;
    return 4 * (g * width - 2 * g * (g - 1)) + (l % 4) * (width - 4 * g) - 4 * g;
  }
  MDOPS_HD int count() const { return row(axis - 1) + width; }
};

// One matrix of a packed net: fragments [k / 16][n / 8][lane] of 8 bytes a part, then 1 / scale of each
// column.
struct PackedMatrix {
  int64_t at;  // in floats
  int parts;
  int steps, tiles;  // of kStepDepth rows, of kTileCols columns
  MDOPS_HD int64_t columns_at() const { return at + static_cast<int64_t>(steps) * tiles * 32 * 2 * parts; }
  MDOPS_HD int64_t end() const { return columns_at() + tiles * kTileCols; }
};

// Columns of layer n and of its input in the packed matrices.
MDOPS_HD int padded_cols(const FittingShape& net, int n) {
  return round_up(net.neurons[n], kStepDepth);
}
MDOPS_HD int padded_depth(const FittingShape& net, int n) {
  return n ? padded_cols(net, n - 1) : round_up(Features(net).count() + net.extra, unit_depth(2));
}

// The products of a net in the order in which an atom needs them: the layers forward, then those backward,
// down to the gradient of the features. Each is a number of units of B, in this order: tiles of columns, as
// wide as the layer or, of the features, one unit wide; in a tile pairs of blocks of rows; in a pair the
// units' columns; then its blocks.
struct Chain {
  const FittingShape& net;
  int parts;

  // Whether the kernel for it can take the net: rows of a layer must lie in one tile. Residual layers are not
  // known where nets are packed: those twice as wide as their input are refused later.
  bool fits() const {
    bool good = net.layers <= kChainLayers;
    for (int n = 0; n < net.layers; ++n) good &= net.neurons[n] <= kChainCols;
    return good;
  }
  bool fits_residuals() const {
    bool good = true;
    for (int n = 1; n < net.layers; ++n) good &= !net.residual[n] || net.neurons[n] == net.neurons[n - 1];
    return good;
  }
  MDOPS_HD int products() const { return 2 * net.layers; }
  MDOPS_HD bool is_backward(int m) const { return m >= net.layers; }
  MDOPS_HD int layer(int m) const { return is_backward(m) ? 2 * net.layers - 1 - m : m; }
  MDOPS_HD int depth(int m) const {
    return is_backward(m) ? padded_cols(net, layer(m)) : padded_depth(net, m);
  }
  MDOPS_HD int columns(int m) const {
    return is_backward(m) ? padded_depth(net, layer(m)) : padded_cols(net, m);
  }
  MDOPS_HD int blocks(int m) const { return (depth(m) + unit_depth(parts) - 1) / unit_depth(parts); }
  MDOPS_HD int chunks(int m) const { return (columns(m) + kUnitCols - 1) / kUnitCols; }
  MDOPS_HD int width(int m) const { return m == products() - 1 ? 1 : chunks(m); }  // of a tile
  MDOPS_HD int units(int m) const { return blocks(m) * chunks(m); }
  MDOPS_HD int units() const {
    int sum = 0;
    for (int m = 0; m < products(); ++m) sum += units(m);
    return sum;
  }
};

// Where the parts of a net packed for a GPU stand, in floats.
struct GpuNet {
  PackedMatrix forward[kMaxLayers], backward[kMaxLayers];
  int64_t bias[kMaxLayers], timestep[kMaxLayers], out_weight, out_bias;
  int64_t units, unit_scales;  // of the chain, if the net fits: its units, 1 / scale of each product
  int64_t size;

  static int cols(const FittingShape& net, int n) { return padded_cols(net, n); }
  static int depth(const FittingShape& net, int n) { return padded_depth(net, n); }

  GpuNet(const FittingShape& net, int parts) : size(0), parts_(parts) {
    for (int n = 0; n < net.layers; ++n) {
      forward[n] = matrix(depth(net, n), cols(net, n));
      backward[n] = matrix(cols(net, n), depth(net, n));
      bias[n] = columns(net, n);
      timestep[n] = columns(net, n);
    }
    out_weight = columns(net, net.layers - 1);
    out_bias = vector(4);
    const Chain chain{net, parts};
    units = size, unit_scales = size;
    if (!chain.fits()) return;
    size += static_cast<int64_t>(chain.units()) * (kUnitBytes / 4);
    unit_scales = vector(chain.products());
  }

 private:
  PackedMatrix matrix(int rows, int columns) {
    const PackedMatrix result{size, parts_, rows / kStepDepth, columns / kTileCols};
    size = result.end();
    return result;
  }
  // A number for each column, zero beyond the last one.
  int64_t columns(const FittingShape& net, int n) {
    return vector(cols(net, n) < kChainCols ? kChainCols : cols(net, n));
  }
  int64_t vector(int n) {
    const int64_t at = size;
    size += round_up(n, 4);
    return at;
  }

  int parts_;
};

}  // namespace mdops
