#include "common/cuda.h"
#include "common/math.h"
#include "common/rows.h"
#include "fitting_energy/ops.h"
#include "hybrid_potential/gpu_loops.h"

namespace mdops {

namespace {

// Energies of atoms with an invalid type, which the step marks in their system and leaves unset.
__global__ void refuse_kernel(const int32_t* types, int64_t atoms, int ntypes, double* energy) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < atoms && (types[i] < -1 || types[i] >= ntypes)) energy[i] = not_a_number<double>();
}

}  // namespace

static void run_fitting(const CudaOp& op, const FittingInputs& in, Tensor& energy, Tensor& gradient) {
  if (in.dtype != ScalarType::Float) fail(op, "argument `features` must be of float32 on a GPU");
  op.int32_of("features", in.atoms), op.int32_of("features", in.inputs);
  // Where nobody asks, of a step that takes them for its order.
  const Tensor places = zeros(op, {in.atoms, 3}, ScalarType::Double),
               batch = zeros(op, {in.atoms}, ScalarType::Int);
  std::vector<StepArgs> parts(1);
  StepArgs& p = parts[0];
  in.fill(p);
  p.positions = data_of(places), p.batch = data_of(batch);
  p.extra_size = static_cast<int>(in.inputs);
  p.net.nets = data_of(in.nets), p.net.net_size = in.nets.size(1);
  p.net.net = hybrid_net({}, in.net), p.energy = data_of(energy);
  const std::string refusal = hybrid_refusal(op.limits(), p.net.net, parts);
  if (!refusal.empty()) fail(op, refusal);
  check_packed(op, in.nets, hybrid_packed_size(p.net.net));
  const HybridOut out{in.weights(), data_of(gradient), nullptr};
  Tensor memory = empty(op, {hybrid_bytes(op, parts, 0, out)}, ScalarType::Byte);
  run_hybrid(op, parts, 0, out, memory.mutable_data_ptr());
  op.launch_for(in.atoms, 256, refuse_kernel, p.types, in.atoms, p.ntypes, p.energy);
}

}  // namespace mdops

MDOPS_ON_GPU(FittingOps)
