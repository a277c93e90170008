#include "spline_potential/cpu_nets.h"
#include "spline_potential/host.h"
#include "spline_training/spline_training.h"

namespace mdops {

namespace {

constexpr int64_t kHeader = 16;  // elements of `saved` before the nets' heads; the first one: threads

// The atoms of each thread, and the lanes of memory for them.
struct Plan {
  Order order;
  int64_t threads, lanes = 0;
  std::vector<TrainingBlock> blocks;
  std::vector<int64_t> net_blocks{0};  // where a net's blocks begin

  template <class T>
  Plan(const PotentialArgs<T>& args, int64_t threads_)
      : order(args, args.atoms, threads_), threads(threads_) {
    for (int n = 0; n < args.nets; ++n) {
      const int64_t first = order.first_of(n, args.nets), count = order.count_of(n, args.nets);
      for (int64_t thread = 0; thread < threads; ++thread) {
        const int64_t begin = count * thread / threads, end = count * (thread + 1) / threads;
        each_block(end - begin, kBlock, [&](int64_t from, int64_t to) {
          blocks.push_back({{to - from, lanes, block_lanes<T>(to - from)}, n, thread, first + begin + from});
          lanes += blocks.back().lanes;
        });
      }
      net_blocks.push_back(static_cast<int64_t>(blocks.size()));
    }
  }
};

// The step's memory between its passes: the number of threads, the nets' heads, and the blocks' arrays.
template <class T>
struct Saved {
  int64_t head, arrays, size;  // arrays: where they begin

  Saved(const PotentialArgs<T>& args, const Plan& plan)
      : head((args.net.head_rows() * args.net.neurons[0] + 15) / 16 * 16),
        arrays(kHeader + args.nets * head),
        size(arrays + MDOPS_RUN(saved_size, args, plan.lanes)) {}
};

constexpr int64_t kOfLayer = 3;  // weight, bias, timestep; the output layer has no timestep
int64_t tensors_of_net(const FittingShape& net) {
  return kOfLayer * net.layers + 2;
}

// Each net, for heads in `saved`.
template <class T>
std::vector<NetWeights<T>> nets_of(const PotentialInputs& in, const Saved<T>& at, const T* saved) {
  std::vector<NetWeights<T>> nets(in.net_count);
  for (int64_t t = 0; t < in.net_count; ++t) {
    const Tensor* of = in.layers.data() + t * tensors_of_net(in.net);
    nets[t].head = saved + kHeader + t * at.head;
    for (int n = 0; n <= in.net.layers; ++n, of += kOfLayer)
      nets[t].layer[n] = {data_of(of[0]), data_of(of[1]),
                          n < in.net.layers ? of[2].const_data_ptr<T>() : nullptr};
  }
  return nets;
}

// Runs work(thread, scratch) for every thread of the plan.
template <class T, class Work>
void in_threads(const Op& op, const PotentialArgs<T>& args, int64_t threads, const Work& work) {
  parallel(threads, 1, [&](int64_t begin, int64_t end) {
    const ScratchMemory<BlockScratch> memory(op, MDOPS_RUN(training_scratch_size, args) * sizeof(T));
    T* scratch = static_cast<T*>(memory.data());
    for (int64_t thread = begin; thread < end; ++thread) work(thread, scratch);
  });
}

template <class T>
Tensor forward(const PotentialInputs& in, const PotentialArgs<T>& args, Answer& answer, const Op& op) {
  const Plan plan(args, useful_threads(in.atoms));
  const Saved<T> at(args, plan);
  Tensor saved = empty({at.size}, in.dtype);
  T* memory = saved.mutable_data_ptr<T>();
  std::fill_n(memory, at.arrays, T(0));
  memory[0] = static_cast<T>(plan.threads);
  const std::vector<NetWeights<T>> nets = nets_of(in, at, memory);
  for (int64_t t = 0; t < in.net_count; ++t)
    fold_head(in.net, nets[t].layer[0].weight, memory + kHeader + t * at.head);
  const TrainingMemory<T> arrays{plan.lanes, memory + at.arrays, nullptr};
  std::vector<Share<T>> shares(plan.threads);
  const StepResults<T> results = answer.results<T>();
  in_threads(op, args, plan.threads, [&](int64_t thread, T* scratch) {
    PotentialResults<T> out = results.of_thread(args, plan.order.space, shares[thread]);
    for (const TrainingBlock& block : plan.blocks)
      if (block.thread == thread)
        MDOPS_RUN(train_forward, args, nets[block.net], block, plan.order.ids.data() + block.first, arrays,
                  scratch, out);
    shares[thread].bad_atom = out.bad_atom;
  });
  results.finish(op, args, plan.order.space, shares);
  return saved;
}

// The loss' gradients of the results in the kernels' form.
template <class T>
struct GivenGradients {
  std::vector<T> forces, virial;
  TrainingGradients<T> given;

