// Shapes of the inference step on a GPU: the order of the descriptor's features, the packed nets, and the
// memory of a chunk of atoms. Shared by host and device.
//
// Numbers of a matrix product stand as pairs of float16, x = scale * (high + low): 22 bits, as many as three
// TF32 products keep, at twice their rate. The scales are powers of two, one a row and one a column, that
// bring the largest number to 2^12 .. 2^13; so nothing overflows, and what is lost is below 2^-37 of it.
#pragma once

#include <cstdint>

#include "spline_potential/spline_potential.h"

namespace mdops {

constexpr int kStepDepth = 16;  // rows of B in one tensor-core instruction
constexpr int kTileCols = 8;    // and its columns
constexpr int kLargest = 12;    // the largest number of a row or a column is brought to 2^12 .. 2^13

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

// One matrix of a packed net: fragments [k / 16][n / 8][lane] of 16 bytes, then 1 / scale of each column.
struct PackedMatrix {
  int64_t at;        // in floats
  int steps, tiles;  // of kStepDepth rows, of kTileCols columns
  MDOPS_HD int64_t columns_at() const { return at + static_cast<int64_t>(steps) * tiles * 32 * 4; }
  MDOPS_HD int64_t end() const { return columns_at() + tiles * kTileCols; }
};

// Where the parts of a net packed for a GPU stand, in floats.
struct GpuNet {
  PackedMatrix forward[kMaxLayers], backward[kMaxLayers];
  int64_t bias[kMaxLayers], timestep[kMaxLayers], out_weight, out_bias, size;

  static int cols(const FittingShape& net, int n) { return round_up(net.neurons[n], kStepDepth); }
  static int depth(const FittingShape& net, int n) {
    return n ? cols(net, n - 1) : round_up(Features(net).count() + net.extra, kStepDepth);
  }

  explicit GpuNet(const FittingShape& net) : size(0) {
    for (int n = 0; n < net.layers; ++n) {
      forward[n] = matrix(depth(net, n), cols(net, n));
      backward[n] = matrix(cols(net, n), depth(net, n));
      bias[n] = vector(cols(net, n));
      timestep[n] = vector(cols(net, n));
    }
    out_weight = vector(cols(net, net.layers - 1));
    out_bias = vector(4);
  }

 private:
  PackedMatrix matrix(int rows, int columns) {
    const PackedMatrix result{size, rows / kStepDepth, columns / kTileCols};
    size = result.end();
    return result;
  }
  int64_t vector(int n) {
    const int64_t at = size;
    size += round_up(n, 4);
    return at;
  }
};

}  // namespace mdops
