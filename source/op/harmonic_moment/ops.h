// The ops on sums of harmonics.
#pragma once

#include "common/bind.h"
#include "displacements/inputs.h"
#include "harmonic_moment/inputs.h"

namespace mdops {

template <class Device>
struct HarmonicSumOps {
  using Call = typename Device::Call;

  static Outputs<4> harmonic_sums(const Call& op, const HarmonicSumInputs& in) {
    const ScalarType dtype = in.list.dtype;
    Tensor first = empty(op, in.first_shape(), dtype), second = empty(op, in.second_shape(), dtype),
           within = empty(op, {in.list.atoms}, ScalarType::Int), nearest = empty(op, {in.list.atoms}, dtype);
    dispatch_float(op, dtype, [&]<class T>(T) {
      run_harmonic_sums(op, in.args<T>(), in.sums<T>(),
                        HarmonicSums<T>{data_of(first), data_of(second), data_of(within), data_of(nearest)});
    });
    return {first, second, within, nearest};
  }

  static Tensor harmonic_sums_backward(const Call& op, const HarmonicSumInputs& in, const Tensor& by_first_,
                                       const Tensor& by_second_) {
    const Tensor by_first = in.by_first(op, by_first_), by_second = in.by_second(op, by_second_);
    Tensor result = empty(op, {in.list.atoms, in.list.width, 3}, in.list.dtype);
    dispatch_float(op, in.list.dtype, [&]<class T>(T) {
      run_harmonic_sum_gradients<T>(op, in.args<T>(), in.sums<T>(), data_of(by_first), data_of(by_second),
                                    data_of(result));
    });
    return result;
  }

  static Outputs<2> harmonic_forces(const Call& op, const HarmonicSumInputs& in, const Tensor& by_first_,
                                    const Tensor& by_second_, const Tensor& most_, const Tensor& nearest_,
                                    const Tensor& batch, const Tensor& neighbors, int64_t num_systems) {
    const int64_t n = in.list.atoms;
    const ScalarType dtype = in.list.dtype;
    const Tensor by_first = in.by_first(op, by_first_), by_second = in.by_second(op, by_second_);
    const Tensor most = input(op, "most", most_, dtype, {2, in.table.size(2)});
    const Tensor nearest = input(op, "nearest", nearest_, dtype, {n});
    const PairList pairs(op, batch, input(op, "neighbors", neighbors, ScalarType::Int, {n, in.list.width}),
                         num_systems);
    Tensor forces = Device::summed(op, {n, 3}, ScalarType::Double);
    Tensor virial = Device::summed(op, {num_systems, 3, 3}, ScalarType::Double);
    dispatch_float(op, dtype, [&]<class T>(T) {
      run_harmonic_forces(
          op, in.args<T>(), in.sums<T>(),
          HarmonicForceArgs<T>{data_of(by_first), data_of(by_second), data_of(most), data_of(nearest),
                               pair_rows(pairs, num_systems), data_of(forces), data_of(virial)});
    });
    return {forces, virial};
  }

  MDOPS_IMPLEMENT(HarmonicSumOps, harmonic_sums, harmonic_sums_backward, harmonic_forces)
};

}  // namespace mdops