  GivenGradients(const double* energy, const double* f, const double* w, int64_t atoms, int64_t systems)
      : forces(4 * atoms), virial(w, w + 9 * systems), given{energy, forces.data(), virial.data()} {
    for (int64_t i = 0; i < atoms; ++i)
      for (int a = 0; a < 3; ++a) forces[4 * i + a] = static_cast<T>(f[3 * i + a]);
  }
};

// Adds up `count` numbers of each thread from `from` on.
template <class T>
void sum_parts(const std::vector<std::vector<T>>& parts, int64_t from, int64_t count, T* to) {
  std::copy_n(parts[0].data() + from, count, to);
  for (size_t k = 1; k < parts.size(); ++k)
    for (int64_t c = 0; c < count; ++c) to[c] += parts[k][from + c];
}

// The gradients of a net's tensors, in the order of the argument `nets`.
template <class T>
struct NetGradients {
  Tensors tensors;

  explicit NetGradients(const PotentialInputs& in) {
    for (const Tensor& given : in.layers) {
      const auto shape = given.sizes();
      tensors.push_back(empty(std::vector<int64_t>(shape.begin(), shape.end()), in.dtype));
    }
  }

  T* of(const FittingShape& net, int64_t index, int layer, int part) {
    return tensors[index * tensors_of_net(net) + kOfLayer * layer + part].template mutable_data_ptr<T>();
  }

  void set_vectors(const FittingShape& net, int64_t index, const std::vector<std::vector<T>>& parts) {
    const NetVectors at(net);
    const auto sum = [&](int64_t from, int64_t count, int layer, int part) {
      sum_parts(parts, index * at.size + from, count, of(net, index, layer, part));
    };
    for (int n = 0; n < net.layers; ++n) {
      sum(at.bias[n], net.neurons[n], n, 1);
      sum(at.timestep[n], net.neurons[n], n, 2);
    }
    sum(at.out_weight, net.neurons[net.layers - 1], net.layers, 0);
    sum(at.out_bias, 1, net.layers, 1);
  }

