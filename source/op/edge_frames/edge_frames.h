// Harmonics and rotations of an edge, from its vector of direction n = (x, y, z): the real harmonics Y_lm(n)
// of all degrees l up to L, and the rows with |m| up to 1 of the matrices that rotate coefficients into a
// frame whose z is n. With two axes e_x and e_y normal to n,
//
//   rows of m = 0    Y_l(n)
//   rows of m = 1    -(2 / (l (l + 1)))^(1/2) (e_x . grad) Y_l(n),   of m = -1 the same with e_y
//
// in the order of |m|: m = 0 (l = 0 .. L), m = -1 (l = 1 .. L), m = 1. Harmonics are polynomials of
// the direction, by the recursion of the associated Legendre functions without their powers of sin(theta):
//
//   Y_lm = s_lm Q_lm(z) Re (x + iy)^m,   Y_l-m the same with Im,
//   (l - m) Q_lm = (2l - 1) z Q_l-1,m - (l + m - 1) Q_l-2,m,   Q_mm = (-1)^m (2m - 1)!!
//
// The backward pass does the same with numbers that carry derivatives by x, y and z, and the second
// derivative with numbers that also carry one along a change of the vector.
#pragma once

#include <cmath>
#include <type_traits>
#include <utility>

#include "common/isa.h"
#include "common/math.h"

// Unrolls loops whose arrays must be in registers.
#ifdef __CUDACC__
#define MDOPS_UNROLL_ON_GPU _Pragma("unroll")
#else
#define MDOPS_UNROLL_ON_GPU
#endif

namespace mdops {

constexpr int kMostDegree = 6;  // L

struct FrameShape {
  int64_t edges;
  int order;  // the largest |m| of rows, 0 or 1; -1: no rows
};

template <class T>
struct FrameArgs {
  FrameShape shape;
  const T* vectors;     // (E, 3)
  T *harmonics, *turn;  // (E, D), (E, R, D)
};

template <class T>
struct FrameBackwardArgs {
  FrameShape shape;
  const T *vectors, *by_harmonics, *by_turn;
  T* by_vectors;  // (E, 3)
};

// Derivatives of that along changes of vectors, which also give the gradients by its gradients.
template <class T>
struct FrameTwiceArgs {
  FrameShape shape;
  const T *vectors, *changes, *by_harmonics, *by_turn;
  T *harmonics, *turn, *by_vectors;  // as the gradients, and (E, 3)
};

MDOPS_HD constexpr int frame_columns(int degree) {
  return (degree + 1) * (degree + 1);
}
MDOPS_HD constexpr int frame_rows(int degree, int order) {
  return order < 0 ? 0 : degree + 1 + 2 * degree * order;
}

// A number and its derivative along a change of the vector.
template <class T>
struct Along {
  T value, along;

  MDOPS_HD Along(T value_ = 0, T along_ = 0) : value(value_), along(along_) {}

  MDOPS_HD Along operator+(const Along& other) const { return {value + other.value, along + other.along}; }
  MDOPS_HD Along operator-(const Along& other) const { return {value - other.value, along - other.along}; }
  MDOPS_HD Along operator*(const Along& other) const {
    return {value * other.value, along * other.value + value * other.along};
  }
  MDOPS_HD Along operator*(T factor) const { return {value * factor, along * factor}; }
  MDOPS_HD Along operator/(const Along& other) const {
    const T quotient = value / other.value;
    return {quotient, (along - quotient * other.along) / other.value};
  }
};

MDOPS_HD float root_of(float x) {
  return std::sqrt(x);
}
MDOPS_HD double root_of(double x) {
  return std::sqrt(x);
}
template <class T>
MDOPS_HD Along<T> root_of(const Along<T>& x) {
  const T root = std::sqrt(x.value);
  return {root, x.along / (T(2) * root)};
}

MDOPS_HD float inverse_of(float x) {
  return 1.0f / x;
}
MDOPS_HD double inverse_of(double x) {
  return 1.0 / x;
}
template <class T>
MDOPS_HD Along<T> inverse_of(const Along<T>& x) {
  const T inverse = T(1) / x.value;
  return {inverse, -inverse * inverse * x.along};
}

// A number and its derivatives by the direction, each of type V: T, or Along for a change.
template <class T, class V = T>
struct Derived {
  V value, by[3];

  MDOPS_HD Derived(T value_ = 0) : value(value_), by{V(T(0)), V(T(0)), V(T(0))} {}
  MDOPS_HD Derived(const V& value_, int axis)
      : value(value_), by{V(T(axis == 0)), V(T(axis == 1)), V(T(axis == 2))} {}

  MDOPS_HD Derived operator+(const Derived& other) const {
    Derived found;
    found.value = value + other.value;
    for (int a = 0; a < 3; ++a) found.by[a] = by[a] + other.by[a];
    return found;
  }
  MDOPS_HD Derived operator-(const Derived& other) const {
    Derived found;
    found.value = value - other.value;
    for (int a = 0; a < 3; ++a) found.by[a] = by[a] - other.by[a];
    return found;
  }
  MDOPS_HD Derived operator*(const Derived& other) const {
    Derived found;
    found.value = value * other.value;
    for (int a = 0; a < 3; ++a) found.by[a] = by[a] * other.value + value * other.by[a];
    return found;
  }
  MDOPS_HD Derived operator*(T factor) const { return times(factor); }
  MDOPS_HD Derived operator*(const V& factor) const
    requires(!std::is_same_v<V, T>)
  {
    return times(factor);
  }

