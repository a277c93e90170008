#include "hybrid_potential/inputs.h"
#include "spline_potential/host.h"

namespace mdops {

namespace {

struct CpuCall : Op {
  explicit CpuCall(const Tensor&) : Op("hybrid_potential") {}

  HybridOutputs run(const HybridInputs& in, bool atom_virial) const {
    const PotentialInputs& first = in.first();
    const std::vector<double> places = four_columns(first.positions.const_data_ptr<double>(), first.atoms);
    Answer answer(first);
    Tensor within = zeros({first.atoms, in.count(), first.ntypes}, ScalarType::Int);
    Tensor of_atoms = empty({atom_virial ? first.atoms : 0, 3, 3}, ScalarType::Double);
    Tensor grad_extra = zeros({first.atoms, in.extra()}, first.dtype);  // of virtual atoms, too
    dispatch_float(*this, first.dtype, [&](auto zero) {
      using T = decltype(zero);
      StepResults<T> results = answer.results<T>();
      if (atom_virial) results.atom_virial = of_atoms.mutable_data_ptr<double>();
      step<T>(in, places.data(), results, within.mutable_data_ptr<int32_t>(),
              grad_extra.mutable_data_ptr<T>());
    });
    return {answer.energy, answer.forces, answer.virial, within, answer.nearest, grad_extra, of_atoms};
  }

 private:
  template <class T>
  void step(const HybridInputs& in, const double* places, const StepResults<T>& results, int32_t* within,
            T* grad_extra) const {
    std::vector<PotentialArgs<T>> parts;
    for (int64_t p = 0; p < in.count(); ++p) {
      parts.push_back(arguments<T>(in.parts[p], places));
      if (in.absent[p].size(0)) parts[p].places.absent = in.absent[p].const_data_ptr<int32_t>();
    }
    const double* weight = in.weight.size(0) ? in.weight.const_data_ptr<double>() : nullptr;
    const HybridArgs<T> args{parts.data(), static_cast<int>(in.count()), in.widest(), in.net, weight};
    hybrid_step(*this, args, in.nets.const_data_ptr<T>(), results, within, grad_extra);
  }
};

}  // namespace

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CPU, m) {
  m.impl("hybrid_potential", TORCH_BOX(&mdops::hybrid_potential<mdops::CpuCall>));
}
