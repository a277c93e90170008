#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

#include "spline_potential/inputs.h"

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

Tensor spline_potential_pack(std::vector<Tensor> weights, std::vector<Tensor> biases,
                             std::vector<Tensor> timesteps, int64_t width, int64_t axis) {
  const Op op("spline_potential_pack");
  const NetInputs in(op, std::move(weights), std::move(biases), std::move(timesteps), width, axis);
  return dispatch_float(op, in.weights[0].scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    Tensor packed = zeros({MDOPS_RUN(packed_size, in.net, T{})}, kDtype<T>);
    MDOPS_RUN(pack_net, in.net, in.layers<T>().data(), packed.mutable_data_ptr<T>(), 0, 1);
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

template <class T>
PotentialArgs<T> arguments(const PotentialInputs& in, const double* four_columns) {
  PotentialArgs<T> args{};
  args.positions = four_columns;
  args.cell = in.cell.const_data_ptr<double>();
  args.batch = in.batch.const_data_ptr<int32_t>();
  args.types = in.types.const_data_ptr<int32_t>();
  args.neighbors = in.neighbors.const_data_ptr<int32_t>();
  args.images = in.images.const_data_ptr<int32_t>();
  args.counts = in.counts.const_data_ptr<int32_t>();
  args.mean = in.mean.const_data_ptr<T>();
  args.std = in.std.const_data_ptr<T>();
  args.pair_mask = in.pair_mask.const_data_ptr<bool>();
  args.zeroed = in.zeroed.const_data_ptr<bool>();
  args.sel = in.sel.const_data_ptr<int32_t>();
  args.tables = in.tables.const_data_ptr<T>();
  args.nets = in.nets.const_data_ptr<T>();
  args.extra = in.extra.const_data_ptr<T>();
  args.scale = in.scale.const_data_ptr<double>();
  args.shift = in.shift.const_data_ptr<double>();
  args.atoms = in.atoms, args.systems = in.systems, args.list_width = in.neighbors.size(1);
  args.table_width = in.tables.size(2), args.net_size = in.nets.size(1);
  args.ntypes = static_cast<int>(in.ntypes);
  args.cutoff = in.cutoff_as<T>();
  args.grid = in.grid_as<T>();
  args.net = in.net;
  return args;
}

struct CpuCall : Op {
  explicit CpuCall(const Tensor&) : Op("spline_potential") {}

  PotentialOutputs run(const PotentialInputs& in) const {
    const int64_t n = in.atoms;
    const std::vector<double> places = four_columns(in.positions.const_data_ptr<double>(), n);
    const Order order(in.types.const_data_ptr<int32_t>(), n, in.ntypes);
    Tensor energy = zeros({n}, ScalarType::Double), forces = empty({n, 3}, ScalarType::Double);
    Tensor virial = zeros({in.systems, 3, 3}, ScalarType::Double);
    Tensor within = zeros({n, in.ntypes}, ScalarType::Int), nearest = empty({n}, in.dtype);
    dispatch_float(*this, in.dtype, [&](auto zero) {
      using T = decltype(zero);
      check_packed(*this, in.nets, MDOPS_RUN(packed_size, in.net, T{}));
      std::fill_n(nearest.mutable_data_ptr<T>(), n, static_cast<T>(in.cutoff));
      const auto shares =
          mdops::run<T>(arguments<T>(in, places.data()), order, energy.mutable_data_ptr<double>(),
                        within.mutable_data_ptr<int32_t>(), nearest.mutable_data_ptr<T>());
      for (const auto& share : shares)
        if (share.bad_atom >= 0)
          fail(*this, "argument `neighbors` has a row, of atom " + std::to_string(share.bad_atom) +
                          ", that names an atom that is not there, or ends before its counts say");
      sum_shares(shares, n, forces.mutable_data_ptr<double>(), virial.mutable_data_ptr<double>());
    });
    return {energy, forces, virial, within, nearest};
  }
};

}  // namespace

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CPU, m) {
  m.impl("spline_potential_pack", TORCH_BOX(&mdops::spline_potential_pack));
  m.impl("spline_potential", TORCH_BOX(&mdops::spline_potential<mdops::CpuCall>));
}
