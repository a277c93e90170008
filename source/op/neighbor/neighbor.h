// One system's lattice and its bins: the geometry of the neighbour search, and packed periodic images.
#pragma once

#include <cmath>

#include "common/pairs.h"

namespace mdops {

constexpr int kLargestShift = 511;
// Lengths up to here (A): far above any system, and safe to square in float32.
constexpr double kLargestLength = 1e9;
// Cells from the origin up to here: such a number fits 32 bits.
constexpr double kFarthestCell = 1e9;
// the least |det| / (|a| |b| |c|) of a cell
constexpr double kFlattestCell = 1e-8;
// The most bins that one atom's search may visit.
constexpr double kMostVisits = 1 << 22;

// The inverse of image_shift: three shifts in ten bits each.
MDOPS_HD int32_t pack_image(int a, int b, int c) {
  return static_cast<int32_t>((a & 1023u) | (b & 1023u) << 10 | (c & 1023u) << 20);
}

// The image a + b: three ten-bit sums at once. Adding without the fields' top bits leaves no carry between
// fields; the top bits are then added by exclusive or.
MDOPS_HD int32_t add_images(int32_t a, int32_t b) {
  constexpr int32_t top = 1 << 9 | 1 << 19 | 1 << 29;
  constexpr int32_t rest = 0x3fffffff ^ top;
  return ((a & rest) + (b & rest)) ^ ((a ^ b) & top);
}

struct Grid {
  double cell[3][3];     // rows: lattice vectors; a direction without pbc holds a unit normal to the others
  double inverse[3][3];  // fractional coordinates f = x . inverse
  double height[3];      // distance between the faces f_d = 0 and f_d = 1
  bool periodic[3];      // whether the bins along a direction go on with the first one after the last
  bool folded[3];    // of those: the system does not, so that atoms are neighbours through no image along it
  double low[3];     // where the first bin begins, in f
  double scale[3];   // bins per unit of f
  int32_t bins[3];   // bins along each direction
  int32_t reach[3];  // no neighbour is more bins away than this
  int64_t num_bins;
};

MDOPS_HD void cross(const double* a, const double* b, double* c) {
  c[0] = a[1] * b[2] - a[2] * b[1];
  c[1] = a[2] * b[0] - a[0] * b[2];
  c[2] = a[0] * b[1] - a[1] * b[0];
}

MDOPS_HD double dot(const double* a, const double* b) {
  return a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
}

MDOPS_HD void normalize(double* a) {
  const double length = std::sqrt(dot(a, a));
  for (int d = 0; d < 3; ++d) a[d] /= length;
}

// Replaces lattice vectors without pbc by unit normals, so that every direction has a coordinate.
MDOPS_HD void complete_cell(Grid& grid) {
  double (*h)[3] = grid.cell;
  const int open = !grid.periodic[0] + !grid.periodic[1] + !grid.periodic[2];
  for (int d = 0; d < 3; ++d) {
    if (grid.periodic[d]) continue;
    double *a = h[(d + 1) % 3], *b = h[(d + 2) % 3];
    if (open == 3) {
      for (int e = 0; e < 3; ++e) h[d][e] = d == e;
    } else if (open == 1) {
      cross(a, b, h[d]);
      normalize(h[d]);
    } else {
      // One lattice vector: a normal to it and to the axis it leans on least, then a normal to both.
      double *line = grid.periodic[(d + 1) % 3] ? a : b, *other = grid.periodic[(d + 1) % 3] ? b : a;
      double axis[3] = {0, 0, 0};
      int least = 0;
      for (int e = 1; e < 3; ++e)
        if (std::fabs(line[e]) < std::fabs(line[least])) least = e;
      axis[least] = 1;
      cross(line, axis, h[d]);
      normalize(h[d]);
      cross(line, h[d], other);
      normalize(other);
      return;
    }
  }
}

// Sets cell, inverse and heights. Returns |det| / (|a| |b| |c|): 1 for an orthogonal cell, 0 (or NaN) for a
// singular one.
MDOPS_HD double set_lattice(const double* cell, const bool* pbc, Grid& grid) {
  for (int d = 0; d < 3; ++d) {
    grid.periodic[d] = pbc[d], grid.folded[d] = false;
    for (int e = 0; e < 3; ++e) grid.cell[d][e] = cell[3 * d + e];
  }
  complete_cell(grid);
  const double (*h)[3] = grid.cell;
  double normal[3][3];
  for (int d = 0; d < 3; ++d) cross(h[(d + 1) % 3], h[(d + 2) % 3], normal[d]);
  const double det = dot(h[0], normal[0]);
  double product = 1;
  for (int d = 0; d < 3; ++d) {
    product *= std::sqrt(dot(h[d], h[d]));
    grid.height[d] = std::fabs(det) / std::sqrt(dot(normal[d], normal[d]));
    for (int e = 0; e < 3; ++e) grid.inverse[e][d] = normal[d][e] / det;
  }
  return std::fabs(det) / product;
}

MDOPS_HD void fractional(const Grid& grid, const double* x, double* f) {
  for (int d = 0; d < 3; ++d)
    f[d] = x[0] * grid.inverse[0][d] + x[1] * grid.inverse[1][d] + x[2] * grid.inverse[2][d];
}

// Gives a direction without pbc a period in A: atoms farther apart share bins.
MDOPS_HD void fold(Grid& grid, int d, double period) {
  grid.periodic[d] = grid.folded[d] = true;
  grid.height[d] = period;
  for (int e = 0; e < 3; ++e) grid.cell[d][e] *= period, grid.inverse[e][d] /= period;
}

// Fewer bins than these are not folded.
constexpr int64_t kFewBins = 128;

// Bins at least half the cutoff wide in two directions and the cutoff in the third: narrower ones gather the
// atoms around them more often, wider ones test more pairs in vain (measured at 100 to 200 neighbours). At
// most `most` bins, as a dilute gas would need more bins than atoms. If atoms are far apart, as when one has
// flown away, wider bins would put all others into one: directions without pbc are folded instead.
// low, high: the range of the atoms' fractional coordinates; in and out.
MDOPS_HD void set_bins(Grid& grid, double* low, double* high, double cutoff, int64_t most) {
  double extent[3], width[3], wanted[3], bins[3];
  for (int d = 0; d < 3; ++d) {
    extent[d] = grid.periodic[d] ? 1 : high[d] - low[d];
    // The slack prevents rounding from adding a bin to the reach when the width fits exactly.
    width[d] = (d == 2 ? 1 : 0.5) * cutoff * (1 + 1e-6);
    wanted[d] = bins[d] =
        std::fmin(std::fmax(1.0, std::floor(grid.height[d] * extent[d] / width[d])), 0x1p30);
  }
  while (bins[0] * bins[1] * bins[2] > static_cast<double>(most)) {
    int d = bins[1] > bins[0] ? 1 : 0;
    if (bins[2] > bins[d]) d = 2;
    // At least one, and near the goal at once if one direction is far too long.
    const double others = bins[0] * bins[1] * bins[2] / bins[d];
    bins[d] =
        std::fmax(1.0, std::fmax(std::floor(bins[d] / 2), std::fmin(bins[d] - 1, std::floor(most / others))));
  }
  const bool dilute = most > kFewBins && wanted[0] * wanted[1] * wanted[2] > 8 * static_cast<double>(most);
  grid.num_bins = 1;
  for (int d = 0; d < 3; ++d) {
    const double period = bins[d] * width[d];
    if (dilute && !grid.periodic[d] && bins[d] < wanted[d] &&
        std::fmax(-low[d], high[d]) < kFarthestCell * period) {
      fold(grid, d, period);
      low[d] /= period, high[d] /= period, extent[d] = 1;
    }
    grid.low[d] = grid.periodic[d] ? 0 : low[d];
    grid.bins[d] = static_cast<int32_t>(bins[d]);
    grid.scale[d] = extent[d] > 0 ? bins[d] / extent[d] : 0;
    const double reach = std::ceil(cutoff * grid.scale[d] / grid.height[d] * (1 + 1e-7));
    grid.reach[d] = static_cast<int32_t>(std::fmin(reach, grid.periodic[d] ? 1e9 : bins[d] - 1));
    grid.num_bins *= grid.bins[d];
  }
}

// The bin of a position, and the lattice translations `wrap` that bring it there: x - wrap . cell.
MDOPS_HD int64_t find_bin(const Grid& grid, const double* x, int32_t* wrap) {
  double f[3];
  fractional(grid, x, f);
  int64_t bin = 0;
  for (int d = 0; d < 3; ++d) {
    const double floor = grid.periodic[d] ? std::floor(f[d]) : 0;
    wrap[d] = static_cast<int32_t>(floor);
    const int32_t b = static_cast<int32_t>((f[d] - floor - grid.low[d]) * grid.scale[d]);
    bin = bin * grid.bins[d] + (b < 0 ? 0 : b < grid.bins[d] ? b : grid.bins[d] - 1);
  }
  return bin;
}

// The periodic image that bin b, which may lie beyond the grid, belongs to.
MDOPS_HD int32_t image_of(const Grid& grid, int d, int32_t b) {
  const int32_t n = grid.bins[d];
  return b >= 0 ? b / n : -((n - 1 - b) / n);
}

// How many periodic images away along d a wrapped atom's neighbours can be.
MDOPS_HD double images_reached(const Grid& grid, int d) {
  return grid.periodic[d] ? std::ceil(grid.reach[d] / static_cast<double>(grid.bins[d])) : 0;
}

// The first direction along which the search reaches over too many images (in all: the last), or -1.
MDOPS_HD int direction_too_far(const Grid& grid) {
  double visited = 1;
  for (int d = 0; d < 3; ++d) {
    visited *= 2 * grid.reach[d] + 1.0;
    if (images_reached(grid, d) > kLargestShift || visited > kMostVisits) return d;
  }
  return -1;
}

// Whether atoms with fractional coordinates from `low` to `high` lie too many cells from the origin.
MDOPS_HD bool too_far_from_cell(const Grid& grid, const double* low, const double* high) {
  bool far = false;
  for (int d = 0; d < 3; ++d) far |= grid.periodic[d] && std::fmax(-low[d], high[d]) > kFarthestCell;
  return far;
}

// Whether an image between two of these atoms may not fit its packed form, or may be through a fold.
MDOPS_HD bool images_may_overflow(const Grid& grid, const double* low, const double* high) {
  bool may = false;
  for (int d = 0; d < 3; ++d)
    may |= grid.folded[d] ||
           (grid.periodic[d] &&
            std::floor(high[d]) - std::floor(low[d]) + images_reached(grid, d) > kLargestShift);
  return may;
}

// How far a squared distance near the squared cutoff, from coordinates of size up to `radius` in float32, can
// be off: those carry errors of radius 2^-24 each, positions up to 1e9 A errors of 1e9 2^-53, and both enter
// d^2 with a factor of a few times the cutoff.
MDOPS_HD double squared_error(double cutoff, double radius) {
  return cutoff * (24 * radius * 0x1p-24 + 32 * kLargestLength * 0x1p-53);
}

// The pair vector from atom i to atom j as `displacements` forms it, where j's wrapped position counts
// through lattice translation `m`. `shift` is the image, without the limits of its packed form; wi, wj: the
// wrapping.
MDOPS_HD void wrapped_pair(const double* xi, const double* xj, const int32_t* wi, const int32_t* wj,
                           const int32_t* m, const double* cell, int32_t* shift, double* d) {
  for (int a = 0; a < 3; ++a) d[a] = xj[a] - xi[a];
  for (int row = 0; row < 3; ++row) {
    shift[row] = m[row] - wj[row] + wi[row];
    for (int a = 0; a < 3; ++a) d[a] += shift[row] * cell[3 * row + a];
  }
}

// Whether an image lies beyond a fold.
MDOPS_HD bool is_beyond(const Grid& grid, const int32_t* shift) {
  return (grid.folded[0] && shift[0] != 0) || (grid.folded[1] && shift[1] != 0) ||
         (grid.folded[2] && shift[2] != 0);
}

// Whether a shift fits its packed form.
MDOPS_HD bool shift_fits(int32_t shift) {
  return shift >= -kLargestShift - 1 && shift <= kLargestShift;
}

MDOPS_HD void wrap_position(const Grid& grid, const double* x, const int32_t* wrap, double* wrapped) {
  for (int e = 0; e < 3; ++e)
    wrapped[e] = x[e] - (wrap[0] * grid.cell[0][e] + wrap[1] * grid.cell[1][e] + wrap[2] * grid.cell[2][e]);
}

}  // namespace mdops
