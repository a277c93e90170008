// Runs the GPU kernels for sums of harmonics and their invariants on the host.
// scripts/emulate_harmonic.py calls them with the pointers of their tensors and with their sizes.
#include "fibers.h"
#include "harmonic_moment/gpu_run.h"
#include "moment_invariants/gpu_run.h"

namespace {

using namespace mdops;

template <class T>
bool run(double cutoff, Pointers next, const int64_t* sizes) {
  HarmonicMomentArgs<T> a{};
  a.atoms = sizes[0], a.width = sizes[1], a.ntypes = static_cast<int>(sizes[2]);
  const int64_t intervals = sizes[3];
  a.degree = static_cast<int>(sizes[4]), a.basis = padded_basis(intervals);
  a.cutoff = static_cast<T>(cutoff);
  a.grid = {static_cast<T>(intervals / cutoff), static_cast<int>(intervals)};
  a.displacements = next(), a.counts = next();
  a.types = next(), a.pair_mask = next();
  HarmonicSumArgs<T> sums{};
  sums.table = next(), sums.rows[0] = next(), sums.rows[1] = next(), sums.pieces = next();
  sums.firsts = sizes[6], sums.seconds = sizes[7], sums.known = sizes[8];
  const T *by_first = next(), *by_second = next();
  const Gpu gpu({2, 90, static_cast<int>(sizes[5])});
  std::vector<char> memory;
  const auto room = [&](int64_t bytes) -> void* {
    memory.assign(bytes, '\xff');
    return memory.data();
  };
  using namespace gpu_harmonic;
  if (sizes[9] > 0) {  // systems: forces
    if constexpr (std::is_same_v<T, float>) {
      HarmonicForceArgs<T> of{by_first, by_second};
      of.most = next(), of.nearest = next();
      const int32_t *batch = next(), *neighbors = next();
      of.rows = {batch, neighbors, a.atoms, a.width, sizes[9]};
      of.forces = next(), of.virial = next();
      return run_forces(gpu, a, sums, of, room);
    }
    return false;
  }
  T* const out = next();
  if (by_first) {
    run_sum_gradients(gpu, a, sums, by_first, by_second, out, room);
    return true;
  }
  T* const second = next();
  int32_t* const within = next();
  run_sums(gpu, a, sums, HarmonicSums<T>{out, second, within, next()}, room);
  return true;
}

template <class T>
void run_invariants(Pointers next, const int64_t* sizes) {
  const auto terms = [&](TermArgs<T>& a) {
    a.index = next(), a.factor = next();
    a.offsets = next(), a.rows = *sizes++, a.terms = *sizes++;
  };
  InvariantArgs<T> a{};
  const T* const grad = next();
  a.scalars = next(), a.others = next(), a.types = next(), a.behind = next();
  terms(a.forth), terms(a.back);
  a.atoms = sizes[0], a.channels = sizes[1], a.components = sizes[2], a.extra = sizes[3];
  a.ntypes = static_cast<int>(sizes[4]), a.mixed = sizes[5], a.made = sizes[6];
  const Gpu gpu({2, 90, static_cast<int>(sizes[7])});
  T* const out = next();
  if (!grad) return gpu_invariants::run(gpu, a, out);
  T* const by_others = next();
  gpu_invariants::run(gpu, a, grad, out, by_others);
}

}  // namespace

extern "C" void run_moment_invariants(bool is_double, void** pointers, int64_t* sizes) {
  is_double ? run_invariants<double>(pointers, sizes) : run_invariants<float>(pointers, sizes);
}

// Returns false if there is no kernel for the request.
extern "C" bool run_harmonic(bool is_double, double cutoff, void** pointers, int64_t* sizes) {
  return is_double ? run<double>(cutoff, pointers, sizes) : run<float>(cutoff, pointers, sizes);
}
