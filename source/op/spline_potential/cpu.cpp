#include "common/rebuilt.h"
#include "spline_potential/cpu_nets.h"
#include "spline_potential/host.h"
#include "spline_potential/ops.h"

namespace mdops {

namespace {

// The kernels rebuilt for such a model, if their library is in use; otherwise those of this processor's
// instruction set.
template <class T>
PotentialKernels<T> kernels_for(const PotentialArgs<T>& args) {
  const PotentialTable* table =
      rebuilt_table<PotentialTable>([&](const PotentialTable& t) { return t.fits(args); });
  return table ? table->kernels<T>() : prebuilt_kernels<T>();
}

}  // namespace

static Tensor packed_net(const Op& op, const NetInputs& in, Matmul products) {
  refuse_tf32(op, products);
  return dispatch_float(op, in.weights[0].scalar_type(), [&]<class T>(T) {
    const int parts = bf16_parts(products, kDtype<T>);
    Tensor packed = zeros({PackedNet(in.net, parts).size}, kDtype<T>);  // gaps, too
    pack(in.net, parts, in.layers<T>(), packed.mutable_data_ptr<T>());
    return packed;
  });
}

static PotentialOutputs potential_answer(const Op& op, const PotentialInputs& in) {
  refuse_tf32(op, in.matmul);
  const std::vector<double> places = four_columns(in.positions.const_data_ptr<double>(), in.atoms);
  Answer answer{in};
  dispatch_float(op, in.dtype, [&]<class T>(T) {
    const int parts = bf16_parts(in.matmul, kDtype<T>);
    check_packed(op, in.nets, PackedNet(in.net, parts).size);
    PotentialArgs<T> args = arguments<T>(in, places.data());
    if (parts) args.block = 2 * kBlock, args.parts = parts;
    potential_step(op, kernels_for(args), args, in.nets.const_data_ptr<T>(), in.nets.size(1), parts,
                   answer.results<T>());
  });
  return {answer.energy, answer.forces, answer.virial, answer.within, answer.nearest, answer.atom_virial};
}

static std::string device_refusal(const Op&, ScalarType, const FittingShape&, int, int) {
  return "";
}

}  // namespace mdops

MDOPS_ON_CPU(SplinePotentialOps)
