// A warp an atom, from its list to the features of the fitting net: pairs, spline moments, T, D.
#pragma once

#include "spline_potential/gpu_step.h"

namespace mdops {

// One warp's part of the shared memory.
struct AtomMemory {
  float4* moments;  // [moment_rows + 2]
  float4* waiting;  // [2 * kWarp]: pairs within the cutoff, not yet worked on
  Staged<float, false>* stage;
  float4* narrow;     // [axis]: T_<
  uint32_t* touched;  // [words]
  int16_t* rows;      // [moment_rows + 4], on 8 bytes: those of the moments that are not zero

  static MDOPS_HD int bytes(const StepArgs& p) { return bytes(p.moment_rows(), p.words(), p.axis); }
  static MDOPS_HD int bytes(int moment_rows, int words, int axis) {
    return 16 * (moment_rows + 2 + 2 * kWarp + axis) + static_cast<int>(sizeof(Staged<float, false>)) +
           round_up(4 * round_up(words, 2) + 2 * (moment_rows + 4), 16);
  }
  __device__ AtomMemory(char* shared, const StepArgs& p)
      : AtomMemory(shared, threadIdx.x / kWarp * bytes(p), p) {}
  __device__ AtomMemory(char* shared, int begin, const StepArgs& p) {
    const int n = p.moment_rows();
    moments = reinterpret_cast<float4*>(shared + begin);
    waiting = moments + n + 2;
    stage = reinterpret_cast<Staged<float, false>*>(waiting + 2 * kWarp);
    narrow = reinterpret_cast<float4*>(stage + 1);
    touched = reinterpret_cast<uint32_t*>(narrow + p.axis);
    rows = reinterpret_cast<int16_t*>(touched + round_up(p.words(), 2));
  }
};

// Adds the first `count` waiting pairs to the moments, shared by the whole warp: one copy of them in shared
// memory leaves room for more warps.
template <bool Gated>
MDOPS_D void add_pairs(const StepArgs& p, const Normalisation<float>& norm, int table, int count,
                       const AtomMemory& m) {
  const int lane = lane_index();
  const auto touch = [&](int row) { atomicOr(m.touched + row / 32, 1u << row % 32); };
  const auto add = [&] {
    __syncwarp();
    add_staged<Sharing<4, 1, 1>, false>(*m.stage, count, 0, reinterpret_cast<float*>(m.moments));
    __syncwarp();
  };
  float w = 0;
  int first = 0;
  if (lane < count) {
    const float4 pair = m.waiting[lane];
    const float d[3] = {pair.x, pair.y, pair.z};
    first = prepare<false>(p.cutoff, p.grid, norm, Gated ? 0 : table, d, d, lane, m.stage, &w);
    touch(first);
  } else {
    leave_empty(lane, m.stage);
  }
  add();
  if constexpr (Gated) {
    // The same neighbours again, with their gates, to their types' rows.
    if (lane < count) {
      for (int a = 0; a < 4; ++a) m.stage->row[0][lane].of[a] *= w;
      m.stage->first[lane] = first + table;
      touch(first + table);
    }
    add();
  }
}

// Adds absent neighbours to the moments from `row` on; for one lane.
MDOPS_D void add_absent(const Normalisation<float>& norm, int count, int row, const AtomMemory& m) {
  add_padding<4>(norm, static_cast<float>(count), reinterpret_cast<float*>(m.moments + row));
  m.touched[row / 32] |= 1u << row % 32;
}

// In a plain sum neighbours that are zeroed count with s = mean, where their normalised s is zero.
MDOPS_D void add_zeroed(const StepArgs& p, int type, int t, int count, const AtomMemory& m) {
  if (lane_index() != 0) return;
  const SplinePlace<float> place = spline_place(p.mean[type], p.grid);
  const int row = p.table_row(t) + place.interval;
  add_alike<4>(place.t, static_cast<float>(count), reinterpret_cast<float*>(m.moments + row));
  m.touched[row / 32] |= 1u << row % 32;
}

// An atom's position, for the pairs with its neighbours.
struct Centre {
  Place here;
  const double* cell;
  float cutoff2;

