// Moments of the angles between an atom's neighbours (mathematics.md), for functions of
// theta_jl = R_j . R_l that are polynomials of degree 5 on each of many pieces:
//
//   A_tu[piece][k] = sum over j of type t and l of type u with theta_jl on the piece of  theta_jl x_jl^k
//
// R are x, y and z of the normalised row of the environment matrix, x the position on the piece, from 0 to
// 1, and t <= u. A pair (j, l) of one type counts twice and j with itself once; of two types each pair counts
// once. Gated moments have w_j w_l theta x^k, w is the switch.
#pragma once

#include <cmath>

#include "common/isa.h"
#include "env_mat/env_mat.h"

namespace mdops {

constexpr int kAnglePowers = 6;  // x^0 .. x^5
constexpr int kAngleRow = 8;     // numbers of a piece in tables: its powers, and two zeros

template <class T>
struct FloatBits;
template <>
struct FloatBits<float> {
  using Int = int32_t;
  static constexpr int mantissa = 23, bias = 127;
};
template <>
struct FloatBits<double> {
  using Int = int64_t;
  static constexpr int mantissa = 52, bias = 1023;
};

template <class T>
MDOPS_HD typename FloatBits<T>::Int bits_of(T value) {
  typename FloatBits<T>::Int bits;
  __builtin_memcpy(&bits, &value, sizeof value);
  return bits;
}
template <class T>
MDOPS_HD T from_bits(typename FloatBits<T>::Int bits) {
  T value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

// The pieces of theta. On either side of zero |theta| + origin spans octaves, origin being a power of two,
// and each octave has 2^fineness pieces of equal width: so the exponent and first digits of a float give its
// piece, and the other digits its position there. Pieces are fine near zero, where most pairs are, and grow
// with |theta|. After the last octave comes an unbounded piece, on which the functions are linear. Pieces of
// negative theta come after all others.
template <class T>
struct AngleGrid {
  int exponent, octaves, fineness;

  MDOPS_HD int intervals() const { return octaves << fineness; }
  MDOPS_HD int side() const { return intervals() + 1; }
  MDOPS_HD int pieces() const { return 2 * side(); }
  // 2^power
  MDOPS_HD static T power_of_two(int power) {
    using B = FloatBits<T>;
    return from_bits<T>(static_cast<typename B::Int>(B::bias + power) << B::mantissa);
  }
  MDOPS_HD T origin() const { return power_of_two(exponent); }
  MDOPS_HD T end() const { return power_of_two(exponent + octaves); }
};

// The position of a theta: y is x, but 0 on the unbounded piece; `slope` is dx/dtheta.
template <class T>
struct AnglePlace {
  typename FloatBits<T>::Int piece;
  T x, y, slope, inside;  // inside: 1, or 0 on that piece
};

// NaN is on an unbounded piece, and its x is NaN.
template <class T>
MDOPS_HD AnglePlace<T> angle_place(T theta, const AngleGrid<T>& grid) {
  using B = FloatBits<T>;
  using Int = typename B::Int;
  const Int digits = (Int(1) << B::mantissa) - 1, one = Int(B::bias) << B::mantissa;
  const Int last = grid.intervals();
  const T v = std::fabs(theta) + grid.origin();
  const Int from_origin = bits_of(v) - bits_of(grid.origin());
  const Int found = from_origin >> (B::mantissa - grid.fineness);
  const bool beyond = found >= last;
  const Int interval = beyond ? last : found;
  const Int octave = (beyond ? last - 1 : found) >> grid.fineness;
  const T inverse = from_bits<T>((Int(B::bias) + grid.fineness - grid.exponent - octave) << B::mantissa);
  const T within = from_bits<T>(((from_origin << grid.fineness) & digits) | one) - T(1);
  AnglePlace<T> place;
  place.piece = interval + (theta < T(0) ? last + 1 : Int(0));
  place.x = beyond ? (v - grid.end()) * inverse : within;
  place.y = beyond ? T(0) : within;
  place.inside = beyond ? T(0) : T(1);
  place.slope = theta < T(0) ? -inverse : inverse;
  return place;
}

// f x^k, k = 0 .. 5, as counted on this piece.
template <class T>
MDOPS_HD void angle_powers(const AnglePlace<T>& p, T f, T* out) {
  const T y2 = p.y * p.y, fy2 = f * y2, fy4 = fy2 * y2;
  out[0] = f, out[1] = f * p.x, out[2] = fy2, out[3] = fy2 * p.y, out[4] = fy4, out[5] = fy4 * p.y;
}

// f d(x^k)/dx.
template <class T>
MDOPS_HD void angle_power_slopes(const AnglePlace<T>& p, T f, T* out) {
  const T y2 = p.y * p.y;
  out[0] = T(0), out[1] = f, out[2] = T(2) * f * p.y, out[3] = T(3) * f * y2;
  out[4] = T(4) * f * y2 * p.y, out[5] = T(5) * f * y2 * y2;
}

// phi = theta P(x) of a piece with the coefficients P, and its derivatives in theta.
template <class T>
struct AngleFunction {
  T value, slope, curve;
};
template <class T>
MDOPS_HD AngleFunction<T> angle_function(const AnglePlace<T>& at, T theta, const T* p) {
  const T y = at.y;
  const T value = p[0] + at.x * p[1] + y * y * (p[2] + y * (p[3] + y * (p[4] + y * p[5])));
  const T slope = p[1] + y * (T(2) * p[2] + y * (T(3) * p[3] + y * (T(4) * p[4] + y * (T(5) * p[5]))));
  const T curve = at.inside * (T(2) * p[2] + y * (T(6) * p[3] + y * (T(12) * p[4] + y * (T(20) * p[5]))));
  const T step = theta * at.slope;
  return {theta * value, value + step * slope, at.slope * (T(2) * slope + step * curve)};
}

// The index of the pair of types t <= u.
MDOPS_HD int angle_pair(int t, int u) {
  return u * (u + 1) / 2 + t;
}

// The arguments shared by the kernels, all contiguous (ops.md).
template <class T>
struct AngleArgs {
  const T* displacements;  // (N, width, 3)
  const int32_t* counts;   // (N, ntypes)
  const int32_t* types;    // (N,)
  const T* std;            // (ntypes, 2)
  const bool* pair_mask;   // (ntypes, ntypes)
  Cutoff<T> cutoff;
  AngleGrid<T> grid;
  int64_t width;
  int ntypes;
  bool gated;

  MDOPS_HD Normalisation<T> normalisation(int type) const {
    return normalised(T(0), T(1), std[2 * type + 1]);
  }
  MDOPS_HD int pairs() const { return angle_pair(0, ntypes); }
};

// Functions of theta for each pair of types, (pairs, pieces, channels, kAngleRow): plain ones, and those
// multiplied by w_j w_l, if any.
template <class T>
struct AngleTables {
  const T *plain, *gated;
  int channels;
};

// Atoms whose features are made together, so that the tables are read once for them.
constexpr int kAngleBlock = 8;

// Each kernel handles atoms [begin, end), with scratch memory of angle_scratch_size numbers (for `channels`;
// only features have any). `moments` and its gradient are (N, pairs, pieces, kAnglePowers).
MDOPS_DECLARE_KERNELS(int64_t angle_scratch_size(const AngleArgs<T>& args, int channels))
MDOPS_DECLARE_KERNELS(void angle_forward(const AngleArgs<T>& args, int64_t begin, int64_t end, T* scratch,
                                         T* moments, int32_t* within, T* nearest))
MDOPS_DECLARE_KERNELS(void angle_jvp(const AngleArgs<T>& args, const T* tangent, int64_t begin, int64_t end,
                                     T* scratch, T* moments))
// The gradient, or the Hessian product along `tangent` if not null.
MDOPS_DECLARE_KERNELS(void angle_pull(const AngleArgs<T>& args, const T* tangent, const T* grad,
                                      int64_t begin, int64_t end, T* scratch, T* pair_grad))
MDOPS_DECLARE_KERNELS(void angle_features(const AngleArgs<T>& args, const AngleTables<T>& tables,
                                          int64_t begin, int64_t end, T* scratch, T* features,
                                          int32_t* within, T* nearest))
MDOPS_DECLARE_KERNELS(void angle_features_backward(const AngleArgs<T>& args, const AngleTables<T>& tables,
                                                   const T* grad, int64_t begin, int64_t end, T* scratch,
                                                   T* pair_grad))

}  // namespace mdops
