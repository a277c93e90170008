// The step on a GPU from the host: its limits, its memory, its launches.
#pragma once

#include <algorithm>
#include <string>

#include "gemm/gpu_run.h"
#include "spline_potential/gpu_fold.h"
#include "spline_potential/gpu_forces.h"
#include "spline_potential/gpu_moments.h"
#include "spline_potential/gpu_teams.h"

namespace mdops {

constexpr int kMostTypes = 256;
constexpr int kWarpsBytes = 64 << 10;  // of shared memory, for a block's warps with an atom each

// Why the kernels do not support a model on this device; empty if they do. Its sizes are those that any
// device supports.
template <int Parts>
std::string step_refusal(const GpuLimits& limits, const GpuNetShape& net, int ntypes, int moment_rows,
                         int width, int axis) {
  if (ntypes > kMostTypes)
    return std::to_string(ntypes) + " types, expected at most " + std::to_string(kMostTypes) + " on a GPU";
  const int words = (moment_rows + 31) / 32;
  const int bytes = std::max(AtomMemory::bytes(moment_rows, words, axis),
                             ForceMemory::bytes(moment_rows, round_up(width, 16), axis));
  if (bytes > limits.shared_bytes)
    return std::to_string(moment_rows) + " spline functions of all types need " + std::to_string(bytes) +
           " bytes of a GPU's shared memory, and this one has " + std::to_string(limits.shared_bytes);
  if (!matrices_fit(net)) return "a layer of the fitting net has too many weights for a GPU";
  if (choose_net_kernel<Parts>(net, 1, limits).kind == NetKernel::none)
    return "the fitting net's kernels need more shared memory than this GPU's " +
           std::to_string(limits.shared_bytes) + " bytes";
  return "";
}

// Sets the rows of a call, and the bounds of its sums.
template <int Parts>
void set_rows(const Gpu& gpu, const GpuLimits& limits, const NetKernel& kernel, StepArgs& p) {
  p.tile_rows = p.net.tile_rows = kernel.tile_rows, p.output_parts = kernel.output_parts;
  gpu.int32_of("positions",
               (p.atom_virial ? 9 : 4) * int64_t{p.atoms} + kOrderBlock);  // the kernels' largest index
  gpu.int32_of("cell", 2 * kVirialSums * int64_t{p.systems});
  p.rows =
      p.atoms ? gpu.int32_of("positions", (blocks_for(p.atoms, p.tile_rows) + p.nets - 1) * p.tile_rows) : 0;
  p.net.rows = std::min(p.rows, rows_at_once(kernel, limits));  // with T and D
  p.out_bias = GpuNet(p.net.net, Parts).out_bias;
  p.most_force = std::min(kMostForce, kMostForceOfRow / std::max(p.list_width, 1));
  p.most_virial = static_cast<float>(kMostVirial) / static_cast<float>(std::max(p.list_width, 1));
  p.net.scale = p.scale;
}

// Memory for the whole call; and for a chunk's rows, for the net and for a descriptor.
inline void take_call(Workspace& space, StepArgs& p) {
  const int64_t n = p.atoms, systems = p.systems;
  p.at = space.take<Place>(n);
  p.atom_sums = space.take<int64_t>(p.atom_numbers() * n);
  p.virial_sums = space.take<int64_t>(kVirialSums * systems);
  p.type_counts = space.take<int32_t>(blocks_for(n + 1, kOrderBlock) * p.ntypes);
  p.row_atom = space.take<int32_t>(p.rows);
  p.atom_row = space.take<int32_t>(n);
  p.tile_net = space.take<int32_t>(p.rows / p.tile_rows);
  p.failed = space.take<int32_t>(systems);
}
inline void take_net(Workspace& space, const NetKernel& kernel, StepArgs& p, NetMemory& net) {
  const int64_t chunk = p.net.rows;
  p.net.inputs = space.take<float>(chunk * p.net.net.inputs);
  p.net.bounds = space.take<float>(chunk * (1 + 2 * p.net.net.layers));
  p.net.output = space.take<double>(chunk * p.output_parts);
  net.take(space, kernel, p.net.net, chunk);
}
inline void take_rows(Workspace& space, StepArgs& p) {
  const int64_t chunk = p.net.rows;
  p.pairs = space.take<float4>(chunk * p.list_width);
  p.touched = space.take<uint32_t>(chunk * p.words());
  p.t = space.take<float>(chunk * 4 * p.table_width);
}

// The first kernels of a call, which order the atoms, and the last, which writes the sums.
inline void launch_order(const Gpu& gpu, const StepArgs& p) {
  const int64_t blocks = blocks_for(std::max(p.atoms, 1), kOrderBlock);
  const int threads = blocks > 1 ? kOrderBlock : round_up(std::max(p.atoms, 1), kWarp);
  gpu.launch_early(begin_kernel, blocks > 1 ? blocks : 0, kOrderBlock, 4 * p.ntypes, p);
  gpu.launch_early(order_kernel, blocks, threads, 4 * ((2 + kOrderBlock / kWarp) * p.ntypes + 1), p);
}
inline void launch_end(const Gpu& gpu, const StepArgs& p) {
  const int64_t of_atoms = (p.atom_virial ? 9 : 3) * int64_t{p.atoms};
  gpu.launch_early(end_kernel, blocks_for(std::max<int64_t>(of_atoms, 9 * p.systems), 256), 256, 0, p);
}

// A warp a row, each with `bytes` of shared memory; the kernel follows others early. A few rows are spread
// over many multiprocessors.
template <class... Args>
void launch_warps(const Gpu& gpu, void (*kernel)(Args...), int64_t rows, int bytes, const Args&... args) {
  int warps = kAtomThreads / kWarp;
  const GpuLimits limits = gpu.limits();
  while (warps > 1 && warps * bytes > std::min(kWarpsBytes, limits.shared_bytes)) warps /= 2;
  while (warps > 1 && 2 * blocks_for(rows, warps) <= limits.multiprocessors) warps /= 2;
  gpu.launch_early(kernel, blocks_for(rows, warps), warps * kWarp, warps * bytes, args...);
}

// The same with `team` warps a row.
template <class... Args>
void launch_teams(const Gpu& gpu, void (*kernel)(Args...), int64_t rows, int team, int bytes,
                  const Args&... args) {
  const GpuLimits limits = gpu.limits();
  int teams = kTeamWarps / team;
  while (teams > 1 && teams * team * bytes > limits.shared_bytes) teams /= 2;
  while (teams > 1 && 2 * blocks_for(rows, teams) <= limits.multiprocessors) teams /= 2;
  const int warps = teams * team;
  gpu.launch_early(kernel, blocks_for(rows, teams), warps * kWarp, warps * bytes, args...);
}

// How many warps work on each of `rows` rows: several if a block on each multiprocessor holds all, and its
// shared memory, with `bytes` each, holds one row's.
inline int team_size(const GpuLimits& limits, int64_t rows, int bytes) {
  int team = kMostTeam;
  while (team > 1 &&
         (team * rows > int64_t{kTeamWarps} * limits.multiprocessors || team * bytes > limits.shared_bytes))
    team /= 2;
  return team;
}

// How many warps form an atom's moments.
inline int moments_team(const Gpu& gpu, const NetKernel& kernel, int64_t rows, const StepArgs& p) {
  return kernel.input_parts ? 1 : team_size(gpu.limits(), rows, TeamMemory::bytes(p));
}

template <bool Gated, int Parts>
void launch_moments_of(const Gpu& gpu, const NetKernel& kernel, int64_t rows, const StepArgs& p) {
  const int bytes = TeamMemory::bytes(p), team = moments_team(gpu, kernel, rows, p);
  if (team > 1)
    launch_teams(gpu, team_moments_kernel<Gated>, rows, team, bytes, p, team);
  else
    launch_warps(gpu, kernel.input_parts ? moments_kernel<Parts, Gated> : moments_kernel<0, Gated>, rows,
                 AtomMemory::bytes(p), p);
}
// work<gated>(); a library that is rebuilt for a model has kernels for one of the two.
void with_gate(const StepArgs& p, const auto& work) {
#ifdef MDOPS_MODEL_GATED
  static_cast<void>(p), work.template operator()<StepArgs::gated>();
#else
  p.gated ? work.template operator()<true>() : work.template operator()<false>();
#endif
}

template <int Parts>
void launch_moments(const Gpu& gpu, const NetKernel& kernel, int64_t rows, const StepArgs& p) {
  with_gate(p, [&]<bool Gated>() { launch_moments_of<Gated, Parts>(gpu, kernel, rows, p); });
}

// And how many for its forces.
inline int forces_team(const Gpu& gpu, int64_t rows, const StepArgs& p) {
  return team_size(gpu.limits(), rows, ForceMemory::bytes(p));
}

template <bool Gated, bool Virials>
void launch_forces_of(const Gpu& gpu, int64_t rows, const StepArgs& p) {
  const int bytes = ForceMemory::bytes(p), team = forces_team(gpu, rows, p);
  if (team > 1)
    launch_teams(gpu, team_forces_kernel<Gated, Virials>, rows, team, bytes, p, team);
  else
    launch_warps(gpu, forces_kernel<Gated, Virials>, rows, bytes, p);
}
// A template, so that only sources that call it compile its kernels.
template <class = void>
void launch_forces(const Gpu& gpu, int64_t rows, const StepArgs& p) {
  with_gate(p, [&]<bool Gated>() {
    p.atom_virial ? launch_forces_of<Gated, true>(gpu, rows, p)
                  : launch_forces_of<Gated, false>(gpu, rows, p);
  });
}

// A call: `bytes()` gives the size of its memory, then `run` launches the kernels.
template <int Parts>
class StepCall {
 public:
  // The inputs, sizes and results of `args` are given, the rest is set here.
  StepCall(const Gpu& gpu, StepArgs args)
      : gpu_(gpu),
        limits_(gpu.limits()),
        kernel_(choose_net_kernel<Parts>(args.net.net, args.atoms, limits_)),
        p_(args) {
    set_rows<Parts>(gpu, limits_, kernel_, p_);
    p_.by_atom = p_.rows == p_.net.rows && moments_team(gpu, kernel_, p_.rows, p_) > 1 &&
                 forces_team(gpu, p_.rows, p_) > 1;
  }

  int64_t bytes() {
    return Workspace::bytes([&](Workspace& space) { divide(space); });
  }

  void run(void* memory) {
    Workspace space(static_cast<char*>(memory));
    divide(space);
    launch_order(gpu_, p_);
    for (p_.first_row = 0; p_.first_row < p_.rows; p_.first_row += p_.net.rows) chunk();
    launch_end(gpu_, p_);
  }

 private:
  void divide(Workspace& space) {
    take_call(space, p_);
    take_rows(space, p_);
    take_net(space, kernel_, p_, net_);
  }

  // The descriptor, the net, and back. The last chunk may have fewer rows.
  void chunk() {
    const int64_t rows = std::min(p_.rows - p_.first_row, p_.net.rows);
    launch_moments<Parts>(gpu_, kernel_, rows, p_);
    p_.net.tile_type = p_.tile_net + p_.first_row / p_.tile_rows;
    run_net<Parts>(gpu_, p_.net, net_, rows / p_.tile_rows, kernel_.kind);
    launch_forces(gpu_, rows, p_);
  }

  const Gpu& gpu_;
  const GpuLimits limits_;
  const NetKernel kernel_;
  StepArgs p_;
  NetMemory net_;
};

}  // namespace mdops
