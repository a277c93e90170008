// The kernels of angle moments: a warp per atom, one pair of types after another. The atom's rows, and the
// sums or coefficients of all pieces, are in the warp's memory: shared, or global if that is too small. Sums
// are made in a fixed order.
#pragma once

#include "angle_moment/angle_moment.h"
#include "angle_moment/pull.h"
#include "common/rows.h"
#include "env_mat/gpu_nearest.h"

namespace mdops::gpu_angle {

enum class Gate { none, alone, beside };

// Numbers of a piece in a warp's memory: the powers, then gated ones.
template <Gate G>
constexpr int kColumns = G == Gate::beside ? 2 * kAnglePowers : kAnglePowers;

// The number of arrays for the neighbours: rows, their tangents, the gradients of both.
template <bool Tangents, bool Gradients>
constexpr int kArrays = 4 * ((Tangents ? 2 : 1) * (Gradients ? 2 : 1));

// A warp's data of an atom.
template <class T>
struct Warp {
  T* rows[4];      // x, y, z and w of each neighbour
  T* tangents[4];  // of these
  T* grad[4];
  T* second[4];
  T* sums;             // (pieces, columns)
  T* stage;            // (kWarp, columns)
  T* features;         // (channels,)
  int32_t* slots;      // (width,)
  int32_t* kinds;      // (width,)
  int32_t* first;      // (ntypes + 1,)
  int32_t* within;     // (ntypes,)
  int32_t* staged_at;  // (kWarp,)
  T* longest;          // (ntypes,): the largest |R|^2
  int size;            // neighbours
};

template <bool Tangents, bool Gradients, Gate G, class T>
inline int64_t warp_bytes(const AngleArgs<T>& args, int channels) {
  const int64_t numbers = kArrays<Tangents, Gradients> * args.width +
                          kColumns<G> * (args.grid.pieces() + int64_t{kWarp}) + channels + args.ntypes;
  const int64_t integers = 2 * args.width + 2 * int64_t{args.ntypes} + 1 + kWarp;
  return (numbers * static_cast<int64_t>(sizeof(T)) + integers * 4 + 15) / 16 * 16;
}

template <bool Tangents, bool Gradients, Gate G, class T>
MDOPS_D Warp<T> warp_in(const AngleArgs<T>& args, int channels, char* memory) {
  Warp<T> w;
  T* at = reinterpret_cast<T*>(memory);
  const auto four = [&](T** arrays) {
    for (int a = 0; a < 4; ++a) arrays[a] = at, at += args.width;
  };
  four(w.rows);
  if constexpr (Tangents) four(w.tangents);
  if constexpr (Gradients) four(w.grad);
  if constexpr (Tangents && Gradients) four(w.second);
  w.sums = at, at += static_cast<int64_t>(kColumns<G>) * args.grid.pieces();
  w.stage = at, at += kColumns<G> * kWarp;
  w.features = at, at += channels;
  w.longest = at, at += args.ntypes;
  int32_t* next = reinterpret_cast<int32_t*>(at);
  w.slots = next, next += args.width;
  w.kinds = next, next += args.width;
  w.first = next, next += args.ntypes + 1;
  w.within = next, next += args.ntypes;
  w.staged_at = next;
  w.size = 0;
  return w;
}

template <class T>
MDOPS_D void fill(T* out, int64_t size, T value) {
  for (int64_t k = lane_index(); k < size; k += kWarp) out[k] = value;
}

template <class T>
MDOPS_D T dot3(T* const* a, int j, T* const* b, int l) {
  return a[0][j] * b[0][l] + a[1][j] * b[1][l] + a[2][j] * b[2][l];
}

// The larger of two numbers; NaN if either is NaN.
template <class T>
MDOPS_D T larger_of(T so_far, T x) {
  return ((x > so_far) | (x != x)) ? x : so_far;
}

// Finds the neighbours of atom i, in the order of their slots, and their rows. Returns the smallest squared
// distance.
template <bool Tangents, class T>
MDOPS_D T find(const AngleArgs<T>& args, int64_t i, const T* tangent, Warp<T>& w) {
  const T cutoff2 = args.cutoff.cutoff * args.cutoff.cutoff;
  const int32_t* counts = args.counts + i * args.ntypes;
  const int32_t type = args.types[i];
  const Normalisation<T> norm = args.normalisation(type);
  SlotTypes slots(counts, args.ntypes);
  T nearest = cutoff2;
  w.size = 0;
  fill(w.within, args.ntypes, 0);
  __syncwarp();
  for (int64_t begin = 0; begin < args.width; begin += kWarp) {
    const int64_t slot = begin + lane_index();
    const int t = slot < args.width ? slots.of(slot) : -1;
    T d[3] = {0, 0, 0};
    bool counted = false;
    if (t >= 0) {
      for (int a = 0; a < 3; ++a) d[a] = args.displacements[3 * (i * args.width + slot) + a];
      const T r2 = squared_length(d);
      if (within_cutoff(r2, cutoff2)) {
        atomicAdd(w.within + t, 1);
        nearest = nearest_of(nearest, r2);
        counted = !args.pair_mask[type * args.ntypes + t];
      }
    }
    const unsigned lanes = __ballot_sync(kAllLanes, counted);
    if (counted) {
      const int k = w.size + __popc(lanes & ((1u << lane_index()) - 1));
      w.slots[k] = static_cast<int32_t>(slot);
      w.kinds[k] = t;
      const RadialTerms<T> f = radial_terms(squared_length(d), args.cutoff);
      T row[4];
      env_row(d, f, norm, row);
      for (int a = 0; a < 3; ++a) w.rows[a][k] = row[1 + a];
      w.rows[3][k] = f.w;
      if constexpr (Tangents) {
        T v[3], ds;
        for (int a = 0; a < 3; ++a) v[a] = tangent[3 * (i * args.width + slot) + a];
        env_row_jvp(d, v, f, norm, row, &ds);
        for (int a = 0; a < 3; ++a) w.tangents[a][k] = row[1 + a];
        w.tangents[3][k] = f.dw * (d[0] * v[0] + d[1] * v[1] + d[2] * v[2]) * f.inv_r;
      }
    }
    w.size += __popc(lanes);
    if (__all_sync(kAllLanes, t < 0)) break;  // types rise: no neighbour comes after
  }
  __syncwarp();
  for (int t = lane_index(); t <= args.ntypes; t += kWarp) {
    int before = 0;
    while (before < w.size && w.kinds[before] < t) ++before;
    w.first[t] = before;
  }
  __syncwarp();
  for (int t = 0; t < args.ntypes; ++t) {
    T most = 0;
    for (int k = w.first[t] + lane_index(); k < w.first[t + 1]; k += kWarp)
      most = larger_of(most, dot3(w.rows, k, w.rows, k));
    most = join_lanes(most, [](T a, T b) { return larger_of(a, b); });
    if (lane_index() == 0) w.longest[t] = most;
  }
  __syncwarp();
  return warp_nearest(nearest);
}

// The pieces that pairs of two types can reach: the first `reach` on either side of zero.
template <class T>
MDOPS_D int pieces_reached(const AngleArgs<T>& args, int t, int u, const Warp<T>& w) {
  const T most = sqrt(w.longest[t]) * sqrt(w.longest[u]) * T(1.0001);
  return static_cast<int>(angle_place(most, args.grid).piece) + 1;
}

// Piece k < 2 reach of the reachable ones.
template <class T>
MDOPS_D int reached_piece(const AngleGrid<T>& grid, int reach, int k) {
  return k < reach ? k : grid.side() + k - reach;
}

// A pair of neighbours, and its multiplicity.
struct Pair {
  int j, l, times;
};

// Pair p of n neighbours of one type: each with the s-th after it, for s = 0, 1, ...
MDOPS_D Pair pair_alike(int p, int n, int first) {
  const int s = p / n, j = p % n, l = j + s < n ? j + s : j + s - n;
  return {first + j, first + l, s == 0 ? 1 : 2};
}
MDOPS_D int pairs_alike(int n) {
  return n * (n + 1) / 2;
}

// Adds the sums over pairs of two types to w.sums, for the reachable pieces; with `Tangents` their change.
template <Gate G, bool Tangents, class T>
MDOPS_D void sum_types(const AngleArgs<T>& args, int t, int u, int reach, const Warp<T>& w) {
  constexpr int columns = kColumns<G>;
  const int lane = lane_index();
  fill(w.sums, columns * reach, T(0));
  fill(w.sums + columns * args.grid.side(), columns * reach, T(0));
  __syncwarp();
  const int first_t = w.first[t], first_u = w.first[u];
  const int n = w.first[t + 1] - first_t, m = w.first[u + 1] - first_u;
  const int total = t == u ? pairs_alike(n) : n * m;
  for (int begin = 0; begin < total; begin += kWarp) {
    const int p = begin + lane;
    if (p < total) {
      const Pair pair = t == u ? pair_alike(p, n, first_t) : Pair{first_t + p / m, first_u + p % m, 1};
      const T theta = dot3(w.rows, pair.j, w.rows, pair.l), times = static_cast<T>(pair.times);
      const T gate = G == Gate::none ? T(1) : w.rows[3][pair.j] * w.rows[3][pair.l];
      const AnglePlace<T> place = angle_place(theta, args.grid);
      T powers[kAnglePowers];
      if constexpr (Tangents) {
        const T dtheta = dot3(w.rows, pair.j, w.tangents, pair.l) + dot3(w.tangents, pair.j, w.rows, pair.l);
        T f = times * dtheta, own = times, slopes[kAnglePowers];
        if constexpr (G == Gate::alone) {
          const T dgate =
              w.rows[3][pair.j] * w.tangents[3][pair.l] + w.tangents[3][pair.j] * w.rows[3][pair.l];
          f = f * gate + times * dgate * theta;
          own *= gate;
        }
        angle_powers(place, f, powers);
        angle_power_slopes(place, own * theta * place.slope * dtheta, slopes);
        for (int k = 0; k < kAnglePowers; ++k) powers[k] += slopes[k];
      } else {
        angle_powers(place, G == Gate::alone ? times * gate * theta : times * theta, powers);
      }
      for (int k = 0; k < kAnglePowers; ++k) {
        w.stage[columns * lane + k] = powers[k];
        if constexpr (G == Gate::beside) w.stage[columns * lane + kAnglePowers + k] = gate * powers[k];
      }
      w.staged_at[lane] = columns * static_cast<int>(place.piece);
    }
    __syncwarp();
    // One pair after another, each column by its own lane.
    if (lane < columns)
      for (int k = 0; k < min(kWarp, total - begin); ++k)
        w.sums[w.staged_at[k] + lane] += w.stage[columns * k + lane];
    __syncwarp();
  }
}

// For each neighbour, sums its pairs' parts, of types t and u, from the coefficients in w.sums.
template <Gate G, bool Second, class T>
MDOPS_D void pull_types(const AngleArgs<T>& args, int t, int u, const Warp<T>& w) {
  constexpr int columns = kColumns<G>;
  const auto one_side = [&](int own, int other) {
    const T times = own == other ? T(2) : T(1);
    for (int j = w.first[own] + lane_index(); j < w.first[own + 1]; j += kWarp) {
      T g[4] = {0, 0, 0, 0}, h[4] = {0, 0, 0, 0};
      for (int l = w.first[other]; l < w.first[other + 1]; ++l) {
        const T theta = dot3(w.rows, j, w.rows, l);
        const AnglePlace<T> place = angle_place(theta, args.grid);
        const T* p = w.sums + columns * static_cast<int>(place.piece);
        const AngleFunction<T> f = angle_function(place, theta, p);
        const T gate = G == Gate::none ? T(1) : w.rows[3][j] * w.rows[3][l];
        T of_row = times * f.slope, of_gate = times * f.value;
        if constexpr (G == Gate::alone) of_row *= gate;
        if constexpr (G == Gate::beside) {
          const AngleFunction<T> e = angle_function(place, theta, p + kAnglePowers);
          of_row += times * gate * e.slope;
          of_gate = times * e.value;
        }
        for (int a = 0; a < 3; ++a) g[a] += of_row * w.rows[a][l];
        if constexpr (G != Gate::none) g[3] += of_gate * w.rows[3][l];
        if constexpr (Second) {
          const T dtheta = dot3(w.rows, j, w.tangents, l) + dot3(w.tangents, j, w.rows, l);
          T along = times * f.curve * dtheta;
          if constexpr (G == Gate::alone) {
            const T dgate = w.rows[3][j] * w.tangents[3][l] + w.tangents[3][j] * w.rows[3][l];
            along = along * gate + times * dgate * f.slope;
            h[3] += times * f.slope * dtheta * w.rows[3][l] + of_gate * w.tangents[3][l];
          }
          for (int a = 0; a < 3; ++a) h[a] += along * w.rows[a][l] + of_row * w.tangents[a][l];
        }
      }
      for (int a = 0; a < 4; ++a) {
        w.grad[a][j] += g[a];
        if constexpr (Second) w.second[a][j] += h[a];
      }
    }
    __syncwarp();
  };
  one_side(t, u);
  if (t != u) one_side(u, t);
}

// The gradients by the pair vectors of atom i, from those by the rows; other slots get zero.
template <Gate G, bool Second, class T>
MDOPS_D void pull_rows(const AngleArgs<T>& args, int64_t i, const T* tangent, const Warp<T>& w, T* out) {
  const Normalisation<T> norm = args.normalisation(args.types[i]);
  fill(out, 3 * args.width, T(0));
  __syncwarp();
  for (int k = lane_index(); k < w.size; k += kWarp) {
    const int64_t slot = w.slots[k];
    const T* from = args.displacements + 3 * (i * args.width + slot);
    const T d[3] = {from[0], from[1], from[2]};
    T g[3], v[3] = {}, grad[4] = {}, change[4] = {};
    for (int a = 0; a < (G != Gate::none ? 4 : 3); ++a) {
      grad[a] = w.grad[a][k];
      if constexpr (Second) change[a] = w.second[a][k];
    }
    for (int a = 0; Second && a < 3; ++a) v[a] = tangent[3 * (i * args.width + slot) + a];
    pull_row<G != Gate::none, Second>(d, v, args.cutoff, norm, grad, change, g);
    for (int a = 0; a < 3; ++a) out[3 * slot + a] = g[a];
  }
}

// Calls work(i, kind) for this warp's atoms.
template <class T, class Work>
MDOPS_D void for_atoms(const AngleArgs<T>& args, int64_t atoms, const Work& work) {
  for (int64_t i = blockIdx.x; i < atoms; i += gridDim.x) {
    __syncwarp();
    work(i, row_kind(args.types[i], args.ntypes, args.counts + i * args.ntypes, args.width));
  }
}

extern __shared__ __align__(16) char shared_memory[];

MDOPS_D char* memory_of(char* global, int64_t bytes) {
  return global ? global + blockIdx.x * bytes : shared_memory;
}

// Writes `within` and `nearest` of an atom.
template <class T>
MDOPS_D void report(const AngleArgs<T>& args, int64_t i, RowKind kind, T nearest2, const Warp<T>& w,
                    int32_t* within, T* nearest) {
  const bool real = kind == RowKind::real;
  for (int t = lane_index(); t < args.ntypes; t += kWarp)
    within[i * args.ntypes + t] = real ? w.within[t] : 0;
  if (lane_index() == 0)
    nearest[i] = real ? sqrt(nearest2) : kind == RowKind::empty ? args.cutoff.cutoff : not_a_number<T>();
}

// Moments, or with a tangent (and no `within`) their change.
template <Gate G, bool Tangents, class T>
__global__ void moment_kernel(AngleArgs<T> args, int64_t atoms, const T* tangent, char* global, int64_t bytes,
                              T* moments, int32_t* within, T* nearest) {
  Warp<T> w = warp_in<Tangents, false, G>(args, 0, memory_of(global, bytes));
  const int64_t of_pair = static_cast<int64_t>(kAnglePowers) * args.grid.pieces();
  for_atoms(args, atoms, [&](int64_t i, RowKind kind) {
    T* out = moments + i * args.pairs() * of_pair;
    T nearest2 = 0;
    if (kind == RowKind::real) {
      nearest2 = find<Tangents>(args, i, tangent, w);
      for (int u = 0; u < args.ntypes; ++u)
        for (int t = 0; t <= u; ++t) {
          sum_types<G, Tangents>(args, t, u, args.grid.side(), w);
          T* to = out + angle_pair(t, u) * of_pair;
          for (int64_t k = lane_index(); k < of_pair; k += kWarp) to[k] = w.sums[k];
          __syncwarp();
        }
    } else {
      fill(out, args.pairs() * of_pair, kind == RowKind::empty ? T(0) : not_a_number<T>());
    }
    if (within) report(args, i, kind, nearest2, w, within, nearest);
  });
}

// The gradient by the pair vectors, or the Hessian product along the tangent; from that by the moments.
template <Gate G, bool Second, class T>
__global__ void pull_kernel(AngleArgs<T> args, int64_t atoms, const T* tangent, const T* grad, char* global,
                            int64_t bytes, T* result) {
  Warp<T> w = warp_in<Second, true, G>(args, 0, memory_of(global, bytes));
  const int64_t of_pair = static_cast<int64_t>(kAnglePowers) * args.grid.pieces();
  for_atoms(args, atoms, [&](int64_t i, RowKind kind) {
    T* out = result + 3 * i * args.width;
    if (kind != RowKind::real) {
      fill(out, 3 * args.width, kind == RowKind::empty ? T(0) : not_a_number<T>());
      return;
    }
    find<Second>(args, i, tangent, w);
    for (int a = 0; a < 4; ++a) {
      fill(w.grad[a], w.size, T(0));
      if constexpr (Second) fill(w.second[a], w.size, T(0));
    }
    for (int u = 0; u < args.ntypes; ++u)
      for (int t = 0; t <= u; ++t) {
        const T* from = grad + (i * args.pairs() + angle_pair(t, u)) * of_pair;
        for (int64_t k = lane_index(); k < of_pair; k += kWarp) w.sums[k] = from[k];
        __syncwarp();
        pull_types<G, Second>(args, t, u, w);
      }
    pull_rows<G, Second>(args, i, tangent, w, out);
  });
}

// The powers of table row p of channel 0; gated ones if `column` is not 0.
template <Gate G, class T>
MDOPS_D const T* table_row(const AngleTables<T>& tables, int64_t first, int64_t p, int column) {
  const T* table = G == Gate::beside && column ? tables.gated : tables.plain;
  return table + kAngleRow * (first + p) * tables.channels;
}

// A table's row of a channel, for as few reads as possible.
template <class T>
struct alignas(16) TableRow {
  T power[kAngleRow];
};

// Adds the products of the tables from row `first` on with the sums to w.features: adjacent lanes are
// channels, so that their reads are adjacent, too. Most pieces have no pair.
template <Gate G, class T>
MDOPS_D void add_features(const AngleTables<T>& tables, const AngleGrid<T>& grid, int64_t first, int reach,
                          const Warp<T>& w) {
  constexpr int columns = kColumns<G>;
  int lanes = 1;
  while (lanes < kWarp && lanes < tables.channels) lanes *= 2;
  const int group = lane_index() / lanes, own = lane_index() % lanes;
  for (int from = 0; from < tables.channels; from += lanes) {
    const int m = from + own;
    T sum = 0;
    for (int k = group; k < 2 * reach && m < tables.channels; k += kWarp / lanes) {
      const int p = reached_piece(grid, reach, k);
      for (int c = 0; c < columns; c += kAnglePowers) {
        T sums[kAnglePowers];
        bool any = false;
        for (int e = 0; e < kAnglePowers; ++e) {
          sums[e] = w.sums[columns * p + c + e];
          any |= sums[e] != T(0);
        }
        if (!any) continue;
        const TableRow<T> row =
            *reinterpret_cast<const TableRow<T>*>(table_row<G>(tables, first, p, c) + kAngleRow * m);
        for (int e = 0; e < kAnglePowers; ++e) sum += sums[e] * row.power[e];
      }
    }
    __syncwarp();
    for (int step = lanes; step < kWarp; step *= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
    if (group == 0 && m < tables.channels) w.features[m] += sum;
  }
}

// Writes the coefficients of the reachable pieces to w.sums, from the channels' gradients in w.features.
template <Gate G, class T>
MDOPS_D void form_pieces(const AngleTables<T>& tables, const AngleGrid<T>& grid, int64_t first, int reach,
                         const Warp<T>& w) {
  constexpr int columns = kColumns<G>;
  const int e = lane_index() % kAngleRow;
  for (int k = lane_index() / kAngleRow; k < 2 * reach; k += kWarp / kAngleRow) {
    const int p = reached_piece(grid, reach, k);
    for (int c = 0; c < columns; c += kAnglePowers) {
      const T* row = table_row<G>(tables, first, p, c) + e;
      T sum = 0;
#pragma unroll 8
      for (int m = 0; m < tables.channels; ++m) sum += w.features[m] * row[kAngleRow * m];
      if (e < kAnglePowers) w.sums[columns * p + c + e] = sum;
    }
  }
}

template <Gate G, class T>
__global__ void features_kernel(AngleArgs<T> args, AngleTables<T> tables, int64_t atoms, char* global,
                                int64_t bytes, T* features, int32_t* within, T* nearest) {
  const int channels = tables.channels;
  Warp<T> w = warp_in<false, false, G>(args, channels, memory_of(global, bytes));
  for_atoms(args, atoms, [&](int64_t i, RowKind kind) {
    T nearest2 = 0;
    fill(w.features, channels, kind == RowKind::wrong ? not_a_number<T>() : T(0));
    if (kind == RowKind::real) {
      nearest2 = find<false>(args, i, static_cast<const T*>(nullptr), w);
      for (int u = 0; u < args.ntypes; ++u)
        for (int t = 0; t <= u; ++t) {
          const int reach = pieces_reached(args, t, u, w);
          sum_types<G, false>(args, t, u, reach, w);
          add_features<G>(tables, args.grid, int64_t{angle_pair(t, u)} * args.grid.pieces(), reach, w);
          __syncwarp();
        }
    }
    __syncwarp();
    for (int m = lane_index(); m < channels; m += kWarp) features[i * channels + m] = w.features[m];
    report(args, i, kind, nearest2, w, within, nearest);
  });
}

template <Gate G, class T>
__global__ void features_pull_kernel(AngleArgs<T> args, AngleTables<T> tables, int64_t atoms, const T* grad,
                                     char* global, int64_t bytes, T* result) {
  const int channels = tables.channels;
  Warp<T> w = warp_in<false, true, G>(args, channels, memory_of(global, bytes));
  for_atoms(args, atoms, [&](int64_t i, RowKind kind) {
    T* out = result + 3 * i * args.width;
    if (kind != RowKind::real) {
      fill(out, 3 * args.width, kind == RowKind::empty ? T(0) : not_a_number<T>());
      return;
    }
    find<false>(args, i, static_cast<const T*>(nullptr), w);
    for (int a = 0; a < 4; ++a) fill(w.grad[a], w.size, T(0));
    for (int m = lane_index(); m < channels; m += kWarp) w.features[m] = grad[i * channels + m];
    __syncwarp();
    for (int u = 0; u < args.ntypes; ++u)
      for (int t = 0; t <= u; ++t) {
        const int reach = pieces_reached(args, t, u, w);
        form_pieces<G>(tables, args.grid, int64_t{angle_pair(t, u)} * args.grid.pieces(), reach, w);
        __syncwarp();
        pull_types<G, false>(args, t, u, w);
      }
    pull_rows<G, false>(args, i, static_cast<const T*>(nullptr), w, out);
  });
}

}  // namespace mdops::gpu_angle
