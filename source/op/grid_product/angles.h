// Products of functions of degree 2 in frames up to |k| = 1 on a grid of rotations, angle by angle. The
// rotations are those about z by 2 pi i / 7, then about y by one of four angles, then about z by 2 pi j / 4;
// point 28 b + 4 i + j. A matrix of coefficients at points is known by its rows of i = j = 0, which have 14
// numbers that are not zero each:
//
//   c_mk at (i, j)   cos and sin of m alpha, of c_mk and c_-mk, times cos and sin of k gamma
//
// so that a value takes 5 numbers of (b, j), and these 15 of b. A seventh of the multiply-adds are left.
//
// V is a number or a vector of channels, T what its parts are.
#pragma once

#include "grid_product/grid_product.h"

namespace mdops {

namespace grid_angles {

constexpr int kCoefficients = 27, kPoints = 112, kRow = 28;  // points of each of the middle angles
constexpr int kNumbers = 14, kTable = 16;                    // of a row, and of its place in memory

template <class T>
MDOPS_HD bool fits(const GridArgs<T>& args) {
  return args.by_angles && args.points == kPoints && args.first == kCoefficients &&
         args.second == kCoefficients && args.results == kCoefficients;
}

// Which coefficient, 3 (l^2 + l + m) and 0, 1, 2 for k = 0, -1, 1, is number n of a row: of degree 0 one,
// then of degrees 1 and 2 those of m = 0 and k = 0, 1, and of each m > 0 those of (m, 0), (m, 1) and (-m,
// -1).
MDOPS_HD int coefficient(int n) {
  switch (n) {
    case 0:
      return 0;
    case 1:
      return 6;
    case 2:
      return 8;
    case 3:
      return 9;
    case 4:
      return 11;
    case 5:
      return 4;
    case 6:
      return 18;
    case 7:
      return 20;
    case 8:
      return 21;
    case 9:
      return 23;
    case 10:
      return 16;
    case 11:
      return 24;
    case 12:
      return 26;
    default:
      return 13;
  }
}

// Number k of four tables, of a matrix (112, 27).
template <class T>
MDOPS_HD T table_number(const T* matrix, int k) {
  return k % kTable < kNumbers ? matrix[k / kTable * kRow * kCoefficients + coefficient(k % kTable)] : T(0);
}

// Numbers by which a function of two angles is given: of 1, cos a, sin a, cos 2a, sin 2a, times 1, cos c, sin
// c.
template <class V>
struct Waves {
  V of[5][3];
};

// Those of m > 0, with d of (m, 0), (m, 1) and (-m, -1), to waves 2 m - 1 and 2 m.
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

template <class T, class V>
MDOPS_HD void to_waves(const T* d, const V* c, Waves<V>& w) {
  w = {};
  w.of[0][0] = d[0] * c[0] + d[1] * c[6] + d[6] * c[18];
  w.of[0][1] = d[2] * c[8] + d[7] * c[20];
  w.of[0][2] = d[2] * c[7] + d[7] * c[19];
  add_order(d + 3, c + 9, c + 3, w.of[1], w.of[2]);
  add_order(d + 8, c + 21, c + 15, w.of[1], w.of[2]);
  add_order(d + 11, c + 24, c + 12, w.of[3], w.of[4]);
}

template <class T, class V>
MDOPS_HD void add_from_waves(const T* d, const Waves<V>& w, V* c) {
  c[0] += d[0] * w.of[0][0], c[6] += d[1] * w.of[0][0], c[18] += d[6] * w.of[0][0];
  c[8] += d[2] * w.of[0][1], c[20] += d[7] * w.of[0][1];
  c[7] += d[2] * w.of[0][2], c[19] += d[7] * w.of[0][2];
  take_order(d + 3, w.of[1], w.of[2], c + 9, c + 3);
  take_order(d + 8, w.of[1], w.of[2], c + 21, c + 15);
  take_order(d + 11, w.of[3], w.of[4], c + 24, c + 12);
}

// What the products at angles a and -a add to sums of 1, cos a, ..., with cos and sin of a and 2 a.
template <class T, class V>
MDOPS_HD void add_both(T c1, T s1, T c2, T s2, const V* u, const V* v, V* sums) {
  const V even_u = u[0] + c1 * u[1] + c2 * u[3], odd_u = s1 * u[2] + s2 * u[4];
  const V even_v = v[0] + c1 * v[1] + c2 * v[3], odd_v = s1 * v[2] + s2 * v[4];
  const V one = (even_u + odd_u) * (even_v + odd_v), other = (even_u - odd_u) * (even_v - odd_v);
  const V sum = one + other, rest = one - other;
  sums[0] += sum, sums[1] += c1 * sum, sums[3] += c2 * sum;
  sums[2] += s1 * rest, sums[4] += s2 * rest;
}

// All seven angles of a third one, whose cos is `sign` if `wave` is 1, or whose sin is if it is 2.
template <int wave, class T, class V>
MDOPS_HD void add_turn(T sign, const Waves<V>& u, const Waves<V>& v, Waves<V>& sums) {
  constexpr T c1 = 0.62348980185873353053, c2 = -0.22252093395631440429, c3 = -0.90096886790241912624;
  constexpr T s1 = 0.78183148246802980871, s2 = 0.97492791218182360702, s3 = 0.43388373911755812048;
  V a[5], b[5], found[5];
  for (int m = 0; m < 5; ++m) {
    a[m] = u.of[m][0] + sign * u.of[m][wave];
    b[m] = v.of[m][0] + sign * v.of[m][wave];
  }
  const V first = (a[0] + a[1] + a[3]) * (b[0] + b[1] + b[3]);
  found[0] = found[1] = found[3] = first;
  found[2] = found[4] = first - first;
  add_both(c1, s1, c2, s2, a, b, found);
  add_both(c2, s2, c3, -s3, a, b, found);
  add_both(c3, s3, c1, -s1, a, b, found);
  for (int m = 0; m < 5; ++m) {
    sums.of[m][0] += found[m];
    sums.of[m][wave] += sign * found[m];
  }
}

// y += the product of u and v, 27 numbers each, with tables (4, 16) of the matrices.
template <class T, class V>
MDOPS_HD void add_product(const T* a, const T* b, const T* out, const V* u, const V* v, V* y) {
#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
  for (int at = 0; at < 4 * kTable; at += kTable) {
    Waves<V> of_u, of_v, sums = {};
    to_waves(a + at, u, of_u), to_waves(b + at, v, of_v);
    add_turn<1>(T(1), of_u, of_v, sums), add_turn<1>(T(-1), of_u, of_v, sums);
    add_turn<2>(T(1), of_u, of_v, sums), add_turn<2>(T(-1), of_u, of_v, sums);
    add_from_waves(out + at, sums, y);
  }
}

}  // namespace grid_angles

}  // namespace mdops
