#include "spline_potential/host.h"
#include "spline_training/spline_training.h"

namespace mdops {

namespace {

constexpr int64_t kHeader = 16;  // elements of `saved` before the packed nets; the first one: threads

// Which atoms each thread works on, in which rows of memory: those of a type side by side.
struct Plan {
  Order order;
  int64_t threads, rows = 0;
  std::vector<TrainingBlock> blocks;
  std::vector<int64_t> type_rows{0};  // where a type's rows begin

  template <class T>
  Plan(const PotentialArgs<T>& args, int64_t threads_)
      : order(args.types, args.atoms, args.ntypes), threads(threads_) {
    for (int t = 0; t < args.ntypes; ++t) {
      const int64_t first = order.start[t], count = order.start[t + 1] - first;
      for (int64_t thread = 0; thread < threads; ++thread)
        add<T>(t, thread, first + count * thread / threads, first + count * (thread + 1) / threads);
      type_rows.push_back(rows);
    }
  }

 private:
  template <class T>
  void add(int type, int64_t thread, int64_t first, int64_t last) {
    const int64_t count = last - first, pieces = (count + kBlock - 1) / kBlock;
    for (int64_t k = 0; k < pieces; ++k) {
      const int64_t from = first + count * k / pieces, to = first + count * (k + 1) / pieces;
      blocks.push_back({type, thread, from, to - from, rows, MDOPS_RUN(block_rows, to - from, T{})});
      rows += blocks.back().rows;
    }
  }
};

// The step's memory between its passes: the number of threads, the nets packed, and the rows.
template <class T>
struct Saved {
  int64_t packed, size;

  Saved(const PotentialArgs<T>& args, const Plan& plan) {
    packed = MDOPS_RUN(packed_size, args.net, T{});
    size = begin(args.ntypes) + MDOPS_RUN(saved_size, args, plan.rows);
  }

  T* nets(T* saved) const { return saved + kHeader; }
  T* rows(T* saved, int ntypes) const { return saved + begin(ntypes); }

 private:
  int64_t begin(int64_t ntypes) const { return (kHeader + ntypes * packed + 15) / 16 * 16; }
};

template <class T>
std::vector<DenseLayer<T>> plain_layers(const FittingShape& net, const T* plain) {
  const PlainNet at(net);
  std::vector<DenseLayer<T>> layers;
  for (int n = 0; n < net.layers; ++n)
    layers.push_back({plain + at.weight[n], plain + at.bias[n], plain + at.timestep[n]});
  layers.push_back({plain + at.out_weight, plain + at.out_bias, nullptr});
  return layers;
}

// Runs work(thread, scratch) for every thread of the plan.
template <class T, class Work>
void in_threads(const PotentialArgs<T>& args, int64_t threads, const Work& work) {
  parallel(threads, 1, [&](int64_t begin, int64_t end) {
    thread_local ScratchMemory memory;
    T* scratch = memory.get<T>(MDOPS_RUN(training_scratch_size, args));
    for (int64_t thread = begin; thread < end; ++thread) work(thread, scratch);
  });
}

// The arguments of both ops from `positions` on: those of spline_potential, but for tanh and nets as they
// are.
template <class... Arguments>
PotentialInputs training_inputs(const Op& op, const Arguments&... arguments) {
  const PotentialInputs in = read_inputs(op, arguments..., static_cast<int64_t>(Activation::tanh), 0.0);
  if (in.nets.size(1) != PlainNet(in.net).size)
    fail(op, "argument `nets` has " + std::to_string(in.nets.size(1)) +
                 " numbers for each type, expected those of its layers, " +
                 std::to_string(PlainNet(in.net).size));
  return in;
}

template <class T>
Tensor forward(const PotentialInputs& in, PotentialArgs<T> args, Answer& answer, const Op& op) {
  const Plan plan(args, useful_threads(in.atoms));
  const Saved<T> at(args, plan);
  Tensor saved = empty({at.size}, in.dtype);
  T* memory = saved.mutable_data_ptr<T>();
  std::fill_n(memory, kHeader, T(0));
  std::fill(at.nets(memory) + args.ntypes * at.packed, at.rows(memory, args.ntypes), T(0));
  memory[0] = static_cast<T>(plan.threads);
  const T* plain = args.nets;
  args.nets = at.nets(memory), args.net_size = at.packed;
  in_threads(args, plan.threads, [&](int64_t thread, T*) {
    for (int t = 0; t < args.ntypes; ++t)
      MDOPS_RUN(pack_net, in.net, plain_layers(in.net, plain + t * in.nets.size(1)).data(),
                at.nets(memory) + t * at.packed, thread, plan.threads);
  });
  std::vector<Share<T>> shares(plan.threads);
  in_threads(args, plan.threads, [&](int64_t thread, T* scratch) {
    PotentialResults<T> out = answer.results(in, shares[thread]);
    for (const TrainingBlock& block : plan.blocks)
      if (block.thread == thread)
        MDOPS_RUN(train_forward, args, block, plan.order.ids.data() + block.first, plan.rows,
                  at.rows(memory, args.ntypes), scratch, out);
    shares[thread].bad_atom = out.bad_atom;
  });
  answer.finish(op, in, shares);
  return saved;
}

using ForwardOutputs = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

ForwardOutputs spline_training(const Tensor& positions, const Tensor& cell, const Tensor& batch,
                               const Tensor& types, const Tensor& neighbors, const Tensor& images,
                               const Tensor& counts, const Tensor& mean, const Tensor& std,
                               const Tensor& pair_mask, const Tensor& zeroed, const Tensor& sel,
                               const Tensor& tables, const Tensor& nets, const Tensor& extra,
                               const Tensor& scale, const Tensor& shift, double cutoff, double cutoff_smooth,
                               double protection, double s_max, int64_t width, int64_t axis,
                               std::vector<int64_t> neurons, std::vector<int64_t> residual) {
  const Op op("spline_training");
  const PotentialInputs in = training_inputs(
      op, positions, cell, batch, types, neighbors, images, counts, mean, std, pair_mask, zeroed, sel, tables,
      nets, extra, scale, shift, cutoff, cutoff_smooth, protection, s_max, width, axis, neurons, residual);
  const std::vector<double> places = four_columns(in.positions.const_data_ptr<double>(), in.atoms);
  Answer answer(in);
  Tensor saved = dispatch_float(op, in.dtype, [&](auto zero) {
    return forward(in, arguments<decltype(zero)>(in, places.data()), answer, op);
  });
  return {answer.energy, answer.forces, answer.virial, answer.within, answer.nearest, saved};
}

// The loss' gradients of the results in the form that the kernels read.
template <class T>
struct GivenGradients {
  std::vector<T> forces, virial;
  TrainingGradients<T> given;

