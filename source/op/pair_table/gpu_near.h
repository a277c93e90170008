// An atom's neighbours in float64 by one warp, a lane each, and the weight from them.
#pragma once

#include "common/rows.h"
#include "env_mat/gpu_nearest.h"
#include "pair_table/pair_table.h"

namespace mdops {

// Warps that work on an atom with a near neighbour each: threads of a block, and blocks of a multiprocessor.
constexpr int kNearThreads = 128, kNearBlocks = 5;

// The kind of atom i's row; an invalid system makes it wrong.
MDOPS_D RowKind table_row(const ListArgs& list, int64_t i) {
  if (list.batch[i] < 0 || list.batch[i] >= list.systems) return RowKind::wrong;
  return row_kind(list.types[i], list.ntypes, list.counts + i * list.ntypes, list.list_width);
}

// Calls work(slot, j, d, r2) by all lanes for one warp of slots after the other in [begin, end) of atom i; j
// < 0: a lane has no neighbour. `kAtOnce` positions are loaded at once, and as many next entries of the list.
// Returns false if the list names an atom that does not exist.
MDOPS_D bool each_warp_of_slots(const ListArgs& list, int64_t i, int64_t begin, int64_t end,
                                const auto& work) {
  constexpr int kAtOnce = 2;
  const double *xi = list.positions + 3 * i, *cell = list.cell + 9 * static_cast<int64_t>(list.batch[i]);
  bool whole = true;
  int32_t next[kAtOnce], next_image[kAtOnce];
  const auto read = [&](int64_t slot) {
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const bool in_bounds = slot + k * kWarp < end;
      next[k] = in_bounds ? list.neighbors[slot + k * kWarp] : -1;
      next_image[k] = in_bounds ? list.images[slot + k * kWarp] : 0;
      if (in_bounds && (next[k] < 0 || next[k] >= list.atoms)) whole = false, next[k] = -1;
    }
  };
  read(begin + lane_index());
  for (int64_t first = begin; first < end; first += kAtOnce * kWarp) {
    const int64_t slot = first + lane_index();
    int32_t j[kAtOnce], image[kAtOnce];
    double x[kAtOnce][3];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      j[k] = next[k], image[k] = next_image[k];
      const double* from = list.positions + 3 * static_cast<int64_t>(j[k] < 0 ? 0 : j[k]);
      for (int a = 0; a < 3; ++a) x[k][a] = from[a];
    }
    read(slot + kAtOnce * kWarp);
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      double d[3];
      displacement(xi, x[k], cell, image[k], d);
      work(slot + k * kWarp, j[k], d, d[0] * d[0] + d[1] * d[1] + d[2] * d[2]);
    }
  }
  return whole;
}

// The same for a lane's own neighbours.
MDOPS_D bool each_slot(const ListArgs& list, int64_t i, int64_t begin, int64_t end, const auto& work) {
  return each_warp_of_slots(list, i, begin, end, [&](int64_t slot, int32_t j, const double* d, double r2) {
    if (j >= 0) work(slot, j, d, r2);
  });
}

// Calls work(t, j, d, r2, masked) for the neighbours within the cutoff, and after each type with neighbours
// done(t), by all lanes. Returns false if the list names an atom that does not exist. All lanes must call it.
MDOPS_D bool each_of_row(const ListArgs& list, const bool* pair_mask, double cutoff, int64_t i,
                         const auto& work, const auto& done) {
  bool whole = true;
  int64_t slot = i * list.list_width;
  for (int t = 0; t < list.ntypes; ++t) {
    const int count = list.counts[i * list.ntypes + t];
    if (count == 0) continue;
    const bool masked = pair_mask[list.types[i] * list.ntypes + t];
    whole &= each_slot(list, i, slot, slot + count, [&](int64_t, int32_t j, const double* d, double r2) {
      if (within_cutoff(r2, cutoff * cutoff)) work(t, j, d, r2, masked);
    });
    slot += count;
    done(t);
  }
  return __all_sync(kAllLanes, whole);
}

// Calls work(t, j, d, r2) by all lanes for one warp of an atom's neighbours after the other, of any types; j
// < 0: a lane has none. Returns as `each_of_row`.
MDOPS_D bool each_warp_of_neighbors(const ListArgs& list, int64_t i, const auto& work) {
  const int32_t* counts = list.counts + i * list.ntypes;
  const int64_t first = i * list.list_width;
  int count = 0;
  for (int t = 0; t < list.ntypes; ++t) count += counts[t];
  SlotTypes types(counts, list.ntypes);
  const bool whole = each_warp_of_slots(list, i, first, first + count,
                                        [&](int64_t slot, int32_t j, const double* d, double r2) {
                                          work(j < 0 ? -1 : types.of(slot - first), j, d, r2);
                                        });
  return __all_sync(kAllLanes, whole);
}

