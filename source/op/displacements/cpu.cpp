#include "displacements/displacements.h"

#include <algorithm>
#include <vector>

#include "displacements/inputs.h"

namespace mdops {

namespace {

// Where a thread adds what pairs give: to atoms (N, 3) and, in some ops, (N, 3, 3), and to systems (S, 3, 3).
struct Sums {
  double *atoms, *matrices, *systems;
};

// Threads for a sum over pairs, each of which takes memory for sums of its own: in all no more than the
// pairs' gradients take.
int64_t summing_threads(const PairList& pairs, const Tensor& grad, int64_t columns) {
  constexpr int64_t grain = 1 << 14;  // pairs that are worth a thread
  const int64_t slots = pairs.atoms * pairs.width, memory = slots * 3 * grad.element_size();
  const int64_t own = std::max<int64_t>(1, pairs.atoms * columns * sizeof(double));
  return std::max<int64_t>(1, std::min<int64_t>({thread_count(), slots / grain, memory / own}));
}

// Adds up, in `results`, what add(atom, sums) adds for every atom. Each thread has an equal part of the atoms
// and sums of its own, which are added one after the other: the bits depend on the number of threads alone.
template <class Add>
void sum_over_atoms(int64_t threads, int64_t atoms, int64_t systems, const Sums& results, const Add& add) {
  const int64_t rows = 3 * atoms, matrices = results.matrices ? 9 * atoms : 0;
  std::vector<std::vector<double>> own(threads - 1);  // the first thread has the results
  parallel(threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t thread = begin; thread < end; ++thread) {
      Sums sums = results;
      if (thread > 0) {
        own[thread - 1].assign(rows + matrices + 9 * systems, 0.0);
        double* at = own[thread - 1].data();
        sums = {at, at + rows, at + rows + matrices};
      }
      for (int64_t i = atoms * thread / threads; i < atoms * (thread + 1) / threads; ++i) add(i, sums);
    }
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

Tensor displacements(const Tensor& positions_, const Tensor& cell_, const Tensor& batch_,
                     const Tensor& neighbors_, const Tensor& images_, ScalarType dtype) {
  constexpr const char* op = "displacements";
  const Tensor cell = input(op, "cell", cell_, ScalarType::Double, {kAny, 3, 3});
  const PairList pairs(op, batch_, neighbors_, cell.size(0));
  const Tensor images = input(op, "images", images_, ScalarType::Int, {pairs.atoms, pairs.width});
  const Tensor positions = input(op, "positions", positions_, ScalarType::Double, {pairs.atoms, 3});
  return dispatch_float(op, dtype, [&](auto zero) {
    using T = decltype(zero);
    Tensor result = empty({pairs.atoms, pairs.width, 3}, dtype);
    const double* x = positions.const_data_ptr<double>();
    const double* h = cell.const_data_ptr<double>();
    const int32_t *b = pairs.batch.const_data_ptr<int32_t>(), *n = pairs.neighbors.const_data_ptr<int32_t>(),
                  *image = images.const_data_ptr<int32_t>();
    T* out = result.mutable_data_ptr<T>();
    parallel(pairs.atoms, 64, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        for (int64_t p = i * pairs.width; p < (i + 1) * pairs.width; ++p) {
          double d[3] = {0, 0, 0};
          if (n[p] >= 0) displacement(x + 3 * i, x + 3 * n[p], h + 9 * b[i], image[p], d);
          for (int a = 0; a < 3; ++a) out[3 * p + a] = static_cast<T>(d[a]);
        }
    });
    return result;
  });
}

std::tuple<Tensor, Tensor> displacements_backward(const Tensor& grad_, const Tensor& batch_,
                                                  const Tensor& neighbors_, const Tensor& images_,
                                                  int64_t num_systems) {
  constexpr const char* op = "displacements_backward";
  const PairList pairs(op, batch_, neighbors_, num_systems);
  const Tensor images = input(op, "images", images_, ScalarType::Int, {pairs.atoms, pairs.width});
  const Tensor grad = float_input(op, "grad", grad_, {pairs.atoms, pairs.width, 3});
  Tensor grad_positions = zeros({pairs.atoms, 3}, ScalarType::Double);
  Tensor grad_cell = zeros({num_systems, 3, 3}, ScalarType::Double);
  dispatch_float(op, grad.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const T* g = grad.const_data_ptr<T>();
    const int32_t *b = pairs.batch.const_data_ptr<int32_t>(), *n = pairs.neighbors.const_data_ptr<int32_t>(),
                  *image = images.const_data_ptr<int32_t>();
    const Sums results{grad_positions.mutable_data_ptr<double>(), nullptr,
                       grad_cell.mutable_data_ptr<double>()};
    sum_over_atoms(summing_threads(pairs, grad, 3), pairs.atoms, num_systems, results,
                   [&](int64_t i, const Sums& sums) {
                     double own[3] = {}, cell[9] = {};
                     for (int64_t p = i * pairs.width; p < (i + 1) * pairs.width; ++p)
                       if (n[p] >= 0)
                         add_pair_gradient(g + 3 * p, image[p], own, sums.atoms + 3 * int64_t{n[p]}, cell);
                     add_to<3>(sums.atoms + 3 * i, own);
                     add_to<9>(sums.systems + 9 * b[i], cell);
                   });
  });
  return {grad_positions, grad_cell};
}

std::tuple<Tensor, Tensor, Tensor> pair_forces(const Tensor& grad_, const Tensor& displacements_,
                                               const Tensor& batch_, const Tensor& neighbors_,
                                               int64_t num_systems) {
  constexpr const char* op = "pair_forces";
  const PairList pairs(op, batch_, neighbors_, num_systems);
  const Tensor grad = float_input(op, "grad", grad_, {pairs.atoms, pairs.width, 3});
  const Tensor d =
      input(op, "displacements", displacements_, grad.scalar_type(), {pairs.atoms, pairs.width, 3});
  Tensor forces = zeros({pairs.atoms, 3}, ScalarType::Double);
  Tensor virial = zeros({num_systems, 3, 3}, ScalarType::Double);
  Tensor atom_virial = zeros({pairs.atoms, 3, 3}, ScalarType::Double);
  dispatch_float(op, grad.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const T *g = grad.const_data_ptr<T>(), *v = d.const_data_ptr<T>();
    const int32_t *b = pairs.batch.const_data_ptr<int32_t>(), *n = pairs.neighbors.const_data_ptr<int32_t>();
    const Sums results{forces.mutable_data_ptr<double>(), atom_virial.mutable_data_ptr<double>(),
                       virial.mutable_data_ptr<double>()};
    sum_over_atoms(summing_threads(pairs, grad, 12), pairs.atoms, num_systems, results,
                   [&](int64_t i, const Sums& sums) {
                     double own[3] = {}, w[9] = {};
                     for (int64_t p = i * pairs.width; p < (i + 1) * pairs.width; ++p)
                       if (n[p] >= 0)
                         add_pair_force(g + 3 * p, v + 3 * p, own, sums.atoms + 3 * int64_t{n[p]}, w,
                                        sums.matrices + 9 * int64_t{n[p]});
                     add_to<3>(sums.atoms + 3 * i, own);
                     add_to<9>(sums.systems + 9 * b[i], w);
                   });
  });
  return {forces, virial, atom_virial};
}

