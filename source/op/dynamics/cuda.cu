#include "common/cuda.h"
#include "dynamics/gpu_kernels.h"
#include "dynamics/ops.h"

namespace mdops {

using namespace gpu_dynamics;

// The second half of a step, in two kernels or one.
static bool are_few(const SortedAtoms& s) {
  return s.atoms <= kFewAtoms && s.systems <= kFewSystems;
}

template <class Half, class Finish>
static void end_systems(const CudaOp& op, const SortedAtoms& s, const Half& half, const Finish& finish) {
  using Measured = typename Half::Measured;
  if (are_few(s))
    return op.launch_early(end_few<Half, Finish>, s.systems ? 1 : 0, kThreads, 0, half, s.batch, s.atoms,
                           s.systems, finish);
  const int64_t windows = blocks_for(s.atoms, kWarp), places = windows + s.systems;
  const Tensor memory =
      empty(op, {places * static_cast<int64_t>(sizeof(Measured) / sizeof(double))}, ScalarType::Double);
  Measured* parts = reinterpret_cast<Measured*>(const_cast<void*>(memory.data_ptr()));
  // Few atoms are spread over the multiprocessors.
  const int few = windows > 4096 ? kThreads : kWarp;
  op.launch_early(second_half<Half>, blocks_for(windows * kWarp, few), few, 0, half, s.batch, s.atoms,
                  s.systems, parts);
  const int threads = windows > kFewParts * s.systems ? kThreads : kWarp;
  op.launch_early(finish_systems<Measured, Finish>, s.systems, threads, 0, parts, s.batch, s.atoms, s.systems,
                  finish);
}

template <int Links>
static void begin_systems(const CudaOp& op, const FirstHalfArgs& args, const Thermostats<Links>& bath) {
  const SortedAtoms& s = args.sorted;
  op.launch_early(first_half<Links>, blocks_for(s.atoms > s.systems ? s.atoms : s.systems, kThreads),
                  kThreads, 0, args, bath);
}

template <class Half, class Finish, int Links>
static void end_and_begin(const CudaOp& op, const SortedAtoms& s, const Half& half, const Finish& finish,
                          const FirstHalfArgs& args, const Thermostats<Links>& bath) {
  if (are_few(s))
    return op.launch_early(next_few<Half, Links>, s.systems ? 1 : 0, kThreads, 0, half, finish, args, bath);
  end_systems(op, s, half, finish);
  begin_systems(op, args, bath);
}

template <class Start, class Half>
static void begin_cells(const CudaOp& op, const SortedAtoms& s, const Start& start, const Half& half) {
  op.launch_early(start_cells<Start>, s.systems, kWarp, 0, start, s.batch, s.atoms);
  op.launch_early(first_half_in_cell, blocks_for(s.atoms, kThreads), kThreads, 0, half, s.batch, s.atoms,
                  s.systems);
}

}  // namespace mdops

MDOPS_ON_GPU(DynamicsOps)
