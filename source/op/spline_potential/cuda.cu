#include "common/cuda.h"
#include "common/rebuilt.h"
#include "spline_potential/gpu_run.h"
#include "spline_potential/gpu_table.h"
#include "spline_potential/inputs.h"

namespace mdops {

namespace {

static_assert(GpuNetShape::kMostLayers == kMaxHidden);

// f<parts>(): with how many float16 parts a number stands in the fitting net's products. Two hold 22 bits,
// float32's accuracy; one holds 11, TF32's.
template <class F>
auto with_parts(Matmul matmul, const F& f) {
  const bool one = matmul == Matmul::tf32 || matmul == Matmul::bf16;
  return one ? f.template operator()<1>() : f.template operator()<2>();
}

// The fitting net behind the features of D.
GpuNetShape net_shape(const FittingShape& fitting) {
  GpuNetShape net{};
  net.inputs =
      round_up(Features(fitting.width, fitting.axis).count() + fitting.extra, GpuNetShape::kInputUnit);
  net.layers = fitting.layers;
  for (int n = 0; n < net.layers; ++n)
    net.neurons[n] = fitting.neurons[n], net.residual[n] = fitting.residual[n];
  net.activation = fitting.activation[0], net.threshold = static_cast<float>(fitting.threshold[0]);
  return net;
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
    with_parts(in.matmul, [&]<int Parts>() {
      const std::string refusal =
          step_refusal<Parts>(limits(), p.net.net, p.ntypes, p.moment_rows(), p.width, p.axis);
      if (!refusal.empty()) fail(*this, refusal);
      check_packed(*this, in.nets, GpuNet(p.net.net, Parts).size);
      const int capability = limits().capability;
      const StepTable* rebuilt =
          rebuilt_table<StepTable>([&](const StepTable& table) { return table.fits(p, Parts, capability); });
      if (rebuilt) return run_rebuilt(*rebuilt, p);
      StepCall<Parts> step(*this, p);
      Tensor memory = empty(*this, {step.bytes()}, ScalarType::Byte);
      step.run(memory.mutable_data_ptr());
    });
    return {energy, forces, virial, within, nearest, atom_virial};
  }

 private:
  // By kernels that were rebuilt for the model.
  void run_rebuilt(const StepTable& table, const StepArgs& p) const {
    const GpuPlace place{name, gpu, stream()};
    Refusal why{};
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
  const Matmul products = matmul_of(op, matmul);
  const NetInputs in(op, std::move(weights), std::move(biases), std::move(timesteps), width, axis);
  if (in.weights[0].scalar_type() != ScalarType::Float) fail(op, "on a GPU nets are packed in float32");
  const GpuNetShape net = net_shape(in.net);
  if (!matrices_fit(net)) fail(op, "a layer of the fitting net has too many weights for a GPU");
  std::vector<LayerWeights> layers;
  for (const DenseLayer<float>& layer : in.layers<float>())
    layers.push_back({layer.weight, layer.bias, layer.timestep});
  Tensor folded = empty(op, {net.inputs, net.neurons[0]}, ScalarType::Float);
  op.launch(fold_kernel, net.inputs, 256, 0, layers[0].weight, in.net.width, in.net.axis, in.net.extra,
            net.neurons[0], folded.mutable_data_ptr<float>());
  layers[0].weight = folded.const_data_ptr<float>();
  return with_parts(products, [&]<int Parts>() {
    Tensor packed = empty(op, {GpuNet(net, Parts).size}, ScalarType::Float);
    NetPacker<Parts>(op, net, layers, packed.mutable_data_ptr<float>()).pack();
    return packed;
  });
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
  return step_refusal<2>(op.limits(), net_shape(fitting), static_cast<int>(tables),
                         static_cast<int>(tables * (intervals + 5)), fitting.width, fitting.axis);
}

}  // namespace

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  m.impl("spline_potential_pack", TORCH_BOX(&mdops::spline_potential_pack));
  m.impl("spline_potential_why_not", TORCH_BOX(&mdops::spline_potential_why_not));
  m.impl("spline_potential", TORCH_BOX(&mdops::spline_potential<mdops::GpuCall>));
}
