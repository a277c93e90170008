// The neighbours of an atom in float64 by one warp, a lane each, and the weight that they give it.
#pragma once

#include "common/rows.h"
#include "env_mat/env_mat.h"
#include "pair_table/pair_table.h"

namespace mdops {

template <class T>
__device__ __forceinline__ T warp_sum(T value) {
  for (int d = kWarp / 2; d > 0; d /= 2) value += __shfl_xor_sync(kAllLanes, value, d);
  return value;
}

__device__ __forceinline__ double warp_nearest(double r2) {
  for (int d = kWarp / 2; d > 0; d /= 2) r2 = nearest_of(r2, __shfl_xor_sync(kAllLanes, r2, d));
  return r2;
}

// What kind of row atom i has; a system that is not there makes it a wrong one.
__device__ __forceinline__ RowKind table_row(const ListArgs& list, int64_t i) {
  if (list.batch[i] < 0 || list.batch[i] >= list.systems) return RowKind::wrong;
  return row_kind(list.types[i], list.ntypes, list.counts + i * list.ntypes, list.list_width);
}

// Calls work(t, slot, d, r2, masked), and after each type with neighbours done(t), where the lanes meet.
// Returns false where the list names an atom that is not there. All lanes must call it.
template <class Work, class Done>
__device__ __forceinline__ bool each_of_row(const ListArgs& list, const bool* pair_mask, double cutoff,
                                            int64_t i, const Work& work, const Done& done) {
  bool whole = true;
  int64_t slot = i * list.list_width;
  for (int t = 0; t < list.ntypes; ++t) {
    const int count = list.counts[i * list.ntypes + t];
    if (count == 0) continue;
    const bool masked = pair_mask[list.types[i] * list.ntypes + t];
    whole &= each_within(list, cutoff, i, slot + lane_index(), slot + count, kWarp,
                         [&](int64_t at, const double* d, double r2) { work(t, at, d, r2, masked); });
    slot += count;
    done(t);
  }
  return __all_sync(kAllLanes, whole);
}

// The same for the neighbours that are not masked.
template <class Work>
__device__ __forceinline__ bool each_seen(const ListArgs& list, const bool* pair_mask, double cutoff,
                                          int64_t i, const Work& work) {
  return each_of_row(
      list, pair_mask, cutoff, i,
      [&](int t, int64_t at, const double* d, double r2, bool masked) {
        if (!masked) work(t, at, d, r2);
      },
      [](int) {});
}

// The sums of c's mean, of neighbours of which the nearest has this squared distance. All lanes get them.
__device__ __forceinline__ NearSums near_sums(const ListArgs& list, const NearArgs& near, int64_t i,
                                              double least2) {
  NearSums sums{sqrt(least2), 0, 0};
  each_seen(list, near.pair_mask, near.cutoff, i, [&](int, int64_t, const double*, double r2) {
    const double r = sqrt(r2), w = sums.weight(r, near.decay);
    sums.weights += w, sums.weighted += w * r;
  });
  sums.weights = warp_sum(sums.weights), sums.weighted = warp_sum(sums.weighted);
  return sums;
}

// c of an atom whose row can be; NaN where the list names an atom that is not there. All lanes get it.
__device__ __forceinline__ double row_weight(const ListArgs& list, const NearArgs& near, int64_t i) {
  double least2 = INFINITY;
  const bool whole =
      each_seen(list, near.pair_mask, near.cutoff, i,
                [&](int, int64_t, const double*, double r2) { least2 = nearest_of(least2, r2); });
  if (!whole) return not_a_number<double>();
  least2 = warp_nearest(least2);
  // No mean is below the least distance.
  return sqrt(least2) >= near.high ? 0 : weight_at(near, near_sums(list, near, i, least2).mean()).c;
}

}  // namespace mdops
