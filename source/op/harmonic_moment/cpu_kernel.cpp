#include <vector>

#include "common/vectors.h"
#include "env_mat/env_mat.h"
#include "harmonic_moment/harmonic_moment.h"

namespace mdops::MDOPS_ISA {

namespace {

constexpr int kNeighbors = 64;  // at once: their values stay in the first-level cache

template <class T>
struct EightTypes;
template <>
struct EightTypes<float> {
  typedef float type __attribute__((vector_size(kSplineLanes * sizeof(float))));
};
template <>
struct EightTypes<double> {
  typedef double type __attribute__((vector_size(kSplineLanes * sizeof(double))));
};
// Of the six splines of an interval, and two zeros.
template <class T>
using Eight = typename EightTypes<T>::type;

// The polynomials of `spline_values`, times 120, by powers of t: a spline a lane.
template <class T>
constexpr Eight<T> kPowers[6] = {{1, 26, 66, 26, 1, 0},    {-5, -50, 0, 50, 5, 0},  {10, 20, -60, 20, 10, 0},
                                 {-10, 20, 0, -20, 10, 0}, {5, -20, 30, -20, 5, 0}, {-1, 5, -10, 10, -5, 1}};

template <class T>
MDOPS_INLINE Eight<T> splines(T t) {
  Eight<T> sum = kPowers<T>[5];
  for (int p = 4; p >= 0; --p) sum = sum * t + kPowers<T>[p];
  return sum;
}

// The same of the quartic splines, times 24: five of them, and three zeros.
template <class T>
constexpr Eight<T> kQuartics[5] = {
    {1, 11, 11, 1, 0}, {-4, -12, 12, 4, 0}, {6, -6, -6, 6, 0}, {-4, 12, -12, 4, 0}, {1, -4, 6, -4, 1}};

template <class T>
MDOPS_INLINE Eight<T> quartics(T t) {
  Eight<T> sum = kQuartics<T>[4];
  for (int p = 3; p >= 0; --p) sum = sum * t + kQuartics<T>[p];
  return sum;
}

// The neighbours of one atom within the cutoff, with the inputs of sums.
template <class T, int Degree>
struct Neighbors {
  static constexpr int kComponents = (Degree + 1) * (Degree + 1), kHigher = kComponents - 4;
  alignas(64) T x[kNeighbors], y[kNeighbors], z[kNeighbors];
  alignas(64) T inv_r[kNeighbors], t[kNeighbors], chi[kNeighbors], dchi[kNeighbors];
  alignas(64) T b[kComponents][kNeighbors];
  alignas(64) int32_t first[kNeighbors], table[kNeighbors], slot[kNeighbors];
  int size = 0;

  // Turns pair vectors into directions, and computes the rest.
  void evaluate(const HarmonicMomentArgs<T> args) {
    MDOPS_INDEPENDENT
    for (int k = 0; k < size; ++k) {
      const T r2 = x[k] * x[k] + y[k] * y[k] + z[k] * z[k], r = std::sqrt(r2);
      const T inverse = r2 > T(0) ? T(1) / r : T(0);
      const SplinePlace<T> place = spline_place<false>(r, args.grid);
      envelope(r, T(1) / args.cutoff, &chi[k], &dchi[k]);
      first[k] = table[k] + place.interval, t[k] = place.t, inv_r[k] = inverse;
      x[k] *= inverse, y[k] *= inverse, z[k] *= inverse;
      b[0][k] = T(1), b[1][k] = x[k], b[2][k] = y[k], b[3][k] = z[k];
      each_harmonic<T>(x[k], y[k], z[k], Degree, [&](int, int n, T value) { b[4 + n][k] = value; });
    }
  }
};

// Those within the cutoff.
template <class T>
struct Seen {
  int32_t within = 0;
  T nearest2;
};

// work(neighbors) for atom i's neighbours, in chunks.
template <int Degree, class T, class Work>
Seen<T> for_neighbors(const HarmonicMomentArgs<T>& args, int64_t i, const Work& work) {
  const T cutoff2 = args.cutoff * args.cutoff;
  Seen<T> seen{0, cutoff2};
  Neighbors<T, Degree> near;
  int64_t slot = i * args.width;
  for (int t = 0; t < args.ntypes; ++t) {
    const bool masked = args.pair_mask[args.types[i] * args.ntypes + t];
    for (int32_t end = args.counts[i * args.ntypes + t], k = 0; k < end; ++k, ++slot) {
      const T* d = args.displacements + 3 * slot;
      const T r2 = d[0] * d[0] + d[1] * d[1] + d[2] * d[2];
      if (r2 >= cutoff2) continue;
      ++seen.within, seen.nearest2 = nearest_of(seen.nearest2, r2);
      if (masked) continue;
      const int n = near.size++;
      near.x[n] = d[0], near.y[n] = d[1], near.z[n] = d[2];
      near.table[n] = static_cast<int32_t>(t * args.basis),
      near.slot[n] = static_cast<int32_t>(slot - i * args.width);
      if (near.size == kNeighbors) {
        near.evaluate(args);
        work(near);
        near.size = 0;
      }
    }
  }
  if (near.size) {
    near.evaluate(args);
    work(near);
  }
  return seen;
}

// The moments of atom i, with the square of chi from degree 1 on, and the masses.
template <int Degree, class T>
Seen<T> forward(const HarmonicMomentArgs<T>& args, int64_t i, T* out, T* masses) {
  using V = Eight<T>;
  constexpr int components = (Degree + 1) * (Degree + 1);
  const int64_t row = args.row();
  for (int64_t k = 0; k < args.numbers(); ++k) out[k] = 0;
  if (args.types[i] < 0) return {0, args.cutoff * args.cutoff};
  return for_neighbors<Degree>(args, i, [&](const Neighbors<T, Degree>& near) {
    for (int k = 0; k < near.size; ++k) {
      const T chi = near.chi[k];
      V w = splines(near.t[k]) * (chi / T(120));
      T* to = out + near.first[k];
      store(to, load<V>(to) + w);
      w *= chi;
      masses[0] += chi * chi, masses[1] += chi * chi * (chi * chi);
      to += row;
      MDOPS_UNROLL
      for (int n = 1; n < components; ++n, to += row) store(to, load<V>(to) + w * near.b[n][k]);
    }
  });
}

template <class T>
MDOPS_INLINE T sum_eight(const Eight<T>& v) {
  return LaneSum<T, kSplineLanes>::of(v);
}

// Gradients of harmonics, for neighbours with known directions.
template <class T, int Degree>
struct Gradients {
  alignas(64) T d[3][Neighbors<T, Degree>::kHigher][kNeighbors];

