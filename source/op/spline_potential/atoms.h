// The pairs and the moments of a block of atoms, for one instruction set: from positions to T = A^T C, and
// back.
#pragma once

#include <limits>

#include "common/pairs.h"
#include "spline_moment/row.h"
#include "spline_potential/features.h"

namespace mdops::MDOPS_ISA {

// One thread's memory for the pairs and the moments of a block of atoms.
template <class T>
struct AtomBlock {
  int64_t pair_stride, moment_rows, active_stride;
  T *x, *y, *z;            // [atom][pair_stride]: pair vectors of the neighbours within the cutoff
  int32_t *table, *other;  // [atom][pair_stride]: first row of the neighbour type's table, neighbour
  int32_t* pairs;          // [atom]: how many
  int16_t* active;         // [atom][active_stride]: the rows of the moments that are not zero
  int32_t* actives;        // [atom]: how many
  T* moments;              // [moment_rows][4], one atom's
  uint8_t* marks;          // [moment_rows, in whole words]: first rows of neighbours

  AtomBlock(const PotentialArgs<T>& args, Arena& arena) {
    pair_stride = (args.list_width + 15) / 16 * 16;
    moment_rows = args.moment_rows();
    x = arena.take<T>(args.block * pair_stride);
    y = arena.take<T>(args.block * pair_stride);
    z = arena.take<T>(args.block * pair_stride);
    table = arena.take<int32_t>(args.block * pair_stride);
    other = arena.take<int32_t>(args.block * pair_stride);
    pairs = arena.take<int32_t>(args.block);
    active_stride = moment_rows + 8;  // list_active writes one beyond what it keeps
    active = arena.take<int16_t>(args.block * active_stride);
    actives = arena.take<int32_t>(args.block);
    moments = arena.take<T>(moment_rows * 4);
    marks = arena.take<uint8_t>(moment_rows + 8);
  }

  // Clears what the functions below leave zero.
  void clear() const {
    for (int64_t k = 0; k < moment_rows * 4; ++k) moments[k] = 0;
    for (int64_t k = 0; k < moment_rows + 8; ++k) marks[k] = 0;
  }

