#include "spline_dipole/cpu_loops.h"

namespace mdops {

template <class T>
PotentialKernels<T> dipole_kernels() {
  return {[](const PotentialArgs<T>& args) {
            return MDOPS_RUN(dipole_scratch_size, static_cast<const DipoleArgs<T>&>(args));
          },
          [](const PotentialArgs<T>& args, const NetWeights<T>& weights, const int32_t* ids, int64_t count,
             T* scratch, PotentialResults<T>& out) {
            MDOPS_RUN(dipole, static_cast<const DipoleArgs<T>&>(args), weights, ids, count, scratch, out);
          }};
}

template PotentialKernels<float> dipole_kernels<float>();
template PotentialKernels<double> dipole_kernels<double>();

}  // namespace mdops
