// Products of functions of degree L, 2 to 4, in frames up to |k| = 1 on a grid of rotations, angle by angle.
// A rotation is one about z by 2 pi i / (3 L + 1), then about y by one of several tilts, then about z by
// 2 pi j / 4; j is the fastest index, then i. A matrix from coefficients to points follows from its rows of
// i = j = 0, in which few numbers are not zero:
//
//   c_mk at (i, j)   cos and sin of m alpha, for c_mk and c_-mk, times cos and sin of k gamma
//
// So the angles are summed one by one: first the tilt, then j, then i. That leaves a seventh of the
// multiply-adds for degree 2, a sixth for degree 3, a sixteenth for degree 4.
//
// V is a number or a vector of channels, T its element type.
#pragma once

#include <utility>

#include "grid_product/grid_product.h"

#if defined(__CUDACC__) || defined(__clang__)
#define MDOPS_UNROLL_ANGLES _Pragma("unroll")
#else
#define MDOPS_UNROLL_ANGLES _Pragma("GCC unroll 8")
#endif

namespace mdops::grid_angles {

template <int L>
struct Grid {
  static constexpr int kTurns = 3 * L + 1, kTilts = 3 * L / 2 + 1,
                       kRow = 4 * kTurns;  // kRow: points of a tilt
  static constexpr int kPoints = kTilts * kRow, kCoefficients = 3 * (L + 1) * (L + 1);
  static constexpr int kNumbers = 1 + 2 * L + 3 * L * (L + 1) / 2, kTable = (kNumbers + 3) / 4 * 4;
  static constexpr int kTables = kTilts * kTable;
};

template <int L, class T>
MDOPS_HD bool fits(const GridArgs<T>& args) {
  using Own = Grid<L>;
  return args.by_angles && args.points == Own::kPoints && args.first == Own::kCoefficients &&
         args.second == Own::kCoefficients && args.results == Own::kCoefficients;
}

// Calls f<L>() for the arguments' degree; false if no kernel fits.
template <class T, class F>
MDOPS_INLINE bool with_degree(const GridArgs<T>& args, const F& f) {
  if (fits<2>(args))
    f.template operator()<2>();
  else if (fits<3>(args))
    f.template operator()<3>();
  else if (fits<4>(args))
    f.template operator()<4>();
  else
    return false;
  return true;
}

// Where a degree's numbers begin in a row: degree 0 has one; others have two of m = 0, k = 0 and 1, and for
// each m > 0 those of (m, 0), (m, 1) and (-m, -1).
MDOPS_HD constexpr int begin_of(int l) {
  return l == 0 ? 0 : 2 * l - 1 + 3 * l * (l - 1) / 2;
}
// The index of c_l,m for k = 0; those of k = -1 and 1 follow.
MDOPS_HD constexpr int place_of(int l, int m) {
  return 3 * (l * l + l + m);
}

// The index of the coefficient at number n of a row.
MDOPS_HD int coefficient(int n) {
  int l = 0;
  while (n >= begin_of(l + 1)) ++l;
  n -= begin_of(l);
  if (n < 2) return place_of(l, 0) + 2 * n;
  const int m = (n - 2) / 3 + 1, kind = (n - 2) % 3;
  return kind == 2 ? place_of(l, -m) + 1 : place_of(l, m) + 2 * kind;
}

// Number k of a matrix's tables, of which there is one per tilt.
template <int L, class T>
MDOPS_HD T table_number(const T* matrix, int k) {
  using Own = Grid<L>;
  const int n = k % Own::kTable;
  return n < Own::kNumbers ? matrix[k / Own::kTable * Own::kRow * Own::kCoefficients + coefficient(n)] : T(0);
}

// The Fourier coefficients of a function of two angles: of 1, cos a, sin a, cos 2a, sin 2a, ..., times 1, cos
// c, sin c.
template <int L, class V>
struct Waves {
  V of[2 * L + 1][3];
};

// Adds the coefficients of m > 0, with d of (m, 0), (m, 1) and (-m, -1), to waves 2 m - 1 and 2 m.
template <class T, class V>
MDOPS_HD void add_order(const T* d, const V* plus, const V* minus, V* of_cos, V* of_sin) {
  of_cos[0] += d[0] * plus[0];
  of_sin[0] -= d[0] * minus[0];
  of_cos[1] += d[1] * plus[2] + d[2] * minus[1];
  of_cos[2] += d[1] * plus[1] - d[2] * minus[2];
  of_sin[1] += d[2] * plus[1] - d[1] * minus[2];
  of_sin[2] -= d[2] * plus[2] + d[1] * minus[1];
}

// The transpose.
template <class T, class V>
MDOPS_HD void take_order(const T* d, const V* of_cos, const V* of_sin, V* plus, V* minus) {
  plus[0] += d[0] * of_cos[0];
  minus[0] -= d[0] * of_sin[0];
  plus[2] += d[1] * of_cos[1] - d[2] * of_sin[2];
  minus[1] += d[2] * of_cos[1] - d[1] * of_sin[2];
  plus[1] += d[1] * of_cos[2] + d[2] * of_sin[1];
  minus[2] -= d[2] * of_cos[2] + d[1] * of_sin[1];
}

// The waves of coefficients; `c` reads the one at an index.
template <int L, class T, class C, class V>
MDOPS_HD void to_waves(const T* d, const C& c, Waves<L, V>& w) {
  w = {};
  w.of[0][0] = d[0] * c(0);
  MDOPS_UNROLL_ANGLES
  for (int l = 1; l <= L; ++l) {
    const T* const own = d + begin_of(l);
    const int middle = place_of(l, 0);
    w.of[0][0] += own[0] * c(middle);
    w.of[0][1] += own[1] * c(middle + 2);
    w.of[0][2] += own[1] * c(middle + 1);
    MDOPS_UNROLL_ANGLES
    for (int m = 1; m <= l; ++m) {
      const int p = place_of(l, m), n = place_of(l, -m);
      const V plus[3] = {c(p), c(p + 1), c(p + 2)}, minus[3] = {c(n), c(n + 1), c(n + 2)};
      add_order(own + 3 * m - 1, plus, minus, w.of[2 * m - 1], w.of[2 * m]);
    }
  }
}

template <int L, class T, class V>
MDOPS_HD void add_from_waves(const T* d, const Waves<L, V>& w, V* c) {
  c[0] += d[0] * w.of[0][0];
  MDOPS_UNROLL_ANGLES
  for (int l = 1; l <= L; ++l) {
    const T* const own = d + begin_of(l);
    V* const middle = c + place_of(l, 0);
    middle[0] += own[0] * w.of[0][0];
    middle[2] += own[1] * w.of[0][1];
    middle[1] += own[1] * w.of[0][2];
    MDOPS_UNROLL_ANGLES
    for (int m = 1; m <= l; ++m)
      take_order(own + 3 * m - 1, w.of[2 * m - 1], w.of[2 * m], c + place_of(l, m), c + place_of(l, -m));
  }
}

// cos and sin of 2 pi k / kTurns, with kTurns odd, for k up to kTurns / 2.
template <int kTurns>
struct Circle;
template <>
struct Circle<7> {
  static constexpr double kCos[] = {1.0, 0.62348980185873353053, -0.22252093395631440429,
                                    -0.90096886790241912624};
  static constexpr double kSin[] = {0.0, 0.78183148246802980871, 0.97492791218182360702,
                                    0.43388373911755812048};
};
template <>
struct Circle<13> {
  static constexpr double kCos[] = {1.0,
                                    0.88545602565320989590,
                                    0.56806474673115580251,
                                    0.12053668025532305335,
                                    -0.35460488704253562597,
                                    -0.74851074817110109863,
                                    -0.97094181742605202716};
  static constexpr double kSin[] = {0.0,
                                    0.46472317204376854566,
                                    0.82298386589365639458,
                                    0.99270887409805399280,
                                    0.93501624268541482344,
                                    0.66312265824079520238,
                                    0.23931566428755776715};
};
// cos and sin of 2 pi m k / kTurns for m = 1 .. L.
template <int L, class T>
struct Multiples {
  T cos[L], sin[L];

