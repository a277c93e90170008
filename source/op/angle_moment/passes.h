// The passes over an atom's pairs of neighbours, for one instruction set: the pieces and powers of many pairs
// at once, then one pair at a time into or out of its piece.
#pragma once

#include <type_traits>

#include "angle_moment/pairs.h"
#include "angle_moment/pull.h"

namespace mdops::MDOPS_ISA {

template <class T>
struct PieceVector;
template <>
struct PieceVector<float> {
  typedef float type __attribute__((vector_size(kAngleRow * sizeof(float))));
  typedef int32_t index __attribute__((vector_size(kAngleRow * sizeof(float))));
};
template <>
struct PieceVector<double> {
  typedef double type __attribute__((vector_size(kAngleRow * sizeof(double))));
  typedef int64_t index __attribute__((vector_size(kAngleRow * sizeof(double))));
};
// The numbers of a piece.
template <class T>
using Piece = typename PieceVector<T>::type;

template <class T>
inline Piece<T> piece_at(const T* p) {
  return load<Piece<T>>(p);
}

constexpr int kCopies = 2;  // of the sums: adjacent pairs often are on one piece

// The memory of a thread.
template <class T>
struct Memory {
  Neighbors<T> neighbors[kAngleBlock];
  Chunk<T>* chunk;
  T* copies;                 // kCopies x (plain, gated) x pieces x kAngleRow
  T* sums[kAngleBlock];      // (plain, gated) x pieces x kAngleRow
  T* features[kAngleBlock];  // channels x kAngleRow
  int64_t table;             // pieces x kAngleRow

