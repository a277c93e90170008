#include "displacements/cpu_loops.h"

#include <algorithm>
#include <vector>

#include "common/instantiate.h"
#include "common/parallel.h"

namespace mdops {

namespace {

constexpr int64_t kGrain = 64;  // minimum atoms per piece

// A thread's sums over pairs: of atoms (N, 3) and, in some ops, (N, 3, 3), and of systems (S, 3, 3).
struct Sums {
  double *atoms, *matrices, *systems;
};

// Threads for a sum over pairs. Each needs memory for its own sums: in total at most the size of the pairs'
// gradients, of T.
template <class T>
int64_t summing_threads(const PairRows& rows, int64_t columns) {
  constexpr int64_t grain = 1 << 14;  // pairs that are worth a thread
  const int64_t slots = rows.atoms * rows.width, memory = slots * 3 * sizeof(T);
  const int64_t own = std::max<int64_t>(1, rows.atoms * columns * sizeof(double));
  return std::max<int64_t>(1, std::min<int64_t>({thread_count(), slots / grain, memory / own}));
}

// Sums add(atom, sums) over all atoms into `results`. Each thread has an equal share of the atoms and its own
// sums, which are added in order: the bits depend only on the number of threads.
void sum_over_atoms(int64_t threads, int64_t atoms, int64_t systems, const Sums& results, const auto& add) {
  const int64_t rows = 3 * atoms, matrices = results.matrices ? 9 * atoms : 0;
  std::vector<std::vector<double>> own(threads - 1);  // the first thread has the results
  parallel_each(threads, 1, [&](int64_t thread) {
    Sums sums = results;
    if (thread > 0) {
      own[thread - 1].assign(rows + matrices + 9 * systems, 0.0);
      double* at = own[thread - 1].data();
      sums = {at, matrices ? at + rows : nullptr, at + rows + matrices};
    }
    for (int64_t i = atoms * thread / threads; i < atoms * (thread + 1) / threads; ++i) add(i, sums);
  });
  if (threads == 1) return;
  const auto collect = [&](int64_t from, int64_t begin, int64_t end, double* to) {
    for (const std::vector<double>& sums : own)
      for (int64_t k = begin; k < end; ++k) to[k] += sums[from + k];
  };
  parallel(atoms, 4096, [&](int64_t begin, int64_t end) {
    collect(0, 3 * begin, 3 * end, results.atoms);
    if (matrices) collect(rows, 9 * begin, 9 * end, results.matrices);
  });
  collect(rows + matrices, 0, 9 * systems, results.systems);
}

template <int Count>
void add_to(double* to, const double* values) {
  for (int k = 0; k < Count; ++k) to[k] += values[k];
}

// Calls work(i, p) for every atom i and each place p of its neighbours.
void for_pairs(const PairRows& rows, const auto& work) {
  parallel_each(rows.atoms, kGrain, [&](int64_t i) {
    for (int64_t p = i * rows.width; p < (i + 1) * rows.width; ++p) work(i, p);
  });
}

}  // namespace

template <class T>
void write_displacements(const PairRows& rows, const int32_t* images, const double* positions,
                         const double* cell, T* out) {
  const int32_t *b = rows.batch, *n = rows.neighbors;
  for_pairs(rows, [&](int64_t i, int64_t p) {
    double d[3] = {0, 0, 0};
    if (n[p] >= 0) displacement(positions + 3 * i, positions + 3 * n[p], cell + 9 * b[i], images[p], d);
    for (int a = 0; a < 3; ++a) out[3 * p + a] = static_cast<T>(d[a]);
  });
}

template <class T>
void sum_displacement_grads(const PairRows& rows, const int32_t* images, const T* grad,
                            double* grad_positions, double* grad_cell) {
  const int32_t *b = rows.batch, *n = rows.neighbors;
  sum_over_atoms(summing_threads<T>(rows, 3), rows.atoms, rows.systems, {grad_positions, nullptr, grad_cell},
                 [&](int64_t i, const Sums& sums) {
                   double own[3] = {}, cell[9] = {};
                   for (int64_t p = i * rows.width; p < (i + 1) * rows.width; ++p)
                     if (n[p] >= 0)
                       add_pair_gradient(grad + 3 * p, images[p], own, sums.atoms + 3 * int64_t{n[p]}, cell);
                   add_to<3>(sums.atoms + 3 * i, own);
                   add_to<9>(sums.systems + 9 * b[i], cell);
                 });
}

template <class T>
void sum_pair_forces(const PairRows& rows, const T* grad, const T* displacements, double* forces,
                     double* virial, double* atom_virial) {
  const int32_t *b = rows.batch, *n = rows.neighbors;
  sum_over_atoms(summing_threads<T>(rows, 12), rows.atoms, rows.systems, {forces, atom_virial, virial},
                 [&](int64_t i, const Sums& sums) {
                   double own[3] = {}, w[9] = {};
                   for (int64_t p = i * rows.width; p < (i + 1) * rows.width; ++p)
                     if (n[p] >= 0)
                       add_pair_force(grad + 3 * p, displacements + 3 * p, own,
                                      sums.atoms + 3 * int64_t{n[p]}, w,
                                      sums.matrices ? sums.matrices + 9 * int64_t{n[p]} : nullptr);
                   add_to<3>(sums.atoms + 3 * i, own);
                   add_to<9>(sums.systems + 9 * b[i], w);
                 });
}

template <class T>
void write_pair_force_grads(const PairRows& rows, const PairForceGrads& of, const T* grad,
                            const T* displacements, T* grad_grad, T* grad_displacements) {
  const int32_t *b = rows.batch, *n = rows.neighbors;
  for_pairs(rows, [&](int64_t i, int64_t p) {
    const int64_t j = n[p];
    if (j >= 0)
      pair_force_gradient(of.forces + 3 * i, of.forces + 3 * j, of.virial + 9 * b[i], of.atom_virial + 9 * j,
                          grad + 3 * p, displacements + 3 * p, grad_grad + 3 * p, grad_displacements + 3 * p);
  });
}

MDOPS_INSTANTIATE(write_displacements, sum_displacement_grads, sum_pair_forces, write_pair_force_grads)

}  // namespace mdops