// The same for a lane's own neighbours.
MDOPS_D bool each_neighbor(const ListArgs& list, int64_t i, const auto& work) {
  return each_warp_of_neighbors(list, i, [&](int t, int32_t j, const double* d, double r2) {
    if (j >= 0) work(t, j, d, r2);
  });
}

// The sums of c's mean, one neighbour at a time. The mean does not depend on the distance subtracted from
// all, unless a weight overflows: that of a lane's first neighbour mostly serves.
struct RunningSums {
  NearSums sums{INFINITY, 0, 0};
  const double inverse;  // of the decay length

  __device__ explicit RunningSums(double decay) : inverse(1 / decay) {}
  __device__ void add(double r) {
    constexpr double kMost = 300;
    if (!((sums.least - r) * inverse < kMost)) to(r);
    const double w = exp((sums.least - r) * inverse);
    sums.weights += w, sums.weighted += w * r;
  }
  __device__ void to(double least) {
    const double factor = sums.weights == 0 ? 0 : exp((least - sums.least) * inverse);
    sums = {least, sums.weights * factor, sums.weighted * factor};
  }
  // Of all lanes.
  __device__ void join() {
    const double least = warp_nearest(sums.least);
    if (sums.least != least) to(least);
    sums.weights = warp_sum(sums.weights), sums.weighted = warp_sum(sums.weighted);
  }
};

// c of an atom with a real row; NaN if the list names an atom that does not exist. All lanes get it.
MDOPS_D double row_weight(const ListArgs& list, const NearArgs& near, int64_t i) {
  const bool* mask = near.pair_mask + static_cast<int64_t>(list.types[i]) * list.ntypes;
  RunningSums around(near.decay);
  const bool whole = each_neighbor(list, i, [&](int t, int32_t, const double*, double r2) {
    if (!mask[t] && within_cutoff(r2, near.cutoff * near.cutoff)) around.add(sqrt(r2));
  });
  if (!whole) return not_a_number<double>();
  around.join();
  return around.sums.weights == 0 ? 0 : weight_at(near, around.sums.mean()).c;  // 0: there is no neighbour
}

// The same, with room for the neighbours that count, of one warp: most are too far to have a weight, and
// small loops are fastest, as instructions must be fetched, too.
constexpr int kNearRoom = 192;
MDOPS_D double row_weight_with(const ListArgs& list, const NearArgs& near, int64_t i, double* room) {
  const bool* mask = near.pair_mask + static_cast<int64_t>(list.types[i]) * list.ntypes;
  const double inverse = 1 / near.decay, cutoff2 = near.cutoff * near.cutoff;
  const unsigned before = (1u << lane_index()) - 1;
  double least2 = INFINITY;
  int count = 0;
  const bool whole = each_warp_of_neighbors(list, i, [&](int t, int32_t j, const double*, double r2) {
    const bool counts = j >= 0 && !mask[j < 0 ? 0 : t] && within_cutoff(r2, cutoff2);
    const unsigned lanes = __ballot_sync(kAllLanes, counts);
    const int at = count + __popc(lanes & before);
    if (counts && at < kNearRoom) room[at] = r2;
    if (counts) least2 = nearest_of(least2, r2);
    count += __popc(lanes);
  });
  if (!whole) return not_a_number<double>();
  if (count > kNearRoom) return row_weight(list, near, i);
  NearSums around{sqrt(warp_nearest(least2)), 0, 0};
  const double reach = around.reach(near.decay);
  __syncwarp();
#pragma unroll 1
  for (int k = lane_index(); k < count; k += kWarp) {
    const double r2 = room[k];
    if (r2 > reach * reach) continue;
    const double r = sqrt(r2), w = exp((around.least - r) * inverse);
    around.weights += w, around.weighted += w * r;
  }
  __syncwarp();
  around.weights = warp_sum(around.weights), around.weighted = warp_sum(around.weighted);
  return around.weights == 0 ? 0 : weight_at(near, around.mean()).c;  // 0: there is no neighbour
}

}  // namespace mdops
