// Which slots of a pair list are rows, on the CPU: counted, added up, filled in. Without PyTorch.
#pragma once

#include <cmath>

#include "neighbor_rows/neighbor_rows.h"

namespace mdops {

// f(slot, type of the neighbour) for the neighbours of an atom within the cutoff.
template <class T, class F>
void each_near(const RowListArgs<T>& args, int64_t atom, const F& f) {
  const SlotArgs<T>& list = args.list;
  if (list.types[atom] < 0) return;
  int64_t slot = atom * list.width;
  for (int t = 0; t < list.ntypes; ++t)
    for (int64_t last = slot + list.counts[atom * list.ntypes + t]; slot < last; ++slot) {
      const T r2 = squared_length(list.displacements + 3 * slot);
      if (within_cutoff(r2, args.cutoff2)) f(slot, t, r2);
    }
}

// For atoms [begin, end): each one's number of rows, in offsets[i + 1], and the results on its neighbours.
template <class T>
void count_rows(const RowListArgs<T>& args, int64_t begin, int64_t end, const RowListResults<T>& out) {
  for (int64_t i = begin; i < end; ++i) {
    int32_t rows = 0, taken = 0, within = 0;
    T nearest = args.cutoff2;
    each_near(args, i, [&](int64_t, int t, T r2) {
      const int type = args.list.types[i];
      ++within, rows += !args.masked(type, t), taken += args.takes(type, t);
      nearest = nearest_of(nearest, r2);
    });
    out.offsets[i + 1] = rows, out.taken[i] = taken, out.within[i] = within;
    out.nearest[i] = std::sqrt(nearest);
  }
}

template <class T>
void sum_offsets(int64_t atoms, const RowListResults<T>& out) {
  out.offsets[0] = 0;
  for (int64_t i = 0; i < atoms; ++i) out.offsets[i + 1] += out.offsets[i];
}

template <class T>
void fill_slots(const RowListArgs<T>& args, int64_t begin, int64_t end, const RowListResults<T>& out) {
  for (int64_t i = begin; i < end; ++i) {
    int32_t* at = out.slots + out.offsets[i];
    each_near(args, i, [&](int64_t slot, int t, T) {
      if (!args.masked(args.list.types[i], t)) *at++ = static_cast<int32_t>(slot);
    });
  }
}

}  // namespace mdops
