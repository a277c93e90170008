// Invariants of sums over neighbours as polynomials of them, and their gradient. An atom has numbers in a
// row:
//
//   r   its sums s (C) and x (K), divided by d_0 and d_1, and then both divisors, d = (m + 1/4)^(1/2), with
//       the masses m that follow s;
//   v   mixtures of these, and polynomials of both;
//   y   polynomials of all before, which are the features.
//
// Each of v and y is a sum of terms, a factor times up to four numbers before it. Backward, the gradients by
// v continue this list, those by the polynomials first. They and those by r are also sums of terms: of
// gradients by y and v, and numbers. With r = raw / d,
//
//   dE/draw = g / d,   dE/dm = g_d / (2 d) - sum_r g_r r / (2 d^2).
#pragma once

#include <cmath>

#include "common/isa.h"
#include "common/math.h"

namespace mdops {

constexpr int kFactors = 4;

// Terms of sums, row after row.
template <class T>
struct TermArgs {
  const int32_t* index;    // (terms, kFactors), of numbers; below zero: none
  const T* factor;         // (terms,)
  const int32_t* offsets;  // (rows + 1,)
  int64_t rows, terms;
};

// All contiguous (ops.md).
template <class T>
struct InvariantArgs {
  const T* scalars;      // (N, channels + 2): s and m
  const T* others;       // (N, components)
  const int32_t* types;  // (N,)
  const T* behind;       // (ntypes, extra): features of a type
  TermArgs<T> forth;     // of v, then y
  TermArgs<T> back;      // of the gradients by v, then by r
  int64_t atoms, channels, components, extra, mixed, made;
  int ntypes;

  MDOPS_HD int64_t raw() const { return channels + components + 2; }
  MDOPS_HD int64_t features() const { return forth.rows - mixed - made; }
  MDOPS_HD int64_t width() const { return features() + extra; }
  // Numbers up to v, to y, and to the gradients by v.
  MDOPS_HD int64_t known() const { return raw() + mixed + made; }
  MDOPS_HD int64_t all() const { return known() + features(); }
  MDOPS_HD int64_t all_backward() const { return all() + mixed + made; }
  // Which of both divisors a number has.
  MDOPS_HD int which(int64_t number) const { return number < channels ? 0 : 1; }
};

template <class T>
MDOPS_HD T divisor(T mass) {
  return std::sqrt(mass + T(0.25));
}

// Row `row` of sums of numbers S, which may be several atoms'; `number(i)` gives one.
template <class S, class T, class Number>
MDOPS_HD S term_sum(const TermArgs<T>& terms, int64_t row, const Number& number) {
  S sum = S{};
  for (int64_t t = terms.offsets[row], end = terms.offsets[row + 1]; t < end; ++t) {
    const int32_t* const index = terms.index + kFactors * t;
    S product = S{} + terms.factor[t];
    for (int f = 0; f < kFactors; ++f) {
      if (index[f] < 0) break;
      product *= number(index[f]);
    }
    sum += product;
  }
  return sum;
}

MDOPS_DECLARE_KERNELS(void invariants_forward(const InvariantArgs<T>& args, int64_t begin, int64_t end,
                                              T* out))
MDOPS_DECLARE_KERNELS(void invariants_backward(const InvariantArgs<T>& args, int64_t begin, int64_t end,
                                               const T* grad, T* by_scalars, T* by_others))

}  // namespace mdops
