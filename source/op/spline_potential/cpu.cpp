#include "spline_potential/spline_potential.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <vector>

#include "common/descriptor_args.h"

namespace mdops {

namespace {

// A thread's scratch memory, kept from call to call: it is touched whole, and fresh pages cost more than a
// step of a small system.
struct ScratchMemory {
  void* data = nullptr;
  size_t bytes = 0;
  ~ScratchMemory() { std::free(data); }

  template <class T>
  T* get(int64_t elements) {
    const size_t wanted = (elements * sizeof(T) + 63) / 64 * 64;
    if (wanted > bytes) {
      std::free(data);
      data = std::aligned_alloc(64, wanted);
      bytes = data ? wanted : 0;
      if (!data)
        fail("spline_potential", "out of memory for " + std::to_string(wanted) + " bytes of scratch");
    }
    return static_cast<T*>(data);
  }
};

FittingShape fitting_shape(const char* op, int64_t width, int64_t axis, const std::vector<int64_t>& neurons,
                           int64_t extra) {
  if (width < 1 || axis < 1 || axis > width || axis > 255 || width > 100000)
    fail(op, "arguments `width` and `axis` are " + std::to_string(width) + " and " + std::to_string(axis) +
                 ", expected 1 <= axis <= width and axis <= 255");
  if (neurons.empty() || neurons.size() > kMaxLayers)
    fail(op, "a fitting net of " + std::to_string(neurons.size()) + " hidden layers, expected 1 to " +
                 std::to_string(kMaxLayers));
  FittingShape net{};
  net.width = static_cast<int>(width);
  net.axis = static_cast<int>(axis);
  net.extra = static_cast<int>(extra);
  net.layers = static_cast<int>(neurons.size());
  for (int n = 0; n < net.layers; ++n) {
    if (neurons[n] < 1 || neurons[n] > 100000)
      fail(op, "a layer of " + std::to_string(neurons[n]) + " neurons");
    net.neurons[n] = static_cast<int>(neurons[n]);
  }
  return net;
}

Tensor spline_potential_pack(std::vector<Tensor> weights, std::vector<Tensor> biases,
                             std::vector<Tensor> timesteps, int64_t width, int64_t axis) {
  constexpr const char* op = "spline_potential_pack";
  const size_t layers = weights.size();
  if (layers < 2 || biases.size() != layers || timesteps.size() != layers)
    fail(op, "expected weights, biases and timesteps of two layers or more, as many of each");
  std::vector<int64_t> neurons;
  int64_t inputs = weights[0].dim() == 2 ? weights[0].size(0) : 0;
  const int64_t extra = inputs - width * axis;
  if (extra < 0) fail(op, "argument `weights[0]` has fewer than width * axis rows");
  for (size_t n = 0; n < layers; ++n) {
    weights[n] = float_input(op, "weights", weights[n], {inputs, n + 1 < layers ? kAny : 1});
    inputs = weights[n].size(1);
    biases[n] = input(op, "biases", biases[n], weights[0].scalar_type(), {inputs});
    timesteps[n] = input(op, "timesteps", timesteps[n], weights[0].scalar_type(), {inputs});
    if (n + 1 < layers) neurons.push_back(inputs);
  }
  const FittingShape net = fitting_shape(op, width, axis, neurons, extra);
  return dispatch_float(op, weights[0].scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    std::vector<DenseLayer<T>> dense;
    for (size_t n = 0; n < layers; ++n)
      dense.push_back({weights[n].template const_data_ptr<T>(), biases[n].template const_data_ptr<T>(),
                       timesteps[n].template const_data_ptr<T>()});
    Tensor packed = zeros({MDOPS_RUN(packed_size, net, T{})}, kDtype<T>);
    MDOPS_RUN(pack_net, net, dense.data(), packed.mutable_data_ptr<T>());
    return packed;
  });
}

// The atoms of each type one after the other, virtual ones left out; `start` (ntypes + 1) says where a type
// begins.
struct Order {
  std::vector<int32_t> ids;
  std::vector<int64_t> start;

  Order(const int32_t* types, int64_t atoms, int64_t ntypes) : start(ntypes + 1, 0) {
    for (int64_t i = 0; i < atoms; ++i)
      if (types[i] >= 0) ++start[types[i] + 1];
    for (int64_t t = 0; t < ntypes; ++t) start[t + 1] += start[t];
    ids.resize(start[ntypes]);
    std::vector<int64_t> next(start.begin(), start.end() - 1);
    for (int64_t i = 0; i < atoms; ++i)
      if (types[i] >= 0) ids[next[types[i]]++] = static_cast<int32_t>(i);
  }
};

// Positions with a fourth column, so that one vector load brings an atom.
std::vector<double> four_columns(const double* positions, int64_t atoms) {
  std::vector<double> result(4 * atoms);
  parallel(atoms, 4096, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      for (int a = 0; a < 3; ++a) result[4 * i + a] = positions[3 * i + a];
  });
  return result;
}

