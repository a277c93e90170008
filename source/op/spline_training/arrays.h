// The memory of a training step: what passes over a block of atoms leave for later ones, an atom a lane.
#pragma once

#include "gemm/training.h"
#include "spline_potential/atoms.h"
#include "spline_training/spline_training.h"

namespace mdops::MDOPS_ISA {

// Features of D in all groups.
inline int64_t all_features(const FittingShape& net) {
  int64_t features = 0;
  each_group(net, kGroup, [&](const Group& group, int64_t before) { features = before + group.features; });
  return features;
}

// Every array. Those of the forward pass are saved, the others last as long as the backward pass.
template <class T>
struct TrainingArrays {
  BlockArray<T> t;       // T, four times t_width rows
  BlockArray<T> grad_t;  // its gradient of the energy, [atom][4][t_width]
  BlockArray<T> grad_d;  // the features' gradient of the energy
  BlockArray<T> dt;      // tangents of T
  NetArrays<T> net;
  int64_t saved, work;

  TrainingArrays(const FittingShape& shape, const TrainingMemory<T>& memory)
      : TrainingArrays(shape, {{reinterpret_cast<char*>(memory.saved)}, memory.lanes},
                       {{reinterpret_cast<char*>(memory.work)}, memory.lanes}) {}

 private:
  TrainingArrays(const FittingShape& shape, BlockArena<T> kept, BlockArena<T> used)
      : t(kept.take(4 * t_width<T>(shape))),
        grad_t(kept.take(4 * t_width<T>(shape))),
        grad_d(kept.take(all_features(shape))),
        dt(used.take(4 * t_width<T>(shape))),
        net(shape, kept, used),
        saved(kept.size()),
        work(used.size()) {}
};

}  // namespace mdops::MDOPS_ISA
