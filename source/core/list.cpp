#include "core/list.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <string>

#include "core/error.h"
#include "neighbor/cpu_loops.h"

namespace mdops::core {

void Rows::search(const mdops_input& input, const Box& box, double cutoff, int64_t ntypes) {
  const int64_t all = input.atoms + input.ghosts;
  const std::vector<int32_t> systems(all, 0);
  const mdops::Atoms atoms{"compute",      all,         1,      input.positions, box.cell, box.periodic,
                           systems.data(), input.types, cutoff, ntypes};
  const Cells cells = sort_into_cells(atoms);
  counts.resize(atoms.size * ntypes);
  for (;;) {
    neighbors.resize(atoms.size * width);
    images.resize(atoms.size * width);
    const Matrix matrix{width, ntypes, neighbors.data(), images.data(), counts.data()};
    const int64_t longest = write_matrix(atoms, cells, matrix, false).size;
    if (longest <= width) return;
    width = longest + 4;  // which may suffice for later steps, too
  }
}

}  // namespace mdops::core

using mdops::core::Error;

namespace {

[[noreturn]] void refuse_neighbors(const std::string& why) {
  throw Error(MDOPS_INVALID, "neighbors: " + why);
}

}  // namespace

void mdops_list::clear() {
  static std::atomic<uint64_t> versions{0};
  version = ++versions;
  sources.clear(), border.clear();
  exchange = {}, halo = 0;
  atoms = ghosts = 0;
  is_here = true;
  reach = std::numeric_limits<double>::infinity();
  std::fill_n(periodic, 3, false);
  on_gpu.clear();
}

void mdops_list::is_of(const mdops_input& input, double cutoff, int32_t count) {
  atoms = input.atoms, ghosts = input.ghosts, ntypes = count, reach = cutoff;
  std::copy_n(mdops::core::Box(input).periodic, 3, periodic);
}

void mdops_list::check_for(const mdops_input& input, double cutoff) const {
  const auto refuse = [](const std::string& why) { throw Error(MDOPS_INVALID, "input: " + why); };
  if (reach < cutoff)
    refuse("the list was searched within " + std::to_string(reach) + " A, and the model's cutoff is " +
           std::to_string(cutoff) + " A: search with this model, or with one that reaches as far");
  if (std::equal(periodic, periodic + 3, mdops::core::Box(input).periodic)) return;
  if (std::isinf(reach))
    refuse(
        "cell is given with a list that was filled, which has ghosts in the place of periodic images: cell "
        "is "
        "null with it");
  refuse(
      "the list was searched with other periodic directions than cell and periodic say: give what it was "
      "searched with");
}

void mdops_list::check_on(int gpu) const {
  if (is_here || on_gpu.count(gpu)) return;
  throw Error(MDOPS_INVALID, "input: the list was made on a GPU, and the model is " +
                                 (gpu < 0 ? "on the CPU" : "on cuda:" + std::to_string(gpu)));
}

void mdops_list::search(const mdops_input& input, double cutoff, int32_t count) {
  clear();
  const int64_t all = input.atoms + input.ghosts;
  if (all && !input.types) throw Error(MDOPS_INVALID, "input: types is null");
  types.assign(input.types, input.types + all);
  rows.search(input, mdops::core::Box(input), cutoff, count);
  is_of(input, cutoff, count);
}

void mdops_list::fill(const mdops_neighbors& from, int32_t count) {
  clear();
  if (count < 1) refuse_neighbors("ntypes is " + std::to_string(count));
  constexpr int64_t most = std::numeric_limits<int32_t>::max();
  if (from.atoms < 0 || from.ghosts < 0 || from.atoms > most || from.ghosts > most - from.atoms)
    refuse_neighbors("atoms and ghosts are " + std::to_string(from.atoms) + " and " +
                     std::to_string(from.ghosts));
  const int64_t all = from.atoms + from.ghosts;
  if ((all && !from.types) || (from.atoms && (!from.counts || !from.rows)))
    refuse_neighbors("a pointer is null");
  types.assign(from.types, from.types + all);
  for (int64_t i = 0; i < all; ++i)
    if (types[i] < -1 || types[i] >= count)
      refuse_neighbors("atom " + std::to_string(i) + " is of type " + std::to_string(types[i]) +
                       ", and there are " + std::to_string(count));

  const int32_t mask = from.mask ? from.mask : -1;
  rows.counts.assign(from.atoms * count, 0);
  rows.width = 0;
  for (int64_t i = 0; i < from.atoms; ++i) {
    if (from.counts[i] < 0 || (from.counts[i] > 0 && !from.rows[i]))
      refuse_neighbors("the row of atom " + std::to_string(i) + " is none");
    int64_t kept = 0;
    for (int32_t k = 0; k < from.counts[i]; ++k) {
      const int32_t j = from.rows[i][k] & mask;
      if (j < 0 || j >= all || j == i)
        refuse_neighbors("the row of atom " + std::to_string(i) + " names atom " + std::to_string(j));
      if (types[j] < 0) continue;
      ++rows.counts[i * count + types[j]];
      ++kept;
    }
    rows.width = std::max(rows.width, kept);
  }
  rows.neighbors.assign(from.atoms * rows.width, -1);
  rows.images.assign(from.atoms * rows.width, 0);
  std::vector<int64_t> next(count);
  for (int64_t i = 0; i < from.atoms; ++i) {
    int64_t place = i * rows.width;
    for (int32_t t = 0; t < count; ++t) {
      next[t] = place;
      place += rows.counts[i * count + t];
    }
    for (int32_t k = 0; k < from.counts[i]; ++k) {
      const int32_t j = from.rows[i][k] & mask;
      if (types[j] >= 0) rows.neighbors[next[types[j]]++] = j;
    }
  }
  atoms = from.atoms, ghosts = from.ghosts, ntypes = count;
  take_sources(from);
}

void mdops_list::take_sources(const mdops_neighbors& from) {
  if (from.exchange) {
    exchange = *from.exchange, halo = exchange.rows;
    if (!exchange.call || halo < 0 || exchange.border < 0 || (exchange.border && !exchange.atoms))
      refuse_neighbors("exchange has no function, no atoms, or fewer than no rows");
    border.assign(exchange.atoms, exchange.atoms + exchange.border);
    for (const int32_t i : border)
      if (i < 0 || i >= atoms) refuse_neighbors("exchange names atom " + std::to_string(i));
  }
  if (!from.sources) return;
  sources.assign(from.sources, from.sources + ghosts);
  for (const int32_t i : sources)
    if (i < 0 || i >= atoms + halo)
      refuse_neighbors("a ghost is an image of atom " + std::to_string(i) + ", and there are " +
                       std::to_string(atoms) + " and " + std::to_string(halo) + " rows of exchange");
}
