// The kernels of models of dipoles for `potential_step`. Without PyTorch.
#pragma once

#include "spline_dipole/spline_dipole.h"
#include "spline_potential/kernel_table.h"

namespace mdops {

// For steps whose arguments are DipoleArgs.
template <class T>
PotentialKernels<T> dipole_kernels();

}  // namespace mdops
