// A net of dense layers on features and further inputs, with one linear output:
//   y_n = timestep_n * f(x_n W_n + b_n), to which a residual layer adds x_n (twice, if it is twice as wide).
#pragma once

#include "common/activation.h"

namespace mdops {

constexpr int kMaxHidden = 16, kMaxLayers = kMaxHidden + 1;  // the last one: an output layer

// The sizes that calls pass.
struct NetSizes {
  int64_t features;         // inputs of the first layer, those below not counted
  int extra;                // further inputs of the first layer, after the features
  int layers;               // hidden layers
  int neurons[kMaxLayers];  // of each
  bool residual[kMaxLayers];
  Activation activation[kMaxLayers];
  double threshold[kMaxLayers];  // of silut

  void activate_all(Activation kind, double of_silut) {
    for (int n = 0; n < kMaxLayers; ++n) activation[n] = kind, threshold[n] = of_silut;
  }
};

// In a library that is rebuilt for one model (jit.md) constants hide the known ones.
struct NetShape : NetSizes {
#ifdef MDOPS_MODEL_EXTRA
  static constexpr int extra = MDOPS_MODEL_EXTRA;
#endif
#ifdef MDOPS_MODEL_WIDTH
  static constexpr int64_t features = int64_t{MDOPS_MODEL_WIDTH} * MDOPS_MODEL_AXIS;
  static constexpr int neurons[] = {MDOPS_MODEL_NEURONS};
  static constexpr int layers = sizeof(neurons) / sizeof(int);
  static constexpr bool residual[] = {MDOPS_MODEL_RESIDUAL};
  static constexpr struct {
    constexpr Activation operator[](int) const { return static_cast<Activation>(MDOPS_MODEL_ACTIVATION); }
  } activation{};
  static constexpr struct {
    constexpr double operator[](int) const { return MDOPS_MODEL_THRESHOLD; }
  } threshold{};
#endif

  MDOPS_HD bool adds_input(int n) const { return n > 0 && residual[n]; }
};

// One hidden layer, or the output layer: weight (inputs, outputs), bias and timestep (outputs; none of the
// output layer).
template <class T>
struct DenseLayer {
  const T *weight, *bias, *timestep;
};

}  // namespace mdops
