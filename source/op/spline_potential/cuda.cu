#include "common/cuda.h"
#include "common/rebuilt.h"
#include "spline_potential/gpu_loops.h"
#include "spline_potential/gpu_table.h"
#include "spline_potential/ops.h"

namespace mdops {

namespace {

// Of float16 in the fitting net's products (gpu_loops.h).
int parts_of(Matmul matmul) {
  return matmul == Matmul::tf32 || matmul == Matmul::bf16 ? 1 : 2;
}

// f<parts>().
auto with_parts(int parts, const auto& f) {
  return parts == 1 ? f.template operator()<1>() : f.template operator()<2>();
}

std::string step_refusal(const GpuLimits& limits, const FittingShape& net, int ntypes, int moment_rows,
                         int parts) {
  return with_parts(parts,
                    [&]<int Parts>() { return FusedStep<Parts>::refusal(limits, net, ntypes, moment_rows); });
}

// By kernels that were rebuilt for the model.
void run_rebuilt(const CudaOp& op, const StepTable& table, const StepArgs& p) {
  const GpuPlace place{op.name, op.gpu, op.stream()};
  CallError why{};
  const int64_t bytes = table.bytes(place, p, &why);
  if (bytes < 0) throw std::runtime_error(why.text);
  Tensor memory = empty(op, {bytes}, ScalarType::Byte);
  if (table.run(place, p, memory.mutable_data_ptr(), &why)) throw std::runtime_error(why.text);
}

void run(const CudaOp& op, const StepArgs& p, int parts) {
  const int capability = op.limits().capability;
  const StepTable* rebuilt =
      rebuilt_table<StepTable>([&](const StepTable& table) { return table.fits(p, parts, capability); });
  if (rebuilt) return run_rebuilt(op, *rebuilt, p);
  with_parts(parts, [&]<int Parts>() {
    Tensor memory = empty(op, {FusedStep<Parts>::bytes(op, p)}, ScalarType::Byte);
    FusedStep<Parts>::run(op, p, memory.mutable_data_ptr());
  });
}

StepArgs arguments(const CudaOp& op, const PotentialInputs& in) {
  op.int32_of("positions", in.atoms), op.int32_of("cell", in.systems);
  op.int32_of("neighbors", in.neighbors.size(1)), op.int32_of("tables", in.tables.size(2));
  StepArgs p{};
  fill(in, in.positions.const_data_ptr<double>(), p);
  p.extra_size = in.net.extra, p.width = in.net.width, p.axis = in.net.axis, p.plain = in.net.plain;
  p.net.nets = data_of(in.nets), p.net.net_size = in.nets.size(1);
  p.net.net = net_shape(in.net);
  return p;
}

}  // namespace

static PotentialOutputs potential_answer(const CudaOp& op, PotentialInputs in) {
  if (in.dtype != ScalarType::Float)
    fail(op, "on a GPU this op computes in float32: compose float64 models of the single ops");
  in.nets = aligned(in.nets), in.tables = aligned(in.tables);
  Tensor energy = empty(op, {in.atoms}, ScalarType::Double);
  Tensor forces = empty(op, {in.atoms, 3}, ScalarType::Double);
  Tensor virial = empty(op, {in.systems, 3, 3}, ScalarType::Double);
  Tensor within = empty(op, {in.atoms, in.ntypes}, ScalarType::Int);
  Tensor nearest = empty(op, {in.atoms}, in.dtype);
  Tensor atom_virial = empty(op, {in.atom_virial ? in.atoms : 0, 3, 3}, ScalarType::Double);
  StepArgs p = arguments(op, in);
  p.energy = data_of(energy), p.forces = data_of(forces);
  p.virial = data_of(virial), p.within = data_of(within);
  p.nearest = data_of(nearest);
  if (in.atom_virial && in.atoms) p.atom_virial = data_of(atom_virial);
  const int parts = parts_of(in.matmul);
  const std::string refusal = step_refusal(op.limits(), in.net, p.ntypes, p.moment_rows(), parts);
  if (!refusal.empty()) fail(op, refusal);
  check_packed(op, in.nets, packed_size(in.net, parts));
  run(op, p, parts);
  return {energy, forces, virial, within, nearest, atom_virial};
}

static Tensor packed_net(const CudaOp& op, const NetInputs& in, Matmul products) {
  if (in.weights[0].scalar_type() != ScalarType::Float) fail(op, "on a GPU nets are packed in float32");
  const std::string refusal = pack_refusal(in.net);
  if (!refusal.empty()) fail(op, refusal);
  const int parts = parts_of(products);
  Tensor folded = empty(op, {folded_size(in.net)}, ScalarType::Float);
  Tensor packed = empty(op, {packed_size(in.net, parts)}, ScalarType::Float);
  with_parts(parts, [&]<int Parts>() {
    FusedStep<Parts>::pack(op, in.net, in.layers<float>(), folded.mutable_data_ptr<float>(),
                           packed.mutable_data_ptr<float>());
  });
  return packed;
}

static std::string device_refusal(const CudaOp& op, ScalarType dtype, const FittingShape& net, int ntypes,
                                  int moment_rows) {
  if (dtype != ScalarType::Float) return "on a GPU it computes in float32";
  return step_refusal(op.limits(), net, ntypes, moment_rows, 2);
}

}  // namespace mdops

MDOPS_ON_GPU(SplinePotentialOps)
