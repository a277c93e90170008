#include "hybrid_potential/gpu_loops.h"
#include "hybrid_potential/ops.h"
#include "pair_table/cuda_call.h"

namespace mdops {

namespace {

// Turns sums with the weights 1 - c into the blend's; the net has reported on the neighbours.
void blend(const CudaOp& op, const HybridInputs& in, Input c, Tensor& energy, Tensor& forces, Tensor& virial,
           Tensor& of_atoms) {
  const ListArgs list = list_args(in.first());
  TableOutputs out(OnGpu(), op, list, of_atoms.size(0));
  run_table(
      op, list, in.blend->table,
      GpuTableTask{data_of(c), data_of(energy), true, in.blend->near, other_sums(forces, virial, of_atoms)},
      out);
  energy = out.energy, forces = out.forces, virial = out.virial, of_atoms = out.of_atoms;
}

StepArgs arguments(const CudaOp& op, const HybridInputs& in, int64_t k) {
  const PotentialInputs& part = in.parts[k];
  op.int32_of("positions", part.atoms), op.int32_of("cell", part.systems);
  op.int32_of("neighbors", part.neighbors.size(1)), op.int32_of("tables", part.tables.size(2));
  StepArgs p{};
  fill(part, part.positions.const_data_ptr<double>(), p);
  p.width = part.net.width, p.axis = part.net.axis, p.plain = part.net.plain;
  p.extra_size = static_cast<int>(in.extra());
  if (in.absent[k].size(0)) p.places.absent = data_of(in.absent[k]);
  return p;
}

}  // namespace

static HybridOutputs hybrid_answer(const CudaOp& op, HybridInputs in) {
  const PotentialInputs& first = in.first();
  if (first.dtype != ScalarType::Float)
    fail(op, "on a GPU this op computes in float32: compose float64 models of the single ops");
  in.nets = aligned(in.nets);
  for (PotentialInputs& part : in.parts) part.tables = aligned(part.tables);
  const int64_t n = first.atoms, extra = in.extra();
  Tensor energy = empty(op, {n}, ScalarType::Double);
  Tensor forces = empty(op, {n, 3}, ScalarType::Double);
  Tensor virial = empty(op, {first.systems, 3, 3}, ScalarType::Double);
  Tensor within = empty(op, {n, in.count(), first.ntypes}, ScalarType::Int);
  Tensor nearest = empty(op, {n}, first.dtype);
  Tensor grad_extra = empty(op, {n, extra}, first.dtype);
  Tensor of_atoms = empty(op, {in.atom_virial ? n : 0, 3, 3}, ScalarType::Double);
  std::vector<FittingShape> shapes;
  std::vector<StepArgs> parts;
  for (int64_t k = 0; k < in.count(); ++k) {
    shapes.push_back(in.parts[k].net);
    parts.push_back(arguments(op, in, k));
  }
  StepArgs& p = parts[in.widest()];
  p.net.nets = data_of(in.nets), p.net.net_size = in.nets.size(1);
  p.net.net = hybrid_net(shapes, in.net);
  p.energy = data_of(energy), p.forces = data_of(forces);
  p.virial = data_of(virial), p.nearest = data_of(nearest);
  if (in.atom_virial && n) p.atom_virial = data_of(of_atoms);
  const std::string refusal = hybrid_refusal(op.limits(), p.net.net, parts);
  if (!refusal.empty()) fail(op, refusal);
  check_packed(op, in.nets, hybrid_packed_size(p.net.net));
  const double* weight = in.weight.size(0) ? in.weight.const_data_ptr<double>() : nullptr;
  HybridOut out{weight, data_of(grad_extra), data_of(within), {}};
  Tensor near_weight = empty(op, {in.blend ? n : 0}, ScalarType::Double);
  if (in.blend) {
    const NearArgs near = in.blend->near;
    out.near = {list_args(first), near, surely_far(near), data_of(near_weight)};
  }
  Tensor memory = empty(op, {hybrid_bytes(op, parts, in.widest(), out)}, ScalarType::Byte);
  run_hybrid(op, parts, in.widest(), out, memory.mutable_data_ptr());
  if (in.blend && n) blend(op, in, near_weight, energy, forces, virial, of_atoms);
  return {energy, forces, virial, within, nearest, grad_extra, of_atoms, near_weight};
}

static Tensor packed_net(const CudaOp& op, const HybridNetInputs& in) {
  if (in.layers.weights[0].scalar_type() != ScalarType::Float)
    fail(op, "on a GPU nets are packed in float32");
  NetShape shape{};
  shape.layers = in.layers.net.layers, shape.extra = static_cast<int>(in.extra);
  for (int n = 0; n < shape.layers; ++n) shape.neurons[n] = in.layers.net.neurons[n];
  const GpuNetShape net = hybrid_net(in.parts, shape);
  const std::string refusal = hybrid_pack_refusal(net);
  if (!refusal.empty()) fail(op, refusal);
  Tensor folded = empty(op, {hybrid_folded_size(net)}, ScalarType::Float);
  Tensor packed = empty(op, {hybrid_packed_size(net)}, ScalarType::Float);
  pack_hybrid(op, in.parts, net, in.extra, in.layers.layers<float>(), folded.mutable_data_ptr<float>(),
              packed.mutable_data_ptr<float>());
  return packed;
}

}  // namespace mdops

MDOPS_ON_GPU(HybridOps)
