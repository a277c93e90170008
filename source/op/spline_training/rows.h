// The memory of a training step: for every row (an atom, or padding of a block) what its passes leave for
// others.
#pragma once

#include <initializer_list>

#include "spline_potential/atoms.h"
#include "spline_training/spline_training.h"

namespace mdops {
namespace MDOPS_ISA {

constexpr int64_t kSlack = 64;  // elements after the last row: a product may read some columns beyond it

// One array with a number of elements for each row.
template <class T>
struct RowArray {
  T* base;
  int64_t width;

  T* at(int64_t row) const { return base + row * width; }
};

// Every array, from `row` on. Those of the forward pass are saved, the others last as long as the backward
// pass.
template <class T>
struct TrainingRows {
  RowArray<T> t, grad_t;              // T and its gradient of the energy, four rows of t_width
  RowArray<T> grad_d;                 // the folded D's gradient of the energy
  RowArray<T> extra;                  // further inputs of the net
  RowArray<T> h[kMaxLayers];          // tanh(x W + b)
  RowArray<T> y[kMaxLayers];          // the layer's output
  RowArray<T> grad_y[kMaxLayers];     // of the energy
  RowArray<T> delta[kMaxLayers];      // the energy's gradient by x W
  RowArray<T> dt;                     // tangents of T
  RowArray<T> dy[kMaxLayers];         // and of the layers' outputs
  RowArray<T> adjoint_z[kMaxLayers];  // the loss' gradient by x W
  int64_t t_width, saved, work;

  TrainingRows(const PotentialArgs<T>& args, int64_t rows, T* saved_memory, T* work_memory) {
    const FittingShape& net = args.net;
    Arena kept{reinterpret_cast<char*>(saved_memory)}, used{reinterpret_cast<char*>(work_memory)};
    const auto array = [&](Arena& arena, int64_t width) {
      return RowArray<T>{arena.take<T>(rows * width), width};
    };
    t_width = padded<T>(net.width) + kLanes<T>;
    const int64_t layer = (widest_layer<T>(net) + 15) / 16 * 16;
    int64_t features = kLanes<T>;
    for (int first = 0; first < net.axis; first += kGroup) features += group_features(net, first);
    t = array(kept, 4 * t_width), grad_t = array(kept, 4 * t_width);
    grad_d = array(kept, (features + 15) / 16 * 16), extra = array(kept, (net.extra + 15) / 16 * 16);
    dt = array(used, 4 * t_width);
    for (int n = 0; n < net.layers; ++n) {
      h[n] = array(kept, layer), y[n] = array(kept, layer);
      grad_y[n] = array(kept, layer), delta[n] = array(kept, layer);
      dy[n] = array(used, layer), adjoint_z[n] = array(used, layer);
    }
    kept.take<T>(kSlack), used.take<T>(kSlack);
    saved = kept.used / static_cast<int64_t>(sizeof(T));
    work = used.used / static_cast<int64_t>(sizeof(T));
  }

  int64_t layer_stride() const { return y[0].width; }

  // The same from another row on.
  TrainingRows from(int64_t row, int layers) const {
    TrainingRows moved = *this;
    for (RowArray<T>* array : {&moved.t, &moved.grad_t, &moved.grad_d, &moved.extra, &moved.dt})
      array->base = array->at(row);
    for (int n = 0; n < layers; ++n)
      for (RowArray<T>* array :
           {&moved.h[n], &moved.y[n], &moved.grad_y[n], &moved.delta[n], &moved.dy[n], &moved.adjoint_z[n]})
        array->base = array->at(row);
    return moved;
  }
};

}  // namespace MDOPS_ISA
}  // namespace mdops
