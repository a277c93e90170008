#include "spline_potential/spatial_order.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/parallel.h"
#include "spline_potential/paged_rows.h"

namespace mdops {

namespace {

constexpr int64_t kFew = 1024;  // atoms of a system that keep the order of their numbers
constexpr int64_t kAtomsOfBox = 64;
constexpr int kMostHalvings = 24;

// A system's space, repeatedly halved across its longest side. The halves of a box have consecutive numbers.
class Boxes {
 public:
  int64_t first = 0;  // number of the first box

  void set_count(int64_t atoms) {
    while (halvings_ < kMostHalvings && atoms > std::max(kFew, kAtomsOfBox << halvings_)) ++halvings_;
  }
  int64_t count() const { return int64_t{1} << halvings_; }

  // Whether the cell has a volume: then its vectors span the space.
  bool take_cell(const double* h) {
    double normals[3][3], side[3];
    for (int a = 0; a < 3; ++a) {
      const double *p = h + 3 * ((a + 1) % 3), *q = h + 3 * ((a + 2) % 3), *own = h + 3 * a;
      for (int b = 0; b < 3; ++b) {
        const int c = (b + 1) % 3, d = (b + 2) % 3;
        normals[a][b] = p[c] * q[d] - p[d] * q[c];
      }
      side[a] = std::sqrt(own[0] * own[0] + own[1] * own[1] + own[2] * own[2]);
    }
    const double volume = h[0] * normals[0][0] + h[1] * normals[0][1] + h[2] * normals[0][2];
    if (!(std::abs(volume) > 0)) return false;
    for (int a = 0; a < 3; ++a)
      for (int b = 0; b < 3; ++b) scale_[a][b] = normals[a][b] / volume;
    wraps_ = true;
    halve(side);
    return true;
  }

  // The space of most of some atoms, as one may be far away. `some`: their coordinates along each axis.
  void take_range(std::vector<double> (&some)[3]) {
    double side[3];
    for (int a = 0; a < 3; ++a) {
      std::sort(some[a].begin(), some[a].end());
      const size_t n = some[a].size();
      const double low = n ? some[a][n / 50] : 0, high = n ? some[a][n - 1 - n / 50] : 0;
      side[a] = high - low;
      scale_[a][a] = side[a] > 0 ? 1 / side[a] : 0;
      offset_[a] = -low * scale_[a][a];
    }
    halve(side);
  }

  // The box of an atom; outside the space, the nearest box.
  int64_t box_of(const double* x) const {
    double u[3];
    for (int a = 0; a < 3; ++a) {
      u[a] = offset_[a] + scale_[a][0] * x[0] + scale_[a][1] * x[1] + scale_[a][2] * x[2];
      if (wraps_) u[a] -= std::floor(u[a]);
    }
    int64_t box = 0;
    for (int k = 0; k < halvings_; ++k) {
      double& along = u[across_[k]];
      along *= 2;
      const bool is_upper = along >= 1;  // false of NaN
      along -= is_upper;
      box = 2 * box + is_upper;
    }
    return first + box;
  }

 private:
  void halve(double* side) {
    for (int k = 0; k < halvings_; ++k) {
      across_[k] = static_cast<int>(std::max_element(side, side + 3) - side);
      side[across_[k]] /= 2;
    }
  }

  int halvings_ = 0, across_[kMostHalvings] = {};
  bool wraps_ = false;
  double scale_[3][3] = {}, offset_[3] = {};
};

// Whether threads with consecutive runs of atoms add, in all, to more pages than kMostCopies copies of all
// rows have. Estimated from a part of the atoms.
bool is_scattered(const AtomsToOrder& of, int64_t threads) {
  constexpr int64_t kPage = PagedRows<double>::kPage, kMostCopies = 4, kEvery = 16;
  const int64_t pages = (of.atoms + kPage - 1) / kPage;
  if (threads <= kMostCopies || pages <= kMostCopies) return false;
  std::vector<int64_t> touched(threads, 0);
  parallel(threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t thread = begin; thread < end; ++thread) {
      std::vector<bool> is_touched(pages, false);
      for (int64_t i = of.centers * thread / threads; i < of.centers * (thread + 1) / threads; i += kEvery) {
        const int32_t *row = of.neighbors + i * of.list_width, *counts = of.counts + i * of.ntypes;
        const int64_t listed = std::accumulate(counts, counts + of.ntypes, int64_t{0});
        for (int64_t k = 0; k < std::min(listed, of.list_width); ++k)
          if (row[k] >= 0 && row[k] < of.atoms) is_touched[row[k] / kPage] = true;
      }
      touched[thread] = std::count(is_touched.begin(), is_touched.end(), true);
    }
  });
  return std::accumulate(touched.begin(), touched.end(), int64_t{0}) > kMostCopies * pages;
}

}  // namespace

SpatialOrder::SpatialOrder(const AtomsToOrder& of, int64_t threads) {
  if (!is_scattered(of, threads)) return;
  const auto& [positions, stride, cell, batch, neighbors, counts, atoms, systems, list_width, ntypes,
               centers] = of;
  std::vector<int64_t> sizes(systems, 0);
  for (int64_t i = 0; i < atoms; ++i) ++sizes[batch[i]];

  std::vector<Boxes> boxes(systems);
  int64_t count = 0;
  for (int64_t s = 0; s < systems; ++s) {
    boxes[s].set_count(sizes[s]), boxes[s].first = count;
    count += boxes[s].count();
    if (sizes[s] <= kFew || boxes[s].take_cell(cell + 9 * s)) continue;
    std::vector<double> some[3];
    int64_t seen = 0;
    for (int64_t i = 0; i < atoms; ++i) {
      if (batch[i] != s || seen++ % (sizes[s] / 512) != 0) continue;
      for (int a = 0; a < 3; ++a)
        if (std::isfinite(positions[stride * i + a])) some[a].push_back(positions[stride * i + a]);
    }
    boxes[s].take_range(some);
  }

  std::vector<int32_t> box(atoms);
  parallel_each(atoms, 4096, [&](int64_t i) {  // Clang 14 captures no structured bindings
    box[i] = static_cast<int32_t>(boxes[of.batch[i]].box_of(of.positions + of.stride * i));
  });
  std::vector<int32_t> next(count + 1, 0);
  for (int64_t i = 0; i < atoms; ++i) ++next[box[i] + 1];
  std::partial_sum(next.begin(), next.end(), next.begin());
  places_.resize(atoms), atoms_.resize(atoms);
  for (int64_t i = 0; i < atoms; ++i) {
    places_[i] = next[box[i]]++;
    atoms_[places_[i]] = static_cast<int32_t>(i);
  }
}

std::vector<int32_t> SpatialOrder::atoms_below(int64_t end) const {
  std::vector<int32_t> below;
  below.reserve(end);
  if (atoms_.empty()) {
    below.resize(end);
    std::iota(below.begin(), below.end(), 0);
  }
  for (int32_t i : atoms_)
    if (i < end) below.push_back(i);
  return below;
}

}  // namespace mdops