// What a thread adds up on its own.
template <class T>
struct Share {
  std::vector<T> forces;
  std::vector<double> virial;
  int64_t bad_atom = -1;
};

// Every thread takes an equal part of each type's atoms, so that the sums, and with them the result's last
// bits, depend on the number of threads alone.
template <class T>
std::vector<Share<T>> run(const PotentialArgs<T>& args, const Order& order, double* energy, int32_t* within,
                          T* nearest) {
  const int64_t most = std::max<int64_t>(1, static_cast<int64_t>(order.ids.size()) / 16);
  const int64_t threads = std::min<int64_t>(torch::stable::get_num_threads(), most);
  std::vector<Share<T>> shares(threads);
  parallel(threads, 1, [&](int64_t begin, int64_t end) {
    thread_local ScratchMemory memory;
    T* scratch = memory.get<T>(MDOPS_RUN(scratch_size, args));
    for (int64_t thread = begin; thread < end; ++thread) {
      Share<T>& share = shares[thread];
      share.forces.assign(4 * args.atoms, T(0));
      share.virial.assign(9 * args.systems, 0.0);
      PotentialResults<T> out{energy, within, nearest, share.forces.data(), share.virial.data(), -1};
      for (int t = 0; t < args.ntypes; ++t) {
        const int64_t first = order.start[t], count = order.start[t + 1] - first;
        const int64_t from = count * thread / threads, to = count * (thread + 1) / threads;
        if (from < to) MDOPS_RUN(potential, args, order.ids.data() + first + from, to - from, scratch, out);
      }
      share.bad_atom = out.bad_atom;
    }
  });
  return shares;
}