  GivenGradients(const Tensor& energy, const Tensor& forces_, const Tensor& virial_, int64_t atoms)
      : forces(4 * atoms) {
    const double *f = forces_.const_data_ptr<double>(), *w = virial_.const_data_ptr<double>();
    for (int64_t i = 0; i < atoms; ++i)
      for (int a = 0; a < 3; ++a) forces[4 * i + a] = static_cast<T>(f[3 * i + a]);
    virial.assign(w, w + virial_.numel());
    given = {energy.const_data_ptr<double>(), forces.data(), virial.data()};
  }
};

// The tables' gradient, and that of all that is no matrix, from what the threads have summed.
template <class T>
void sum_vectors(const PotentialInputs& in, const std::vector<std::vector<T>>& tables,
                 const std::vector<std::vector<T>>& vectors, T* grad_tables, T* grad_nets) {
  const PlainNet all(in.net), few(in.net, false);
  for (const std::vector<T>& share : tables)
    for (size_t k = 0; k < share.size(); ++k) grad_tables[k] += share[k];
  for (int64_t t = 0; t < in.ntypes; ++t) {
    const auto sum = [&](int64_t from, int64_t to, int64_t count) {
      for (int64_t k = 0; k < count; ++k) {
        T total = 0;
        for (const std::vector<T>& share : vectors) total += share[t * few.size + from + k];
        grad_nets[t * all.size + to + k] = total;
      }
    };
    for (int n = 0; n < in.net.layers; ++n) {
      sum(few.bias[n], all.bias[n], in.net.neurons[n]);
      sum(few.timestep[n], all.timestep[n], in.net.neurons[n]);
    }
    sum(few.out_weight, all.out_weight, in.net.neurons[in.net.layers - 1]);
    sum(few.out_bias, all.out_bias, 1);
  }
}

template <class T>
void backward(const PotentialInputs& in, PotentialArgs<T> args, const TrainingGradients<T>& given,
              const Tensor& saved, const Op& op, T* grad_tables, T* grad_nets) {
  T* memory = const_cast<T*>(saved.const_data_ptr<T>());  // the passes only read what is saved
  if (saved.numel() < kHeader || !(memory[0] >= 1 && memory[0] <= 1 + in.atoms))
    fail(op, "argument `saved` is not that of spline_training");
  const int64_t threads = static_cast<int64_t>(memory[0]);
  const Plan plan(args, threads);
  const Saved<T> at(args, plan);
  if (saved.numel() != at.size) fail(op, "argument `saved` is not that of spline_training for these inputs");
  args.nets = at.nets(memory), args.net_size = at.packed;
  T* rows = at.rows(memory, args.ntypes);
  static thread_local ScratchMemory work_memory;
  T* work = work_memory.get<T>(MDOPS_RUN(work_size, args, plan.rows));
  std::vector<std::vector<T>> tables(threads), vectors(threads);
  std::vector<int64_t> bad_atoms(threads, -1);
  in_threads(args, threads, [&](int64_t thread, T* scratch) {
    tables[thread].assign(in.tables.numel(), T(0));
    vectors[thread].assign(in.ntypes * PlainNet(in.net, false).size, T(0));
    TrainingShare<T> share{tables[thread].data(), vectors[thread].data(), -1};
    for (const TrainingBlock& block : plan.blocks)
      if (block.thread == thread)
        MDOPS_RUN(train_backward, args, block, plan.order.ids.data() + block.first, plan.rows, given, rows,
                  work, scratch, share);
    bad_atoms[thread] = share.bad_atom;
  });
  for (const int64_t atom : bad_atoms)
    if (atom >= 0) fail_neighbors(op, atom);
  const int64_t units = MDOPS_RUN(weight_units, in.net, T{}), size = PlainNet(in.net).size;
  in_threads(args, threads, [&](int64_t thread, T* scratch) {
    for (int64_t unit = thread; unit < units * in.ntypes; unit += threads) {
      const int64_t t = unit / units, begin = plan.type_rows[t], end = plan.type_rows[t + 1];
      if (begin < end)
        MDOPS_RUN(weight_gradient, args, unit % units, begin, end, plan.rows, rows, work, scratch,
                  grad_nets + t * size);
      else
        std::fill_n(grad_nets + t * size, size, T(0));
    }
  });
  sum_vectors(in, tables, vectors, grad_tables, grad_nets);
}

std::tuple<Tensor, Tensor> spline_training_backward(
    const Tensor& grad_energy, const Tensor& grad_forces, const Tensor& grad_virial, const Tensor& saved,
    const Tensor& positions, const Tensor& cell, const Tensor& batch, const Tensor& types,
    const Tensor& neighbors, const Tensor& images, const Tensor& counts, const Tensor& mean,
    const Tensor& std, const Tensor& pair_mask, const Tensor& zeroed, const Tensor& sel, const Tensor& tables,
    const Tensor& nets, const Tensor& extra, const Tensor& scale, const Tensor& shift, double cutoff,
    double cutoff_smooth, double protection, double s_max, int64_t width, int64_t axis,
    std::vector<int64_t> neurons, std::vector<int64_t> residual) {
  const Op op("spline_training_backward");
  const PotentialInputs in = training_inputs(
      op, positions, cell, batch, types, neighbors, images, counts, mean, std, pair_mask, zeroed, sel, tables,
      nets, extra, scale, shift, cutoff, cutoff_smooth, protection, s_max, width, axis, neurons, residual);
  const Tensor u = input(op, "grad_energy", grad_energy, ScalarType::Double, {in.atoms});
  const Tensor f = input(op, "grad_forces", grad_forces, ScalarType::Double, {in.atoms, 3});
  const Tensor w = input(op, "grad_virial", grad_virial, ScalarType::Double, {in.systems, 3, 3});
  const Tensor kept = input(op, "saved", saved, in.dtype, {kAny});
  const std::vector<double> places = four_columns(in.positions.const_data_ptr<double>(), in.atoms);
  Tensor grad_tables = zeros({in.ntypes, in.tables.size(1), in.tables.size(2)}, in.dtype);
  Tensor grad_nets = empty({in.ntypes, in.nets.size(1)}, in.dtype);
  dispatch_float(op, in.dtype, [&](auto zero) {
    using T = decltype(zero);
    const GivenGradients<T> gradients(u, f, w, in.atoms);
    backward(in, arguments<T>(in, places.data()), gradients.given, kept, op,
             grad_tables.mutable_data_ptr<T>(), grad_nets.mutable_data_ptr<T>());
  });
  return {grad_tables, grad_nets};
}

}  // namespace

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CPU, m) {
  m.impl("spline_training", TORCH_BOX(&mdops::spline_training));
  m.impl("spline_training_backward", TORCH_BOX(&mdops::spline_training_backward));
}
