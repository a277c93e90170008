// Products of the numbers of two things, for rows that are pairs of things, as angles are pairs of edges of
// an atom. For row r with first f and second s, and u and v with four numbers of each thing:
//
//   c_r = <u_f, u_s> of the first three       w_r = u_f u_s of the last
//   along v: the same of u_f and v_s, plus that of v_f and u_s
//   gradients by u, along v: for each thing the sum of g_r v_s over rows in which it is first, plus that of
//   g_r v_f over rows in which it is second, with the rows' gradients g by both kinds of numbers
//
// Rows without a first or second have zeros, and are in no sum. With v = u the third are the gradients of the
// first.
#pragma once

#include <cmath>
#include <cstdint>

#include "common/math.h"

namespace mdops {

template <class T>
struct AngleProductArgs {
  const T *u, *v;  // (M, 4); v is null if unused
  const int32_t *first, *second, *first_offsets, *second_order, *second_offsets;
  int64_t rows, things;              // A, M
  T *cosines, *weights;              // (A,), c and w
  const T *by_cosines, *by_weights;  // (A,), their gradients
  T* by_u;                           // (M, 4)

  // Whether a row has a first and a second, and whether they are out of range.
  MDOPS_HD bool is_there(int64_t row) const { return first[row] >= 0 && second[row] >= 0; }
  MDOPS_HD bool is_wrong(int64_t row) const {
    return first[row] < -1 || first[row] >= things || second[row] < -1 || second[row] >= things;
  }
};

template <class T>
MDOPS_HD void add_angle_product(const T* a, const T* b, T& cosine, T& weight) {
  cosine += a[0] * b[0] + a[1] * b[1] + a[2] * b[2], weight += a[3] * b[3];
}

template <class T>
MDOPS_HD void angle_product(const AngleProductArgs<T>& args, int64_t row) {
  T cosine = args.is_wrong(row) ? static_cast<T>(NAN) : T(0), weight = cosine;
  if (cosine == T(0) && args.is_there(row)) {
    const int64_t f = 4 * int64_t{args.first[row]}, s = 4 * int64_t{args.second[row]};
    add_angle_product(args.u + f, (args.v ? args.v : args.u) + s, cosine, weight);
    if (args.v) add_angle_product(args.v + f, args.u + s, cosine, weight);
  }
  args.cosines[row] = cosine, args.weights[row] = weight;
}

// Adds the gradient by a thing through a row, with the row's other thing in `other`.
template <class T>
MDOPS_HD void add_by_row(const AngleProductArgs<T>& args, int64_t row, const int32_t* own,
                         const int32_t* other, int64_t thing, T (&sum)[4]) {
  if (row < 0 || row >= args.rows || own[row] != thing || args.is_wrong(row)) {
    for (T& number : sum) number = static_cast<T>(NAN);
    return;
  }
  if (!args.is_there(row)) return;
  const T* const v = args.v + 4 * int64_t{other[row]};
  const T by_cosine = args.by_cosines[row];
  for (int k = 0; k < 3; ++k) sum[k] += by_cosine * v[k];
  sum[3] += args.by_weights[row] * v[3];
}

// The gradient by a thing through each `step`-th of its rows, from the one at `begin` on.
template <class T>
MDOPS_HD void angle_gradient(const AngleProductArgs<T>& args, int64_t thing, int begin, int step,
                             T (&sum)[4]) {
  const auto add = [&](const int32_t* offsets, const int32_t* order, const int32_t* own,
                       const int32_t* other) {
    int64_t at = offsets[thing], end = offsets[thing + 1];
    if (at < 0 || at > end || end > args.rows) {
      for (T& number : sum) number = static_cast<T>(NAN);
      return;
    }
    for (at += begin; at < end; at += step) add_by_row(args, order ? order[at] : at, own, other, thing, sum);
  };
  add(args.first_offsets, nullptr, args.first, args.second);
  add(args.second_offsets, args.second_order, args.second, args.first);
}

}  // namespace mdops