  // For the matrices of a net without atoms.
  void clear_matrices(const FittingShape& net, int64_t index) {
    for (int n = 0; n < net.layers; ++n) {
      Tensor& matrix = tensors[index * tensors_of_net(net) + kOfLayer * n];
      std::fill_n(matrix.template mutable_data_ptr<T>(), matrix.numel(), T(0));
    }
  }
};

template <class T>
void weight_gradients(const Op& op, const PotentialInputs& in, const PotentialArgs<T>& args, const Plan& plan,
                      const TrainingMemory<T>& memory, NetGradients<T>& grads) {
  const int64_t units = MDOPS_RUN(weight_units, in.net, T{});
  std::vector<T*> matrices;
  for (int64_t t = 0; t < in.net_count; ++t)
    for (int n = 0; n < in.net.layers; ++n) matrices.push_back(grads.of(in.net, t, n, 0));
  in_threads(op, args, plan.threads, [&](int64_t thread, T* scratch) {
    for (int64_t unit = thread; unit < units * in.net_count; unit += plan.threads) {
      const int64_t t = unit / units, first = plan.net_blocks[t], count = plan.net_blocks[t + 1] - first;
      if (count)
        MDOPS_RUN(weight_gradient, args, unit % units, plan.blocks.data() + first, count, memory, scratch,
                  matrices.data() + t * in.net.layers);
    }
  });
  for (int64_t t = 0; t < in.net_count; ++t)
    if (plan.net_blocks[t] == plan.net_blocks[t + 1]) grads.clear_matrices(in.net, t);
}

template <class T>
NetGradients<T> backward(const PotentialInputs& in, const PotentialArgs<T>& args,
                         const TrainingGradients<T>& given, Input saved, const Op& op, T* grad_tables) {
  T* kept = const_cast<T*>(saved.const_data_ptr<T>());  // the passes only read what is saved
  if (saved.numel() < kHeader || !(kept[0] >= 1 && kept[0] <= 1 + in.atoms))
    fail(op, "argument `saved` is not that of spline_training");
  const int64_t threads = static_cast<int64_t>(kept[0]);
  const Plan plan(args, threads);
  const Saved<T> at(args, plan);
  if (saved.numel() != at.size) fail(op, "argument `saved` is not that of spline_training for these inputs");
  const std::vector<NetWeights<T>> nets = nets_of<T>(in, at, kept);
  const ScratchMemory<StepScratch> work(op, MDOPS_RUN(work_size, args, plan.lanes) * sizeof(T));
  const TrainingMemory<T> memory{plan.lanes, kept + at.arrays, static_cast<T*>(work.data())};
  std::vector<std::vector<T>> tables(threads), vectors(threads);
  std::vector<int64_t> bad_atoms(threads, -1);
  in_threads(op, args, threads, [&](int64_t thread, T* scratch) {
    tables[thread].assign(in.tables.numel(), T(0));
    vectors[thread].assign(in.net_count * NetVectors(in.net).size, T(0));
    TrainingShare<T> share{tables[thread].data(), vectors[thread].data(), -1};
    for (const TrainingBlock& block : plan.blocks)
      if (block.thread == thread)
        MDOPS_RUN(train_backward, args, nets[block.net], block, plan.order.ids.data() + block.first, given,
                  memory, scratch, share);
    bad_atoms[thread] = share.bad_atom;
  });
  for (const int64_t atom : bad_atoms)
    if (atom >= 0) fail_neighbors(op, atom);
  NetGradients<T> grads(in);
  weight_gradients(op, in, args, plan, memory, grads);
  for (int64_t t = 0; t < in.net_count; ++t) grads.set_vectors(in.net, t, vectors);
  sum_parts(tables, 0, in.tables.numel(), grad_tables);
  return grads;
}

}  // namespace

template <class Device>
struct SplineTrainingOps {
  static constexpr auto arguments = take_step<Checked<Device>, Tensors>;

  static Outputs<6> spline_training(Checked<Device>& in, PotentialInputs& a) {
    const std::vector<double> places = four_columns(a.positions.const_data_ptr<double>(), a.atoms);
    Answer answer{a};
    Tensor saved = dispatch_float(in.op, a.dtype, [&]<class T>(T) {
      return forward(a, mdops::arguments<T>(a, places.data()), answer, in.op);
    });
    return {answer.energy, answer.forces, answer.virial, answer.within, answer.nearest, saved};
  }

  static std::tuple<Tensor, Tensors> spline_training_backward(Checked<Device>& in, PotentialInputs& a,
                                                              Input grad_energy, Input grad_forces,
                                                              Input grad_virial, Input saved) {
    const double *energy, *forces, *virial;
    in.take(energy, "grad_energy", grad_energy, {a.atoms});
    in.take(forces, "grad_forces", grad_forces, {a.atoms, 3});
    in.take(virial, "grad_virial", grad_virial, {a.systems, 3, 3});
    const Tensor kept = input(in.op, "saved", saved, a.dtype, {kAny});
    const std::vector<double> places = four_columns(a.positions.const_data_ptr<double>(), a.atoms);
    Tensor grad_tables = empty({a.ntypes, a.tables.size(1), a.tables.size(2)}, a.dtype);
    Tensors grad_nets = dispatch_float(in.op, a.dtype, [&]<class T>(T) {
      const GivenGradients<T> gradients(energy, forces, virial, a.atoms, a.systems);
      return backward(a, mdops::arguments<T>(a, places.data()), gradients.given, kept, in.op,
                      grad_tables.mutable_data_ptr<T>())
          .tensors;
    });
    return {grad_tables, std::move(grad_nets)};
  }

  MDOPS_IMPLEMENT(SplineTrainingOps, spline_training, spline_training_backward)
};

}  // namespace mdops

MDOPS_ON_CPU(SplineTrainingOps)
