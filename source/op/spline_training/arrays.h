// The memory of a training step: for every block of atoms what its passes leave for others, an atom a lane.
#pragma once

#include "spline_potential/atoms.h"
#include "spline_training/spline_training.h"

namespace mdops {
namespace MDOPS_ISA {

// One array of all blocks, `rows` numbers an atom.
template <class T>
struct BlockArray {
  T* base;
  int64_t rows;

  T* at(const TrainingBlock& block) const { return base + block.lane * rows; }
  Panels<T> of(const TrainingBlock& block) const { return {at(block), rows, block.lanes}; }
  // The same where the block's atoms are the rows: a right factor of products over atoms.
  Panels<T> across(const TrainingBlock& block) const { return {at(block), block.lanes, rows}; }
};

// Every array. Those of the forward pass are saved, the others last as long as the backward pass.
template <class T>
struct TrainingArrays {
  BlockArray<T> t;                      // T, four times t_width rows
  BlockArray<T> grad_t;                 // its gradient of the energy, [atom][4][t_width]
  BlockArray<T> grad_d;                 // the features' gradient of the energy
  BlockArray<T> extra;                  // further inputs of the net
  BlockArray<T> h[kMaxLayers];          // tanh(x W + b)
  BlockArray<T> y[kMaxLayers];          // the layer's output
  BlockArray<T> grad_y[kMaxLayers];     // of the energy
  BlockArray<T> delta[kMaxLayers];      // the energy's gradient by x W, across
  BlockArray<T> dt;                     // tangents of T
  BlockArray<T> dy[kMaxLayers];         // and of the layers' outputs
  BlockArray<T> adjoint_z[kMaxLayers];  // the loss' gradient by x W, across
  int64_t saved, work;

  TrainingArrays(const FittingShape& net, const TrainingMemory<T>& memory) {
    Arena kept{reinterpret_cast<char*>(memory.saved)}, used{reinterpret_cast<char*>(memory.work)};
    const auto array = [&](Arena& arena, int64_t rows) {
      return BlockArray<T>{arena.take<T>(rows * memory.lanes), rows};
    };
    const int64_t t_rows = 4 * t_width<T>(net);
    int64_t features = 0;
    each_group(net, kGroup, [&](const Group& group, int64_t before) { features = before + group.features; });
    t = array(kept, t_rows), grad_t = array(kept, t_rows);
    grad_d = array(kept, features), extra = array(kept, net.extra);
    dt = array(used, t_rows);
    for (int n = 0; n < net.layers; ++n) {
      const int64_t rows = net.neurons[n];
      h[n] = array(kept, rows), y[n] = array(kept, rows);
      grad_y[n] = array(kept, rows), delta[n] = array(kept, padded<T>(rows));
      dy[n] = array(used, rows), adjoint_z[n] = array(used, padded<T>(rows));
    }
    saved = kept.used / static_cast<int64_t>(sizeof(T));
    work = used.used / static_cast<int64_t>(sizeof(T));
  }
};

}  // namespace MDOPS_ISA
}  // namespace mdops
