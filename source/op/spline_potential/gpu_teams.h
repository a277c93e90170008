// The descriptor's kernels for few atoms: several warps share an atom, to use more of a multiprocessor's.
// Each does for its share what one warp does for an atom (gpu_moments.h, gpu_forces.h):
//
//   moments   32 places of the list after 32, into moments of its own; then rows of the moments, four after
//             four, into a part of T; then rows of D
//   forces    rows of D, two after two, into a part of dT; then rows of dA, four after four; then pairs, 32
//             after 32
//
// Each has memory of its own. Sums over the warps are added in their order, by all threads, in the memory of
// the first.
//
// Most time goes to waiting: for memory, and for a warp with work of its own. So numbers are loaded together,
// and work that is not shared goes to a warp without a share. `by_atom` a team computes T from an atom's list
// while the kernel before it finds the atoms' rows, which only D needs.
#pragma once

#include "spline_potential/gpu_forces.h"

namespace mdops {

constexpr int kMostTeam = 8;    // warps for an atom
constexpr int kTeamWarps = 16;  // of a block

// One warp's part of the shared memory, for the moments.
struct TeamMemory {
  AtomMemory own;
  float4* part;     // [table_width]: of T, [4][table_width] numbers
  int32_t* kept;    // [2]: pairs of this round of the list and of the last one
  float* nearest;   // of the warp's share
  int32_t* good;    // whether it is valid
  int32_t* within;  // [ntypes]: the first warp's are of all

  static MDOPS_HD int bytes(const StepArgs& p) {
    return AtomMemory::bytes(p) + 16 * p.table_width + round_up(4 * (4 + p.ntypes), 16);
  }
  __device__ TeamMemory(char* shared, int warp, const StepArgs& p) : own(shared, warp * bytes(p), p) {
    part = reinterpret_cast<float4*>(shared + warp * bytes(p) + AtomMemory::bytes(p));
    kept = reinterpret_cast<int32_t*>(part + p.table_width);
    nearest = reinterpret_cast<float*>(kept + 2);
    good = kept + 3, within = kept + 4;
  }
};

// The memories of a team's warps: they stand side by side.
template <class Memory>
struct TeamMemories {
  char* const shared;
  const StepArgs& p;
  const Team& team;

  MDOPS_D Memory of(int rank) const { return Memory(shared, team.number * team.size + rank, p); }
  // sum(k) <- the sum over the warps of term(memory, k), for all k < count. To be called after a team.sync().
  MDOPS_D void add_up(int count, const auto& term, const auto& sum) const {
    for (int k = team.thread(); k < count; k += team.threads()) {
      float4 x[kMostTeam];
#pragma unroll
      for (int r = 0; r < kMostTeam; ++r)
        if (r < team.size) x[r] = term(of(r), k);
#pragma unroll
      for (int r = 1; r < kMostTeam; ++r)
        if (r < team.size) x[0].x += x[r].x, x[0].y += x[r].y, x[0].z += x[r].z, x[0].w += x[r].w;
      sum(k, x[0]);
    }
  }
};

// The runs of 32 places of an atom's list, type after type, of which a warp takes every team.size-th.
struct ListRuns {
  const int32_t* counts;
  int ntypes, type = 0, first = 0, run;  // of the type: its first place in the list, the run within it

  MDOPS_D ListRuns(const StepArgs& p, int i, int begin)
      : counts(p.counts + static_cast<int64_t>(i) * p.ntypes), ntypes(p.ntypes), run(begin) {
    find();
  }
  MDOPS_D void skip(int runs) {
    run += runs;
    find();
  }
  // This lane's place, or -1.
  MDOPS_D int place() const {
    if (type == ntypes) return -1;
    const int k = kWarp * run + lane_index();
    return k < counts[type] ? first + k : -1;
  }

  static MDOPS_D int of(int count) { return (count + kWarp - 1) / kWarp; }

