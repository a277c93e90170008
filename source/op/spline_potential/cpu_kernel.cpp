#include "common/pairs.h"
#include "spline_moment/row.h"
#include "spline_potential/net.h"

namespace mdops {
namespace MDOPS_ISA {

namespace {

// Hands out pieces of a thread's scratch memory, each starting on a cache line; with no memory it only
// counts.
struct Arena {
  char* base;
  int64_t used = 0;

  template <class U>
  U* take(int64_t count) {
    U* piece = base ? reinterpret_cast<U*>(base + used) : nullptr;
    used += (count * static_cast<int64_t>(sizeof(U)) + 63) / 64 * 64;
    return piece;
  }
};

constexpr int kBlock = 48;  // atoms at once: one of padded_rows

// One thread's memory for a block of atoms.
template <class T>
struct Scratch {
  int64_t pair_stride, moment_rows, active_stride;
  T *x, *y, *z;            // [atom][pair_stride]: pair vectors of the neighbours within the cutoff
  int32_t *table, *other;  // [atom][pair_stride]: first row of the neighbour type's table, neighbour
  int32_t* pairs;          // [atom]: how many
  int16_t* active;         // [atom][active_stride]: the rows of the moments that are not zero
  int32_t* actives;        // [atom]: how many
  T* moments;              // [moment_rows][4], one atom's
  uint8_t* marks;          // [moment_rows, in whole words]: first rows of neighbours
  T* extra;                // [atom][extra]
  NetBlock<T> net;
  int64_t size;

  Scratch(const PotentialArgs<T>& args, T* memory) : net{} {
    Arena arena{reinterpret_cast<char*>(memory)};
    pair_stride = (args.list_width + 15) / 16 * 16;
    moment_rows = static_cast<int64_t>(args.ntypes) * args.basis();
    x = arena.take<T>(kBlock * pair_stride);
    y = arena.take<T>(kBlock * pair_stride);
    z = arena.take<T>(kBlock * pair_stride);
    table = arena.take<int32_t>(kBlock * pair_stride);
    other = arena.take<int32_t>(kBlock * pair_stride);
    pairs = arena.take<int32_t>(kBlock);
    active_stride = moment_rows + 8;  // list_active writes one beyond what it keeps
    active = arena.take<int16_t>(kBlock * active_stride);
    actives = arena.take<int32_t>(kBlock);
    moments = arena.take<T>(moment_rows * 4);
    marks = arena.take<uint8_t>(moment_rows + 8);
    extra = arena.take<T>(kBlock * args.net.extra);
    net.t_width = padded<T>(args.net.width) + kLanes<T>;
    net.t = arena.take<T>(kBlock * 4 * net.t_width);
    net.grad_t = arena.take<T>(kBlock * 4 * net.t_width);
    for (int n = 0; n < args.net.layers; ++n)
      net.stride = padded<T>(args.net.neurons[n]) > net.stride ? padded<T>(args.net.neurons[n]) : net.stride;
    for (int n = 0; n < args.net.layers; ++n) {
      net.value[n] = arena.take<T>(kBlock * net.stride);
      net.slope[n] = arena.take<T>(kBlock * net.stride);
    }
    // Whole vectors are written from any feature on: one vector of room beyond the last.
    net.work_stride = padded<T>(group_features(args.net, 0)) + kLanes<T>;
    net.work = arena.take<T>(kBlock * net.work_stride);
    size = arena.used / static_cast<int64_t>(sizeof(T)) + 1;
  }