  constexpr explicit Multiples(int k) : cos{}, sin{} {
    constexpr int kTurns = Grid<L>::kTurns;
    for (int m = 1; m <= L; ++m) {
      const int part = k * m % kTurns, nearest = 2 * part < kTurns ? part : kTurns - part;
      cos[m - 1] = static_cast<T>(Circle<kTurns>::kCos[nearest]);
      sin[m - 1] = static_cast<T>(Circle<kTurns>::kSin[nearest]) * (part == nearest ? 1 : -1);
    }
  }
};

// Adds the products at 2 pi k / kTurns and its negative to the sums of 1, cos a, sin a, cos 2 a, ..., for
// degree L.
template <int L, int k, class T, class V>
MDOPS_HD void add_both(const V* u, const V* v, V* sums) {
  constexpr Multiples<L, T> of(k);
  V even_u = u[0], even_v = v[0], odd_u = u[0] - u[0], odd_v = odd_u;
  MDOPS_UNROLL_ANGLES
  for (int m = 1; m <= L; ++m) {
    const T c = of.cos[m - 1], s = of.sin[m - 1];
    even_u += c * u[2 * m - 1], odd_u += s * u[2 * m];
    even_v += c * v[2 * m - 1], odd_v += s * v[2 * m];
  }
  const V one = (even_u + odd_u) * (even_v + odd_v), other = (even_u - odd_u) * (even_v - odd_v);
  const V sum = one + other, rest = one - other;
  sums[0] += sum;
  MDOPS_UNROLL_ANGLES
  for (int m = 1; m <= L; ++m) {
    sums[2 * m - 1] += of.cos[m - 1] * sum;
    sums[2 * m] += of.sin[m - 1] * rest;
  }
}

// The same for the angles a, -a, pi - a and pi + a, for degree 3, with cos and sin of a, 2 a and 3 a.
template <class T, class V>
MDOPS_HD void add_four(T c1, T s1, T c2, T s2, T c3, T s3, const V* u, const V* v, V* sums) {
  // Terms of even and odd m, for cos and for sin.
  const V even_u = u[0] + c2 * u[3], odd_u = c1 * u[1] + c3 * u[5];
  const V even_v = v[0] + c2 * v[3], odd_v = c1 * v[1] + c3 * v[5];
  const V sin_even_u = s2 * u[4], sin_odd_u = s1 * u[2] + s3 * u[6];
  const V sin_even_v = s2 * v[4], sin_odd_v = s1 * v[2] + s3 * v[6];
  const V near_u = even_u + odd_u, far_u = even_u - odd_u, near_v = even_v + odd_v, far_v = even_v - odd_v;
  const V sum_u = sin_even_u + sin_odd_u, rest_u = sin_odd_u - sin_even_u;
  const V sum_v = sin_even_v + sin_odd_v, rest_v = sin_odd_v - sin_even_v;
  const V first = (near_u + sum_u) * (near_v + sum_v), second = (near_u - sum_u) * (near_v - sum_v);
  const V third = (far_u + rest_u) * (far_v + rest_v), fourth = (far_u - rest_u) * (far_v - rest_v);
  const V near = first + second, far = third + fourth, near_rest = first - second, far_rest = third - fourth;
  const V all = near + far, odd = near - far, sin_odd = near_rest + far_rest, sin_even = near_rest - far_rest;
  sums[0] += all, sums[3] += c2 * all;
  sums[1] += c1 * odd, sums[5] += c3 * odd;
  sums[2] += s1 * sin_odd, sums[6] += s3 * sin_odd;
  sums[4] += s2 * sin_even;
}

// Multiplies functions of the first angle about z at all its values, of which the number is odd.
template <class T, class V, int kSize>
MDOPS_HD void add_turns(const V (&a)[kSize], const V (&b)[kSize], V (&found)[kSize]) {
  constexpr int L = kSize / 2;
  V of_a = a[0], of_b = b[0];
  MDOPS_UNROLL_ANGLES
  for (int m = 1; m <= L; ++m) of_a += a[2 * m - 1], of_b += b[2 * m - 1];
  const V first = of_a * of_b;
  found[0] = first;
  MDOPS_UNROLL_ANGLES
  for (int m = 1; m <= L; ++m) found[2 * m - 1] = first, found[2 * m] = first - first;
  [&]<int... k>(std::integer_sequence<int, k...>) {
    (add_both<L, k + 1, T>(a, b, found), ...);
  }(std::make_integer_sequence<int, Grid<L>::kTurns / 2>{});
}
template <class T, class V>
MDOPS_HD void add_turns(const V (&a)[7], const V (&b)[7], V (&found)[7]) {
  // cos and sin of 36 and 72 degrees.
  constexpr T c1 = 0.80901699437494742410, c2 = 0.30901699437494742410;
  constexpr T s1 = 0.58778525229247312917, s2 = 0.95105651629515357212;
  const V even_a = a[0] + a[3], odd_a = a[1] + a[5], even_b = b[0] + b[3], odd_b = b[1] + b[5];
  const V first = (even_a + odd_a) * (even_b + odd_b), other = (even_a - odd_a) * (even_b - odd_b);
  found[0] = found[3] = first + other;
  found[1] = found[5] = first - other;
  found[2] = found[4] = found[6] = first - first;
  add_four(c1, s1, c2, s2, -c2, s2, a, b, found);
  add_four(c2, s2, -c1, s1, -c1, -s1, a, b, found);
}

// All points of a third angle whose cos (`wave` 1) or sin (`wave` 2) is `sign`.
template <int wave, int L, class T, class V>
MDOPS_HD void add_turn(T sign, const Waves<L, V>& u, const Waves<L, V>& v, Waves<L, V>& sums) {
  V a[2 * L + 1], b[2 * L + 1], found[2 * L + 1];
  MDOPS_UNROLL_ANGLES
  for (int m = 0; m < 2 * L + 1; ++m) {
    a[m] = u.of[m][0] + sign * u.of[m][wave];
    b[m] = v.of[m][0] + sign * v.of[m][wave];
  }
  add_turns<T>(a, b, found);
  MDOPS_UNROLL_ANGLES
  for (int m = 0; m < 2 * L + 1; ++m) {
    sums.of[m][0] += found[m];
    sums.of[m][wave] += sign * found[m];
  }
}

// y += the product of two functions, with tables of the matrices; u and v read a coefficient each.
template <int L, class T, class U, class W, class V>
MDOPS_HD void add_product(const T* a, const T* b, const T* out, const U& u, const W& v, V* y) {
#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
  for (int at = 0; at < Grid<L>::kTables; at += Grid<L>::kTable) {
    Waves<L, V> of_u, of_v, sums = {};
    to_waves(a + at, u, of_u), to_waves(b + at, v, of_v);
    add_turn<1>(T(1), of_u, of_v, sums), add_turn<1>(T(-1), of_u, of_v, sums);
    add_turn<2>(T(1), of_u, of_v, sums), add_turn<2>(T(-1), of_u, of_v, sums);
    add_from_waves(out + at, sums, y);
  }
}

}  // namespace mdops::grid_angles