 private:
  MDOPS_HD Derived times(const auto& factor) const {
    Derived found;
    found.value = value * factor;
    for (int a = 0; a < 3; ++a) found.by[a] = by[a] * factor;
    return found;
  }
};

template <class T, class V>
MDOPS_HD Derived<T, V> inverse_of(const Derived<T, V>& x) {
  Derived<T, V> found;
  found.value = inverse_of(x.value);
  for (int a = 0; a < 3; ++a) found.by[a] = found.value * found.value * x.by[a] * T(-1);
  return found;
}

// s_lm, and the factor of rows of |m| = 1; constexpr, to compute them at compile time.
MDOPS_HD constexpr double frame_root(double x) {
  double root = x > 1 ? x : 1, before = 0;
  for (int k = 0; k < 200 && root != before; ++k) before = root, root = (root + x / root) / 2;
  return root;
}
MDOPS_HD constexpr double harmonic_scale(int l, int m) {
  double ratio = m ? 2 : 1;
  for (int k = l - m + 1; k <= l + m; ++k) ratio /= k;
  return frame_root(ratio);
}
template <int kDegree>
struct FrameConstants {
  double scale[kDegree + 1][kDegree + 1] = {}, across[kDegree + 1] = {};
  MDOPS_HD constexpr FrameConstants() {
    for (int l = 0; l <= kDegree; ++l) {
      for (int m = 0; m <= l; ++m) scale[l][m] = harmonic_scale(l, m);
      if (l) across[l] = -frame_root(2.0 / (l * (l + 1)));
    }
  }
};

// 1 if the direction points up, else -1; for several edges at once `up` already holds the sign of each.
template <class T>
MDOPS_HD T sign_of(bool up) {
  return T(up ? 1 : -1);
}

// Calls write(row, column, number) for all nonzero numbers of a direction's rows.
template <int kDegree, class T, class N, class Up, class F>
MDOPS_HD void each_frame_number(const N& x, const N& y, const N& z, const Up& up, int order, const F& write) {
  constexpr FrameConstants<kDegree> constants;
  // Of two formulas for the axes, the one without small denominators.
  const auto sign = sign_of<T>(up), opposite = sign_of<T>(!up);
  const N a = inverse_of(N(T(1)) + z * sign), xa = x * a;
  const N ex[3] = {(N(T(1)) - x * xa) * sign, y * xa * opposite, x * T(-1)};
  const N ey[3] = {y * xa * T(-1), N(T(1)) - y * y * a, y * opposite};
  N real(T(1)), imaginary(T(0)), real_below(T(0)), imaginary_below(T(0));  // (x + iy)^m and ^(m - 1)
  T first = 1;                                                             // Q_mm
  MDOPS_UNROLL_ON_GPU
  for (int m = 0; m <= kDegree; ++m) {
    N before(T(0)), last(first), slope_before(T(0)), slope(T(0));  // Q_lm, and its derivative by z
    MDOPS_UNROLL_ON_GPU
    for (int l = m; l <= kDegree; ++l) {
      if (l > m) {
        const T up_by = T(2 * l - 1) / T(l - m), down_by = T(l + m - 1) / T(l - m);
        const N next = z * last * up_by - before * down_by;
        const N next_slope = (last + z * slope) * up_by - slope_before * down_by;
        before = last, last = next, slope_before = slope, slope = next_slope;
      }
      const T scale = static_cast<T>(constants.scale[l][m]), across = static_cast<T>(constants.across[l]);
      const N factor = last * scale;
      MDOPS_UNROLL_ON_GPU
      for (int sign = 0; sign < (m ? 2 : 1); ++sign) {
        const N& own = sign ? imaginary : real;
        const int column = l * l + l + (sign ? -m : m);
        write(l, column, factor * own);
        if (order < 1 || !l) continue;
        const N along_z = own * slope * (scale * across), flat = factor * (across * T(m));
        // The derivatives of (x + iy)^m by x and y.
        const N by_x = flat * (sign ? imaginary_below : real_below);
        const N by_y = sign ? flat * real_below : flat * imaginary_below * T(-1);
        write(kDegree + l, column, along_z * ey[2] + by_x * ey[0] + by_y * ey[1]);
        write(2 * kDegree + l, column, along_z * ex[2] + by_x * ex[0] + by_y * ex[1]);
      }
    }
    const N next = real * x - imaginary * y, next_imaginary = real * y + imaginary * x;
    real_below = real, imaginary_below = imaginary, real = next, imaginary = next_imaginary;
    first *= T(-(2 * m + 1));
  }
}

MDOPS_HD bool is_up(float z) {
  return z >= 0;
}
MDOPS_HD bool is_up(double z) {
  return z >= 0;
}
template <class T>
MDOPS_HD bool is_up(const Along<T>& z) {
  return z.value >= 0;
}

// A vector's length and direction.
template <class V>
struct Direction {
  V length, n[3];

