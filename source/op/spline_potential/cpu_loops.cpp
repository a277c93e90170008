#include "spline_potential/cpu_loops.h"

#include "spline_potential/cpu_nets.h"

namespace mdops {

void fail_neighbors(const Op& op, int64_t atom) {
  fail(op, "argument `neighbors` has a row, of atom ", atom,
       ", that names an atom that is not there, or ends before its counts say");
}

template <class T>
PotentialResults<T> StepResults<T>::of_thread(const PotentialArgs<T>& args, const SpatialOrder& space,
                                              Share<T>& share) const {
  PotentialResults<T> out{energy,
                          within,
                          nearest,
                          share.forces.begin(args.atoms, 4, space.places()),
                          share.virial.begin(args.systems, 9),
                          -1,
                          {}};
  if (atom_virial) out.atom_virial = share.atom_virial.begin(args.atoms, 9, space.places());
  return out;
}

template <class T>
void StepResults<T>::finish(const Op& op, const PotentialArgs<T>& args, const SpatialOrder& space,
                            const std::vector<Share<T>>& shares) const {
  for (const Share<T>& share : shares)
    if (share.bad_atom >= 0) fail_neighbors(op, share.bad_atom);
  std::fill_n(forces, 3 * args.atoms, 0.0);
  add_forces(shares, args.atoms, space, forces);
  if (atom_virial) {
    std::fill_n(atom_virial, 9 * args.atoms, 0.0);
    add_atom_virials(shares, args.atoms, space, atom_virial);
  }
  add_virials(shares, args.systems, virial);
  for (int64_t i = 0; i < centers; ++i)
    if (args.types[i] < 0) nearest[i] = args.cutoff.cutoff;
}

template <class T>
PotentialKernels<T> prebuilt_kernels() {
  return {[](const PotentialArgs<T>& args) { return MDOPS_RUN(scratch_size, args); },
          [](const PotentialArgs<T>& args, const NetWeights<T>& weights, const int32_t* ids, int64_t count,
             T* scratch,
             PotentialResults<T>& out) { MDOPS_RUN(potential, args, weights, ids, count, scratch, out); }};
}

// Every thread takes an equal part of each net's atoms, so that the sums, and with them the result's last
// bits, depend on the number of threads alone.
template <class T>
void potential_step(const Op& op, const PotentialKernels<T>& kernels, const PotentialArgs<T>& args,
                    const T* nets, int64_t net_size, int parts, const StepResults<T>& results) {
  const Order order(args, results.centers, useful_threads(results.centers));
  const int64_t threads = useful_threads(static_cast<int64_t>(order.ids.size()));
  std::vector<Share<T>> shares(threads);
  parallel(threads, 1, [&](int64_t begin, int64_t end) {
    const ScratchMemory<BlockScratch> memory(op, kernels.scratch_size(args) * sizeof(T));
    T* scratch = static_cast<T*>(memory.data());
    for (int64_t thread = begin; thread < end; ++thread) {
      PotentialResults<T> out = results.of_thread(args, order.space, shares[thread]);
      for (int n = 0; n < args.nets; ++n) {
        const int64_t first = order.first_of(n, args.nets), count = order.count_of(n, args.nets);
        const int64_t from = count * thread / threads, to = count * (thread + 1) / threads;
        T* packed = const_cast<T*>(nets) + n * net_size;  // which is only read
        kernels.potential(args, packed_weights(args.net, parts, packed), order.ids.data() + first + from,
                          to - from, scratch, out);
      }
      shares[thread].bad_atom = out.bad_atom;
    }
  });
  results.finish(op, args, order.space, shares);
}

template struct StepResults<float>;
template struct StepResults<double>;
MDOPS_INSTANTIATE(prebuilt_kernels, potential_step)

}  // namespace mdops
