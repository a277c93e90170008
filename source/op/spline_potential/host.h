// What the ops over whole models share on the CPU: memory of threads, the order of atoms, and sums over
// threads.
#pragma once

#include <algorithm>
#include <vector>

#include "common/scratch.h"
#include "spline_potential/inputs.h"

namespace mdops {

struct BlockScratch;  // of a thread that works on blocks of atoms
struct StepScratch;   // of the thread that calls the op, for all blocks

// The atoms of each type one after the other, virtual ones left out; `start` (ntypes + 1) says where a type
// begins.
struct Order {
  std::vector<int32_t> ids;
  std::vector<int64_t> start;

  Order(const int32_t* types, int64_t atoms, int64_t ntypes) : start(ntypes + 1, 0) {
    for (int64_t i = 0; i < atoms; ++i)
      if (types[i] >= 0) ++start[types[i] + 1];
    for (int64_t t = 0; t < ntypes; ++t) start[t + 1] += start[t];
    ids.resize(start[ntypes]);
    std::vector<int64_t> next(start.begin(), start.end() - 1);
    for (int64_t i = 0; i < atoms; ++i)
      if (types[i] >= 0) ids[next[types[i]]++] = static_cast<int32_t>(i);
  }

  // The atoms of one of so many nets: of a type, or of all types.
  int64_t first_of(int64_t net, int64_t nets) const { return nets == 1 ? start.front() : start[net]; }
  int64_t count_of(int64_t net, int64_t nets) const {
    return (nets == 1 ? start.back() : start[net + 1]) - first_of(net, nets);
  }
};

// Positions with a fourth column, so that one vector load brings an atom.
inline std::vector<double> four_columns(const double* positions, int64_t atoms) {
  std::vector<double> result(4 * atoms);
  parallel(atoms, 4096, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      for (int a = 0; a < 3; ++a) result[4 * i + a] = positions[3 * i + a];
  });
  return result;
}

// What a thread adds up on its own.
template <class T>
struct Share {
  std::vector<T> forces;
  std::vector<double> virial;
  int64_t bad_atom = -1;
};

template <class T>
void sum_shares(const std::vector<Share<T>>& shares, int64_t atoms, double* forces, double* virial) {
  parallel(atoms, 4096, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      for (int a = 0; a < 3; ++a) {
        double sum = 0;
        for (const Share<T>& share : shares) sum += share.forces[4 * i + a];
        forces[3 * i + a] = sum;
      }
  });
  for (const Share<T>& share : shares)
    for (size_t k = 0; k < share.virial.size(); ++k) virial[k] += share.virial[k];
}

template <class T>
PotentialArgs<T> arguments(const PotentialInputs& in, const double* four_columns) {
  PotentialArgs<T> args{};
  args.positions = four_columns;
  fill<T>(in, args);
  args.net = in.net;
  return args;
}

[[noreturn]] inline void fail_neighbors(const Op& op, int64_t atom) {
  fail(op, "argument `neighbors` has a row, of atom " + std::to_string(atom) +
               ", that names an atom that is not there, or ends before its counts say");
}

// The results of a call on the CPU.
struct Answer {
  Tensor energy, forces, virial, within, nearest;

  explicit Answer(const PotentialInputs& in)
      : energy(zeros({in.atoms}, ScalarType::Double)),
        forces(empty({in.atoms, 3}, ScalarType::Double)),
        virial(zeros({in.systems, 3, 3}, ScalarType::Double)),
        within(zeros({in.atoms, in.ntypes}, ScalarType::Int)),
        nearest(empty({in.atoms}, in.dtype)) {}

  // Where a thread writes: what belongs to an atom into the tensors, sums into its share.
  template <class T>
  PotentialResults<T> results(const PotentialInputs& in, Share<T>& share) {
    share.forces.assign(4 * in.atoms, T(0));
    share.virial.assign(9 * in.systems, 0.0);
    return {energy.mutable_data_ptr<double>(),
            within.mutable_data_ptr<int32_t>(),
            nearest.mutable_data_ptr<T>(),
            share.forces.data(),
            share.virial.data(),
            -1};
  }

  template <class T>
  void finish(const Op& op, const PotentialInputs& in, const std::vector<Share<T>>& shares) {
    for (const Share<T>& share : shares)
      if (share.bad_atom >= 0) fail_neighbors(op, share.bad_atom);
    sum_shares(shares, in.atoms, forces.mutable_data_ptr<double>(), virial.mutable_data_ptr<double>());
    const int32_t* types = in.types.const_data_ptr<int32_t>();
    for (int64_t i = 0; i < in.atoms; ++i)
      if (types[i] < 0) nearest.mutable_data_ptr<T>()[i] = static_cast<T>(in.cutoff);
  }
};

// Threads that are worth it for so many atoms.
inline int64_t useful_threads(int64_t atoms) {
  return std::min<int64_t>(thread_count(), std::max<int64_t>(1, atoms / 16));
}

}  // namespace mdops
