#include <tuple>

#include "common/cuda.h"
#include "nose_hoover/args.h"

namespace mdops {

namespace {

// One thread: a chain is a few numbers that wait for each other.
__global__ void chain_kernel(Bath bath, int64_t n, const double* eta, const double* momenta,
                             const double* kinetic, double time, double* e, double* p, double* scale) {
  for (int64_t j = 0; j < n; ++j) {
    e[j] = eta[j];
    p[j] = momenta[j];
  }
  *scale = advance_chain(bath, e, p, n, 2 * *kinetic, time);
}

std::tuple<Tensor, Tensor, Tensor> nose_hoover_chain(const Tensor& eta, const Tensor& momenta,
                                                     const Tensor& kinetic, double kT, int64_t freedom,
                                                     double tau, double time) {
  const CudaOp op("nose_hoover_chain", "eta", eta);
  ChainArgs args(op, eta, momenta, kinetic, kT, freedom, tau, time);
  op.launch(chain_kernel, 1, 1, 0, args.bath, args.eta.size(0), args.eta.const_data_ptr<double>(),
            args.momenta.const_data_ptr<double>(), args.kinetic.const_data_ptr<double>(), args.time,
            args.new_eta.mutable_data_ptr<double>(), args.new_momenta.mutable_data_ptr<double>(),
            args.scale.mutable_data_ptr<double>());
  return {args.new_eta, args.new_momenta, args.scale};
}

}  // namespace

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  m.impl("nose_hoover_chain", TORCH_BOX(&mdops::nose_hoover_chain));
}