  MDOPS_D Centre(const StepArgs& p, int i)
      : here(p.at[i]),
        cell(p.cell + 9 * static_cast<int64_t>(p.batch[i])),
        cutoff2(p.cutoff.cutoff * p.cutoff.cutoff) {}

  static MDOPS_D Place place(const StepArgs& p, int j) { return p.at[j]; }
  // An atom at NaN has no neighbours, either.
  MDOPS_D bool good() const {
    const double all = here.x[0] + here.x[1] + here.x[2];
    return all == all;
  }
};

// The pair with neighbour j; whether it is within the cutoff. `good` becomes false if no such atom exists.
template <class Centre>
MDOPS_D bool read_pair(const StepArgs& p, const Centre& centre, int j, int image, float4& pair,
                       float& nearest, bool& good) {
  bool inside = false;
  if (j >= 0 && j < p.atoms) {
    const Place there = Centre::place(p, j);
    double d[3];
    displacement(centre.here.x, there.x, centre.cell, image, d);
    pair = make_float4(d[0], d[1], d[2], __int_as_float(j));
    const float r2 = pair.x * pair.x + pair.y * pair.y + pair.z * pair.z;
    nearest = nearest_of(nearest, r2);
    inside = within_cutoff(r2, centre.cutoff2);
  } else {
    good = false;
  }
  return inside;
}

// What counts beside an atom's neighbours, called by a warp for each type in turn.
template <bool Gated>
struct Uncounted {
  const StepArgs& p;
  const Normalisation<float>& norm;
  const AtomMemory& m;
  const int i, type;
  AbsentNeighbors absent{p.places, i, type};

