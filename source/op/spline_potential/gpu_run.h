// The step on a GPU from the host: what it cannot take, its memory, its launches.
#pragma once

#include <algorithm>
#include <string>

#include "gemm/gpu_run.h"
#include "spline_potential/gpu_fold.h"
#include "spline_potential/gpu_forces.h"
#include "spline_potential/gpu_moments.h"

namespace mdops {

constexpr int kMostTypes = 256;
constexpr int kWarpsBytes = 64 << 10;  // of shared memory, for the warps of a block that work on an atom each

// Why the kernels cannot take a model on this device; empty if they can. Its sizes are those that any device
// takes.
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
  if (choose_way<Parts>(net, 1, limits).kind == NetWay::none)
    return "the fitting net's kernels need more shared memory than this GPU's " +
           std::to_string(limits.shared_bytes) + " bytes";
  return "";
}

// A call: `memory()` of so many bytes is asked for once, then `run` launches the kernels.
template <int Parts>
class StepCall {
 public:
  // The inputs, sizes and results of `args` are given, the rest is set here.
  StepCall(const Gpu& gpu, StepArgs args)
      : gpu_(gpu),
        limits_(gpu.limits()),
        way_(choose_way<Parts>(args.net.net, args.atoms, limits_)),
        p_(args) {
    p_.tile_rows = way_.tile_rows, p_.output_parts = way_.output_parts;
    gpu.int32_of("positions",
                 (p_.atom_virial ? 9 : 4) * int64_t{p_.atoms} + kOrderBlock);  // what kernels count with
    gpu.int32_of("cell", 2 * kVirialSums * int64_t{p_.systems});
    p_.rows = p_.atoms ? gpu.int32_of("positions",
                                      (blocks_for(p_.atoms, p_.tile_rows) + p_.nets - 1) * p_.tile_rows)
                       : 0;
    // Four rounds of a block of the chain on each multiprocessor have T, D and layers in memory at a time.
    p_.net.rows = std::min(p_.rows, 4 * limits_.multiprocessors * kMostTileRows);
    p_.out_bias = GpuNet(p_.net.net, Parts).out_bias;
    p_.most_force = std::min(kMostForce, kMostForceOfRow / std::max(p_.list_width, 1));
    p_.most_virial = static_cast<float>(kMostVirial) / static_cast<float>(std::max(p_.list_width, 1));
    p_.net.scale = p_.scale;
  }

  int64_t bytes() {
    Workspace space(nullptr);
    divide(space);
    return space.size();
  }

  void run(void* memory) {
    Workspace space(static_cast<char*>(memory));
    divide(space);
    const int64_t blocks = blocks_for(std::max(p_.atoms, 1), kOrderBlock);
    gpu_.launch(begin_kernel, blocks, kOrderBlock, 4 * p_.ntypes, p_);
    gpu_.launch(order_kernel, p_.atoms ? blocks : 0, kOrderBlock,
                4 * ((2 + kOrderBlock / kWarp) * p_.ntypes + 1), p_);
    for (p_.first_row = 0; p_.first_row < p_.rows; p_.first_row += p_.net.rows) chunk();
    const int64_t of_atoms = (p_.atom_virial ? 9 : 3) * int64_t{p_.atoms};
    gpu_.launch(end_kernel, blocks_for(std::max<int64_t>(of_atoms, 9 * p_.systems), 256), 256, 0, p_);
  }

 private:
  void divide(Workspace& space) {
    const int64_t n = p_.atoms, chunk = p_.net.rows, systems = p_.systems;
    p_.at = space.take<Place>(n);
    p_.atom_sums = space.take<int64_t>(p_.atom_numbers() * n);
    p_.virial_sums = space.take<int64_t>(kVirialSums * systems);
    p_.type_counts = space.take<int32_t>(blocks_for(n + 1, kOrderBlock) * p_.ntypes);
    p_.row_atom = space.take<int32_t>(p_.rows);
    p_.tile_net = space.take<int32_t>(p_.rows / p_.tile_rows);
    p_.failed = space.take<int32_t>(systems);
    p_.pairs = space.take<float4>(chunk * p_.list_width);
    p_.touched = space.take<uint32_t>(chunk * p_.words());
    p_.t = space.take<float>(chunk * 4 * p_.table_width);
    p_.net.inputs = space.take<float>(chunk * p_.net.net.inputs);
    p_.net.bounds = space.take<float>(chunk * (1 + 2 * p_.net.net.layers));
    p_.net.output = space.take<double>(chunk * p_.output_parts);
    net_.take(space, way_, p_.net.net, chunk);
  }

  // The descriptor, the net, and back. The last chunk may have fewer rows.
  void chunk() {
    const int64_t rows = std::min(p_.rows - p_.first_row, p_.net.rows);
    launch_warps(p_.gated ? moments<true>() : moments<false>(), rows, AtomMemory::bytes(p_));
    p_.net.tile_type = p_.tile_net + p_.first_row / p_.tile_rows;
    NetCall<Parts>(gpu_, p_.net, net_, rows / p_.tile_rows).run(way_.kind);
    launch_warps(p_.gated ? forces<true>() : forces<false>(), rows, ForceMemory::bytes(p_));
  }

  template <bool Gated>
  auto forces() const {
    return p_.atom_virial ? forces_kernel<Gated, true> : forces_kernel<Gated, false>;
  }

  template <bool Gated>
  auto moments() const {
    return way_.input_parts ? moments_kernel<Parts, Gated> : moments_kernel<0, Gated>;
  }

  // A warp a row, each with so much shared memory.
  void launch_warps(void (*kernel)(StepArgs), int64_t rows, int bytes) const {
    int warps = kAtomThreads / kWarp;
    while (warps > 1 && warps * bytes > std::min(kWarpsBytes, limits_.shared_bytes)) warps /= 2;
    gpu_.launch(kernel, blocks_for(rows, warps), warps * kWarp, warps * bytes, p_);
  }

  const Gpu& gpu_;
  const GpuLimits limits_;
  const NetWay way_;
  StepArgs p_;
  NetMemory net_;
};

}  // namespace mdops
