// A whole step on the CPU: the work of threads, and the sums over them. Without PyTorch.
#pragma once

#include <algorithm>
#include <vector>

#include "common/parallel.h"
#include "common/scratch.h"
#include "spline_potential/kernel_table.h"
#include "spline_potential/spatial_order.h"

namespace mdops {

struct BlockScratch;  // of a thread that works on blocks of atoms
struct StepScratch;   // of the thread that calls the op, for all blocks

// The atoms of each type one after the other, without virtual ones; `start` (ntypes + 1) has each type's
// first index. Those of a type are in spatial order.
struct Order {
  SpatialOrder space;  // of all atoms
  std::vector<int32_t> ids;
  std::vector<int64_t> start;

  // For the first `centers` atoms and this number of threads.
  template <class T>
  Order(const PotentialArgs<T>& args, int64_t centers, int64_t threads)
      : space({args.positions, 4, args.cell, args.batch, args.neighbors, args.counts, args.atoms,
               args.systems, args.list_width, args.ntypes, centers},
              threads),
        start(args.ntypes + 1, 0) {
    for (int64_t i = 0; i < centers; ++i)
      if (args.types[i] >= 0) ++start[args.types[i] + 1];
    for (int64_t t = 0; t < args.ntypes; ++t) start[t + 1] += start[t];
    ids.resize(start[args.ntypes]);
    std::vector<int64_t> next(start.begin(), start.end() - 1);
    for (int32_t i : space.atoms_below(centers))
      if (args.types[i] >= 0) ids[next[args.types[i]]++] = i;
  }

  // The atoms of one of `nets` nets: of a type, or of all types.
  int64_t first_of(int64_t net, int64_t nets) const { return nets == 1 ? start.front() : start[net]; }
  int64_t count_of(int64_t net, int64_t nets) const {
    return (nets == 1 ? start.back() : start[net + 1]) - first_of(net, nets);
  }
};

// Positions with a fourth column, so that one vector load reads an atom.
inline std::vector<double> four_columns(const double* positions, int64_t atoms) {
  std::vector<double> result(4 * atoms);
  parallel_each(atoms, 4096, [&](int64_t i) {
    for (int a = 0; a < 3; ++a) result[4 * i + a] = positions[3 * i + a];
  });
  return result;
}

// The memory of a thread's rows. It grows with the neighbours of the thread's atoms: for all atoms, it would
// be threads times atoms.
template <class T>
class RowPages {
 public:
  // For `rows` rows of `stride` numbers, all zero, in the order of `places`.
  PagedRows<T> begin(int64_t rows, int64_t stride, const int32_t* places = nullptr) {
    stride_ = stride, memory_.clear();
    pages_.assign((rows + PagedRows<T>::kPage - 1) / PagedRows<T>::kPage, nullptr);
    return {stride, places, pages_.data(), this,
            [](void* owner, int64_t page) { return static_cast<RowPages*>(owner)->make(page); }};
  }
  // The rows of a page; null: all are zero.
  const T* page(int64_t k) const { return pages_[k]; }

 private:
  T* make(int64_t page) {
    memory_.emplace_back(PagedRows<T>::kPage * stride_, T(0));
    return pages_[page] = memory_.back().data();
  }

  int64_t stride_ = 0;
  std::vector<T*> pages_;
  std::vector<std::vector<T>> memory_;
};

// A thread's own sums.
template <class T>
struct Share {
  RowPages<T> forces, atom_virial;
  RowPages<double> virial;
  int64_t bad_atom = -1;
};

// Adds `part` of all threads' shares to (N, columns), in their order, so that the bits depend only on their
// number. Further columns of rows are left out. `at`: the row at each place; null: rows are in order.
template <class T, class Part>
void add_shares(const std::vector<Share<T>>& shares, int64_t rows, int columns, int stride, const int32_t* at,
                const Part& part, double* to) {
  constexpr int64_t kPage = PagedRows<T>::kPage;
  parallel((rows + kPage - 1) / kPage, 8, [&](int64_t begin, int64_t end) {
    for (int64_t page = begin; page < end; ++page)
      for (const Share<T>& share : shares) {
        const auto* from = part(share).page(page);
        if (!from) continue;
        const int64_t first = page * kPage, count = std::min(kPage, rows - first);
        for (int64_t k = 0; k < count; ++k) {
          double* const row = to + columns * (at ? at[first + k] : first + k);
          for (int a = 0; a < columns; ++a) row[a] += from[stride * k + a];
        }
      }
  });
}
template <class T>
void add_forces(const std::vector<Share<T>>& shares, int64_t atoms, const SpatialOrder& space, double* to) {
  const auto part = [](const Share<T>& share) -> const auto& { return share.forces; };
  add_shares(shares, atoms, 3, 4, space.atoms(), part, to);
}
template <class T>
void add_virials(const std::vector<Share<T>>& shares, int64_t systems, double* to) {
  const auto part = [](const Share<T>& share) -> const auto& { return share.virial; };
  add_shares(shares, systems, 9, 9, nullptr, part, to);
}
template <class T>
void add_atom_virials(const std::vector<Share<T>>& shares, int64_t atoms, const SpatialOrder& space,
                      double* to) {
  const auto part = [](const Share<T>& share) -> const auto& { return share.atom_virial; };
  add_shares(shares, atoms, 9, 9, space.atoms(), part, to);
}

// The outputs of a step, for args.atoms atoms, of which the first `centers` have an energy, and the others
// are only neighbours.
template <class T>
struct StepResults {
  int64_t centers;
  double* energy;       // (centers,), zero for virtual atoms at entry
  int32_t* within;      // (centers, ntypes), the same
  T* nearest;           // (centers,)
  double* forces;       // (N, 3)
  double* virial;       // (S, 3, 3), added to
  double* atom_virial;  // (N, 3, 3), a pair's on the neighbour; null: not wanted

  // The outputs of a thread: an atom's own go to the results, sums to its share.
  PotentialResults<T> of_thread(const PotentialArgs<T>& args, const SpatialOrder& space,
                                Share<T>& share) const;
  // The sums; fails if a thread found an atom that does not exist.
  void finish(const Op& op, const PotentialArgs<T>& args, const SpatialOrder& space,
              const std::vector<Share<T>>& shares) const;
};

[[noreturn]] void fail_neighbors(const Op& op, int64_t atom);

// The number of threads worthwhile for these atoms.
inline int64_t useful_threads(int64_t atoms) {
  return std::min<int64_t>(thread_count(), std::max<int64_t>(1, atoms / 16));
}

// The kernels of this processor's instruction set.
template <class T>
PotentialKernels<T> prebuilt_kernels();

// The step, with nets as `pack` (cpu_nets.h) writes them, `net_size` numbers each, their matrices in `parts`
// bfloat16 parts.
template <class T>
void potential_step(const Op& op, const PotentialKernels<T>& kernels, const PotentialArgs<T>& args,
                    const T* nets, int64_t net_size, int parts, const StepResults<T>& results);

}  // namespace mdops