  static int64_t chunk_numbers() { return padded(sizeof(Chunk<T>) / sizeof(T)); }
  static int64_t size(const AngleArgs<T>& args, int channels) {
    const int64_t table = int64_t{kAngleRow} * args.grid.pieces();
    return chunk_numbers() + 2 * kCopies * table +
           kAngleBlock * (Neighbors<T>::memory(args) + 2 * table + padded(int64_t{kAngleRow} * channels));
  }
  Memory(const AngleArgs<T>& args, T* memory, int channels = 0)
      : table(int64_t{kAngleRow} * args.grid.pieces()) {
    chunk = reinterpret_cast<Chunk<T>*>(memory);
    memory += chunk_numbers();
    copies = memory;
    memory += 2 * kCopies * table;
    for (int k = 0; k < kAngleBlock; ++k) {
      sums[k] = memory;
      memory += 2 * table;
      features[k] = memory;
      memory += padded(int64_t{kAngleRow} * channels);
      neighbors[k] = Neighbors<T>(args, memory);
      memory += Neighbors<T>::memory(args);
    }
  }
};

// Calls work(first, last) for the reached pieces on either side.
inline void for_sides(int side, int reached, const auto& work) {
  work(0, reached);
  work(side, side + reached);
}

// Adds each pair's powers, in c.powers, to the sums of its piece.
template <class T>
inline void add_powers(const Chunk<T>& c, T* copies, int64_t table) {
  for (int k = 0; k < c.size; ++k) {
    T* to = copies + (k % kCopies) * table + c.piece[k];
    store(to, piece_at(to) + piece_at(c.powers + kAngleRow * k));
  }
}

// Whether each number of a piece is in the lanes of the bit mask.
template <class T>
inline typename PieceVector<T>::index lanes_of(unsigned bits) {
  typename PieceVector<T>::index found{};
  for (int m = 0; m < kAngleRow; ++m) found[m] = bits >> m & 1 ? -1 : 0;
  return found;
}

// Adds f x^k of each pair to the sums of its piece: (f, f x) times (1, 1, y^2, y^2, y^4, y^4). Broadcasting
// four numbers of a pair is faster than transposing eight.
template <Gate G, class T>
inline void add_powers_of_pairs(Chunk<T>& c, const AngleGrid<T> grid, T* copies, int64_t table) {
  T *const f = c.of_rows[0], *const fx = c.of_rows[1], *const y2 = c.of_gates[0], *const y4 = c.of_gates[1];
  int32_t* const piece = c.piece;
  const T *const theta = c.theta, *const times = c.times, *const gate = c.gate;
  const int size = (c.size + kPad - 1) / kPad * kPad;
  MDOPS_INDEPENDENT
  for (int k = 0; k < size; ++k) {
    const AnglePlace<T> place = angle_place(theta[k], grid);
    T first = times[k] * theta[k];
    if constexpr (G == Gate::alone) first *= gate[k];
    const T squared = place.y * place.y;
    f[k] = first, fx[k] = first * place.x, y2[k] = squared, y4[k] = squared * squared;
    piece[k] = kAngleRow * static_cast<int32_t>(place.piece);
  }
  const auto odd = lanes_of<T>(0b00101010), second = lanes_of<T>(0b00001100), third = lanes_of<T>(0b00110000);
  const Piece<T> ones = {1, 1, 0, 0, 0, 0, 0, 0};
  for (int k = 0; k < c.size; ++k) {
    const Piece<T> one = Piece<T>{} + f[k], x = Piece<T>{} + fx[k];
    const Piece<T> square = Piece<T>{} + y2[k], fourth = Piece<T>{} + y4[k];
    const Piece<T> row = (odd ? x : one) * (second ? square : third ? fourth : ones);
    T* to = copies + (k % kCopies) * table + piece[k];
    store(to, piece_at(to) + row);
    if constexpr (G == Gate::beside) {
      to += kCopies * table;
      store(to, piece_at(to) + row * gate[k]);
    }
  }
}

// Their change along the tangents.
template <Gate G, class T>
inline void powers_along_tangents(Chunk<T>& c, const AngleGrid<T> grid) {
  T* const powers = c.powers;
  int32_t* const piece = c.piece;
  const int size = (c.size + kPad - 1) / kPad * kPad;
  MDOPS_INDEPENDENT
  for (int k = 0; k < size; ++k) {
    const T theta = c.theta[k], dtheta = c.dtheta[k];
    const AnglePlace<T> place = angle_place(theta, grid);
    T times = c.times[k], f = times * dtheta;
    if constexpr (G == Gate::alone) {
      f = f * c.gate[k] + times * c.dgate[k] * theta;
      times *= c.gate[k];
    }
    T p[kAnglePowers], dp[kAnglePowers];
    angle_powers(place, f, p);
    angle_power_slopes(place, times * theta * place.slope * dtheta, dp);
    piece[k] = kAngleRow * static_cast<int32_t>(place.piece);
    T* const out = powers + kAngleRow * k;
    for (int m = 0; m < kAnglePowers; ++m) out[m] = p[m] + dp[m];
    out[6] = out[7] = 0;
  }
}

// The sums over pairs of two types, of the reached pieces; `sums` gets the plain ones, then the gated ones if
// both are summed. Returns the number of reached pieces on a side.
template <Gate G, bool Tangents, class T>
inline int sum_pairs(const AngleArgs<T>& args, const Neighbors<T>& n, int t, int u, const Memory<T>& memory,
                     T* sums) {
  const int reached = pieces_reached(n, t, u, args.grid), tables = G == Gate::beside ? 2 : 1;
  const int64_t table = memory.table;
  for_sides(args.grid.side(), reached, [&](int first, int last) {
    for (int copy = 0; copy < tables * kCopies; ++copy)
      for (int p = first; p < last; ++p) store(memory.copies + copy * table + kAngleRow * p, Piece<T>{});
  });
  for_pairs<G, Tangents>(n, t, u, *memory.chunk, [&](Chunk<T>& chunk) {
    if constexpr (Tangents) {
      powers_along_tangents<G>(chunk, args.grid);
      add_powers(chunk, memory.copies, table);
    } else {
      add_powers_of_pairs<G>(chunk, args.grid, memory.copies, table);
    }
  });
  for_sides(args.grid.side(), reached, [&](int first, int last) {
    for (int k = 0; k < tables; ++k)
      for (int p = first; p < last; ++p) {
        const T* from = memory.copies + k * kCopies * table + kAngleRow * p;
        Piece<T> sum = piece_at(from);
        for (int copy = 1; copy < kCopies; ++copy) sum += piece_at(from + copy * table);
        store(sums + k * table + kAngleRow * p, sum);
      }
  });
  return reached;
}

// Moments (N, pairs, pieces, kAnglePowers), one atom at a time.
template <Gate G, bool Tangents, class T>
inline void moments_of(const AngleArgs<T>& args, const Neighbors<T>& n, const Memory<T>& memory, T* out) {
  T* sums = memory.sums[0];
  for (int u = 0; u < args.ntypes; ++u)
    for (int t = 0; t <= u; ++t) {
      const int reached = sum_pairs<G, Tangents>(args, n, t, u, memory, sums);
      T* to = out + angle_pair(t, u) * int64_t{kAnglePowers} * args.grid.pieces();
      for_sides(args.grid.side(), reached, [&](int first, int last) {
        for (int p = first; p < last; ++p)
          for (int m = 0; m < kAnglePowers; ++m) to[kAnglePowers * p + m] = sums[kAngleRow * p + m];
      });
    }
}

template <class T>
inline int64_t moments_of_atom(const AngleArgs<T>& args) {
  return int64_t{args.pairs()} * args.grid.pieces() * kAnglePowers;
}

// Finds the neighbours of atom i with their rows, and writes `within` and `nearest`; returns whether it is an
// atom.
template <class T>
inline bool take_atom(const AngleArgs<T>& args, int64_t i, int32_t* within, T* nearest, Neighbors<T>& n) {
  int32_t* counted = within + i * args.ntypes;
  for (int t = 0; t < args.ntypes; ++t) counted[t] = 0;
  nearest[i] = args.cutoff.cutoff;
  if (args.types[i] < 0) return false;
  nearest[i] = std::sqrt(find_neighbors(args, i, static_cast<const T*>(nullptr), counted, n));
  make_rows<false>(n, args.cutoff, args.normalisation(args.types[i]), args.ntypes);
  return true;
}

template <Gate G, class T>
inline void forward(const AngleArgs<T>& args, const Memory<T>& memory, int64_t begin, int64_t end, T* moments,
                    int32_t* within, T* nearest) {
  const int64_t stride = moments_of_atom(args);
  Neighbors<T> n = memory.neighbors[0];
  for (int64_t i = begin; i < end; ++i) {
    T* out = moments + i * stride;
    for (int64_t k = 0; k < stride; ++k) out[k] = 0;
    if (take_atom(args, i, within, nearest, n)) moments_of<G, false>(args, n, memory, out);
  }
}

template <Gate G, class T>
inline void jvp(const AngleArgs<T>& args, const Memory<T>& memory, const T* tangent, int64_t begin,
                int64_t end, T* moments) {
  const int64_t stride = moments_of_atom(args);
  Neighbors<T> n = memory.neighbors[0];
  for (int64_t i = begin; i < end; ++i) {
    T* out = moments + i * stride;
    for (int64_t k = 0; k < stride; ++k) out[k] = 0;
    if (args.types[i] < 0) continue;
    find_neighbors(args, i, tangent, nullptr, n);
    make_rows<true>(n, args.cutoff, args.normalisation(args.types[i]), args.ntypes);
    moments_of<G, true>(args, n, memory, out);
  }
}

// Loads the coefficients of each pair's piece into the chunk.
template <Gate G, class T>
inline void take_pieces(Chunk<T>& c, const AngleGrid<T> grid, const T* coefficients, int64_t table) {
  int32_t* const piece = c.piece;
  const T* const theta = c.theta;
  const int size = (c.size + kPad - 1) / kPad * kPad;
  MDOPS_INDEPENDENT
  for (int k = 0; k < size; ++k)
    piece[k] = kAngleRow * static_cast<int32_t>(angle_place(theta[k], grid).piece);
  for (int k = 0; k < size; ++k) {
    store(c.powers + kAngleRow * k, piece_at(coefficients + piece[k]));
    if constexpr (G == Gate::beside)
      store(c.gated + kAngleRow * k, piece_at(coefficients + table + piece[k]));
  }
}

// For each pair, the factors of its neighbours' rows in the gradient, and of their switches; with `Second`
// also those along the tangents.
template <Gate G, bool Second, class T>
inline void pull_pairs(Chunk<T>& c, const AngleGrid<T> grid) {
  const T *const powers = c.powers, *const gated = c.gated;
  T *const of_rows = c.of_rows[0], *const of_rows2 = c.of_rows[1];
  T *const of_gates = c.of_gates[0], *const of_gates2 = c.of_gates[1];
  const int size = (c.size + kPad - 1) / kPad * kPad;
  MDOPS_INDEPENDENT
  for (int k = 0; k < size; ++k) {
    const T theta = c.theta[k], times = c.times[k];
    const AnglePlace<T> place = angle_place(theta, grid);
    T p[kAngleRow];
    for (int m = 0; m < kAngleRow; ++m) p[m] = powers[kAngleRow * k + m];
    const AngleFunction<T> f = angle_function(place, theta, p);
    if constexpr (G == Gate::none) {
      of_rows[k] = times * f.slope;
      if constexpr (Second) of_rows2[k] = times * f.curve * c.dtheta[k];
    } else if constexpr (G == Gate::alone) {
      const T gate = c.gate[k];
      of_rows[k] = times * gate * f.slope;
      of_gates[k] = times * f.value;
      if constexpr (Second) {
        of_rows2[k] = times * (gate * f.curve * c.dtheta[k] + c.dgate[k] * f.slope);
        of_gates2[k] = times * f.slope * c.dtheta[k];
      }
    } else {
      T q[kAngleRow];
      for (int m = 0; m < kAngleRow; ++m) q[m] = gated[kAngleRow * k + m];
      const AngleFunction<T> g = angle_function(place, theta, q);
      of_rows[k] = times * (f.slope + c.gate[k] * g.slope);
      of_gates[k] = times * g.value;
    }
  }
}

// The gradients by the rows and switches, over pairs of two types, from those by the functions' coefficients.
template <Gate G, bool Second, class T>
inline void pull_types(const AngleArgs<T>& args, const Neighbors<T>& n, int t, int u, const Memory<T>& memory,
                       const T* coefficients) {
  for_pairs<G, Second>(n, t, u, *memory.chunk, [&](Chunk<T>& chunk) {
    take_pieces<G>(chunk, args.grid, coefficients, memory.table);
    pull_pairs<G, Second>(chunk, args.grid);
    add_to_rows(chunk, chunk.of_rows[0], n.rows, n.grad);
    if constexpr (G != Gate::none) add_to_switches(chunk, chunk.of_gates[0], n.rows.w, n.grad.w);
    if constexpr (Second) {
      add_to_rows(chunk, chunk.of_rows[1], n.rows, n.second);
      add_to_rows(chunk, chunk.of_rows[0], n.tangents, n.second);
      if constexpr (G != Gate::none) {
        add_to_switches(chunk, chunk.of_gates[1], n.rows.w, n.second.w);
        add_to_switches(chunk, chunk.of_gates[0], n.tangents.w, n.second.w);
      }
    }
  });
}

// The gradients by the pair vectors from those by the rows and switches, in their slots of `out`.
template <Gate G, bool Second, class T>
inline void pull_rows(const Neighbors<T> n, const Cutoff<T> cutoff, const Normalisation<T> norm, T* out) {
  T *const gx = n.rows.x, *const gy = n.rows.y, *const gz = n.rows.z;  // no longer needed
  MDOPS_INDEPENDENT
  for (int k = 0; k < n.size; ++k) {
    const T d[3] = {n.dx[k], n.dy[k], n.dz[k]};
    const T grad[4] = {n.grad.x[k], n.grad.y[k], n.grad.z[k], G != Gate::none ? n.grad.w[k] : T(0)};
    T g[3], v[3] = {}, change[4] = {};
    if constexpr (Second) {
      v[0] = n.vx[k], v[1] = n.vy[k], v[2] = n.vz[k];
      change[0] = n.second.x[k], change[1] = n.second.y[k], change[2] = n.second.z[k];
      if constexpr (G != Gate::none) change[3] = n.second.w[k];
    }
    pull_row<G != Gate::none, Second>(d, v, cutoff, norm, grad, change, g);
    gx[k] = g[0], gy[k] = g[1], gz[k] = g[2];
  }
  for (int k = 0; k < n.size; ++k) {
    T* g = out + 3 * n.slot[k];
    g[0] = gx[k], g[1] = gy[k], g[2] = gz[k];
  }
}

// `Second`: the Hessian product along `tangent` instead of the gradient.
template <Gate G, bool Second, class T>
inline void backward(const AngleArgs<T>& args, const Memory<T>& memory, const T* tangent, const T* grad,
                     int64_t begin, int64_t end, T* pair_grad) {
  const int64_t stride = moments_of_atom(args);
  Neighbors<T> n = memory.neighbors[0];
  T* coefficients = memory.sums[0];
  for (int64_t i = begin; i < end; ++i) {
    T* out = pair_grad + 3 * i * args.width;
    for (int64_t k = 0; k < 3 * args.width; ++k) out[k] = 0;
    if (args.types[i] < 0) continue;
    const Normalisation<T> norm = args.normalisation(args.types[i]);
    find_neighbors(args, i, tangent, nullptr, n);
    make_rows<Second>(n, args.cutoff, norm, args.ntypes);
    n.grad.clear(0, n.size + kPad);
    if constexpr (Second) n.second.clear(0, n.size + kPad);
    for (int u = 0; u < args.ntypes; ++u)
      for (int t = 0; t <= u; ++t) {
        const T* from = grad + i * stride + angle_pair(t, u) * int64_t{kAnglePowers} * args.grid.pieces();
        for_sides(args.grid.side(), pieces_reached(n, t, u, args.grid), [&](int first, int last) {
          for (int p = first; p < last; ++p)
            for (int m = 0; m < kAngleRow; ++m)
              coefficients[kAngleRow * p + m] = m < kAnglePowers ? from[kAnglePowers * p + m] : T(0);
        });
        pull_types<G, Second>(args, n, t, u, memory, coefficients);
      }
    pull_rows<G, Second>(n, args.cutoff, norm, out);
  }
}

// -- Features: the moments times tables, for a block of atoms at once

constexpr int kTile = 32;  // pieces whose table stays in the L1 cache for all atoms of the block

// Calls work(k, first, last) for tiles of the pieces that atoms k of a block reach.
template <class T, class Work>
inline void for_tiles(const AngleArgs<T>& args, const int* reached, int atoms, const Work& work) {
  int most = 0;
  for (int k = 0; k < atoms; ++k) most = reached[k] > most ? reached[k] : most;
  for_sides(args.grid.side(), most, [&](int begin, int end) {
    for (int first = begin; first < end; first += kTile)
      for (int k = 0; k < atoms; ++k) {
        const int own = begin + reached[k], last = first + kTile < own ? first + kTile : own;
        if (first < last) work(k, first, last);
      }
  });
}

// out[c] += sum over pieces and powers of sums x table, for up to Channels channels from c on.
template <int Channels, class T>
inline void contract(const T* sums, const T* table, int channels, int first, int last, T* out) {
  Piece<T> sum[Channels];
  for (int m = 0; m < Channels; ++m) sum[m] = piece_at(out + kAngleRow * m);
  for (int p = first; p < last; ++p) {
    const Piece<T> s = piece_at(sums + kAngleRow * p);
    const T* row = table + int64_t{kAngleRow} * channels * p;
    MDOPS_UNROLL
    for (int m = 0; m < Channels; ++m) sum[m] += s * piece_at(row + kAngleRow * m);
  }
  for (int m = 0; m < Channels; ++m) store(out + kAngleRow * m, sum[m]);
}

// coefficients += sum over channels of grad x table.
template <int Channels, class T>
inline void expand(const T* grad, const T* table, int channels, int first, int last, T* coefficients) {
  for (int p = first; p < last; ++p) {
    Piece<T> sum = piece_at(coefficients + kAngleRow * p);
    const T* row = table + int64_t{kAngleRow} * channels * p;
    MDOPS_UNROLL
    for (int m = 0; m < Channels; ++m) sum += piece_at(row + kAngleRow * m) * grad[m];
    store(coefficients + kAngleRow * p, sum);
  }
}

// Calls work(c, n) for channels c .. c + n, n a constant of 8 or 1.
inline void for_channels(int channels, const auto& work) {
  int c = 0;
  for (; c + 8 <= channels; c += 8) work(c, std::integral_constant<int, 8>{});
  for (; c < channels; ++c) work(c, std::integral_constant<int, 1>{});
}

template <Gate G, class T>
inline void sum_features(const AngleArgs<T>& args, const Memory<T>& memory, const AngleTables<T>& tables,
                         int64_t begin, int64_t end, T* features, int32_t* within, T* nearest) {
  const int channels = tables.channels;
  const int64_t of_pair = memory.table * channels;
  Neighbors<T> neighbors[kAngleBlock];
  for (int64_t block = begin; block < end; block += kAngleBlock) {
    const int atoms = end - block < kAngleBlock ? static_cast<int>(end - block) : kAngleBlock;
    for (int k = 0; k < atoms; ++k) {
      neighbors[k] = memory.neighbors[k];
      for (int c = 0; c < kAngleRow * channels; ++c) memory.features[k][c] = 0;
      take_atom(args, block + k, within, nearest, neighbors[k]);
    }
    for (int u = 0; u < args.ntypes; ++u)
      for (int t = 0; t <= u; ++t) {
        int reached[kAngleBlock];
        for (int k = 0; k < atoms; ++k)
          reached[k] = args.types[block + k] < 0
                           ? 0
                           : sum_pairs<G, false>(args, neighbors[k], t, u, memory, memory.sums[k]);
        const auto add = [&](const T* table, int64_t sums) {
          for_channels(channels, [&](int c, auto count) {
            for_tiles(args, reached, atoms, [&](int k, int first, int last) {
              contract<count()>(memory.sums[k] + sums, table + kAngleRow * c, channels, first, last,
                                memory.features[k] + kAngleRow * c);
            });
          });
        };
        add(tables.plain + angle_pair(t, u) * of_pair, 0);
        if constexpr (G == Gate::beside) add(tables.gated + angle_pair(t, u) * of_pair, memory.table);
      }
    for (int k = 0; k < atoms; ++k)
      for (int c = 0; c < channels; ++c) {
        const T* of = memory.features[k] + kAngleRow * c;
        T sum = 0;
        for (int m = 0; m < kAngleRow; ++m) sum += of[m];
        features[(block + k) * channels + c] = sum;
      }
  }
}

template <Gate G, class T>
inline void features_backward(const AngleArgs<T>& args, const Memory<T>& memory, const AngleTables<T>& tables,
                              const T* grad, int64_t begin, int64_t end, T* pair_grad) {
  const int channels = tables.channels;
  const int64_t of_pair = memory.table * channels;
  Neighbors<T> neighbors[kAngleBlock];
  for (int64_t block = begin; block < end; block += kAngleBlock) {
    const int atoms = end - block < kAngleBlock ? static_cast<int>(end - block) : kAngleBlock;
    for (int k = 0; k < atoms; ++k) {
      const int64_t i = block + k;
      Neighbors<T>& n = neighbors[k] = memory.neighbors[k];
      if (args.types[i] < 0) continue;
      find_neighbors(args, i, static_cast<const T*>(nullptr), nullptr, n);
      make_rows<false>(n, args.cutoff, args.normalisation(args.types[i]), args.ntypes);
      n.grad.clear(0, n.size + kPad);
    }
    for (int u = 0; u < args.ntypes; ++u)
      for (int t = 0; t <= u; ++t) {
        int reached[kAngleBlock];
        for (int k = 0; k < atoms; ++k) {
          reached[k] = args.types[block + k] < 0 ? 0 : pieces_reached(neighbors[k], t, u, args.grid);
          for_sides(args.grid.side(), reached[k], [&](int first, int last) {
            for (int p = first; p < last; ++p) {
              store(memory.sums[k] + kAngleRow * p, Piece<T>{});
              if constexpr (G == Gate::beside)
                store(memory.sums[k] + memory.table + kAngleRow * p, Piece<T>{});
            }
          });
        }
        const auto add = [&](const T* table, int64_t sums) {
          for_channels(channels, [&](int c, auto count) {
            for_tiles(args, reached, atoms, [&](int k, int first, int last) {
              expand<count()>(grad + (block + k) * channels + c, table + kAngleRow * c, channels, first, last,
                              memory.sums[k] + sums);
            });
          });
        };
        add(tables.plain + angle_pair(t, u) * of_pair, 0);
        if constexpr (G == Gate::beside) add(tables.gated + angle_pair(t, u) * of_pair, memory.table);
        for (int k = 0; k < atoms; ++k)
          if (reached[k]) pull_types<G, false>(args, neighbors[k], t, u, memory, memory.sums[k]);
      }
    for (int k = 0; k < atoms; ++k) {
      const int64_t i = block + k;
      T* out = pair_grad + 3 * i * args.width;
      for (int64_t c = 0; c < 3 * args.width; ++c) out[c] = 0;
      if (args.types[i] < 0) continue;
      pull_rows<G, false>(neighbors[k], args.cutoff, args.normalisation(args.types[i]), out);
    }
  }
}

}  // namespace mdops::MDOPS_ISA