std::tuple<Tensor, Tensor> pair_forces_backward(const Tensor& grad_forces_, const Tensor& grad_virial_,
                                                const Tensor& grad_atom_virial_, const Tensor& grad_,
                                                const Tensor& displacements_, const Tensor& batch_,
                                                const Tensor& neighbors_) {
  const PairForcesBackward in("pair_forces_backward", grad_forces_, grad_virial_, grad_atom_virial_, grad_,
                              displacements_, batch_, neighbors_);
  const PairList& pairs = in.pairs;
  const ScalarType dtype = in.grad.scalar_type();
  Tensor grad_grad = zeros({pairs.atoms, pairs.width, 3}, dtype);
  Tensor grad_displacements = zeros({pairs.atoms, pairs.width, 3}, dtype);
  dispatch_float("pair_forces_backward", dtype, [&](auto zero) {
    using T = decltype(zero);
    const T *g = in.grad.const_data_ptr<T>(), *d = in.displacements.const_data_ptr<T>();
    const double *f = in.grad_forces.const_data_ptr<double>(), *w = in.grad_virial.const_data_ptr<double>(),
                 *wj = in.grad_atom_virial.const_data_ptr<double>();
    const int32_t *b = pairs.batch.const_data_ptr<int32_t>(), *n = pairs.neighbors.const_data_ptr<int32_t>();
    T *by_g = grad_grad.mutable_data_ptr<T>(), *by_d = grad_displacements.mutable_data_ptr<T>();
    parallel(pairs.atoms, 64, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        for (int64_t p = i * pairs.width; p < (i + 1) * pairs.width; ++p)
          if (n[p] >= 0)
            pair_force_gradient(f + 3 * i, f + 3 * n[p], w + 9 * b[i], wj + 9 * n[p], g + 3 * p, d + 3 * p,
                                by_g + 3 * p, by_d + 3 * p);
    });
  });
  return {grad_grad, grad_displacements};
}

}  // namespace

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CPU, m) {
  m.impl("displacements", TORCH_BOX(&mdops::displacements));
  m.impl("displacements_backward", TORCH_BOX(&mdops::displacements_backward));
  m.impl("pair_forces", TORCH_BOX(&mdops::pair_forces));
  m.impl("pair_forces_backward", TORCH_BOX(&mdops::pair_forces_backward));
}
