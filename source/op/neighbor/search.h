// The search: for each bin, the atoms near it as candidates, then each atom's neighbours among them.
#pragma once

#include <algorithm>
#include <atomic>
#include <limits>
#include <vector>

#include "neighbor/cells.h"

namespace mdops {

// The neighbours of one atom, type after type as in system->types; sizes[slot] of each.
struct Row {
  const System* system;
  int32_t center;
  int64_t size;
  const int64_t* sizes;
  int32_t *atoms, *images;
};

// One thread's search; its buffers live from bin to bin.
class Searcher {
 public:
  Searcher(const Atoms& atoms, const Cells& cells)
      : atoms_(atoms), cells_(cells), cutoff2_(atoms.cutoff * atoms.cutoff) {}

  // Calls visit(row) for every atom of one bin.
  void search_bin(const System& system, int64_t bin, auto& visit) {
    if (!enclose(system, bin)) return;
    find_stretches(system, bin);
    gather(system);
    for (size_t slot = 0; slot < system.types.size(); ++slot)
      for (int64_t k = 0; k < home_[slot].size; ++k) visit(row_of(system, home_[slot].first + k));
  }

 private:
  // A row of bins along the last direction, seen through one lattice translation.
  struct Stretch {
    int64_t first, last;  // bins, both within
    double shift[3];
    int32_t image;
    bool home;
  };
  // Places in the candidate arrays.
  struct Range {
    int64_t first, size;
  };

  int64_t start(const System& system, size_t slot, int64_t bin) const {
    return cells_.start[system.first_key + static_cast<int64_t>(slot) * system.grid.num_bins + bin];
  }

  // The box around the bin's atoms; false if there are none. Sets the bounds within which float32 decides.
  bool enclose(const System& system, int64_t bin) {
    double low[3] = {1e300, 1e300, 1e300}, high[3] = {-1e300, -1e300, -1e300};
    const double* sorted[3] = {cells_.x.data(), cells_.y.data(), cells_.z.data()};
    for (size_t slot = 0; slot < system.types.size(); ++slot)
      for (int64_t k = start(system, slot, bin); k < start(system, slot, bin + 1); ++k)
        for (int d = 0; d < 3; ++d) {
          low[d] = std::min(low[d], sorted[d][k]);
          high[d] = std::max(high[d], sorted[d][k]);
        }
    if (low[0] > high[0]) return false;
    double radius = atoms_.cutoff;
    for (int d = 0; d < 3; ++d) {
      middle_[d] = (low[d] + high[d]) / 2;
      half_[d] = static_cast<float>((high[d] - low[d]) / 2);
      radius += half_[d];
    }
    const double error = squared_error(atoms_.cutoff, radius);
    surely_ = static_cast<float>(cutoff2_ - error);
    // Never zero, even for a small cutoff: the bin's own atoms have no distance from their box, and are
    // included.
    maybe_ = std::max(static_cast<float>(cutoff2_ + error), std::numeric_limits<float>::min());
    return true;
  }

  void find_stretches(const System& system, int64_t bin) {
    const Grid& grid = system.grid;
    const int32_t bz = static_cast<int32_t>(bin % grid.bins[2]);
    const int32_t by = static_cast<int32_t>(bin / grid.bins[2] % grid.bins[1]);
    const int32_t bx = static_cast<int32_t>(bin / grid.bins[2] / grid.bins[1]);
    stretches_.clear();
    for (int32_t x = bx - grid.reach[0]; x <= bx + grid.reach[0]; ++x) {
      int32_t m[3] = {image_of(grid, 0, x), 0, 0};
      if (m[0] != 0 && !grid.periodic[0]) continue;
      for (int32_t y = by - grid.reach[1]; y <= by + grid.reach[1]; ++y) {
        m[1] = image_of(grid, 1, y);
        if (m[1] != 0 && !grid.periodic[1]) continue;
        const int64_t line =
            static_cast<int64_t>(x - m[0] * grid.bins[0]) * grid.bins[1] + y - m[1] * grid.bins[1];
        add_line(grid, line * grid.bins[2], bz, m, x == bx && y == by);
      }
    }
  }

