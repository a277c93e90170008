// The neighbours of an atom, and their pairs in chunks, for one instruction set.
#pragma once

#include "angle_moment/angle_moment.h"
#include "common/vectors.h"

namespace mdops::MDOPS_ISA {

// The factor of theta's functions: none; w_j w_l; or none for some and w_j w_l for others.
enum class Gate { none, alone, beside };

constexpr int kChunk = 256;  // pairs at once: their working set fits the L1 cache
constexpr int kPad = 16;     // lanes of the widest vector

inline int64_t padded(int64_t n) {
  return (n + kPad - 1) / kPad * kPad + kPad;
}

// An array for each of x, y and z of the row R, and of the switch w.
template <class T>
struct Rows {
  T *x, *y, *z, *w;

  static constexpr int kArrays = 4;
  static Rows at(T* memory, int64_t stride) {
    return {memory, memory + stride, memory + 2 * stride, memory + 3 * stride};
  }
  void clear(int64_t begin, int64_t end) const {
    for (int64_t k = begin; k < end; ++k) x[k] = y[k] = z[k] = w[k] = 0;
  }
};

// One atom's unmasked neighbours within the cutoff, by type.
template <class T>
struct Neighbors {
  T *dx, *dy, *dz, *vx, *vy, *vz;        // pair vectors and their tangents
  Rows<T> rows, tangents, grad, second;  // R, w; along the tangents; and the gradients of both
  T* longest;                            // (ntypes,) the largest |R|^2
  int32_t *slot, *first;                 // (size,); (ntypes + 1,)
  int size;

