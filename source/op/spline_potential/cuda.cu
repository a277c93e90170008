#include "common/cuda.h"
#include "common/rebuilt.h"
#include "spline_potential/gpu_loops.h"
#include "spline_potential/gpu_table.h"
#include "spline_potential/inputs.h"

namespace mdops {

namespace {

// Of float16 in the fitting net's products (gpu_loops.h).
int parts_of(Matmul matmul) {
  return matmul == Matmul::tf32 || matmul == Matmul::bf16 ? 1 : 2;
}

// f<parts>().
template <class F>
auto with_parts(int parts, const F& f) {
  return parts == 1 ? f.template operator()<1>() : f.template operator()<2>();
}

std::string step_refusal(const GpuLimits& limits, const FittingShape& net, int ntypes, int moment_rows,
                         int parts) {
  return with_parts(parts,
                    [&]<int Parts>() { return FusedStep<Parts>::refusal(limits, net, ntypes, moment_rows); });
}

class GpuCall : public CudaOp {
 public:
  explicit GpuCall(const Tensor& positions) : CudaOp("spline_potential", "positions", positions) {}

  PotentialOutputs run(PotentialInputs in) const {
    if (in.dtype != ScalarType::Float)
      fail(*this, "on a GPU this op computes in float32: compose float64 models of the single ops");
    in.nets = aligned(in.nets), in.tables = aligned(in.tables);
    Tensor energy = empty(*this, {in.atoms}, ScalarType::Double);
    Tensor forces = empty(*this, {in.atoms, 3}, ScalarType::Double);
    Tensor virial = empty(*this, {in.systems, 3, 3}, ScalarType::Double);
    Tensor within = empty(*this, {in.atoms, in.ntypes}, ScalarType::Int);
    Tensor nearest = empty(*this, {in.atoms}, in.dtype);
    Tensor atom_virial = empty(*this, {in.atom_virial ? in.atoms : 0, 3, 3}, ScalarType::Double);
    StepArgs p = arguments(in);
    p.energy = energy.mutable_data_ptr<double>(), p.forces = forces.mutable_data_ptr<double>();
    p.virial = virial.mutable_data_ptr<double>(), p.within = within.mutable_data_ptr<int32_t>();
    p.nearest = nearest.mutable_data_ptr<float>();
    if (in.atom_virial && in.atoms) p.atom_virial = atom_virial.mutable_data_ptr<double>();
    const int parts = parts_of(in.matmul);
    const std::string refusal = step_refusal(limits(), in.net, p.ntypes, p.moment_rows(), parts);
    if (!refusal.empty()) fail(*this, refusal);
    check_packed(*this, in.nets, packed_size(in.net, parts));
    run(p, parts);
    return {energy, forces, virial, within, nearest, atom_virial};
  }

 private:
  void run(const StepArgs& p, int parts) const {
    const int capability = limits().capability;
    const StepTable* rebuilt =
        rebuilt_table<StepTable>([&](const StepTable& table) { return table.fits(p, parts, capability); });
    if (rebuilt) return run_rebuilt(*rebuilt, p);
    with_parts(parts, [&]<int Parts>() {
      Tensor memory = empty(*this, {FusedStep<Parts>::bytes(*this, p)}, ScalarType::Byte);
      FusedStep<Parts>::run(*this, p, memory.mutable_data_ptr());
    });
  }

  // By kernels that were rebuilt for the model.
  void run_rebuilt(const StepTable& table, const StepArgs& p) const {
    const GpuPlace place{name, gpu, stream()};
    CallError why{};
    const int64_t bytes = table.bytes(place, p, &why);
    if (bytes < 0) throw std::runtime_error(why.text);
    Tensor memory = empty(*this, {bytes}, ScalarType::Byte);
    if (table.run(place, p, memory.mutable_data_ptr(), &why)) throw std::runtime_error(why.text);
  }

  StepArgs arguments(const PotentialInputs& in) const {
    int32_of("positions", in.atoms), int32_of("cell", in.systems);
    int32_of("neighbors", in.neighbors.size(1)), int32_of("tables", in.tables.size(2));
    StepArgs p{};
    fill(in, in.positions.const_data_ptr<double>(), p);
    p.extra_size = in.net.extra, p.width = in.net.width, p.axis = in.net.axis, p.plain = in.net.plain;
    p.net.nets = in.nets.const_data_ptr<float>(), p.net.net_size = in.nets.size(1);
    p.net.net = net_shape(in.net);
    return p;
  }
};

Tensor spline_potential_pack(std::vector<Tensor> weights, std::vector<Tensor> biases,
                             std::vector<Tensor> timesteps, int64_t width, int64_t axis, std::string matmul) {
  constexpr const char* name = "spline_potential_pack";
  if (weights.empty())
    fail(name, "expected weights, biases and timesteps of two layers or more, as many of each");
  const CudaOp op(name, "weights", weights[0]);
  const int parts = parts_of(matmul_of(op, matmul));
  const NetInputs in(op, std::move(weights), std::move(biases), std::move(timesteps), width, axis);
  if (in.weights[0].scalar_type() != ScalarType::Float) fail(op, "on a GPU nets are packed in float32");
  const std::string refusal = pack_refusal(in.net);
  if (!refusal.empty()) fail(op, refusal);
  Tensor folded = empty(op, {folded_size(in.net)}, ScalarType::Float);
  Tensor packed = empty(op, {packed_size(in.net, parts)}, ScalarType::Float);
  with_parts(parts, [&]<int Parts>() {
    FusedStep<Parts>::pack(op, in.net, in.layers<float>(), folded.mutable_data_ptr<float>(),
                           packed.mutable_data_ptr<float>());
  });
  return packed;
}

std::string spline_potential_why_not(const Tensor& like, int64_t tables, int64_t intervals, int64_t width,
                                     int64_t axis, std::vector<int64_t> neurons, int64_t extra) {
  const CudaOp op("spline_potential_why_not", "like", like);
  if (float_input(op, "like", like, {kAny}).scalar_type() != ScalarType::Float)
    return "on a GPU it computes in float32";
  for (const std::string& refusal :
       {shape_refusal(width, axis, neurons, extra), rows_refusal(tables, intervals + 5)})
    if (!refusal.empty()) return refusal;
  const FittingShape fitting = fitting_shape(op, width, axis, neurons, extra);
  return step_refusal(op.limits(), fitting, static_cast<int>(tables),
                      static_cast<int>(tables * (intervals + 5)), 2);
}

}  // namespace

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  m.impl("spline_potential_pack", TORCH_BOX(&mdops::spline_potential_pack));
  m.impl("spline_potential_why_not", TORCH_BOX(&mdops::spline_potential_why_not));
  m.impl("spline_potential", TORCH_BOX(&mdops::spline_potential<mdops::GpuCall>));
}