 private:
  MDOPS_D void find() {
    for (; type < ntypes && run >= of(counts[type]); ++type) run -= of(counts[type]), first += counts[type];
  }
};

// A lane's word among `words`.
MDOPS_D uint32_t word_of(const uint32_t* touched, int words) {
  return lane_index() < words ? touched[lane_index()] : 0;
}

// As `list_rows`, with fewer dependent steps and more exchanges between lanes, which would be too many for
// many atoms. `first`: the lane's of the first words.
MDOPS_D int list_rows_soon(const uint32_t* touched, int words, int16_t* rows, uint32_t first) {
  const int lane = lane_index();
  int count = 0;
  uint32_t last = 0;
  for (int from = 0; from < words; from += kWarp) {  // a lane a word
    const uint32_t own = from == 0 ? first : word_of(touched + from, words - from);
    const uint32_t below = __shfl_up_sync(kAllLanes, own, 1), before = lane ? below : last;
    uint32_t all = own;
#pragma unroll
    for (int b = 1; b < kSplineSupport; ++b) all |= __funnelshift_l(before, own, b);
    const int end = running_sum(__popc(all));
    for (int w = 0; w < kWarp && from + w < words; ++w) {
      const uint32_t now = __shfl_sync(kAllLanes, all, w);
      const int begin = count + __shfl_sync(kAllLanes, end, w) - __popc(now);
      if (now >> lane & 1)
        rows[begin + __popc(now & ((1u << lane) - 1))] = static_cast<int16_t>(32 * (from + w) + lane);
    }
    count += __shfl_sync(kAllLanes, end, kWarp - 1), last = __shfl_sync(kAllLanes, own, kWarp - 1);
  }
  if (lane < 4) rows[count + lane] = 0;
  __syncwarp();
  return count;
}

// An atom's position, as a `Centre` that waits only for the op's input; in system -1 there is no cell.
struct TeamCentre {
  Place here;
  double cell[9];
  float cutoff2;

