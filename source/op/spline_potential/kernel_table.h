// The kernels of the inference step on the CPU as a table: prebuilt, or rebuilt for one model.
#pragma once

#include <cstddef>
#include <cstring>

#include "common/kernel_table.h"
#include "spline_potential/spline_potential.h"

namespace mdops {

template <class T>
struct PotentialKernels {
  int64_t (*scratch_size)(const PotentialArgs<T>& args);
  void (*potential)(const PotentialArgs<T>& args, const NetWeights<T>& weights, const int32_t* ids,
                    int64_t count, T* scratch, PotentialResults<T>& out);
};

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"
// Bytes of a call's arguments up to the net's shape, which rebuilt kernels do not look at: they have it as
// constants, and it may begin elsewhere there.
template <class T>
constexpr int64_t arguments_size() {
  return offsetof(PotentialArgs<T>, parts) + sizeof(int);  // the last member before it
}
// But for this one, where its number is no constant: where they look for it.
template <class T>
constexpr int64_t place_of_extra() {
#ifdef MDOPS_MODEL_EXTRA
  return 0;
#else
  return offsetof(PotentialArgs<T>, net.extra);
#endif
}
#pragma GCC diagnostic pop

struct PotentialTable : KernelTable {
  static constexpr const char* kFamily = "spline_potential";
  static bool is(const KernelTable& table) {
    return table.size == sizeof(PotentialTable) && std::strcmp(table.family, kFamily) == 0;
  }

  // What it was built for.
  int64_t arguments, extra_at, weights, results;  // bytes
  int32_t width, axis, plain, gated, parts;
  int32_t extra;  // or kAnySize
  int32_t activation, layers, neurons[kMaxHidden], residual[kMaxHidden];
  double threshold;

  PotentialKernels<float> of_float;  // null where the model computes in the other
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
    arguments = arguments_size<T>(), extra_at = place_of_extra<T>();
    weights = sizeof(NetWeights<T>), results = sizeof(PotentialResults<T>);
    width = net.width, axis = net.axis, plain = net.plain, gated = args.gated, parts = args.parts;
    extra = extra_at ? kAnySize : net.extra, layers = net.layers;
    activation = static_cast<int32_t>(net.activation[0]), threshold = net.threshold[0];
    for (int n = 0; n < layers; ++n) neurons[n] = net.neurons[n], residual[n] = net.adds_input(n);
  }

  template <class T>
  bool fits(const PotentialArgs<T>& args) const {
    const FittingShape& net = args.net;
    if (!kernels<T>().potential || arguments != arguments_size<T>() || weights != sizeof(NetWeights<T>) ||
        results != sizeof(PotentialResults<T>) || (extra_at && extra_at != place_of_extra<T>()) ||
        width != net.width || axis != net.axis || plain != net.plain || gated != args.gated ||
        parts != args.parts || !takes_size(extra, net.extra) || layers != net.layers ||
        activation != static_cast<int32_t>(net.activation[0]) ||
        (net.activation[0] == Activation::silut && threshold != net.threshold[0]))
      return false;
    for (int n = 0; n < layers; ++n)
      if (neurons[n] != net.neurons[n] || residual[n] != net.adds_input(n)) return false;
    return true;
  }
};

}  // namespace mdops
