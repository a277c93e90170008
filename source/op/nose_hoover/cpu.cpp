#include <algorithm>
#include <tuple>

#include "nose_hoover/args.h"

namespace mdops {

namespace {

std::tuple<Tensor, Tensor, Tensor> nose_hoover_chain(const Tensor& eta, const Tensor& momenta,
                                                     const Tensor& kinetic, double kT, int64_t freedom,
                                                     double tau, double time) {
  ChainArgs args("nose_hoover_chain", eta, momenta, kinetic, kT, freedom, tau, time);
  const int64_t n = args.eta.size(0);
  double *e = args.new_eta.mutable_data_ptr<double>(), *p = args.new_momenta.mutable_data_ptr<double>();
  std::copy_n(args.eta.const_data_ptr<double>(), n, e);
  std::copy_n(args.momenta.const_data_ptr<double>(), n, p);
  *args.scale.mutable_data_ptr<double>() =
      advance_chain(args.bath, e, p, n, 2 * *args.kinetic.const_data_ptr<double>(), args.time);
  return {args.new_eta, args.new_momenta, args.scale};
}

}  // namespace

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CPU, m) {
  m.impl("nose_hoover_chain", TORCH_BOX(&mdops::nose_hoover_chain));
}