  MDOPS_HD explicit Direction(const V* vector)
      : length(root_of(vector[0] * vector[0] + vector[1] * vector[1] + vector[2] * vector[2])) {
    for (int a = 0; a < 3; ++a) n[a] = vector[a] / length;
  }
  MDOPS_HD bool up() const { return is_up(n[2]); }

  // The gradient by the vector, from that by the direction.
  MDOPS_HD V by_vector(const V* by_n, int axis) const {
    const V along = by_n[0] * n[0] + by_n[1] * n[1] + by_n[2] * n[2];
    return (by_n[axis] - along * n[axis]) / length;
  }
};

// Writes an edge's harmonics (D,) and rows (R, D).
template <int kDegree, class T>
MDOPS_HD void frame_of(const T* vector, int order, T* harmonics, T* turn) {
  constexpr int columns = frame_columns(kDegree);
  const Direction<T> direction(vector);
  for (int k = 0; k < frame_rows(kDegree, order) * columns; ++k) turn[k] = 0;
  each_frame_number<kDegree, T>(direction.n[0], direction.n[1], direction.n[2], direction.up(), order,
                                [&](int row, int column, T number) {
                                  if (order >= 0) turn[row * columns + column] = number;
                                  if (row <= kDegree) harmonics[column] = number;
                                });
}

// The gradient by the edge's vector.
template <int kDegree, class T>
MDOPS_HD void frame_backward(const T* vector, int order, const T* by_harmonics, const T* by_turn,
                             T* by_vector) {
  using N = Derived<T>;
  constexpr int columns = frame_columns(kDegree);
  const Direction<T> direction(vector);
  T by_n[3] = {0, 0, 0};
  each_frame_number<kDegree, T>(N(direction.n[0], 0), N(direction.n[1], 1), N(direction.n[2], 2),
                                direction.up(), order, [&](int row, int column, const N& number) {
                                  T grad = order < 0 ? T(0) : by_turn[row * columns + column];
                                  if (row <= kDegree) grad += by_harmonics[column];
                                  for (int a = 0; a < 3; ++a) by_n[a] += grad * number.by[a];
                                });
  for (int a = 0; a < 3; ++a) by_vector[a] = direction.by_vector(by_n, a);
}

// Derivatives of the gradient by the edge's vector along a change of the vector: by the incoming gradients,
// and by the vector.
template <int kDegree, class T>
MDOPS_HD void frame_twice(const T* vector, const T* change, int order, const T* by_harmonics,
                          const T* by_turn, T* harmonics, T* turn, T* by_vector) {
  using V = Along<T>;
  using N = Derived<T, V>;
  constexpr int columns = frame_columns(kDegree);
  const V moved[3] = {{vector[0], change[0]}, {vector[1], change[1]}, {vector[2], change[2]}};
  const Direction<V> direction(moved);
  for (int k = 0; k < frame_rows(kDegree, order) * columns; ++k) turn[k] = 0;
  V by_n[3];
  each_frame_number<kDegree, T>(N(direction.n[0], 0), N(direction.n[1], 1), N(direction.n[2], 2),
                                direction.up(), order, [&](int row, int column, const N& number) {
                                  T grad = order < 0 ? T(0) : by_turn[row * columns + column];
                                  if (row <= kDegree) grad += by_harmonics[column];
                                  for (int a = 0; a < 3; ++a) by_n[a] = by_n[a] + number.by[a] * grad;
                                  if (order >= 0) turn[row * columns + column] = number.value.along;
                                  if (row <= kDegree) harmonics[column] = number.value.along;
                                });
  for (int a = 0; a < 3; ++a) by_vector[a] = direction.by_vector(by_n, a).along;
}

template <int kDegree, class T>
MDOPS_HD void frame_twice_of(const FrameTwiceArgs<T>& args, int64_t e) {
  constexpr int columns = frame_columns(kDegree);
  const int order = args.shape.order, numbers = frame_rows(kDegree, order) * columns;
  frame_twice<kDegree>(args.vectors + 3 * e, args.changes + 3 * e, order, args.by_harmonics + e * columns,
                       args.by_turn + e * numbers, args.harmonics + e * columns, args.turn + e * numbers,
                       args.by_vectors + 3 * e);
}

// Calls f with the degree as a constant.
void with_degree(int64_t degree, const auto& f) {
  [&]<int... Degrees>(std::integer_sequence<int, Degrees...>) {
    ((degree == Degrees ? f.template operator()<Degrees>() : void()), ...);
  }(std::make_integer_sequence<int, kMostDegree + 1>());
}

// The CPU kernels, several edges at a time.
MDOPS_DECLARE_KERNELS(void frame_rows_of(const FrameArgs<T>& args, int64_t degree, int64_t from, int64_t to))
MDOPS_DECLARE_KERNELS(void frame_gradients_of(const FrameBackwardArgs<T>& args, int64_t degree, int64_t from,
                                              int64_t to))

}  // namespace mdops