template <class T>
void sum_shares(const std::vector<Share<T>>& shares, int64_t atoms, double* forces, double* virial) {
  parallel(atoms, 4096, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      for (int a = 0; a < 3; ++a) {
        double sum = 0;
        for (const Share<T>& share : shares) sum += share.forces[4 * i + a];
        forces[3 * i + a] = sum;
      }
  });
  for (const Share<T>& share : shares)
    for (size_t k = 0; k < share.virial.size(); ++k) virial[k] += share.virial[k];
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> spline_potential(
    const Tensor& positions_, const Tensor& cell_, const Tensor& batch_, const Tensor& types_,
    const Tensor& neighbors_, const Tensor& images_, const Tensor& counts_, const Tensor& mean_,
    const Tensor& std_, const Tensor& pair_mask_, const Tensor& zeroed_, const Tensor& sel_,
    const Tensor& tables_, const Tensor& nets_, const Tensor& extra_, const Tensor& scale_,
    const Tensor& shift_, double cutoff, double cutoff_smooth, double protection, double s_max, int64_t width,
    int64_t axis, std::vector<int64_t> neurons, std::vector<int64_t> residual, int64_t activation,
    double threshold) {
  constexpr const char* op = "spline_potential";
  const Tensor positions = input(op, "positions", positions_, ScalarType::Double, {kAny, 3});
  const Tensor cell = input(op, "cell", cell_, ScalarType::Double, {kAny, 3, 3});
  const int64_t n = positions.size(0), systems = cell.size(0);
  const Tensor batch = input(op, "batch", batch_, ScalarType::Int, {n});
  const Tensor neighbors = input(op, "neighbors", neighbors_, ScalarType::Int, {n, kAny});
  const Tensor images = input(op, "images", images_, ScalarType::Int, {n, neighbors.size(1)});
  const Tensor types = input(op, "types", types_, ScalarType::Int, {n});
  const Tensor tables = float_input(op, "tables", tables_, {kAny, kAny, kAny});
  const ScalarType dtype = tables.scalar_type();
  const int64_t ntypes = tables.size(0), basis = ntypes ? tables.size(1) / ntypes : 0;
  if (ntypes < 1 || basis < 6 || tables.size(1) != ntypes * basis || ntypes * basis > 32000 ||
      tables.size(2) != (width + kTablePad - 1) / kTablePad * kTablePad)
    fail(op, "argument `tables` has a shape that does not fit (ntypes, ntypes * basis, width padded to 16)");
  const Tensor counts = input(op, "counts", counts_, ScalarType::Int, {n, ntypes});
  const Tensor mean = input(op, "mean", mean_, dtype, {ntypes});
  const Tensor std = input(op, "std", std_, dtype, {ntypes, 2});
  const Tensor pair_mask = input(op, "pair_mask", pair_mask_, ScalarType::Bool, {ntypes, ntypes});
  const Tensor zeroed = input(op, "zeroed", zeroed_, ScalarType::Bool, {ntypes, ntypes});
  const Tensor sel = input(op, "sel", sel_, ScalarType::Int, {ntypes});
  const Tensor nets = input(op, "nets", nets_, dtype, {ntypes, kAny});
  const Tensor extra = input(op, "extra", extra_, dtype, {n, kAny});
  const Tensor scale = input(op, "scale", scale_, ScalarType::Double, {ntypes});
  const Tensor shift = input(op, "shift", shift_, ScalarType::Double, {ntypes});
  check_cutoff(op, cutoff, cutoff_smooth, protection);
  check_range(op, "batch", batch, 0, systems);
  check_range(op, "types", types, -1, ntypes);
  check_counts(op, counts, neighbors.size(1));
  if (!(s_max > 0) || !std::isfinite(s_max)) fail(op, "argument `s_max` must be positive and finite");
  if (activation < 0 || activation > static_cast<int64_t>(Activation::silut))
    fail(op, "argument `activation` is " + std::to_string(activation) + ", not one of mdops' codes");

  FittingShape net = fitting_shape(op, width, axis, neurons, extra.size(1));
  net.activation = static_cast<Activation>(activation);
  net.threshold = threshold;
  if (residual.size() != neurons.size()) fail(op, "arguments `residual` and `neurons` differ in length");
  for (int k = 0; k < net.layers; ++k) {
    net.residual[k] = residual[k] != 0;
    if (k && residual[k] && net.neurons[k] != net.neurons[k - 1] && net.neurons[k] != 2 * net.neurons[k - 1])
      fail(op, "a residual layer must be as wide as the one before it, or twice");
  }
  const std::vector<double> padded_positions = four_columns(positions.const_data_ptr<double>(), n);
  const Order order(types.const_data_ptr<int32_t>(), n, ntypes);

  Tensor energy = zeros({n}, ScalarType::Double), forces = empty({n, 3}, ScalarType::Double);
  Tensor virial = zeros({systems, 3, 3}, ScalarType::Double);
  Tensor within = zeros({n, ntypes}, ScalarType::Int), nearest = empty({n}, dtype);
  dispatch_float(op, dtype, [&](auto zero) {
    using T = decltype(zero);
    if (nets.size(1) != MDOPS_RUN(packed_size, net, T{}))
      fail(op, "argument `nets` was packed for a net of another shape, or another instruction set");
    PotentialArgs<T> args{};
    args.positions = padded_positions.data();
    args.cell = cell.const_data_ptr<double>();
    args.batch = batch.const_data_ptr<int32_t>();
    args.types = types.const_data_ptr<int32_t>();
    args.neighbors = neighbors.const_data_ptr<int32_t>();
    args.images = images.const_data_ptr<int32_t>();
    args.counts = counts.const_data_ptr<int32_t>();
    args.mean = mean.const_data_ptr<T>();
    args.std = std.const_data_ptr<T>();
    args.pair_mask = pair_mask.const_data_ptr<bool>();
    args.zeroed = zeroed.const_data_ptr<bool>();
    args.sel = sel.const_data_ptr<int32_t>();
    args.tables = tables.const_data_ptr<T>();
    args.nets = nets.const_data_ptr<T>();
    args.extra = extra.const_data_ptr<T>();
    args.scale = scale.const_data_ptr<double>();
    args.shift = shift.const_data_ptr<double>();
    args.atoms = n, args.systems = systems, args.list_width = neighbors.size(1);
    args.table_width = tables.size(2), args.net_size = nets.size(1);
    args.ntypes = static_cast<int>(ntypes);
    args.cutoff = {static_cast<T>(cutoff), static_cast<T>(cutoff_smooth), static_cast<T>(protection)};
    args.grid = {static_cast<T>((basis - 5) / s_max), static_cast<int>(basis - 5)};
    args.net = net;
    std::fill_n(nearest.mutable_data_ptr<T>(), n, static_cast<T>(cutoff));
    const auto shares = run<T>(args, order, energy.mutable_data_ptr<double>(),
                               within.mutable_data_ptr<int32_t>(), nearest.mutable_data_ptr<T>());
    for (const auto& share : shares)
      if (share.bad_atom >= 0)
        fail(op, "argument `neighbors` has a row, of atom " + std::to_string(share.bad_atom) +
                     ", that names an atom that is not there, or ends before its counts say");
    sum_shares(shares, n, forces.mutable_data_ptr<double>(), virial.mutable_data_ptr<double>());
  });
  return {energy, forces, virial, within, nearest};
}

}  // namespace

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CPU, m) {
  m.impl("spline_potential_pack", TORCH_BOX(&mdops::spline_potential_pack));
  m.impl("spline_potential", TORCH_BOX(&mdops::spline_potential));
}