  // The bins of one line within reach of bz, a stretch for each image; the home bin is a stretch of its own.
  void add_line(const Grid& grid, int64_t line, int32_t bz, int32_t* m, bool home) {
    const int32_t n = grid.bins[2];
    int32_t first = bz - grid.reach[2], last = bz + grid.reach[2];
    if (!grid.periodic[2]) {
      first = std::max(first, 0);
      last = std::min(last, n - 1);
    }
    for (m[2] = image_of(grid, 2, first); m[2] <= image_of(grid, 2, last); ++m[2]) {
      const int32_t low = std::max(first - m[2] * n, 0), high = std::min(last - m[2] * n, n - 1);
      if (home && m[0] == 0 && m[1] == 0 && m[2] == 0) {
        add_stretch(grid, line, low, bz - 1, m, false);
        add_stretch(grid, line, bz, bz, m, true);
        add_stretch(grid, line, bz + 1, high, m, false);
      } else {
        add_stretch(grid, line, low, high, m, false);
      }
    }
  }

  void add_stretch(const Grid& grid, int64_t line, int32_t low, int32_t high, const int32_t* m, bool home) {
    if (low > high) return;
    Stretch stretch{line + low, line + high, {}, pack_image(m[0], m[1], m[2]), home};
    for (int d = 0; d < 3; ++d)
      stretch.shift[d] =
          m[0] * grid.cell[0][d] + m[1] * grid.cell[1][d] + m[2] * grid.cell[2][d] - middle_[d];
    stretches_.push_back(stretch);
  }

  // Fills the candidates, type after type, each type's padded with atoms far away.
  void gather(const System& system) {
    const size_t slots = system.types.size();
    ranges_.resize(slots);
    home_.resize(slots);
    sizes_.resize(slots);
    int64_t filled = 0;
    for (size_t slot = 0; slot < slots; ++slot) {
      const int64_t first = filled;
      for (const Stretch& stretch : stretches_) {
        const int64_t begin = start(system, slot, stretch.first), end = start(system, slot, stretch.last + 1);
        if (begin == end && !stretch.home) continue;
        const Candidates out = room_for(filled + end - begin);
        const Segment segment{&cells_.x[begin],
                              &cells_.y[begin],
                              &cells_.z[begin],
                              &cells_.atom[begin],
                              &cells_.image[begin],
                              end - begin,
                              {stretch.shift[0], stretch.shift[1], stretch.shift[2]},
                              stretch.image};
        if (stretch.home) home_[slot] = {filled, end - begin};
        filled = MDOPS_RUN(gather_candidates, segment, half_, maybe_, out, filled);
      }
      std::fill_n(room_for(filled).x + filled, kPadding, kFarAway);
      filled = first + (filled - first + kPadding - 1) / kPadding * kPadding;
      ranges_[slot] = {first, filled - first};
    }
  }

  // The arrays, grown to hold n elements and what vector stores write beyond.
  Candidates room_for(int64_t n) {
    const size_t size = static_cast<size_t>(n + 2 * kPadding);
    if (x_.size() < size) {
      for (std::vector<float>* v : {&x_, &y_, &z_}) v->resize(2 * size);
      for (std::vector<int32_t>* v : {&atom_, &image_, &row_atoms_, &row_images_}) v->resize(2 * size);
    }
    return {x_.data(), y_.data(), z_.data(), atom_.data(), image_.data()};
  }

  // The neighbours of the atom at this place of the candidate arrays.
  Row row_of(const System& system, int64_t self) {
    const float center[3] = {x_[self], y_[self], z_[self]};
    const int32_t* wrap = &cells_.wrap[3 * static_cast<int64_t>(atom_[self])];
    const int32_t image = pack_image(wrap[0], wrap[1], wrap[2]);
    x_[self] = kFarAway;  // an atom is no neighbour of itself, though its images are
    int64_t size = 0;
    for (size_t slot = 0; slot < ranges_.size(); ++slot) {
      int64_t found = -1;
      if (!system.images_may_overflow) found = select(ranges_[slot], center, size);
      if (found >= 0 && image != 0) MDOPS_RUN(shift_images, row_images_.data() + size, found, image);
      if (found < 0) found = select_exactly(system, ranges_[slot], atom_[self], size);
      sizes_[slot] = found;
      size += found;
    }
    x_[self] = center[0];
    return {&system, atom_[self], size, sizes_.data(), row_atoms_.data(), row_images_.data()};
  }

