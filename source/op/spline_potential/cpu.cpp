#include "common/rebuilt.h"
#include "spline_potential/cpu_nets.h"
#include "spline_potential/host.h"
#include "spline_potential/kernel_table.h"

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

// The kernels rebuilt for a net of this shape, if a library with them is in use; those of this processor's
// instruction set otherwise.
template <class T>
PotentialKernels<T> kernels_for(const FittingShape& net) {
  const PotentialTable* table =
      rebuilt_table<PotentialTable>([&](const PotentialTable& t) { return t.fits<T>(net); });
  if (table) return table->kernels<T>();
  return {[](const PotentialArgs<T>& args) { return MDOPS_RUN(scratch_size, args); },
          [](const PotentialArgs<T>& args, const NetWeights<T>& weights, const int32_t* ids, int64_t count,
             T* scratch,
             PotentialResults<T>& out) { MDOPS_RUN(potential, args, weights, ids, count, scratch, out); }};
}

// Every thread takes an equal part of each net's atoms, so that the sums, and with them the result's last
// bits, depend on the number of threads alone.
template <class T>
std::vector<Share<T>> run(const Op& op, const PotentialInputs& in, const PotentialArgs<T>& args,
                          Answer& answer) {
  T* nets = const_cast<T*>(in.nets.const_data_ptr<T>());  // which are only read
  const int parts = bf16_parts(in.matmul, kDtype<T>);
  const PotentialKernels<T> kernels = kernels_for<T>(in.net);
  const Order order(args.types, args.atoms, args.ntypes);
  const int64_t threads = useful_threads(static_cast<int64_t>(order.ids.size()));
  std::vector<Share<T>> shares(threads);
  parallel(threads, 1, [&](int64_t begin, int64_t end) {
    const ScratchMemory<BlockScratch> memory(op, kernels.scratch_size(args) * sizeof(T));
    T* scratch = static_cast<T*>(memory.data());
    for (int64_t thread = begin; thread < end; ++thread) {
      PotentialResults<T> out = answer.results(in, shares[thread]);
      for (int n = 0; n < args.nets; ++n) {
        const int64_t first = order.first_of(n, args.nets), count = order.count_of(n, args.nets);
        const int64_t from = count * thread / threads, to = count * (thread + 1) / threads;
        kernels.potential(args, packed_weights(in.net, parts, nets + n * in.nets.size(1)),
                          order.ids.data() + first + from, to - from, scratch, out);
      }
      shares[thread].bad_atom = out.bad_atom;
    }
  });
  return shares;
}

struct CpuCall : Op {
  explicit CpuCall(const Tensor&) : Op("spline_potential") {}

  PotentialOutputs run(const PotentialInputs& in) const {
    refuse_tf32(*this, in.matmul);
    const std::vector<double> places = four_columns(in.positions.const_data_ptr<double>(), in.atoms);
    Answer answer(in);
    dispatch_float(*this, in.dtype, [&](auto zero) {
      using T = decltype(zero);
      check_packed(*this, in.nets, PackedNet(in.net, bf16_parts(in.matmul, kDtype<T>)).size);
      PotentialArgs<T> args = arguments<T>(in, places.data());
      if (bf16_parts(in.matmul, kDtype<T>)) args.block = 2 * kBlock;
      answer.finish(*this, in, mdops::run<T>(*this, in, args, answer));
    });
    return {answer.energy, answer.forces, answer.virial, answer.within, answer.nearest};
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