  // A part of atom `a`'s pairs.
  Pairs<T> chunk(int64_t a, int from) const {
    const int64_t at = a * pair_stride + from;
    const int left = pairs[a] - from;
    return {x + at, y + at, z + at, table + at, left < kChunk ? left : kChunk};
  }
};

// The further inputs of a block's atoms; zero where there are none.
template <class T>
inline void fill_extra(const PotentialArgs<T>& args, const int32_t* ids, int64_t count,
                       const Panels<T>& extra) {
  clear_from(extra, 0);
  extra.each([&](auto place) {
    for (int64_t a = place.lane(); a < place.lane() + kLanes<T> && a < count; ++a)
      for (int64_t k = 0; k < args.net.extra; ++k)
        place.in(extra, k)[a - place.lane()] = args.extra[ids[a] * args.net.extra + k];
  });
}

// The tables of an atom's type.
template <class T>
inline const T* tables_of(const PotentialArgs<T>& args, int type) {
  return args.tables + type * args.moment_rows() * args.table_width;
}

template <class T>
inline Centre<T> centre(const PotentialArgs<T>& args, int type) {
  const T mean = args.mean[type], deviation0 = args.std[2 * type], deviation1 = args.std[2 * type + 1];
  const Normalisation<T> norm =
      args.net.plain ? ones(mean, deviation0, deviation1) : normalised(mean, deviation0, deviation1);
  return {norm, args.cutoff, args.grid};
}

// Adds the shift of a periodic image, (a, b, c) . cell, for cell rows with a fourth column.
inline void add_image(int32_t image, const Vector4<double>* cell, Vector4<double>* d) {
  for (int row = 0; row < 3; ++row) *d += static_cast<double>(image_shift(image, row)) * cell[row];
}

// Collects atom i's neighbours within the cutoff as the block's atom `a`. Returns false, with none collected,
// if the list names an atom that does not exist. `within` (ntypes) and `nearest` are the atom's own.
template <class T>
inline bool gather(const PotentialArgs<T>& args, int64_t i, int64_t a, const AtomBlock<T>& s, int32_t* within,
                   T* nearest) {
  const T cutoff2 = args.cutoff.cutoff * args.cutoff.cutoff;
  const double *positions = args.positions, *h = args.cell + 9 * args.batch[i];
  const Vector4<double> cell[3] = {{h[0], h[1], h[2], 0}, {h[3], h[4], h[5], 0}, {h[6], h[7], h[8], 0}};
  const Vector4<double> xi = load<Vector4<double>>(positions + 4 * i);
  const int32_t *list = args.neighbors + i * args.list_width, *images = args.images + i * args.list_width;
  T *x = s.x + a * s.pair_stride, *y = s.y + a * s.pair_stride, *z = s.z + a * s.pair_stride;
  int32_t *table = s.table + a * s.pair_stride, *other = s.other + a * s.pair_stride;
  const uint32_t atoms = static_cast<uint32_t>(args.atoms);
  T nearest2 = cutoff2;
  bool unordered = false;
  int n = 0;
  s.pairs[a] = 0;
  for (int t = 0, k = 0; t < args.ntypes; ++t) {
    const int before = n, last = k + args.counts[i * args.ntypes + t], rows = args.table_row(t);
    for (; k < last; ++k) {
      const uint32_t j = static_cast<uint32_t>(list[k]);
      if (j >= atoms) return false;
      Vector4<double> d = load<Vector4<double>>(positions + 4 * static_cast<size_t>(j)) - xi;
      if (images[k] != 0) add_image(images[k], cell, &d);
      const Vector4<T> v = __builtin_convertvector(d, Vector4<T>), v2 = v * v;
      const T r2 = v2[0] + v2[1] + v2[2];
      x[n] = v[0], y[n] = v[1], z[n] = v[2];
      nearest2 = r2 < nearest2 ? r2 : nearest2;
      unordered |= r2 != r2;  // not in the minimum, on which each pair waits
      table[n] = rows;
      other[n] = static_cast<int32_t>(j);
      n += within_cutoff(r2, cutoff2);
    }
    within[t] = n - before;
    if (args.places.masked(args.types[i], t)) n = before;
  }
  s.pairs[a] = n;
  *nearest = unordered ? std::numeric_limits<T>::quiet_NaN() : std::sqrt(nearest2);
  return true;
}

// Lists the rows of the moments that `marks` names as first of kSplineSupport, and clears the marks.
template <class T>
inline int list_active(const AtomBlock<T>& s, int16_t* active) {
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

// In a plain sum neighbours that are zeroed count with s = mean, where their normalised s is zero.
template <class T>
inline void add_zeroed(const PotentialArgs<T>& args, int64_t i, const AtomBlock<T>& s,
                       const int32_t* within) {
  const int type = args.types[i];
  for (int t = 0; t < args.ntypes; ++t) {
    const int zeros = args.places.zeros(i, t, within[t]);
    if (zeros == 0 || !args.places.zero(type, t)) continue;
    const SplinePlace<T> place = spline_place(args.mean[type], args.grid);
    const int64_t row = args.table_row(t) + place.interval;
    add_alike<4>(place.t, T(zeros), s.moments + 4 * row);
    s.marks[row] = 1;
  }
}

// Atom a's moments, which are zero at entry, and which of their rows are not zero.
template <class T>
inline void atom_moments(const PotentialArgs<T>& args, const Centre<T>& c, int64_t i, int64_t a,
                         const AtomBlock<T>& s, const int32_t* within) {
  int32_t first[kChunk];
  for (int from = 0; from < s.pairs[a]; from += kChunk) {
    const Pairs<T> p = s.chunk(a, from);
    if (args.gated) {
      add_moments<4, Gate::beside>(p, c, s.moments, first);
      for (int k = 0; k < p.size; ++k) s.marks[first[k] - p.table[k]] = 1;
    } else {
      add_moments<4, Gate::none>(p, c, s.moments, first);
    }
    for (int k = 0; k < p.size; ++k) s.marks[first[k]] = 1;
  }
  if (args.net.plain) add_zeroed(args, i, s, within);
  if (c.norm.shift != T(0)) {
    args.places.each_absent(i, args.types[i], within, [&](int t, int slots) {
      const int row = args.gated ? 0 : args.table_row(t);
      add_padding<4>(c.norm, T(slots), s.moments + 4 * static_cast<int64_t>(row));
      s.marks[row] = 1;
    });
  }
  s.actives[a] = list_active(s, s.active + a * s.active_stride);
}

// Resets the moments to zero after atom a.
template <class T>
inline void clear_moments(int64_t a, T* moments, const AtomBlock<T>& s) {
  const int16_t* active = s.active + a * s.active_stride;
  for (int k = 0; k < s.actives[a]; ++k) store(moments + 4 * active[k], Vector4<T>{});
}

// T[a] = sum over the active rows b of A[b][a] C[b], a few vectors of columns at a time.
template <int Vectors, class T>
inline void contract_columns(const T* moments, const int16_t* active, int count, const T* table,
                             int64_t table_width, T* t, int64_t t_width) {
  using V = Vector<T>;
  V sum[4][Vectors] = {};
  for (int k = 0; k < count; ++k) {
    const T *row = table + active[k] * table_width, *m = moments + 4 * active[k];
    for (int v = 0; v < Vectors; ++v) {
      const V column = vector_at(row + v * kLanes<T>);
      for (int a = 0; a < 4; ++a) sum[a][v] += m[a] * column;
    }
  }
  for (int a = 0; a < 4; ++a)
    for (int v = 0; v < Vectors; ++v) store(t + a * t_width + v * kLanes<T>, sum[a][v]);
}

// T of atom a, rows of t_width, from moments in its active rows.
template <class T>
inline void contract_moments(const PotentialArgs<T>& args, const T* table, const T* moments, int64_t a,
                             const AtomBlock<T>& s, T* t) {
  constexpr int wide = sizeof(Vector<T>) == 64 ? 6 : 3;  // 24 of 32, or 12 of 16 registers hold sums
  const int64_t stride = t_width<T>(args.net), columns = stride / kLanes<T>;
  const int16_t* active = s.active + a * s.active_stride;
  int64_t v = 0;
  for (; v + wide <= columns; v += wide)
    contract_columns<wide>(moments, active, s.actives[a], table + v * kLanes<T>, args.table_width,
                           t + v * kLanes<T>, stride);
  for (; v < columns; ++v)
    contract_columns<1>(moments, active, s.actives[a], table + v * kLanes<T>, args.table_width,
                        t + v * kLanes<T>, stride);
}

// The lanes of a vector, added up until four are left.
template <class T>
inline Vector4<T> four_lanes(const Vector<T>& v) {
  alignas(64) T lanes[kLanes<T>];
  store(lanes, v);
  Vector4<T> sum = load<Vector4<T>>(lanes);
  for (int q = 4; q < kLanes<T>; q += 4) sum += load<Vector4<T>>(lanes + q);
  return sum;
}

// The lanes of four vectors summed: (sum a, sum b, sum c, sum d). No array, as its vectors would be in memory
// during the sums.
template <class T>
MDOPS_INLINE void four_sums(const Vector<T>& a, const Vector<T>& b, const Vector<T>& c, const Vector<T>& d,
                            T* out) {
  if constexpr (kLanes<T> >= 4) {
    using V4 = Vector4<T>;
    using Index [[maybe_unused]] = Vector4Index<T>;  // by GCC 11 alone
    const V4 four[4] = {four_lanes<T>(a), four_lanes<T>(b), four_lanes<T>(c), four_lanes<T>(d)};
    const V4 ab = MDOPS_SHUFFLE(Index, four[0], four[1], 0, 4, 2, 6) +
                  MDOPS_SHUFFLE(Index, four[0], four[1], 1, 5, 3, 7);
    const V4 cd = MDOPS_SHUFFLE(Index, four[2], four[3], 0, 4, 2, 6) +
                  MDOPS_SHUFFLE(Index, four[2], four[3], 1, 5, 3, 7);
    const V4 sums = MDOPS_SHUFFLE(Index, ab, cd, 0, 1, 4, 5) + MDOPS_SHUFFLE(Index, ab, cd, 2, 3, 6, 7);
    store(out, sums);
  } else {
    for (const Vector<T>* v : {&a, &b, &c, &d}) *out++ = (*v)[0] + (*v)[kLanes<T> - 1];
  }
}

// The moments' gradient, dA[b][a] = C[b] . dT[a], in `Rows` active rows: enough sums to hide latency.
template <int Rows, class T>
inline void uncontract_rows(const int16_t* active, const T* table, int64_t table_width, const T* grad,
                            int64_t t_width, T* moments) {
  using V = Vector<T>;
  V sum[Rows][4] = {};
  for (int64_t c = 0; c < t_width; c += kLanes<T>)
    for (int r = 0; r < Rows; ++r) {
      const V column = vector_at(table + active[r] * table_width + c);
      for (int i = 0; i < 4; ++i) sum[r][i] += column * vector_at(grad + i * t_width + c);
    }
  for (int r = 0; r < Rows; ++r)
    four_sums<T>(sum[r][0], sum[r][1], sum[r][2], sum[r][3], moments + 4 * active[r]);
}

// The gradient of atom a's moments in its active rows, into s.moments.
template <class T>
inline void uncontract_moments(const PotentialArgs<T>& args, const T* table, const T* grad, int64_t a,
                               const AtomBlock<T>& s) {
  const int64_t stride = t_width<T>(args.net);
  const int16_t* active = s.active + a * s.active_stride;
  int k = 0;
  for (; k + 2 <= s.actives[a]; k += 2)
    uncontract_rows<2>(active + k, table, args.table_width, grad, stride, s.moments);
  for (; k < s.actives[a]; ++k)
    uncontract_rows<1>(active + k, table, args.table_width, grad, stride, s.moments);
}

// Adds a pair's virial, -g_b d_c, to its neighbour's.
template <class T>
inline void scatter_virials(const Pairs<T>& p, const int32_t* other, const T* gx, const T* gy, const T* gz,
                            const PagedRows<T> atom_virial) {
  for (int k = 0; k < p.size; ++k) {
    const T d[3] = {p.x[k], p.y[k], p.z[k]}, g[3] = {gx[k], gy[k], gz[k]};
    T* to = atom_virial.row(other[k]);
    for (int b = 0; b < 3; ++b)
      for (int e = 0; e < 3; ++e) to[3 * b + e] -= g[b] * d[e];
  }
}

// Adds atom a's pair forces and its virial, from the moments' gradient in s.moments, W[b][c] = -sum d_b g_c.
template <class T>
inline void scatter_forces(const PotentialArgs<T>& args, const Centre<T>& c, int64_t i, int64_t a,
                           const AtomBlock<T>& s, PotentialResults<T>& out) {
  alignas(64) T gx[kChunk], gy[kChunk], gz[kChunk];
  T force[3] = {0, 0, 0}, w[9] = {0, 0, 0, 0, 0, 0, 0, 0, 0};
  const PagedRows<T> forces = out.forces;  // a copy, which stores cannot change
  for (int from = 0; from < s.pairs[a]; from += kChunk) {
    const Pairs<T> p = s.chunk(a, from);
    args.gated ? pull_gradient<4, Gate::beside>(p, c, s.moments, gx, gy, gz)
               : pull_gradient<4, Gate::none>(p, c, s.moments, gx, gy, gz);
    for (int k = 0; k < p.size; ++k) {
      const T d[3] = {p.x[k], p.y[k], p.z[k]}, g[3] = {gx[k], gy[k], gz[k]};
      for (int b = 0; b < 3; ++b) {
        force[b] += g[b];
        for (int e = 0; e < 3; ++e) w[3 * b + e] -= d[b] * g[e];
      }
      const int64_t j = s.other[a * s.pair_stride + from + k];
      T* to = forces.row(j);
      store(to, load<Vector4<T>>(to) - Vector4<T>{g[0], g[1], g[2], 0});
    }
    if (out.atom_virial) scatter_virials(p, s.other + a * s.pair_stride + from, gx, gy, gz, out.atom_virial);
  }
  T* const own = forces.row(i);
  for (int b = 0; b < 3; ++b) own[b] += force[b];
  double* virial = out.virial.row(args.batch[i]);
  for (int b = 0; b < 9; ++b) virial[b] += w[b];
}

}  // namespace mdops::MDOPS_ISA