  MDOPS_D TeamCentre(const StepArgs& p, int i, int system)
      : here(place(p, i)), cutoff2(p.cutoff.cutoff * p.cutoff.cutoff) {
#pragma unroll
    for (int k = 0; k < 9; ++k) cell[k] = system < 0 ? 0 : p.cell[9 * static_cast<int64_t>(system) + k];
  }
  static MDOPS_D Place place(const StepArgs& p, int j) {
    const double* x = p.positions + 3 * static_cast<int64_t>(j);
    return {{x[0], x[1], x[2]}, 0};
  }
  MDOPS_D bool good() const {
    const double all = here.x[0] + here.x[1] + here.x[2];
    return all == all;
  }
};

// The warp's share of `atom_moments`; false for an invalid list. `counted`: the lane's of the first types'
// counts.
template <bool Gated>
MDOPS_D bool share_moments(const StepArgs& p, int i, int type, const TeamCentre& centre, int counted,
                           float4* pairs, const TeamMemories<TeamMemory>& memories) {
  const Team& team = memories.team;
  const int lane = lane_index();
  const TeamMemory m = memories.of(team.rank), first = memories.of(0);
  const Normalisation<float> norm = p.normalisation(type);
  int runs = 0, places = 0;
  for (int t = 0; t < p.ntypes; ++t) {
    const int count =
        t < kWarp ? __shfl_sync(kAllLanes, counted, t) : p.counts[static_cast<int64_t>(i) * p.ntypes + t];
    if (count < 0 || count > p.list_width - places) return false;
    runs += ListRuns::of(count), places += count;
  }
  float nearest = centre.cutoff2;
  bool good = centre.good();
  ListRuns at(p, i, team.rank);
  const int64_t list = static_cast<int64_t>(i) * p.list_width;
  int kept = 0;
  for (int begin = 0, round = 0; begin < runs; begin += team.size, round ^= 1, at.skip(team.size)) {
    const int place = at.place();
    float4 pair = {0, 0, 0, 0};
    const bool inside = place >= 0 && read_pair(p, centre, p.neighbors[list + place], p.images[list + place],
                                                pair, nearest, good);
    const unsigned lanes = __ballot_sync(kAllLanes, inside);
    const bool counts = lanes != 0 && !p.places.masked(type, at.type);
    const int count = counts ? __popc(lanes) : 0;
    if (inside) m.own.waiting[__popc(lanes & ((1u << lane) - 1))] = pair;
    if (lane == 0) {
      m.kept[round] = count;
      if (lanes != 0) atomicAdd(first.within + at.type, __popc(lanes));
    }
    team.sync();
    const int of_lane = lane < team.size ? memories.of(lane).kept[round] : 0;
    const int before = __reduce_add_sync(kAllLanes, lane < team.rank ? of_lane : 0);
    if (counts) {
      if (lane < count) pairs[kept + before + lane] = m.own.waiting[lane];
      add_pairs<Gated>(p, norm, p.table_row(at.type), count, m.own);
    }
    kept += __reduce_add_sync(kAllLanes, of_lane);
  }
  nearest = warp_nearest(nearest);
  if (lane == 0) *m.nearest = nearest;
  if (team.rank == team.size - 1) {
    Uncounted<Gated> uncounted{p, norm, m.own, i, type};
    for (int t = 0; t < p.ntypes; ++t) uncounted.of(t, first.within[t]);
    good &= uncounted.end();
  }
  return __all_sync(kAllLanes, good);
}

// Computes T from an atom's list, in the first warp's `part`. Returns whether list and place are valid.
template <bool Gated>
MDOPS_D bool team_t(const StepArgs& p, int i, int64_t place, const TeamMemories<TeamMemory>& memories) {
  const Team& team = memories.team;
  const int lane = lane_index(), type = p.types[i], system = p.batch[i];
  // Loaded before the team waits.
  const bool inside = system >= 0 && system < p.systems;
  const int counted = lane < p.ntypes ? p.counts[static_cast<int64_t>(i) * p.ntypes + lane] : 0;
  const TeamCentre centre(p, i, inside ? system : -1);
  const TeamMemory m = memories.of(team.rank), first = memories.of(0);
  clear(p, m.own);
  for (int t = lane; t < p.ntypes; t += kWarp) m.within[t] = 0;
  if (lane == 0) *m.nearest = p.cutoff.cutoff * p.cutoff.cutoff;
  team.sync();
  const bool own_good =
      inside && share_moments<Gated>(p, i, type, centre, counted, p.pairs + place * p.list_width, memories);
  if (lane == 0) *m.good = own_good;
  team.sync();
  const TeamMemory other = memories.of(lane < team.size ? lane : 0);
  const bool good = __all_sync(kAllLanes, *other.good != 0);
  if (team.rank == 0) {
    const float nearest = warp_nearest<kMostTeam>(*other.nearest);
    if (lane == 0 && good) p.nearest[i] = sqrtf(nearest);
  }
  memories.add_up(
      p.moment_rows(), [](const TeamMemory& of, int k) { return of.own.moments[k]; },
      [&](int k, float4 sum) { first.own.moments[k] = sum; });
  for (int w = team.thread(); w < p.words(); w += team.threads()) {
    uint32_t all = 0;
    for (int r = 0; r < team.size; ++r) all |= memories.of(r).own.touched[w];
    first.own.touched[w] = p.touched[place * p.words() + w] = all;
  }
  team.sync();
  MDOPS_STAGE(contract);
  const int count =
      list_rows_soon(first.own.touched, p.words(), m.own.rows, word_of(first.own.touched, p.words()));
  for (int column = 4 * lane; column < p.table_width; column += 4 * kWarp) {
    float4 t[4];
    contract(p, table_of(p, type), column, count, team, first.own.moments, m.own.rows, t);
#pragma unroll
    for (int a = 0; a < 4; ++a) m.part[(a * p.table_width + column) / 4] = t[a];
  }
  team.sync();
  float* const t_row = p.t + place * 4 * p.table_width;
  memories.add_up(
      p.table_width, [](const TeamMemory& of, int k) { return of.part[k]; },
      [&](int k, float4 sum) {
        first.part[k] = sum;
        store_four(t_row + 4 * k, sum.x, sum.y, sum.z, sum.w);
      });
  team.sync();
  return good;
}

// Copies the columns of T that D reads twice to this warp's memory. Returns this lane's bound of D's numbers.
MDOPS_D float narrow_columns(const StepArgs& p, const float* t, float4* narrow) {
  float bound = 0;
  for (int k = lane_index(); k < p.table_width; k += kWarp) {
    const float4 v = {t[k], t[p.table_width + k], t[2 * p.table_width + k], t[3 * p.table_width + k]};
    if (k < p.axis) narrow[k] = p.plain ? make_float4(1, 0, 0, 0) : v;
    bound = fmaxf(bound, p.plain ? fabsf(v.x) : v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w);
  }
  __syncwarp();
  return bound;
}

// The atom of a team's place that has a type, or -1.
MDOPS_D int typed_atom(const StepArgs& p, int64_t place) {
  return place < p.atoms && is_real(p, p.types[place]) ? static_cast<int>(place) : -1;
}

// `by_atom` waits for the order of the atoms only before D, the first part that needs it: the ordering kernel
// launched this one after all earlier work was done.
template <bool Gated>
__global__ void __launch_bounds__(kTeamWarps* kWarp, 1) team_moments_kernel(StepArgs p, int warps) {
  if (!p.by_atom) follow_kernels();
  extern __shared__ __align__(16) char shared[];
  const Team team(warps);
  const int64_t place = static_cast<int64_t>(blockIdx.x) * (blockDim.x / team.threads()) + team.number;
  const TeamMemories<TeamMemory> memories{shared, p, team};
  const int i = p.by_atom ? typed_atom(p, place) : atom_of(p, place);
  MDOPS_STAGE(moments);
  const bool good = i >= 0 && team_t<Gated>(p, i, place, memories);
  MDOPS_STAGE(features);
  const float* const t = reinterpret_cast<const float*>(memories.of(0).part);
  float4* const narrow = memories.of(team.rank).own.narrow;
  const float bound = i >= 0 ? bound_with_extra(p, i, narrow_columns(p, t, narrow)) : 0;
  if (p.by_atom) follow_kernels();
  if (team.rank == team.size - 1 && atom_of(p, place) == -1) write_empty_row<0>(p, place);
  if (i < 0) return;
  if (team.rank == 0) {
    if (!good) fail_atom(p, i);
    if (lane_index() == 0) list_near(p, i);
  }
  const int64_t row = p.by_atom ? p.atom_row[i] : place;
  const Features features = p.features();
  const InputRow<0> out = team.rank == 0
                              ? begin_row<0>(p.net, row, bound)
                              : InputRow<0>(p.net.inputs, p.net.net.inputs, p.net.tile_rows, row, bound);
  write_d(features, 0, t, p.table_width, narrow, out, team);
  if (team.rank == team.size - 1) write_extra(p, i, features.count(), out);
}

// The work of `atom_forces`. The first warp has the virial, the last one writes the energy.
template <bool Gated, bool Virials>
MDOPS_D void team_forces(const StepArgs& p, int64_t place, int64_t row, int i, int type, uint32_t touched,
                         const TeamMemories<ForceMemory>& memories) {
  const Team& team = memories.team;
  const int lane = lane_index();
  ForceMemory m = memories.of(team.rank);
  const ForceMemory first = memories.of(0);
  const int count = list_rows_soon(p.touched + place * p.words(), p.words(), m.rows, touched);
  {
    MDOPS_STAGE(feature_gradient);
    features_to_t<2>(p, p.net.inputs + row * p.net.net.inputs, p.t + place * 4 * p.table_width, 1.0f, team,
                     m);
    team.sync();
    memories.add_up(
        p.table_width, [](const ForceMemory& of, int k) { return reinterpret_cast<const float4*>(of.t)[k]; },
        [&](int k, float4 sum) { reinterpret_cast<float4*>(first.t)[k] = sum; });
  }
  m.t = first.t, m.moments = first.moments;
  {
    MDOPS_STAGE(uncontract);
    t_to_moments(p, table_of(p, type), count, team, m, [&] { team.sync(); });
  }
  const KeptPairs pairs(p, i, type, p.pairs + place * p.list_width, team);
  team.sync();
  const float virial = scatter_forces<Gated, Virials>(p, i, type, pairs, team, m);
  float* const share = reinterpret_cast<float*>(m.sums);
  if (lane < 9) share[lane] = virial;
  if (team.rank == team.size - 1 && lane == 0) write_energy(p, row, i);
  team.sync();
  if (team.rank != 0) return;
  float sum = 0;
  for (int r = 0; r < team.size && lane < 9; ++r)
    sum += reinterpret_cast<const float*>(memories.of(r).sums)[lane];
  keep_virial(p, i, sum, m);
}

template <bool Gated, bool Virials>
__global__ void __launch_bounds__(kTeamWarps* kWarp, 1) team_forces_kernel(StepArgs p, int warps) {
  follow_kernels();
  extern __shared__ __align__(16) char shared[];
  MDOPS_STAGE(forces);
  const Team team(warps);
  const int64_t place = static_cast<int64_t>(blockIdx.x) * (blockDim.x / team.threads()) + team.number;
  const TeamMemories<ForceMemory> memories{shared, p, team};
  const int atom = p.by_atom ? (place < p.atoms ? static_cast<int>(place) : -1) : atom_of(p, place);
  int type = -1, system = -1;
  int64_t row = place;
  uint32_t touched = 0;
  if (atom >= 0) {  // in parallel
    type = p.types[atom], system = p.batch[atom];
    touched = word_of(p.touched + place * p.words(), p.words());
    if (p.by_atom) row = p.atom_row[atom];
  }
  const bool counts = is_real(p, type) && system >= 0 && system < p.systems;
  if (counts) team_forces<Gated, Virials>(p, place, row, atom, type, touched, memories);
  if (team.rank == 0 && lane_index() == 0) memories.of(0).virial[9] = counts ? system : -1;
  add_virials(p, shared, team.size);
}

}  // namespace mdops
