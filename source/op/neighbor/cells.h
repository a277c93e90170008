// The atoms of all systems sorted into bins, with separate bins for each type, so that a row of bins is one
// segment of atoms of one type.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <string>
#include <vector>

#include "common/op.h"
#include "common/parallel.h"
#include "neighbor/cpu_kernel.h"
#include "neighbor/neighbor.h"

namespace mdops {

// The op's inputs, checked in shape and dtype.
struct Atoms {
  const char* op;
  int64_t size, num_systems;
  const double *positions, *cell;
  const bool* pbc;
  const int32_t *batch, *types;
  double cutoff;
  int64_t num_types;  // 0: types are not told apart
};

struct System {
  Grid grid;
  int64_t index = 0;                 // in the batch
  int64_t size = 0;                  // atoms that are not virtual
  int64_t first_key = 0;             // its bins: key = first_key + slot * num_bins + bin
  std::vector<int32_t> types;        // the types present; a slot is a place in this list
  double low[3], high[3];            // range of fractional coordinates
  bool images_may_overflow = false;  // an image may not fit its packed form
};

struct Cells {
  std::vector<System> systems;
  std::vector<int32_t> start;        // (keys + 1): a bin's first atom in the sorted arrays
  std::vector<double> x, y, z;       // sorted, wrapped into the home cell
  std::vector<int32_t> atom, image;  // sorted: the atom, and the image that undoes its wrapping
  std::vector<int32_t> wrap;         // (N, 3), by atom
};

namespace neighbor_detail {

inline std::string text(double value) {
  char digits[32];
  std::snprintf(digits, sizeof(digits), "%.10g", value);
  return value == value ? digits : "nan";
}

inline void check_finite_cell(const Atoms& atoms, int64_t s) {
  for (int k = 0; k < 9; ++k)
    if (!(std::fabs(atoms.cell[9 * s + k]) <= kLargestLength))
      fail(atoms.op, "argument `cell` holds " + text(atoms.cell[9 * s + k]) + " in system " +
                         std::to_string(s) + ", expected finite lengths up to 1e9 A");
}

inline void set_lattices(const Atoms& atoms, Cells& cells) {
  cells.systems.resize(atoms.num_systems);
  for (int64_t s = 0; s < atoms.num_systems; ++s) {
    System& system = cells.systems[s];
    system.index = s;
    std::fill_n(system.low, 3, std::numeric_limits<double>::infinity());
    std::fill_n(system.high, 3, -std::numeric_limits<double>::infinity());
    check_finite_cell(atoms, s);
    if (!(set_lattice(atoms.cell + 9 * s, atoms.pbc + 3 * s, system.grid) > kFlattestCell))
      fail(atoms.op,
           "argument `cell` of system " + std::to_string(s) +
               " is singular, expected linearly independent lattice vectors along the periodic directions");
  }
}

inline void check_atom(const Atoms& atoms, int64_t i) {
  const auto refuse = [&](const char* name, auto value, const std::string& expected) {
    fail(atoms.op, std::string("argument `") + name + "` holds " + text(value) + " for atom " +
                       std::to_string(i) + ", expected " + expected);
  };
  if (atoms.batch[i] < 0 || atoms.batch[i] >= atoms.num_systems)
    refuse("batch", atoms.batch[i], "values in [0, " + std::to_string(atoms.num_systems) + ")");
  if (atoms.types[i] < -1 || (atoms.num_types > 0 && atoms.types[i] >= atoms.num_types))
    refuse("types", atoms.types[i], "values in [-1, " + std::to_string(atoms.num_types) + ")");
  for (int d = 0; d < 3 && atoms.types[i] >= 0; ++d)
    if (!(std::fabs(atoms.positions[3 * i + d]) <= kLargestLength))
      refuse("positions", atoms.positions[3 * i + d], "finite lengths up to 1e9 A");
}

// One pass over all atoms: checks them, and finds each system's size, its extent and the types present.
// Returns (S, types): the slot of a type in its system, or -1.
inline std::vector<int32_t> survey(const Atoms& atoms, Cells& cells) {
  const int64_t num_types = std::max<int64_t>(1, atoms.num_types);
  std::vector<int32_t> slots(atoms.num_systems * num_types, -1);
  for (int64_t i = 0; i < atoms.size; ++i) {
    check_atom(atoms, i);
    if (atoms.types[i] < 0) continue;
    System& system = cells.systems[atoms.batch[i]];
    const int32_t type = atoms.num_types > 0 ? atoms.types[i] : 0;
    slots[system.index * num_types + type] = 0;
    ++system.size;
    double f[3];
    fractional(system.grid, atoms.positions + 3 * i, f);
    for (int d = 0; d < 3; ++d) {
      system.low[d] = std::min(system.low[d], f[d]);
      system.high[d] = std::max(system.high[d], f[d]);
    }
  }
  for (System& system : cells.systems)
    for (int32_t t = 0; t < num_types; ++t)
      if (int32_t& slot = slots[system.index * num_types + t]; slot == 0) {
        slot = static_cast<int32_t>(system.types.size());
        system.types.push_back(t);
      }
  return slots;
}

// Refuses a search over more periodic images than fit, and finds whether unwrapped atoms could lead to more.
inline void check_images(const Atoms& atoms, System& system) {
  const int d = direction_too_far(system.grid);
  if (d >= 0)
    fail(atoms.op,
         "argument `cutoff` (" + std::to_string(atoms.cutoff) +
             " A) reaches over too many periodic images of system " + std::to_string(system.index) +
             ", whose cell measures " + std::to_string(system.grid.height[d]) +
             " A between two faces; expected at most 511 in a direction and 2^22 in "
             "all (a model without a cutoff takes clusters alone, atoms without periodic boundaries)");
  if (too_far_from_cell(system.grid, system.low, system.high))
    fail(atoms.op, "argument `positions` lies more than 1e9 cells from the origin in system " +
                       std::to_string(system.index) + ", expected atoms nearer to their cell");
  system.images_may_overflow = images_may_overflow(system.grid, system.low, system.high);
}

inline int64_t set_all_bins(const Atoms& atoms, Cells& cells) {
  int64_t keys = 0;
  for (System& system : cells.systems) {
    if (system.size == 0) continue;
    const int64_t types = static_cast<int64_t>(system.types.size());
    set_bins(system.grid, system.low, system.high, atoms.cutoff,
             std::max<int64_t>(1, system.size / types + 1));
    check_images(atoms, system);
    system.first_key = keys;
    keys += types * system.grid.num_bins;
  }
  return keys;
}

inline void fill_sorted(const Atoms& atoms, const std::vector<int32_t>& order, Cells& cells) {
  const int64_t n = static_cast<int64_t>(order.size());
  // Padding: vector loads read beyond the end.
  for (std::vector<double>* v : {&cells.x, &cells.y, &cells.z}) v->resize(n + kPadding);
  for (std::vector<int32_t>* v : {&cells.atom, &cells.image}) v->resize(n + kPadding);
  parallel_each(n, 4096, [&](int64_t k) {
    const int32_t i = order[k];
    const int32_t* w = &cells.wrap[3 * static_cast<int64_t>(i)];
    double wrapped[3];
    wrap_position(cells.systems[atoms.batch[i]].grid, atoms.positions + 3 * static_cast<int64_t>(i), w,
                  wrapped);
    cells.x[k] = wrapped[0];
    cells.y[k] = wrapped[1];
    cells.z[k] = wrapped[2];
    cells.atom[k] = i;
    cells.image[k] = pack_image(-w[0], -w[1], -w[2]);
  });
}

}  // namespace neighbor_detail

// The sorted atoms; throws if an input is wrong.
inline Cells sort_into_cells(const Atoms& atoms) {
  using namespace neighbor_detail;
  Cells cells;
  set_lattices(atoms, cells);
  const std::vector<int32_t> slots = survey(atoms, cells);
  const int64_t keys = set_all_bins(atoms, cells);
  const int64_t num_types = std::max<int64_t>(1, atoms.num_types);

  std::vector<int64_t> key(atoms.size, -1);
  cells.wrap.resize(3 * atoms.size);
  parallel_each(atoms.size, 4096, [&](int64_t i) {
    if (atoms.types[i] < 0) return;
    const System& system = cells.systems[atoms.batch[i]];
    const int32_t type = atoms.num_types > 0 ? atoms.types[i] : 0;
    key[i] = system.first_key + slots[system.index * num_types + type] * system.grid.num_bins +
             find_bin(system.grid, atoms.positions + 3 * i, &cells.wrap[3 * i]);
  });

  // Counting sort: stable, so that the order does not depend on the threads. After the last loop start[k] is
  // where bin k begins, because the sums were entered one place further on.
  cells.start.assign(keys + 2, 0);
  for (int64_t k : key)
    if (k >= 0) ++cells.start[k + 2];
  for (int64_t k = 2; k < keys + 2; ++k) cells.start[k] += cells.start[k - 1];
  std::vector<int32_t> order(cells.start.back());
  for (int64_t i = 0; i < atoms.size; ++i)
    if (key[i] >= 0) order[cells.start[key[i] + 1]++] = static_cast<int32_t>(i);
  fill_sorted(atoms, order, cells);
  return cells;
}

}  // namespace mdops