  static int64_t memory(const AngleArgs<T>& args) {
    // 32-bit numbers in place of T.
    return (6 + 4 * Rows<T>::kArrays + 1) * padded(args.width) + 2 * padded(args.ntypes + 1);
  }
  Neighbors() = default;
  Neighbors(const AngleArgs<T>& args, T* memory) : size(0) {
    const int64_t stride = padded(args.width);
    T** arrays[] = {&dx, &dy, &dz, &vx, &vy, &vz};
    for (T** array : arrays) *array = memory, memory += stride;
    Rows<T>* all[] = {&rows, &tangents, &grad, &second};
    for (Rows<T>* of : all) *of = Rows<T>::at(memory, stride), memory += Rows<T>::kArrays * stride;
    slot = reinterpret_cast<int32_t*>(memory);
    memory += stride;
    longest = memory;
    first = reinterpret_cast<int32_t*>(memory + padded(args.ntypes + 1));
  }
};

// Finds the neighbours of atom i, and counts them by type in within[t] (if given), also masked ones. Returns
// the smallest squared distance.
template <class T>
inline T find_neighbors(const AngleArgs<T>& args, int64_t i, const T* tangent, int32_t* within,
                        Neighbors<T>& found) {
  const T cutoff2 = args.cutoff.cutoff * args.cutoff.cutoff;
  T nearest = cutoff2;
  int size = 0;
  int64_t slot = i * args.width;
  for (int t = 0; t < args.ntypes; ++t) {
    const bool masked = args.pair_mask[args.types[i] * args.ntypes + t];
    int32_t inside = 0;
    found.first[t] = size;
    for (int32_t end = args.counts[i * args.ntypes + t], k = 0; k < end; ++k, ++slot) {
      const T* d = args.displacements + 3 * slot;
      const T r2 = squared_length(d);
      if (!within_cutoff(r2, cutoff2)) continue;
      ++inside;
      nearest = nearest_of(nearest, r2);
      if (masked) continue;
      found.dx[size] = d[0], found.dy[size] = d[1], found.dz[size] = d[2];
      if (tangent) {
        const T* v = tangent + 3 * slot;
        found.vx[size] = v[0], found.vy[size] = v[1], found.vz[size] = v[2];
      }
      found.slot[size++] = static_cast<int32_t>(slot - i * args.width);
    }
    if (within) within[t] = inside;
  }
  found.first[args.ntypes] = found.size = size;
  return nearest;
}

// Their rows, and with `Tangents` the rows' changes along the tangents.
template <bool Tangents, class T>
inline void make_rows(const Neighbors<T> n, const Cutoff<T> cutoff, const Normalisation<T> norm, int ntypes) {
  MDOPS_INDEPENDENT
  for (int k = 0; k < n.size; ++k) {
    const T d[3] = {n.dx[k], n.dy[k], n.dz[k]};
    const RadialTerms<T> f = radial_terms(squared_length(d), cutoff);
    T row[4];
    env_row(d, f, norm, row);
    n.rows.x[k] = row[1], n.rows.y[k] = row[2], n.rows.z[k] = row[3], n.rows.w[k] = f.w;
    if constexpr (Tangents) {
      const T v[3] = {n.vx[k], n.vy[k], n.vz[k]};
      T ds;
      env_row_jvp(d, v, f, norm, row, &ds);
      n.tangents.x[k] = row[1], n.tangents.y[k] = row[2], n.tangents.z[k] = row[3];
      n.tangents.w[k] = f.dw * (d[0] * v[0] + d[1] * v[1] + d[2] * v[2]) * f.inv_r;
    }
  }
  n.rows.clear(n.size, n.size + kPad);
  if constexpr (Tangents) n.tangents.clear(n.size, n.size + kPad);
  for (int t = 0; t < ntypes; ++t) {
    T most = 0;
    for (int k = n.first[t]; k < n.first[t + 1]; ++k) {
      const T r2 = n.rows.x[k] * n.rows.x[k] + n.rows.y[k] * n.rows.y[k] + n.rows.z[k] * n.rows.z[k];
      most = !(r2 <= most) ? r2 : most;
      if (most != most) break;
    }
    n.longest[t] = most;
  }
}

// The pieces that pairs of two types can reach: the first `count` on either side of zero.
template <class T>
inline int pieces_reached(const Neighbors<T>& n, int t, int u, const AngleGrid<T>& grid) {
  const T most = std::sqrt(n.longest[t]) * std::sqrt(n.longest[u]) * T(1.0001);
  return static_cast<int>(angle_place(most, grid).piece) + 1;
}

// Some pairs of neighbours, in segments of `count` pairs (j, l), (j, l + 1), ...
template <class T>
struct Chunk {
  struct Segment {
    int j, l, count, at;
  };
  // theta, the pair's multiplicity, and w_j w_l; the changes of theta and w_j w_l along the tangents
  alignas(64) T theta[kChunk + kPad], times[kChunk + kPad], gate[kChunk + kPad];
  alignas(64) T dtheta[kChunk + kPad], dgate[kChunk + kPad];
  // A kernel's results for each pair.
  alignas(64) T of_rows[2][kChunk + kPad], of_gates[2][kChunk + kPad];
  alignas(64) int32_t piece[kChunk + kPad];  // times kAngleRow
  alignas(64) T powers[kAngleRow * (kChunk + kPad)], gated[kAngleRow * (kChunk + kPad)];
  Segment segments[kChunk];
  int size, rows;
};

template <Gate G, bool Tangents, class T>
inline void add_row(Chunk<T>& chunk, const Neighbors<T>& n, int j, int l, int count, bool alike) {
  using V = Vector<T>;
  const Rows<T>& r = n.rows;
  const int at = chunk.size;
  const T x = r.x[j], y = r.y[j], z = r.z[j];
  const V times = V{} + (alike ? T(2) : T(1));
  for (int k = 0; k < count; k += kLanes<T>) {
    const V a = vector_at(r.x + l + k), b = vector_at(r.y + l + k), c = vector_at(r.z + l + k);
    store(chunk.theta + at + k, a * x + b * y + c * z);
    store(chunk.times + at + k, times);
    if constexpr (G != Gate::none) store(chunk.gate + at + k, vector_at(r.w + l + k) * r.w[j]);
    if constexpr (Tangents) {
      const Rows<T>& v = n.tangents;
      store(chunk.dtheta + at + k, a * v.x[j] + b * v.y[j] + c * v.z[j] + vector_at(v.x + l + k) * x +
                                       vector_at(v.y + l + k) * y + vector_at(v.z + l + k) * z);
      if constexpr (G != Gate::none)
        store(chunk.dgate + at + k, vector_at(r.w + l + k) * v.w[j] + vector_at(v.w + l + k) * r.w[j]);
    }
  }
  if (alike && j == l) chunk.times[at] = 1;
  chunk.segments[chunk.rows++] = {j, l, count, at};
  chunk.size += count;
}

// Calls work(chunk) for the pairs of a neighbour of type t and one of type u >= t. Uncounted pairs pad the
// last vector.
template <Gate G, bool Tangents, class T, class Work>
inline void for_pairs(const Neighbors<T>& n, int t, int u, Chunk<T>& chunk, const Work& work) {
  chunk.size = chunk.rows = 0;
  const auto flush = [&] {
    for (int k = chunk.size; k < chunk.size + kPad; ++k)
      chunk.theta[k] = chunk.times[k] = chunk.gate[k] = chunk.dtheta[k] = chunk.dgate[k] = 0;
    work(chunk);
    chunk.size = chunk.rows = 0;
  };
  for (int j = n.first[t]; j < n.first[t + 1]; ++j) {
    const int end = n.first[u + 1];
    for (int l = t == u ? j : n.first[u]; l < end;) {
      const int room = kChunk - chunk.size, count = end - l < room ? end - l : room;
      add_row<G, Tangents>(chunk, n, j, l, count, t == u);
      l += count;
      if (chunk.size == kChunk) flush();
    }
  }
  if (chunk.size) flush();
}

template <class T>
inline T total(const Vector<T>& v) {
  alignas(64) T lanes[kLanes<T>];
  store(lanes, v);
  MDOPS_UNROLL
  for (int n = kLanes<T> / 2; n; n /= 2)
    for (int k = 0; k < n; ++k) lanes[k] += lanes[k + n];
  return lanes[0];
}

// The first `count` lanes of v, zero in the others.
template <class T>
inline Vector<T> first_lanes(const Vector<T>& v, int count) {
  using I = VectorIndex<T>;
  I lane = {};
  for (int k = 0; k < kLanes<T>; ++k) lane[k] = k;
  const I keep = lane < (I{} + count);
  return (Vector<T>)((I)v & keep);
}

// Adds each pair's terms with numbers f to both neighbours: f_jl b_l to a_j, and f_jl b_j to a_l.
template <class T>
inline void add_to_rows(const Chunk<T>& chunk, const T* f, const Rows<T>& b, const Rows<T>& a) {
  using V = Vector<T>;
  for (int s = 0; s < chunk.rows; ++s) {
    const auto [j, l, count, at] = chunk.segments[s];
    const T x = b.x[j], y = b.y[j], z = b.z[j];
    V sx = V{}, sy = V{}, sz = V{};
    for (int k = 0; k < count; k += kLanes<T>) {
      V v = vector_at(f + at + k);
      if (k + kLanes<T> > count) v = first_lanes<T>(v, count - k);
      const int to = l + k;
      sx += v * vector_at(b.x + to), sy += v * vector_at(b.y + to), sz += v * vector_at(b.z + to);
      add_to(a.x + to, v * x), add_to(a.y + to, v * y), add_to(a.z + to, v * z);
    }
    a.x[j] += total<T>(sx), a.y[j] += total<T>(sy), a.z[j] += total<T>(sz);
  }
}

// The same for the switches.
template <class T>
inline void add_to_switches(const Chunk<T>& chunk, const T* f, const T* b, T* a) {
  using V = Vector<T>;
  for (int s = 0; s < chunk.rows; ++s) {
    const auto [j, l, count, at] = chunk.segments[s];
    const T w = b[j];
    V sum = V{};
    for (int k = 0; k < count; k += kLanes<T>) {
      V v = vector_at(f + at + k);
      if (k + kLanes<T> > count) v = first_lanes<T>(v, count - k);
      sum += v * vector_at(b + l + k);
      add_to(a + l + k, v * w);
    }
    a[j] += total<T>(sum);
  }
}

}  // namespace mdops::MDOPS_ISA
