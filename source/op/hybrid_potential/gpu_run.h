// A step of several descriptors on a GPU from the host: its memory, its launches.
#pragma once

#include <vector>

#include "hybrid_potential/gpu_kernels.h"
#include "hybrid_potential/gpu_loops.h"
#include "spline_potential/gpu_run.h"

namespace mdops {

constexpr int kFp16Splits = 2;  // of float16 in the place of a number (gpu_shape.h)
// spline_potential/gpu_loops.cu has it.
extern template void launch_moments<kFp16Splits>(const Gpu&, const NetKernel&, int64_t, const StepArgs&);

class HybridCall {
 public:
  // The descriptors' inputs and sizes are given; results, and the net, only in that with the longest cutoff.
  HybridCall(const Gpu& gpu, std::vector<StepArgs> parts, int widest, HybridOut out)
      : gpu_(gpu),
        limits_(gpu.limits()),
        kernel_(choose_net_kernel<kFp16Splits>(parts[widest].net.net, parts[widest].atoms, limits_)),
        parts_(std::move(parts)),
        widest_(widest),
        out_(out) {
    set_rows<kFp16Splits>(gpu, limits_, kernel_, parts_[widest]);
  }

  int64_t bytes() {
    return Workspace::bytes([&](Workspace& space) { divide(space); });
  }

  void run(void* memory) {
    Workspace space(static_cast<char*>(memory));
    divide(space);
    const StepArgs& p = parts_[widest_];
    const int64_t counts = static_cast<int64_t>(p.atoms) * p.ntypes, all = counts * parts_.size();
    if (!alone()) gpu_.clear(within_, all * 4);
    launch_order(gpu_, p);
    for (int first = 0; first < p.rows; first += p.net.rows) chunk(first);
    if (is_net()) return;
    launch_end(gpu_, p);
    if (!alone())
      gpu_.launch_for(all, 256, within_kernel, within_, p.atoms, features_.count, p.ntypes, out_.within);
  }

 private:
  void divide(Workspace& space) {
    StepArgs& first = parts_[widest_];
    take_call(space, first);
    take_net(space, kernel_, first, net_);
    bounds_ = space.take<float>(first.net.rows);
    if (first.extra_size) first.grad_extra = out_.grad_extra;
    if (out_.near.c)
      first.near = {out_.near.c, out_.near.far, space.take<int32_t>(first.rows),
                    space.take<int32_t>(blocks_for(first.rows, std::max(first.net.rows, 1)))};
    features_.bounds = is_net() ? nullptr : bounds_,
    features_.count = features_.first_extra = features_.most_axis = 0;
    if (is_net()) {
      first.within = space.take<int32_t>(static_cast<int64_t>(first.atoms) * first.ntypes);
      first.nearest = space.take<float>(first.atoms);
      return;
    }
    within_ = out_.within;
    if (!alone())
      within_ = space.take<int32_t>(static_cast<int64_t>(first.atoms) * first.ntypes * parts_.size());
    float* const nearest = space.take<float>(first.atoms);  // of the others: unused
    features_.count = static_cast<int>(parts_.size());
    for (int k = 0; k < features_.count; ++k) {
      StepArgs& p = parts_[k];
      if (k != widest_) share(first, nearest, p);
      p.within = within_ + static_cast<int64_t>(k) * p.atoms * p.ntypes;
      take_rows(space, p);
      features_.parts[k] = {p.t, p.table_width, p.width, p.axis, features_.first_extra, p.plain};
      features_.first_extra += p.features().count();
      features_.most_axis = std::max(features_.most_axis, p.axis);
    }
  }

  // What all descriptors of the call share.
  static void share(const StepArgs& of, float* nearest, StepArgs& p) {
    p.at = of.at, p.atom_sums = of.atom_sums, p.virial_sums = of.virial_sums, p.row_atom = of.row_atom;
    p.tile_net = of.tile_net, p.failed = of.failed, p.rows = of.rows, p.tile_rows = of.tile_rows;
    p.output_parts = of.output_parts, p.net = of.net, p.out_bias = of.out_bias;
    p.most_force = of.most_force, p.most_virial = of.most_virial;
    p.energy = of.energy, p.atom_virial = of.atom_virial, p.nearest = nearest;
  }

  void chunk(int first) {
    for (StepArgs& p : parts_) p.first_row = first;
    StepArgs& one = parts_[widest_];
    const int64_t rows = std::min(one.rows - first, one.net.rows);
    if (is_net()) {
      launch_warps(gpu_, features(), rows, 0, one, features_);
    } else if (alone()) {
      launch_moments<kFp16Splits>(gpu_, kernel_, rows, one);
    } else {
      for (StepArgs& p : parts_)
        launch_warps(gpu_, p.gated ? part_moments_kernel<true> : part_moments_kernel<false>, rows,
                     AtomMemory::bytes(p), p, bounds_, &p == parts_.data());
      launch_warps(gpu_, features(), rows, 16 * features_.most_axis, one, features_);
    }
    if (out_.near.c)
      gpu_.launch_early(
          near_rows_kernel,
          std::min(blocks_for(rows, kNearThreads / kWarp), int64_t{kNearBlocks} * limits_.multiprocessors),
          kNearThreads, 0, one, out_.near);
    one.net.tile_type = one.tile_net + first / one.tile_rows;
    run_net<kFp16Splits>(gpu_, one.net, net_, rows / one.tile_rows, kernel_.kind);
    if (is_net())
      launch_warps(gpu_, net_end_kernel, rows, 0, one,
                   PartForces{out_.weight, 0, 0, true, out_.grad_extra, nullptr});
    for (size_t k = 0; k < parts_.size() && !is_net(); ++k) {
      const StepArgs& p = parts_[k];
      const PartForces more{out_.weight, features_.parts[k].first, features_.first_extra,
                            k == 0,      out_.grad_extra,          out_.near.c};
      launch_warps(gpu_, p.gated ? forces<true>(p) : forces<false>(p), rows, ForceMemory::bytes(p), p, more);
    }
  }

  // Whether there is one descriptor: its moments become features in one kernel, as in its own step.
  bool alone() const { return parts_.size() == 1; }
  // Whether there is none, only the net of the further inputs.
  bool is_net() const { return parts_[0].width == 0; }

  auto features() const -> void (*)(StepArgs, HybridFeatures) {
    return kernel_.input_parts ? features_kernel<kFp16Splits> : features_kernel<0>;
  }

  using ForcesKernel = void (*)(StepArgs, PartForces);
  template <bool Gated>
  static ForcesKernel forces(const StepArgs& p) {
    return p.atom_virial ? part_forces_kernel<Gated, true> : part_forces_kernel<Gated, false>;
  }

  const Gpu& gpu_;
  const GpuLimits limits_;
  const NetKernel kernel_;
  std::vector<StepArgs> parts_;
  const int widest_;
  HybridOut out_;
  NetMemory net_;
  float* bounds_;
  int32_t* within_;
  HybridFeatures features_;
};

}  // namespace mdops
