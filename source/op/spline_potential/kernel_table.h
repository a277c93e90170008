// The kernels of the inference step on the CPU as a table: prebuilt, or rebuilt for one model.
#pragma once

#include <cstring>
#include <type_traits>

#include "common/kernel_table.h"
#include "spline_potential/spline_potential.h"

namespace mdops {

template <class T>
struct PotentialKernels {
  int64_t (*scratch_size)(const PotentialArgs<T>& args);
  void (*potential)(const PotentialArgs<T>& args, const NetWeights<T>& weights, const int32_t* ids,
                    int64_t count, T* scratch, PotentialResults<T>& out);
};

// What passes between libraries has the same layout in all, also in those rebuilt for a model.
static_assert(std::is_trivially_copyable_v<PotentialArgs<float>> && sizeof(PotentialArgs<float>) == 560 &&
              std::is_trivially_copyable_v<PotentialArgs<double>> && sizeof(PotentialArgs<double>) == 592);
static_assert(sizeof(NetWeights<float>) == sizeof(NetWeights<double>) && sizeof(NetWeights<float>) == 728);
static_assert(sizeof(PotentialResults<float>) == sizeof(PotentialResults<double>) &&
              sizeof(PotentialResults<float>) == 152);

// The number of further inputs of this library.
#ifdef MDOPS_MODEL_EXTRA
constexpr int32_t kModelExtra = MDOPS_MODEL_EXTRA;
#else
constexpr int32_t kModelExtra = kAnySize;
#endif

struct PotentialTable : KernelTable {
  static constexpr const char* kFamily = "spline_potential";
  static bool is(const KernelTable& table) {
    return table.size == sizeof(PotentialTable) && std::strcmp(table.family, kFamily) == 0;
  }

  // The sizes it was built for.
  int64_t arguments, weights, results;  // bytes
  int32_t width, axis, plain, gated, parts;
  int32_t extra;  // or kAnySize
  int32_t activation, layers, neurons[kMaxHidden], residual[kMaxHidden];
  double threshold;

  PotentialKernels<float> of_float;  // null if the model computes in the other
  PotentialKernels<double> of_double;

  template <class T>
  PotentialKernels<T>& kernels() {
    if constexpr (sizeof(T) == sizeof(float))
      return of_float;
    else
      return of_double;
  }
  template <class T>
  const PotentialKernels<T>& kernels() const {
    return const_cast<PotentialTable*>(this)->kernels<T>();
  }

  template <class T>
  void set_sizes(const PotentialArgs<T>& args) {
    const FittingShape& net = args.net;
    arguments = sizeof(PotentialArgs<T>), weights = sizeof(NetWeights<T>),
    results = sizeof(PotentialResults<T>);
    width = net.width, axis = net.axis, plain = net.plain, gated = args.gated, parts = args.parts;
    extra = kModelExtra, layers = net.layers;
    activation = static_cast<int32_t>(net.activation[0]), threshold = net.threshold[0];
    for (int n = 0; n < layers; ++n) neurons[n] = net.neurons[n], residual[n] = net.adds_input(n);
  }

  template <class T>
  bool fits(const PotentialArgs<T>& args) const {
    const FittingShape& net = args.net;
    if (!kernels<T>().potential || arguments != sizeof(PotentialArgs<T>) ||
        weights != sizeof(NetWeights<T>) || results != sizeof(PotentialResults<T>) || width != net.width ||
        axis != net.axis || plain != net.plain || gated != args.gated || parts != args.parts ||
        !takes_size(extra, net.extra) || layers != net.layers ||
        activation != static_cast<int32_t>(net.activation[0]) ||
        (net.activation[0] == Activation::silut && threshold != net.threshold[0]))
      return false;
    for (int n = 0; n < layers; ++n)
      if (neurons[n] != net.neurons[n] || residual[n] != net.adds_input(n)) return false;
    return true;
  }
};

}  // namespace mdops
