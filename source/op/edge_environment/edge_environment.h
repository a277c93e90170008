// Rows of the environment matrix at the edges of a graph, and weights of sums over edges, from the pair
// vectors d of a list. An edge is at one of the K slots of its atom, whose type is k:
//
//   r = |d|   u = 1 / (r + protection)   w = 1 - u'^3 (6 u'^2 - 15 u' + 10), u' from 0 at `smooth`
//                                          to 1 at the cutoff
//   lengths  (u w - mean_k) / std_k0     vectors  u^2 w d / std_k1     weight  w
//   means    w of_means                  turning  w of_turning vectors
//
// Backward a pair vector has the sum of the gradients by all five, zeros if its slot is no edge.
#pragma once

#include <cmath>

#include "common/isa.h"
#include "common/math.h"

namespace mdops {

template <class T>
struct EnvironmentForm {
  T smooth, cutoff, protection, of_means, of_turning;
};

template <class T>
struct EdgeEnvironmentArgs {
  int64_t atoms, width, edges, kinds;  // N, K, E, types
  EnvironmentForm<T> form;
  const T* displacements;               // (N, K, 3)
  const int32_t *slots, *edge_of_slot;  // (E,), n K + k, -1: none; (N, K), -1: none
  const int32_t* types;                 // (N,), -1 for a virtual atom
  const T *mean, *std;                  // (kinds,), (kinds, 2)
  // (E,), (E, 3), (E,), (E,), (E, 3): results, or the gradients by them, and then by d (N, K, 3).
  T *lengths, *vectors, *weight, *means, *turning;
  const T *by_lengths, *by_vectors, *by_weight, *by_means, *by_turning;
  T* by_displacements;

  MDOPS_HD int32_t kind_of(int64_t slot) const {
    const int32_t type = types[slot / width];
    return type < 0 ? 0 : type;
  }
  MDOPS_HD bool is_right(int64_t slot) const { return slot < atoms * width && kind_of(slot) < kinds; }

  MDOPS_HD void write_edge(int64_t e, int64_t slot) const;
  MDOPS_HD void run_edge(int64_t e) const;
  MDOPS_HD void run_slot(int64_t slot) const;
};

// Numbers of one edge.
template <class T>
struct EdgeRow {
  T d[3], r, inverse, w, slope;  // slope: of w by r

  MDOPS_HD EdgeRow(const EnvironmentForm<T>& form, const T* from) {
    T sum = 0;
    for (int a = 0; a < 3; ++a) d[a] = from[a], sum += d[a] * d[a];
    r = std::sqrt(sum), inverse = 1 / (r + form.protection);
    const T length = form.cutoff - form.smooth;
    const T u = r <= form.smooth ? T(0) : r >= form.cutoff ? T(1) : (r - form.smooth) / length;
    w = u * u * u * (u * (15 - 6 * u) - 10) + 1;
    slope = -30 * u * u * (1 - u) * (1 - u) / length;
  }
};

// Writes the numbers of an edge.
template <class T>
MDOPS_HD void EdgeEnvironmentArgs<T>::write_edge(int64_t e, int64_t slot) const {
  const EdgeRow<T> row(form, displacements + 3 * slot);
  const int32_t k = kind_of(slot);
  const T factor = row.inverse * row.inverse * row.w / std[2 * k + 1];
  lengths[e] = (row.inverse * row.w - mean[k]) / std[2 * k];
  weight[e] = row.w, means[e] = row.w * form.of_means;
  for (int a = 0; a < 3; ++a) {
    const T vector = row.d[a] * factor;
    vectors[3 * e + a] = vector, turning[3 * e + a] = vector * (row.w * form.of_turning);
  }
}

template <class T>
MDOPS_HD void EdgeEnvironmentArgs<T>::run_edge(int64_t e) const {
  const int64_t slot = slots[e];
  if (slot >= 0 && is_right(slot)) return write_edge(e, slot);
  const T same = slot == -1 ? T(0) : static_cast<T>(NAN);
  lengths[e] = weight[e] = means[e] = same;
  for (int a = 0; a < 3; ++a) vectors[3 * e + a] = turning[3 * e + a] = same;
}

template <class T>
MDOPS_HD void EdgeEnvironmentArgs<T>::run_slot(int64_t slot) const {
  const int64_t e = edge_of_slot[slot];
  T* const to = by_displacements + 3 * slot;
  if (e < 0 || e >= edges || !is_right(slot)) {
    for (int a = 0; a < 3; ++a) to[a] = e == -1 ? T(0) : static_cast<T>(NAN);
    return;
  }
  const EdgeRow<T> row(form, displacements + 3 * slot);
  const int32_t k = kind_of(slot);
  const T u = row.inverse, scale = 1 / std[2 * k + 1], factor = u * u * row.w * scale;
  const T turn = row.w * form.of_turning;
  T along = 0, turned = 0, by[3];  // the sums of gradients times d
  for (int a = 0; a < 3; ++a) {
    by[a] = by_vectors[3 * e + a] + by_turning[3 * e + a] * turn;
    along += by[a] * row.d[a], turned += by_turning[3 * e + a] * row.d[a];
  }
  const T by_w = by_weight[e] + by_means[e] * form.of_means + turned * factor * form.of_turning;
  const T by_r = by_lengths[e] * u * (row.slope - u * row.w) / std[2 * k] +
                 along * scale * u * u * (row.slope - 2 * u * row.w) + by_w * row.slope;
  const T radial = row.r > 0 ? by_r / row.r : by_r * T(0);
  for (int a = 0; a < 3; ++a) to[a] = by[a] * factor + radial * row.d[a];
}

}  // namespace mdops