  MDOPS_D void add_slots(int t, int slots) const {
    if (lane_index() == 0) add_absent(norm, slots, Gated ? 0 : p.table_row(t), m);
  }
  MDOPS_D void of(int t, int within) {
    if (lane_index() == 0) p.within[static_cast<int64_t>(i) * p.ntypes + t] = within;
    const int zeros = p.plain && p.places.zero(type, t) ? p.places.zeros(i, t, within) : 0;
    if (zeros != 0) add_zeroed(p, type, t, zeros, m);
    if (norm.shift != 0) absent.of(t, within, [&](int kind, int slots) { add_slots(kind, slots); });
    __syncwarp();
  }
  // After the last type. Returns false if the type of absent neighbours is invalid.
  MDOPS_D bool end() const {
    if (norm.shift == 0) return true;
    if (p.places.padding && (p.places.padding[i] < 0 || p.places.padding[i] >= p.ntypes)) return false;
    absent.end([&](int kind, int slots) { add_slots(kind, slots); });
    __syncwarp();
    return true;
  }
};

// Reads the atom's list, type after type, and adds up the moments of the pairs within the cutoff, stored in
// `pairs`. Returns false for an invalid list.
template <bool Gated>
MDOPS_D bool atom_moments(const StepArgs& p, int i, int type, float4* pairs, const AtomMemory& m) {
  const int lane = lane_index();
  const Normalisation<float> norm = p.normalisation(type);
  const int64_t list = static_cast<int64_t>(i) * p.list_width;
  const Centre centre(p, i);
  float nearest = centre.cutoff2;
  int kept = 0, k = 0;
  bool good = centre.good();
  Uncounted<Gated> uncounted{p, norm, m, i, type};
  for (int t = 0; t < p.ntypes; ++t) {
    const int count = p.counts[static_cast<int64_t>(i) * p.ntypes + t];
    if (count < 0 || count > p.list_width - k) return false;
    const int last = k + count, table = p.table_row(t);
    const bool masked = p.places.masked(type, t);
    int within = 0, waiting = 0;
    int next_j = k + lane < last ? p.neighbors[list + k + lane] : -1;
    int next_image = k + lane < last ? p.images[list + k + lane] : 0;
    for (; k < last; k += kWarp) {
      const int j = next_j, image = next_image;  // the next ones load meanwhile
      if (k + kWarp + lane < last) {
        next_j = p.neighbors[list + k + kWarp + lane];
        next_image = p.images[list + k + kWarp + lane];
      }
      float4 pair = {0, 0, 0, 0};
      bool inside = false;
      if (k + lane < last) inside = read_pair(p, centre, j, image, pair, nearest, good);
      const unsigned lanes = __ballot_sync(kAllLanes, inside);
      within += __popc(lanes);
      if (masked) continue;
      if (inside) m.waiting[waiting + __popc(lanes & ((1u << lane) - 1))] = pair;
      waiting += __popc(lanes);
      __syncwarp();
      if (waiting < kWarp) continue;
      pairs[kept + lane] = m.waiting[lane];
      add_pairs<Gated>(p, norm, table, kWarp, m);
      waiting -= kWarp, kept += kWarp;
      const float4 rest = m.waiting[kWarp + lane];
      __syncwarp();
      m.waiting[lane] = rest;
      __syncwarp();
    }
    k = last;
    if (waiting > 0) {
      if (lane < waiting) pairs[kept + lane] = m.waiting[lane];
      add_pairs<Gated>(p, norm, table, waiting, m);
      kept += waiting;
    }
    uncounted.of(t, within);
  }
  if (!uncounted.end()) return false;
  nearest = warp_nearest(nearest);
  if (lane == 0) p.nearest[i] = sqrtf(nearest);
  return __all_sync(kAllLanes, good);
}

// The six rows from each touched one on: their list, rising, filled up with repetitions of row 0 to a
// multiple of four. Returns how many there are.
MDOPS_D int list_rows(const uint32_t* touched, int words, int16_t* rows) {
  const int lane = lane_index();
  int count = 0;
  uint32_t before = 0, own = 0;
  for (int w = 0; w < words; ++w) {
    if (w % kWarp == 0)
      own = w + lane < words ? touched[w + lane] : 0;  // 32 words at once, as reads are slow
    const uint32_t word = __shfl_sync(kAllLanes, own, w % kWarp);
    const uint64_t two = static_cast<uint64_t>(word) << 32 | before;
    uint64_t all = two;
    for (int b = 1; b < kSplineSupport; ++b) all |= two << b;
    const uint32_t now = static_cast<uint32_t>(all >> 32);
    if (now >> lane & 1) rows[count + __popc(now & ((1u << lane) - 1))] = static_cast<int16_t>(32 * w + lane);
    count += __popc(now);
    before = word;
  }
  if (lane < 4) rows[count + lane] = 0;
  __syncwarp();
  return count;
}

MDOPS_D const float* table_of(const StepArgs& p, int type) {
  return p.tables + static_cast<int64_t>(type) * p.moment_rows() * p.table_width;
}

// Four numbers of a table, which has fewer than 2^31.
MDOPS_D float4 coefficients(const float* table, int at) {
  return __ldg(reinterpret_cast<const float4*>(table + static_cast<uint32_t>(at)));
}

// T = A^T C in the warp's columns 4 lane .. 4 lane + 3 from `column` on: of the warp's share of the listed
// rows, four after four.
template <class Who>
MDOPS_D void contract(const StepArgs& p, const float* table, int column, int count, const Who& who,
                      const float4* moments, const int16_t* listed, float4 (&t)[4]) {
#pragma unroll
  for (int a = 0; a < 4; ++a) t[a] = make_float4(0, 0, 0, 0);
  const auto add = [&](int row, float4 c) {
    const float4 moment = moments[row];
    const float by[4] = {moment.x, moment.y, moment.z, moment.w};
#pragma unroll
    for (int a = 0; a < 4; ++a)
      t[a].x += by[a] * c.x, t[a].y += by[a] * c.y, t[a].z += by[a] * c.z, t[a].w += by[a] * c.w;
  };
  const auto row_of = [&](int row) { return coefficients(table, row * p.table_width + column); };
  int k = 4 * who.rank;
  if constexpr (Who::kAlone) {
    for (; k + 4 <= count; k += 4) {
      const short4 rows = *reinterpret_cast<const short4*>(listed + k);
      const float4 c[4] = {row_of(rows.x), row_of(rows.y), row_of(rows.z), row_of(rows.w)};
      add(rows.x, c[0]);
      add(rows.y, c[1]);
      add(rows.z, c[2]);
      add(rows.w, c[3]);
    }
  } else {  // loading the next ones: no other warp has work meanwhile
    const auto next = [&](int from) {
      return from + 4 <= count ? *reinterpret_cast<const short4*>(listed + from) : make_short4(0, 0, 0, 0);
    };
    short4 rows = next(k);
    float4 c[4] = {row_of(rows.x), row_of(rows.y), row_of(rows.z), row_of(rows.w)};
    for (; k + 4 <= count; k += 4 * who.size) {
      const short4 now = rows;
      const float4 of[4] = {c[0], c[1], c[2], c[3]};
      rows = next(k + 4 * who.size);
      c[0] = row_of(rows.x), c[1] = row_of(rows.y), c[2] = row_of(rows.z), c[3] = row_of(rows.w);
      add(now.x, of[0]);
      add(now.y, of[1]);
      add(now.z, of[2]);
      add(now.w, of[3]);
    }
  }
  for (; k < count; ++k) add(listed[k], row_of(listed[k]));
}

// D of a descriptor as the numbers of a row from `first` on: for the warp's share of its rows.
template <int Parts, class Who = OneWarp>
MDOPS_D void write_d(const Features& features, int first, const float* t_row, int table_width,
                     const float4* narrow, const InputRow<Parts>& out, const Who& who = {}) {
  for (int column = 4 * lane_index(); column < features.width; column += 4 * kWarp) {
    float4 t[4];
#pragma unroll
    for (int a = 0; a < 4; ++a) t[a] = *reinterpret_cast<const float4*>(t_row + a * table_width + column);
#pragma unroll 4
    for (int l = who.rank; l < features.axis; l += who.size) {
      if (column < Features::first(l)) continue;
      const float4 c = narrow[l];
      out.store(first + features.row(l) + column, c.x * t[0].x + c.y * t[1].x + c.z * t[2].x + c.w * t[3].x,
                c.x * t[0].y + c.y * t[1].y + c.z * t[2].y + c.w * t[3].y,
                c.x * t[0].z + c.y * t[1].z + c.z * t[2].z + c.w * t[3].z,
                c.x * t[0].w + c.y * t[1].w + c.z * t[2].w + c.w * t[3].w);
    }
  }
}

// The largest of a bound in any lane, and of the extra inputs of an atom.
MDOPS_D float bound_with_extra(const StepArgs& p, int i, float bound) {
  const float* extra = p.extra + static_cast<int64_t>(i) * p.extra_size;
  for (int k = lane_index(); k < p.extra_size; k += kWarp) bound = fmaxf(bound, fabsf(extra[k]));
  return warp_largest(bound);
}

// The extra inputs from number `first` of the row on, then zeros.
template <int Parts>
MDOPS_D void write_extra(const StepArgs& p, int i, int first, const InputRow<Parts>& out) {
  const float* extra = p.extra + static_cast<int64_t>(i) * p.extra_size;
  const auto input = [&](int k) { return k < p.extra_size ? extra[k] : 0.0f; };
  for (int k = 4 * lane_index(); k < p.net.net.inputs - first; k += 4 * kWarp)
    out.store(first + k, input(k), input(k + 1), input(k + 2), input(k + 3));
}

// The row of features: D, the extra inputs, zeros.
template <int Parts>
MDOPS_D void write_features(const StepArgs& p, int i, int64_t row, const float* t_row, float bound,
                            const AtomMemory& m) {
  const InputRow<Parts> out = begin_row<Parts>(p.net, row, bound_with_extra(p, i, bound));
  const Features features = p.features();
  write_d(features, 0, t_row, p.table_width, m.narrow, out);
  write_extra(p, i, features.count(), out);
}

// Zeros instead of an atom's outputs, for the rows that fill up a tile.
template <int Parts>
MDOPS_D void write_empty_row(const StepArgs& p, int64_t row) {
  const InputRow<Parts> out = begin_row<Parts>(p.net, row, 0);
  for (int k = 4 * lane_index(); k < p.net.net.inputs; k += 4 * kWarp) out.store(k, 0, 0, 0, 0);
}

// The atom of a row of the chunk: -1 in those that fill up a tile, -2 without a tile.
MDOPS_D int atom_of(const StepArgs& p, int64_t row) {
  if (row >= p.net.rows || p.first_row + row >= p.rows) return -2;
  const int net = p.tile_net[(p.first_row + row) / p.tile_rows], atom = p.row_atom[p.first_row + row];
  return net < 0 ? -2 : atom;
}

// A warp's sums in its memory.
MDOPS_D void clear(const StepArgs& p, const AtomMemory& m) {
  const int lane = lane_index();
  clear_lines(m.stage);
  for (int b = lane; b < p.moment_rows() + 2; b += kWarp) m.moments[b] = make_float4(0, 0, 0, 0);
  for (int w = lane; w < p.words(); w += kWarp) m.touched[w] = 0;
}

MDOPS_D bool in_system(const StepArgs& p, int i) {
  return p.batch[i] >= 0 && p.batch[i] < p.systems;
}

// For an atom with a wrong list or place.
MDOPS_D void fail_atom(const StepArgs& p, int i) {
  const int lane = lane_index();
  if (lane == 0) fail_system_of(p, i), p.nearest[i] = not_a_number<float>();
  for (int t = lane; t < p.ntypes; t += kWarp) p.within[static_cast<int64_t>(i) * p.ntypes + t] = 0;
}

// Computes T from an atom's list; a part stays in m.narrow. Returns this lane's bound of D's numbers,
// |D[l][k]| <= max_k |T[k]|^2.
template <bool Gated>
MDOPS_D float form_t(const StepArgs& p, int i, int64_t row, const AtomMemory& m) {
  const int lane = lane_index(), type = p.types[i];
  clear(p, m);
  __syncwarp();
  if (!(in_system(p, i) && atom_moments<Gated>(p, i, type, p.pairs + row * p.list_width, m))) fail_atom(p, i);
  if (lane == 0) list_near(p, i);
  for (int w = lane; w < p.words(); w += kWarp) p.touched[row * p.words() + w] = m.touched[w];
  const int count = list_rows(m.touched, p.words(), m.rows);
  const float* table = table_of(p, type);
  float* t_row = p.t + row * 4 * p.table_width;
  float bound = 0;
  for (int column = 4 * lane; column < p.table_width; column += 4 * kWarp) {
    MDOPS_STAGE(contract);
    float4 t[4];
    contract(p, table, column, count, OneWarp{}, m.moments, m.rows, t);
#pragma unroll
    for (int a = 0; a < 4; ++a)
      store_four(t_row + a * p.table_width + column, t[a].x, t[a].y, t[a].z, t[a].w);
    const float4 narrow[4] = {{t[0].x, t[1].x, t[2].x, t[3].x},
                              {t[0].y, t[1].y, t[2].y, t[3].y},
                              {t[0].z, t[1].z, t[2].z, t[3].z},
                              {t[0].w, t[1].w, t[2].w, t[3].w}};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float4 v = narrow[k];
      if (column + k < p.axis) m.narrow[column + k] = p.plain ? make_float4(1, 0, 0, 0) : v;
      bound = fmaxf(bound, p.plain ? fabsf(v.x) : v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w);
    }
  }
  __syncwarp();
  return bound;
}

template <int Parts, bool Gated>
__global__ void __launch_bounds__(kAtomThreads, 3) moments_kernel(StepArgs p) {
  follow_kernels();
  extern __shared__ __align__(16) char shared[];
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / kWarp;
  const int i = atom_of(p, row);
  if (i == -2) return;
  if (i < 0) return write_empty_row<Parts>(p, row);
  MDOPS_STAGE(moments);
  const AtomMemory m(shared, p);
  const float bound = form_t<Gated>(p, i, row, m);
  MDOPS_STAGE(features);
  write_features<Parts>(p, i, row, p.t + row * 4 * p.table_width, bound, m);
}

}  // namespace mdops