  int64_t select(const Range& range, const float* center, int64_t size) {
    return MDOPS_RUN(select_within, {x_.data(), y_.data(), z_.data(), atom_.data(), image_.data()},
                     range.first, range.first + range.size, center, surely_, maybe_, row_atoms_.data() + size,
                     row_images_.data() + size);
  }

  // The same in float64 from the positions as they were given: the pair vector of `displacements` decides.
  int64_t select_exactly(const System& system, const Range& range, int32_t i, int64_t size) {
    int64_t found = 0;
    for (int64_t k = range.first; k < range.first + range.size; ++k) {
      if (x_[k] == kFarAway) continue;
      int32_t shift[3];
      double d[3];
      pair_vector(system, i, k, shift, d);
      if (is_beyond(system.grid, shift) || !(dot(d, d) <= cutoff2_)) continue;
      for (int row = 0; row < 3; ++row)
        if (!shift_fits(shift[row]))
          fail(atoms_.op, "atoms " + std::to_string(i) + " and " + std::to_string(atom_[k]) +
                              " are neighbours through image " + std::to_string(shift[row]) +
                              " along lattice vector " + std::to_string(row) +
                              ", expected -512 to 511: wrap the argument `positions` into the cell");
      row_atoms_[size + found] = atom_[k];
      row_images_[size + found++] = pack_image(shift[0], shift[1], shift[2]);
    }
    return found;
  }

  // From atom i to candidate k, whose wrapping is undone by its image.
  void pair_vector(const System& system, int64_t i, int64_t k, int32_t* shift, double* d) const {
    const int64_t j = atom_[k];
    const int32_t *wi = &cells_.wrap[3 * i], *wj = &cells_.wrap[3 * j];
    const int32_t translation = add_images(image_[k], pack_image(wj[0], wj[1], wj[2]));
    const int32_t m[3] = {image_shift(translation, 0), image_shift(translation, 1),
                          image_shift(translation, 2)};
    wrapped_pair(atoms_.positions + 3 * i, atoms_.positions + 3 * j, wi, wj, m,
                 atoms_.cell + 9 * system.index, shift, d);
  }

  const Atoms& atoms_;
  const Cells& cells_;
  const double cutoff2_;
  double middle_[3];
  float half_[3], surely_, maybe_;
  std::vector<Stretch> stretches_;
  std::vector<Range> ranges_, home_;
  std::vector<int64_t> sizes_;
  std::vector<float> x_, y_, z_;
  std::vector<int32_t> atom_, image_, row_atoms_, row_images_;
};

// Calls visit(row) for every atom that is not virtual, in torch's threads, each with its own copy of `visit`.
// A free thread takes the next piece of about 64 atoms, to balance uneven systems and busy cores.
template <class Visit>
void search_all(const Atoms& atoms, const Cells& cells, const Visit& visit) {
  struct Piece {
    const System* system;
    int64_t first, last;
  };
  std::vector<Piece> pieces;
  for (const System& system : cells.systems) {
    if (system.size == 0) continue;
    const int64_t bins = system.grid.num_bins, step = std::max<int64_t>(1, 64 * bins / system.size);
    for (int64_t first = 0; first < bins; first += step)
      pieces.push_back({&system, first, std::min(first + step, bins)});
  }
  // Waking a thread takes longer than fewer pieces than these.
  const int64_t threads =
      std::max<int64_t>(1, std::min<int64_t>(thread_count(), static_cast<int64_t>(pieces.size()) / 8));
  std::atomic<size_t> next{0};
  parallel(threads, 1, [&](int64_t, int64_t) {
    Searcher searcher(atoms, cells);
    Visit own = visit;
    for (size_t p = next++; p < pieces.size(); p = next++)
      for (int64_t bin = pieces[p].first; bin < pieces[p].last; ++bin)
        searcher.search_bin(*pieces[p].system, bin, own);
  });
}

}  // namespace mdops
