#include "common/rebuilt.h"
#include "spline_potential/cpu_nets.h"
#include "spline_potential/host.h"

namespace mdops {

namespace {

Tensor spline_potential_pack(std::vector<Tensor> weights, std::vector<Tensor> biases,
                             std::vector<Tensor> timesteps, int64_t width, int64_t axis, std::string matmul) {
  const Op op("spline_potential_pack");
  const Matmul products = matmul_of(op, matmul);
  refuse_tf32(op, products);
  const NetInputs in(op, std::move(weights), std::move(biases), std::move(timesteps), width, axis);
  return dispatch_float(op, in.weights[0].scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const int parts = bf16_parts(products, kDtype<T>);
    const int64_t size = PackedNet(in.net, parts).size;
    Tensor packed = zeros({size}, kDtype<T>);  // gaps, too
    pack(in.net, parts, in.layers<T>(), packed.mutable_data_ptr<T>());
    return packed;
  });
}

// The kernels rebuilt for such a model, if a library with them is in use; those of this processor's
// instruction set otherwise.
template <class T>
PotentialKernels<T> kernels_for(const PotentialArgs<T>& args) {
  const PotentialTable* table =
      rebuilt_table<PotentialTable>([&](const PotentialTable& t) { return t.fits(args); });
  return table ? table->kernels<T>() : prebuilt_kernels<T>();
}

struct CpuCall : Op {
  explicit CpuCall(const Tensor&) : Op("spline_potential") {}

  PotentialOutputs run(const PotentialInputs& in) const {
    refuse_tf32(*this, in.matmul);
    const std::vector<double> places = four_columns(in.positions.const_data_ptr<double>(), in.atoms);
    Answer answer(in);
    dispatch_float(*this, in.dtype, [&](auto zero) {
      using T = decltype(zero);
      const int parts = bf16_parts(in.matmul, kDtype<T>);
      check_packed(*this, in.nets, PackedNet(in.net, parts).size);
      PotentialArgs<T> args = arguments<T>(in, places.data());
      if (parts) args.block = 2 * kBlock, args.parts = parts;
      potential_step(*this, kernels_for(args), args, in.nets.const_data_ptr<T>(), in.nets.size(1), parts,
                     answer.results<T>());
    });
    return {answer.energy, answer.forces, answer.virial, answer.within, answer.nearest, answer.atom_virial};
  }
};

std::string spline_potential_why_not(const Tensor& like, int64_t tables, int64_t intervals, int64_t width,
                                     int64_t axis, std::vector<int64_t> neurons, int64_t extra) {
  float_input("spline_potential_why_not", "like", like, {kAny});
  const std::string refusal = shape_refusal(width, axis, neurons, extra);
  return refusal.empty() ? rows_refusal(tables, intervals + 5) : refusal;
}

}  // namespace

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CPU, m) {
  m.impl("spline_potential_pack", TORCH_BOX(&mdops::spline_potential_pack));
  m.impl("spline_potential_why_not", TORCH_BOX(&mdops::spline_potential_why_not));
  m.impl("spline_potential", TORCH_BOX(&mdops::spline_potential<mdops::CpuCall>));
}
