#include "spline_potential/atoms.h"

namespace mdops {
namespace MDOPS_ISA {

namespace {

// One thread's memory for a block of atoms.
template <class T>
struct Scratch {
  Arena arena;
  AtomBlock<T> atoms;
  NetBlock<T> net;

  Scratch(const PotentialArgs<T>& args, T* memory)
      : arena{reinterpret_cast<char*>(memory)}, atoms(args, arena), net{} {
    net.t_width = padded<T>(args.net.width) + kLanes<T>;
    net.t = arena.take<T>(kBlock * 4 * net.t_width);
    net.grad_t = arena.take<T>(kBlock * 4 * net.t_width);
    net.stride = widest_layer<T>(args.net);
    for (int n = 0; n < args.net.layers; ++n) {
      net.value[n] = arena.take<T>(kBlock * net.stride);
      net.slope[n] = arena.take<T>(kBlock * net.stride);
    }
    net.work_stride = group_stride<T>(args.net);
    net.work = arena.take<T>(kBlock * net.work_stride);
  }

  int64_t size() const { return arena.used / static_cast<int64_t>(sizeof(T)) + 1; }
};

template <class T>
void block(const PotentialArgs<T>& args, const PackedNet<T>& at, const int32_t* ids, int64_t count,
           Scratch<T>& s, PotentialResults<T>& out) {
  const int type = args.types[ids[0]];
  const Centre<T> c = centre(args, type);
  const T* table = args.tables + type * s.atoms.moment_rows * args.table_width;
  const T* net = args.nets + type * args.net_size;
  for (int64_t a = 0; a < count; ++a) {
    const int64_t i = ids[a];
    int32_t* within = out.within + i * args.ntypes;
    if (!gather(args, i, a, s.atoms, within, out.nearest + i)) out.bad_atom = i;
    atom_moments(args, c, i, a, s.atoms, within);
    contract_moments(args, table, s.atoms.moments, a, s.atoms, s.net.t_row(s.net.t, a), s.net.t_width);
    clear_moments(a, s.atoms.moments, s.atoms);
  }
  s.net.rows = padded_rows(count);  // the rows added are zero
  for (int64_t k = count * 4 * s.net.t_width; k < s.net.rows * 4 * s.net.t_width; ++k) s.net.t[k] = 0;
  fill_extra(args, ids, count, s.net.rows, s.atoms.extra, args.net.extra);

  net_forward(args.net, at, net, s.net, s.atoms.extra);
  for (int64_t a = 0; a < count; ++a)
    out.energy[ids[a]] = args.scale[type] * net_output(args.net, at, net, s.net, a) + args.shift[type];
  net_backward(args.net, at, net, s.net, static_cast<T>(args.scale[type]));

  for (int64_t a = 0; a < count; ++a) {
    uncontract_moments(args, table, s.net.t_row(s.net.grad_t, a), s.net.t_width, a, s.atoms);
    scatter_forces(args, c, ids[a], a, s.atoms, out);
    clear_moments(a, s.atoms.moments, s.atoms);
  }
}

template <class T>
void all_blocks(const PotentialArgs<T>& args, const int32_t* ids, int64_t count, T* memory,
                PotentialResults<T>& out) {
  Scratch<T> scratch(args, memory);
  scratch.atoms.clear();
  const PackedNet<T> at(args.net);
  // Blocks of one size: a short last one would read all weights for a few atoms.
  const int64_t blocks = (count + kBlock - 1) / kBlock;
  for (int64_t k = 0; k < blocks; ++k) {
    const int64_t from = count * k / blocks, to = count * (k + 1) / blocks;
    block(args, at, ids + from, to - from, scratch, out);
  }
}

}  // namespace

#define MDOPS_DEFINE(T)                                                                        \
  int64_t packed_size(const FittingShape& net, T) {                                            \
    return PackedNet<T>(net).size;                                                             \
  }                                                                                            \
  void pack_net(const FittingShape& net, const DenseLayer<T>* layers, T* packed, int64_t part, \
                int64_t parts) {                                                               \
    Packing<T>(net, packed, part, parts).layers(layers);                                       \
  }                                                                                            \
  int64_t scratch_size(const PotentialArgs<T>& args) {                                         \
    return Scratch<T>(args, nullptr).size();                                                   \
  }                                                                                            \
  void potential(const PotentialArgs<T>& args, const int32_t* ids, int64_t count, T* scratch,  \
                 PotentialResults<T>& out) {                                                   \
    all_blocks(args, ids, count, scratch, out);                                                \
  }
MDOPS_DEFINE(float)
MDOPS_DEFINE(double)
#undef MDOPS_DEFINE

}  // namespace MDOPS_ISA
}  // namespace mdops