  // A part of atom `a`'s pairs.
  Pairs<T> chunk(int64_t a, int from) const {
    const int64_t at = a * pair_stride + from;
    const int left = pairs[a] - from;
    return {x + at, y + at, z + at, table + at, left < kChunk ? left : kChunk};
  }
};

template <class T>
Centre<T> centre(const PotentialArgs<T>& args, int type) {
  return {
      {args.mean[type], T(1) / args.std[2 * type], T(1) / args.std[2 * type + 1]}, args.cutoff, args.grid};
}

template <class U>
struct Four {
  typedef U type __attribute__((vector_size(4 * sizeof(U)), aligned(sizeof(U)), may_alias));
};
template <class U>
using Vector4 = typename Four<U>::type;

// The shift of a periodic image, (a, b, c) . cell, for cell rows with a fourth column.
inline Vector4<double> image_vector(int32_t image, const Vector4<double>* cell) {
  Vector4<double> sum = {};
  for (int row = 0; row < 3; ++row) sum += static_cast<double>(image_shift(image, row)) * cell[row];
  return sum;
}

// Collects atom i's neighbours within the cutoff as the block's atom `a`. Returns false, having collected
// none, when the list names an atom that is not there.
template <class T>
bool gather(const PotentialArgs<T>& args, int64_t i, int64_t a, const Scratch<T>& s,
            PotentialResults<T>& out) {
  const T cutoff2 = args.cutoff.cutoff * args.cutoff.cutoff;
  const double *positions = args.positions, *h = args.cell + 9 * args.batch[i];
  const Vector4<double> cell[3] = {{h[0], h[1], h[2], 0}, {h[3], h[4], h[5], 0}, {h[6], h[7], h[8], 0}};
  const Vector4<double> xi = *reinterpret_cast<const Vector4<double>*>(positions + 4 * i);
  const int32_t *list = args.neighbors + i * args.list_width, *images = args.images + i * args.list_width;
  T *x = s.x + a * s.pair_stride, *y = s.y + a * s.pair_stride, *z = s.z + a * s.pair_stride;
  int32_t *table = s.table + a * s.pair_stride, *other = s.other + a * s.pair_stride;
  const uint32_t atoms = static_cast<uint32_t>(args.atoms);
  T nearest = cutoff2;
  int n = 0;
  s.pairs[a] = 0;
  for (int t = 0, k = 0; t < args.ntypes; ++t) {
    const int before = n, last = k + args.counts[i * args.ntypes + t], rows = t * args.basis();
    for (; k < last; ++k) {
      const uint32_t j = static_cast<uint32_t>(list[k]);
      if (j >= atoms) return false;
      Vector4<double> d =
          *reinterpret_cast<const Vector4<double>*>(positions + 4 * static_cast<size_t>(j)) - xi;
      if (images[k] != 0) d += image_vector(images[k], cell);
      const Vector4<T> v = __builtin_convertvector(d, Vector4<T>), v2 = v * v;
      const T r2 = v2[0] + v2[1] + v2[2];
      x[n] = v[0], y[n] = v[1], z[n] = v[2];
      nearest = r2 < nearest ? r2 : nearest;
      table[n] = rows;
      other[n] = static_cast<int32_t>(j);
      n += r2 < cutoff2;
    }
    out.within[i * args.ntypes + t] = n - before;
    if (args.pair_mask[args.types[i] * args.ntypes + t]) n = before;
  }
  s.pairs[a] = n;
  out.nearest[i] = std::sqrt(nearest);
  return true;
}

// Lists the rows of the moments that `marks` says are first of kSplineSupport, and clears the marks.
template <class T>
int list_active(const Scratch<T>& s, int16_t* active) {
  int n = 0;
  int64_t end = 0;
  for (int64_t word = 0; word < s.moment_rows; word += 8) {
    uint64_t eight;
    __builtin_memcpy(&eight, s.marks + word, 8);
    if (eight == 0 && word >= end) continue;
    __builtin_memset(s.marks + word, 0, 8);
    for (int64_t b = word; b < word + 8; ++b) {
      end = eight & 1 ? b + kSplineSupport : end;
      eight >>= 8;
      active[n] = static_cast<int16_t>(b);
      n += b < end;
    }
  }
  return n;
}

// Atom a's moments, which are zero at entry, and which of their rows are not zero.
template <class T>
void atom_moments(const PotentialArgs<T>& args, const Centre<T>& c, int64_t i, int64_t a, const Scratch<T>& s,
                  const int32_t* within) {
  int32_t first[kChunk];
  for (int from = 0; from < s.pairs[a]; from += kChunk) {
    const Pairs<T> p = s.chunk(a, from);
    add_moments<4>(p, c, s.moments, first);
    for (int k = 0; k < p.size; ++k) s.marks[first[k]] = 1;
  }
  const int pair = args.types[i] * args.ntypes;
  for (int t = 0; t < args.ntypes; ++t) {
    const int present = args.pair_mask[pair + t] && !args.zeroed[pair + t] ? 0 : within[t];
    if (c.norm.mean == T(0) || args.sel[t] == present) continue;
    add_padding<4>(c.norm, T(args.sel[t] - present), s.moments + 4 * static_cast<int64_t>(t) * args.basis());
    s.marks[t * args.basis()] = 1;
  }
  s.actives[a] = list_active(s, s.active + a * s.active_stride);
}

// Makes the moments zero again after atom a.
template <class T>
void clear_moments(int64_t a, const Scratch<T>& s) {
  const int16_t* active = s.active + a * s.active_stride;
  for (int k = 0; k < s.actives[a]; ++k)
    *reinterpret_cast<Vector4<T>*>(s.moments + 4 * active[k]) = Vector4<T>{};
}

// T[a] = sum over the active rows b of A[b][a] C[b], a few vectors of columns at a time.
template <int Vectors, class T>
void contract_columns(const T* moments, const int16_t* active, int count, const T* table, int64_t table_width,
                      T* t, int64_t t_width) {
  using V = Vector<T>;
  V sum[4][Vectors] = {};
  for (int k = 0; k < count; ++k) {
    const T *row = table + active[k] * table_width, *m = moments + 4 * active[k];
    for (int v = 0; v < Vectors; ++v) {
      const V column = *reinterpret_cast<const V*>(row + v * kLanes<T>);
      for (int a = 0; a < 4; ++a) sum[a][v] += m[a] * column;
    }
  }
  for (int a = 0; a < 4; ++a)
    for (int v = 0; v < Vectors; ++v) *reinterpret_cast<V*>(t + a * t_width + v * kLanes<T>) = sum[a][v];
}

template <class T>
void contract_moments(const PotentialArgs<T>& args, const T* table, int64_t a, const Scratch<T>& s) {
  constexpr int wide = sizeof(Vector<T>) == 64 ? 6 : 3;  // 24 of 32, or 12 of 16 registers hold sums
  const int64_t columns = padded<T>(args.net.width) / kLanes<T>;
  const int16_t* active = s.active + a * s.active_stride;
  T* t = s.net.t_row(s.net.t, a);
  int64_t v = 0;
  for (; v + wide <= columns; v += wide)
    contract_columns<wide>(s.moments, active, s.actives[a], table + v * kLanes<T>, args.table_width,
                           t + v * kLanes<T>, s.net.t_width);
  for (; v < columns; ++v)
    contract_columns<1>(s.moments, active, s.actives[a], table + v * kLanes<T>, args.table_width,
                        t + v * kLanes<T>, s.net.t_width);
  for (int row = 0; row < 4; ++row)
    for (int64_t k = columns * kLanes<T>; k < s.net.t_width; ++k) t[row * s.net.t_width + k] = 0;
}

// The moments' gradient, dA[b][a] = C[b] . dT[a], in `Rows` active rows: enough sums to hide their latency.
template <int Rows, class T>
inline void uncontract_rows(const int16_t* active, const T* table, int64_t table_width, const T* grad,
                            int64_t t_width, int64_t columns, T* moments) {
  using V = Vector<T>;
  V sum[Rows][4] = {};
  for (int64_t c = 0; c < columns; c += kLanes<T>)
    for (int r = 0; r < Rows; ++r) {
      const V column = *reinterpret_cast<const V*>(table + active[r] * table_width + c);
      for (int i = 0; i < 4; ++i) sum[r][i] += column * *reinterpret_cast<const V*>(grad + i * t_width + c);
    }
  for (int r = 0; r < Rows; ++r) four_sums<T>(sum[r], moments + 4 * active[r]);
}

template <class T>
void uncontract_moments(const PotentialArgs<T>& args, const T* table, int64_t a, const Scratch<T>& s) {
  const int64_t columns = padded<T>(args.net.width);
  const int16_t* active = s.active + a * s.active_stride;
  const T* grad = s.net.t_row(s.net.grad_t, a);
  int k = 0;
  for (; k + 2 <= s.actives[a]; k += 2)
    uncontract_rows<2>(active + k, table, args.table_width, grad, s.net.t_width, columns, s.moments);
  for (; k < s.actives[a]; ++k)
    uncontract_rows<1>(active + k, table, args.table_width, grad, s.net.t_width, columns, s.moments);
}

// Adds atom a's pair forces and its virial, W[b][c] = -sum d_b g_c.
template <class T>
void scatter_forces(const PotentialArgs<T>& args, const Centre<T>& c, int64_t i, int64_t a, Scratch<T>& s,
                    PotentialResults<T>& out) {
  alignas(64) T gx[kChunk], gy[kChunk], gz[kChunk];
  T force[3] = {0, 0, 0}, w[9] = {0, 0, 0, 0, 0, 0, 0, 0, 0};
  for (int from = 0; from < s.pairs[a]; from += kChunk) {
    const Pairs<T> p = s.chunk(a, from);
    pull_gradient<4>(p, c, s.moments, gx, gy, gz);
    for (int k = 0; k < p.size; ++k) {
      const T d[3] = {p.x[k], p.y[k], p.z[k]}, g[3] = {gx[k], gy[k], gz[k]};
      for (int b = 0; b < 3; ++b) {
        force[b] += g[b];
        for (int e = 0; e < 3; ++e) w[3 * b + e] -= d[b] * g[e];
      }
      const int64_t j = s.other[a * s.pair_stride + from + k];
      *reinterpret_cast<Vector4<T>*>(out.forces + 4 * j) -= Vector4<T>{g[0], g[1], g[2], 0};
    }
  }
  for (int b = 0; b < 3; ++b) out.forces[4 * i + b] += force[b];
  double* virial = out.virial + 9 * static_cast<int64_t>(args.batch[i]);
  for (int b = 0; b < 9; ++b) virial[b] += w[b];
}

template <class T>
void block(const PotentialArgs<T>& args, const PackedNet<T>& at, const int32_t* ids, int64_t count,
           Scratch<T>& s, PotentialResults<T>& out) {
  const int type = args.types[ids[0]];
  const Centre<T> c = centre(args, type);
  const T* table = args.tables + type * s.moment_rows * args.table_width;
  const T* net = args.nets + type * args.net_size;
  for (int64_t a = 0; a < count; ++a) {
    const int64_t i = ids[a];
    if (!gather(args, i, a, s, out)) out.bad_atom = i;
    atom_moments(args, c, i, a, s, out.within + i * args.ntypes);
    contract_moments(args, table, a, s);
    clear_moments(a, s);
    for (int k = 0; k < args.net.extra; ++k)
      s.extra[a * args.net.extra + k] = args.extra[i * args.net.extra + k];
  }
  s.net.rows = padded_rows(count);  // the rows added are zero
  for (int64_t k = count * 4 * s.net.t_width; k < s.net.rows * 4 * s.net.t_width; ++k) s.net.t[k] = 0;
  for (int64_t k = count * args.net.extra; k < s.net.rows * args.net.extra; ++k) s.extra[k] = 0;

  net_forward(args.net, at, net, s.net, s.extra);
  for (int64_t a = 0; a < count; ++a)
    out.energy[ids[a]] = args.scale[type] * net_output(args.net, at, net, s.net, a) + args.shift[type];
  net_backward(args.net, at, net, s.net, static_cast<T>(args.scale[type]));

  for (int64_t a = 0; a < count; ++a) {
    uncontract_moments(args, table, a, s);
    scatter_forces(args, c, ids[a], a, s, out);
    clear_moments(a, s);
  }
}

template <class T>
void all_blocks(const PotentialArgs<T>& args, const int32_t* ids, int64_t count, T* memory,
                PotentialResults<T>& out) {
  Scratch<T> scratch(args, memory);
  for (int64_t k = 0; k < scratch.moment_rows * 4; ++k) scratch.moments[k] = 0;
  for (int64_t k = 0; k < scratch.moment_rows + 8; ++k) scratch.marks[k] = 0;
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
    return Scratch<T>(args, nullptr).size;                                                     \
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