  void evaluate(const Neighbors<T, Degree>& near) {
    using Number = Jet<T, 3>;
    MDOPS_INDEPENDENT
    for (int k = 0; k < near.size; ++k) {
      const Number x{near.x[k], {1, 0, 0}}, y{near.y[k], {0, 1, 0}}, z{near.z[k], {0, 0, 1}};
      each_harmonic<T>(x, y, z, Degree, [&](int, int n, const Number& found) {
        for (int a = 0; a < 3; ++a) d[a][n][k] = found.slope[a];
      });
    }
  }
};

// The gradient by the pair vectors of atom i, from those by its moments and by the masses.
template <int Degree, class T>
void backward(const HarmonicMomentArgs<T>& args, int64_t i, const T* grad, const T* slope, const T* by_masses,
              T* out) {
  using V = Eight<T>;
  const int64_t row = args.row();
  Gradients<T, Degree> slopes;
  for (int64_t k = 0; k < 3 * args.width; ++k) out[k] = 0;
  if (args.types[i] < 0) return;
  for_neighbors<Degree>(args, i, [&](const Neighbors<T, Degree>& near) {
    slopes.evaluate(near);
    for (int k = 0; k < near.size; ++k) {
      const V phi = splines(near.t[k]) * (T(1) / T(120));
      const T inv_r = near.inv_r[k];
      const T *from = grad + near.first[k], *steep = slope + near.first[k];
      V along = load<V>(from) * near.dchi[k], rise = V{}, across[3], of_degree = V{};
      const V first_rise = load<V>(steep) * near.chi[k];
      const T chi = near.chi[k] * near.chi[k], dchi = T(2) * near.chi[k] * near.dchi[k];
      for (int a = 0; a < 3; ++a) {
        across[a] = load<V>(from + (1 + a) * row);
        of_degree += across[a] * near.b[1 + a][k];
        rise += load<V>(steep + (1 + a) * row) * near.b[1 + a][k];
      }
      along += of_degree * (dchi - chi * inv_r);
      from += 4 * row, steep += 4 * row;
      MDOPS_UNROLL
      for (int l = 2, n = 0; l <= Degree; ++l) {
        of_degree = V{};
        MDOPS_UNROLL
        for (int m = 0; m < 2 * l + 1; ++m, ++n, from += row, steep += row) {
          const V v = load<V>(from);
          of_degree += v * near.b[4 + n][k];
          rise += load<V>(steep) * near.b[4 + n][k];
          for (int a = 0; a < 3; ++a) across[a] += v * slopes.d[a][n][k];
        }
        along += of_degree * (dchi - T(l) * chi * inv_r);
      }
      const V steepness = quartics(near.t[k]) * (T(1) / T(24));
      T radial = sum_eight<T>(along * phi + (first_rise + rise * chi) * steepness);
      radial += dchi * (by_masses[0] + T(2) * chi * by_masses[1]);
      const T e[3] = {near.x[k], near.y[k], near.z[k]};
      T* const to = out + 3 * near.slot[k];
      for (int a = 0; a < 3; ++a) to[a] = e[a] * radial + inv_r * chi * sum_eight<T>(across[a] * phi);
    }
  });
}

// to[n][c] += sum_k a[n][k] table[k][c] for c < 4 of `columns`, and all rows at once.
template <int Rows, class T>
void multiply_four(const T* a, int64_t length, const T* table, int64_t columns, T* to, int64_t apart) {
  using V = Vector4<T>;
  V sum[Rows] = {};
  for (int64_t k = 0; k < length; ++k, table += columns) {
    const V row = load<V>(table);
    MDOPS_UNROLL
    for (int n = 0; n < Rows; ++n) sum[n] += a[n * length + k] * row;
  }
  for (int n = 0; n < Rows; ++n) store(to + n * apart, sum[n]);
}

template <int Degree, class T>
void sums_forward(const HarmonicMomentArgs<T>& args, const HarmonicSumArgs<T>& p, int64_t i, T* moments,
                  const HarmonicSums<T>& out) {
  constexpr int components = (Degree + 1) * (Degree + 1);
  T *const first = out.first + i * p.width(), *const second = out.second + i * components * p.seconds;
  T* const masses = first + p.firsts;
  masses[0] = masses[1] = 0;
  const Seen<T> seen = forward<Degree>(args, i, moments, masses);
  out.within[i] = seen.within, out.nearest[i] = std::sqrt(seen.nearest2);
  const int64_t row = args.row(), type = args.types[i] < 0 ? 0 : args.types[i], columns = p.firsts;
  const T* const table = p.table + type * row * columns;
  int64_t c = 0;
  for (; c + 4 <= columns; c += 4) multiply_four<1>(moments, row, table + c, columns, first + c, 0);
  for (; c < columns; ++c) {
    T sum = 0;
    for (int64_t k = 0; k < row; ++k) sum += moments[k] * table[k * columns + c];
    first[c] = sum;
  }
  for (c = 0; c < p.seconds; ++c) second[c] = 0;
  for (c = 0; c < p.seconds; c += 4)
    multiply_four<components - 1>(moments + row, row, table + c, columns, second + p.seconds + c, p.seconds);
}

// The gradients by the moments: to[n][k] = sum_c by[n][c] rows[c][k].
template <int Rows, class T>
void multiply_back(const T* by, int64_t columns, const T* rows, int64_t length, T* to) {
  using V = Eight<T>;
  for (int64_t k = 0; k < length; k += kSplineLanes) {
    V sum[Rows] = {};
    for (int64_t c = 0; c < columns; ++c) {
      const V row = load<V>(rows + c * length + k);
      MDOPS_UNROLL
      for (int n = 0; n < Rows; ++n) sum[n] += by[n * columns + c] * row;
    }
    for (int n = 0; n < Rows; ++n) store(to + n * length + k, sum[n]);
  }
}

template <int Degree, class T>
void sums_backward(const HarmonicMomentArgs<T>& args, const HarmonicSumArgs<T>& p, int64_t i,
                   const T* by_first, const T* by_second, T* moments, T* out) {
  constexpr int components = (Degree + 1) * (Degree + 1);
  const int64_t row = args.row(), type = args.types[i] < 0 ? 0 : args.types[i];
  for (int of = 0; of < 2; ++of) {
    T* const to = moments + of * args.numbers();
    const T* const rows = p.rows[of] + type * row * p.firsts;
    multiply_back<1>(by_first, p.firsts, rows, row, to);
    multiply_back<components - 1>(by_second + p.seconds, p.seconds, rows, row, to + row);
  }
  backward<Degree>(args, i, moments, moments + args.numbers(), by_first + p.firsts, out);
}

}  // namespace

template <class T>
void harmonic_sums_forward(const HarmonicMomentArgs<T>& args, int64_t begin, int64_t end,
                           const HarmonicSumArgs<T>& sums, const HarmonicSums<T>& out) {
  std::vector<T> moments(args.numbers());
  with_moment_degree(args.degree, [&](auto degree) {
    for (int64_t i = begin; i < end; ++i) sums_forward<degree()>(args, sums, i, moments.data(), out);
  });
}

template <class T>
void harmonic_sums_backward(const HarmonicMomentArgs<T>& args, int64_t begin, int64_t end,
                            const HarmonicSumArgs<T>& sums, const T* by_first, const T* by_second,
                            T* pair_grad) {
  std::vector<T> moments(2 * args.numbers());
  with_moment_degree(args.degree, [&](auto degree) {
    for (int64_t i = begin; i < end; ++i)
      sums_backward<degree()>(args, sums, i, by_first + i * sums.width(),
                              by_second + i * components_to(degree()) * sums.seconds, moments.data(),
                              pair_grad + 3 * i * args.width);
  });
}

MDOPS_INSTANTIATE(harmonic_sums_forward, harmonic_sums_backward)

}  // namespace mdops::MDOPS_ISA
