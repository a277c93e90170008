#include "fitting_energy/ops.h"
#include "hybrid_potential/cpu_loops.h"

namespace mdops {

static void run_fitting(const Op& op, const FittingInputs& in, Tensor& energy, Tensor& gradient) {
  check_packed(op, in.nets, net_size(in.net));
  // Further parts of a step, not needed here.
  std::vector<double> forces(3 * in.atoms), virial(9);
  dispatch_float(op, in.dtype, [&]<class T>(T) {
    PotentialArgs<T> none{};
    in.fill(none);
    std::vector<T> nearest(in.atoms);
    const HybridArgs<T> args{&none, 0, 0, in.net, in.weights()};
    const StepResults<T> results{in.atoms,      data_of(energy), nullptr, nearest.data(),
                                 forces.data(), virial.data(),   nullptr};
    hybrid_step(op, args, in.nets.const_data_ptr<T>(), results, nullptr, gradient.mutable_data_ptr<T>());
  });
}

}  // namespace mdops

MDOPS_ON_CPU(FittingOps)
