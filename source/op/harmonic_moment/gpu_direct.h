// Harmonic sums on a GPU by the polynomials of few functions. A warp has an atom: its lanes check the slots,
// and those within the cutoff wait until there are 32 of them, a lane each. A lane evaluates the functions of
// its neighbour, of any type. All polynomials lie in shared memory; rows of consecutive intervals begin in
// different banks.
#pragma once

#include "common/rows.h"
#include "displacements/gpu_force_sums.h"
#include "env_mat/gpu_nearest.h"
#include "gemm/gpu_memory.h"
#include "harmonic_moment/harmonic_moment.h"
#include "spline_moment/gpu_moments.h"

namespace mdops::gpu_harmonic {

constexpr int kDirectWarps = 8, kWaiting = 2 * kWarp;
template <class T>
constexpr int kLine = 16 / sizeof(T);  // numbers that are read at once
constexpr int kTogether = 4;           // functions

// Lane's sum of number lane * N / 32 over all lanes, for N numbers each, a power of two. In each step half of
// the numbers left go to the other half of the lanes.
template <int N, class T>
MDOPS_D T shared_sums(const T (&x)[N], int step = kWarp / 2) {
  if constexpr (N == 1) {
    T sum = x[0];
    for (; step; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
    return sum;
  } else {
    const bool upper = lane_index() & step;
    T half[N / 2];
#pragma unroll
    for (int k = 0; k < N / 2; ++k) {
      const T keep = upper ? x[k + N / 2] : x[k], send = upper ? x[k] : x[k + N / 2];
      half[k] = keep + __shfl_xor_sync(kAllLanes, send, step);
    }
    return shared_sums(half, step / 2);
  }
}

// The stride from an interval's polynomials to the next ones, in shared memory.
template <class T>
MDOPS_HD int piece_stride(int64_t functions) {
  return static_cast<int>(kSplineSupport * functions) + kLine<T>;
}

// Neighbours within the cutoff, waiting in a ring.
template <class T>
struct Waiting {
  T d[3][kWaiting];
  int32_t pair[kWaiting], slot[kWaiting];  // the pair of types among those of the centre
};

// What the lanes of one atom share.
template <class T>
struct DirectArgs {
  HarmonicMomentArgs<T> list;
  HarmonicSumArgs<T> p;
  const T* pieces;  // of all pairs of types
  int stride;       // from an interval to the next

  __device__ DirectArgs(const HarmonicMomentArgs<T>& args, const HarmonicSumArgs<T>& sums)
      : list(args), p(sums), pieces(sums.pieces), stride(static_cast<int>(kSplineSupport * sums.known)) {}

  // Copies the polynomials to shared memory; all threads.
  __device__ void copy(T* to) {
    const int line = stride, apart = piece_stride<T>(p.known);
    const int64_t lines = static_cast<int64_t>(list.ntypes) * list.ntypes * list.grid.intervals;
    for (int64_t k = warp_index(); k < lines; k += blockDim.x / kWarp)
      for (int n = lane_index(); n < line; n += kWarp) to[k * apart + n] = p.pieces[k * line + n];
    pieces = to, stride = apart;
    __syncthreads();
  }

  // The polynomials of a centre's type, and among them those of an interval of a neighbour's type.
  MDOPS_D const T* of_type(int32_t type) const {
    return pieces + static_cast<int64_t>(type) * list.ntypes * list.grid.intervals * stride;
  }
  MDOPS_D const T* piece(const T* of_type, int other, const HarmonicPair<T>& pair) const {
    return of_type + (static_cast<int64_t>(other) * list.grid.intervals + pair.place.interval) * stride;
  }
};

// f(neighbour, its slot, whether there is one) in all lanes for neighbours of a real atom, 32 at a time
// except the last; beyond(slot) in lanes whose slot has no neighbour that counts. Returns how many are within
// the cutoff, and this lane's smallest squared distance.
template <class T, class F, class Beyond>
MDOPS_D int each_near(const HarmonicMomentArgs<T>& args, int64_t i, Waiting<T>* waiting, T* nearest2,
                      const F& f, const Beyond& beyond) {
  const int32_t* const counts = args.counts + i * args.ntypes;
  const int type = args.types[i], lane = lane_index();
  const T* const slots = args.displacements + 3 * i * args.width;
  const T cutoff2 = args.cutoff * args.cutoff;
  int total = 0, begin = 0, end = 0, within = 0;
  for (int t = 0; t < args.ntypes; ++t) total += counts[t];
  SlotTypes types(counts, args.ntypes);
  T d[3] = {0, 0, 0};
  if (lane < total)
    for (int a = 0; a < 3; ++a) d[a] = slots[3 * lane + a];
  const auto work = [&](int count) {
    __syncwarp();
    const int at = (begin + lane) % kWaiting;
    const bool is_there = lane < count;
    T own[3];
    for (int a = 0; a < 3; ++a) own[a] = is_there ? waiting->d[a][at] : T(0);
    f(own, is_there ? waiting->pair[at] : 0, is_there ? waiting->slot[at] : -1, is_there);
    begin += count;
    __syncwarp();
  };
  for (int first = 0; first < total; first += kWarp) {
    const int slot = first + lane;
    const T x = d[0], y = d[1], z = d[2], r2 = x * x + y * y + z * z;
    if (slot + kWarp < total)  // loads while others are summed
      for (int a = 0; a < 3; ++a) d[a] = slots[3 * (slot + kWarp) + a];
    const bool near = slot < total && !(r2 >= cutoff2);
    if (near) *nearest2 = nearest_of(*nearest2, r2);
    within += __popc(__ballot_sync(kAllLanes, near));
    const int other = types.of(slot);
    const bool counts_too = near && !args.pair_mask[type * args.ntypes + other];
    const unsigned all = __ballot_sync(kAllLanes, counts_too);
    if (counts_too) {
      const int at = (end + __popc(all & ((1u << lane) - 1))) % kWaiting;
      waiting->d[0][at] = x, waiting->d[1][at] = y, waiting->d[2][at] = z;
      waiting->pair[at] = other, waiting->slot[at] = slot;
    } else if (slot < total) {
      beyond(slot);
    }
    end += __popc(all);
    if (end - begin >= kWarp) work(kWarp);
  }
  if (end > begin) work(end - begin);
  return within;
}

// Four functions from `piece` on, as far as they are `known`, and their slopes by t if wanted.
template <bool Slopes, class T>
MDOPS_D void evaluate(const T* piece, int known, T t, T* value, T* slope) {
  using Numbers = Pack<T, kLine<T>>;
#pragma unroll
  for (int k = kSplineSupport - 1; k >= 0; --k)
#pragma unroll
    for (int part = 0; part < kTogether; part += kLine<T>) {
      const Numbers a = *reinterpret_cast<const Numbers*>(piece + k * known + part);
#pragma unroll
      for (int u = 0; u < kLine<T>; ++u) {
        T &v = value[part + u], &s = slope[part + u];
        if (k == kSplineSupport - 1) {
          v = a.of[u], s = T(0);
        } else {
          if (Slopes) s = s * t + v;
          v = v * t + a.of[u];
        }
      }
    }
}

// Sums of a warp.
template <class T, int Degree, int Functions>
__global__ void __launch_bounds__(kDirectWarps* kWarp, Degree == 2 ? 3 : 1)
    direct_sums_kernel(HarmonicMomentArgs<T> args, HarmonicSumArgs<T> p, HarmonicSums<T> out) {
  constexpr int kComponents = components_to(Degree), kSeconds = kTogether;
  DirectArgs<T> own(args, p);
  Waiting<T>* const waiting = reinterpret_cast<Waiting<T>*>(net_memory()) + warp_index();
  own.copy(reinterpret_cast<T*>(reinterpret_cast<Waiting<T>*>(net_memory()) + kDirectWarps));
  const int lane = lane_index();
  const int64_t step = static_cast<int64_t>(gridDim.x) * kDirectWarps;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kDirectWarps + warp_index(); i < args.atoms;
       i += step) {
    const int32_t type = args.types[i];
    const RowKind kind = row_kind(type, args.ntypes, args.counts + i * args.ntypes, args.width);
    T* const to_first = out.first + i * (Functions + 2);
    T* const to_second = out.second + i * kComponents * kSeconds;
    T nearest2 = args.cutoff * args.cutoff;
    if (kind != RowKind::real) {
      const T value = kind == RowKind::wrong ? not_a_number<T>() : T(0);
      for (int c = lane; c < Functions + 2; c += kWarp) to_first[c] = value;
      for (int c = lane; c < kComponents * kSeconds; c += kWarp) to_second[c] = value;
      if (lane == 0) out.within[i] = 0, out.nearest[i] = value + args.cutoff;
      continue;
    }
    const T* const of_type = own.of_type(type);
    T first[Functions] = {}, masses[2] = {}, second[kComponents - 1][kSeconds] = {};
    const int within = each_near(
        args, i, waiting, &nearest2,
        [&](const T* d, int other, int, bool is_there) {
          const HarmonicPair<T> pair(d, args.cutoff, args.grid);
          const T chi = is_there ? pair.chi : T(0), chi2 = chi * chi;
          const T* const piece = own.piece(of_type, other, pair);
          masses[0] += chi2, masses[1] += chi2 * chi2;
          T g[kSeconds];
#pragma unroll
          for (int c = 0; c < Functions; c += kTogether) {
            T f[kTogether], none[kTogether];
            evaluate<false>(piece + c, Functions, pair.place.t, f, none);
#pragma unroll
            for (int u = 0; u < kTogether; ++u) {
              first[c + u] += chi * f[u];
              if (c == 0) g[u] = chi2 * f[u];
            }
          }
          const T* const e = pair.direction;
          HarmonicPair<T>::each(T(1), e[0], e[1], e[2], Degree, [&](int l, int n, T b) {
            if (l > 0)
#pragma unroll
              for (int u = 0; u < kSeconds; ++u) second[n - 1][u] += b * g[u];
          });
        },
        [](int) {});
    constexpr int kFirsts = Functions < 16 ? 16 : 32, kOthers = (kComponents - 1) * kSeconds;
    T sums[kFirsts] = {};
#pragma unroll
    for (int c = 0; c < Functions; ++c) sums[c] = first[c];
    for (int w = 0; w < 2; ++w) sums[Functions + w] = masses[w];
    const T of_first = shared_sums(sums);
    if (lane % (kWarp / kFirsts) == 0 && lane * kFirsts / kWarp < Functions + 2)
      to_first[lane * kFirsts / kWarp] = of_first;
#pragma unroll
    for (int from = 0; from < kOthers; from += kWarp) {
      T some[kWarp] = {};
#pragma unroll
      for (int k = 0; k < kWarp; ++k)
        if (from + k < kOthers) some[k] = second[from / kSeconds + k / kSeconds][k % kSeconds];
      const T sum = shared_sums(some);
      if (from + lane < kOthers) to_second[kSeconds + from + lane] = sum;
    }
    if (lane < kSeconds) to_second[lane] = T(0);
    nearest2 = warp_nearest(nearest2);
    if (lane == 0) out.within[i] = within, out.nearest[i] = std::sqrt(nearest2);
  }
}

// Stores the gradients by pair vectors, one atom of a warp after the other: in memory, (N, width, 3).
template <class T>
class PairGradients {
 public:
  using Given = T*;
  static constexpr int kBytes = 0;  // of shared memory, for each warp

  __device__ PairGradients(const HarmonicMomentArgs<T>& args, T* to, void*) : args_(args), to_(to) {}

  // The row of an atom that is not real.
  __device__ void skip(int64_t i, RowKind kind) {
    fill(i, 0, kind == RowKind::wrong ? not_a_number<T>() : T(0));
  }
  __device__ void begin(int64_t i) { row_ = to_ + 3 * i * args_.width; }
  // What `add` needs of a lane's pair.
  __device__ int place(int64_t, int slot) const { return slot; }
  __device__ void add(bool is_there, int slot, const T*, const T* g) {
    if (is_there)
      for (int a = 0; a < 3; ++a) row_[3 * slot + a] = g[a];
  }
  __device__ void beyond(int slot) {
    for (int a = 0; a < 3; ++a) row_[3 * slot + a] = T(0);
  }
  __device__ void end(int64_t i) {
    int64_t total = 0;
    for (int t = 0; t < args_.ntypes; ++t) total += args_.counts[i * args_.ntypes + t];
    fill(i, 3 * total, T(0));
  }
  __device__ void finish() {}

 private:
  __device__ void fill(int64_t i, int64_t from, T value) {
    T* const row = to_ + 3 * i * args_.width;
    for (int64_t k = from + lane_index(); k < 3 * args_.width; k += kWarp) row[k] = value;
  }

  const HarmonicMomentArgs<T>& args_;
  T *const to_, *row_ = nullptr;
};

// Or adds them up to forces and virials.
template <int Warps>
class PairForces {
 public:
  using Given = ForceSumArgs;
  using Sums = ForceSums<Warps>;
  static constexpr int kBytes = Sums::kWords * sizeof(int64_t);

  __device__ PairForces(const HarmonicMomentArgs<float>&, const ForceSumArgs& sums, void* memory)
      : sums_(sums, static_cast<int64_t*>(memory)) {}

  __device__ void skip(int64_t i, RowKind kind) {
    sums_.begin(i);
    sums_.end(i, kind);
  }
  __device__ void begin(int64_t i) { sums_.begin(i); }
  __device__ int32_t place(int64_t i, int slot) const { return slot < 0 ? -1 : sums_.neighbor(i, slot); }
  __device__ void add(bool is_there, int32_t j, const float* d, const float* g) {
    sums_.add(is_there, j, d, g);
  }
  __device__ void beyond(int) {}
  __device__ void end(int64_t i) { sums_.end(i, RowKind::real); }
  __device__ void finish() { sums_.finish(); }

 private:
  Sums sums_;
};

// The gradients of a warp's atom by its pair vectors. f(pair, other, by_component) gives that by the pair's
// length, and adds those by the harmonics.
template <int Degree, class T, class To, class F>
MDOPS_D void each_gradient(const HarmonicMomentArgs<T>& args, int64_t i, Waiting<T>* waiting, To& to,
                           const F& f) {
  T nearest2 = 0;
  to.begin(i);
  each_near(
      args, i, waiting, &nearest2,
      [&](const T* d, int other, int slot, bool is_there) {
        const auto place = to.place(i, slot);
        const HarmonicPair<T> pair(d, args.cutoff, args.grid);
        const T* const e = pair.direction;
        T by_component[components_to(Degree)] = {}, across[3] = {0, 0, 0}, found[3];
        const T along = f(pair, other, by_component);
        add_harmonic_gradients<Degree>(e[0], e[1], e[2], by_component, across);
        pair.turned(along, across, found);
        to.add(is_there, place, d, found);
      },
      [&](int slot) { to.beyond(slot); });
  to.end(i);
}

// f(i) by a warp for its real atoms; `to` skips the others.
template <int Warps, class T, class To, class F>
MDOPS_D void each_atom(const HarmonicMomentArgs<T>& args, To& to, const F& f) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * Warps;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * Warps + warp_index(); i < args.atoms; i += step) {
    const RowKind kind = row_kind(args.types[i], args.ntypes, args.counts + i * args.ntypes, args.width);
    if (kind == RowKind::real)
      f(i);
    else
      to.skip(i, kind);
  }
  to.finish();
}

template <class T, int Degree, int Functions, class To>
__global__ void __launch_bounds__(kDirectWarps* kWarp, Degree == 2 ? 3 : 1)
    direct_gradients_kernel(HarmonicMomentArgs<T> args, HarmonicSumArgs<T> p, const T* by_first,
                            const T* by_second, typename To::Given given) {
  using Numbers = Pack<T, kTogether>;
  constexpr int kComponents = components_to(Degree), kSeconds = kTogether, kFirsts = Functions + 2;
  constexpr int kBy = (kFirsts + kTogether - 1) / kTogether * kTogether, kAll = kBy + kComponents * kSeconds;
  DirectArgs<T> own(args, p);
  auto* const waiting = reinterpret_cast<Waiting<T>*>(net_memory());
  T* const rows = reinterpret_cast<T*>(waiting + kDirectWarps);
  char* const room = reinterpret_cast<char*>(rows + kDirectWarps * kAll);
  T* const by = rows + warp_index() * kAll;
  To to(args, given, room);
  own.copy(reinterpret_cast<T*>(room + kDirectWarps * To::kBytes));
  const int lane = lane_index();
  each_atom<kDirectWarps>(args, to, [&](int64_t i) {
    __syncwarp();
    for (int c = lane; c < kFirsts; c += kWarp) by[c] = by_first[i * kFirsts + c];
    for (int c = lane; c < kComponents * kSeconds; c += kWarp)
      by[kBy + c] = by_second[i * kComponents * kSeconds + c];
    __syncwarp();
    const T* const of_type = own.of_type(args.types[i]);
    const auto numbers = [&](int at) { return *reinterpret_cast<const Numbers*>(by + at); };
    each_gradient<Degree>(
        args, i, waiting + warp_index(), to, [&](const HarmonicPair<T>& pair, int other, T* by_component) {
          const T chi = pair.chi, dchi = pair.dchi, own_chi = chi * chi, steep = T(2) * chi * dchi;
          const T rate = args.grid.inv_step, t = pair.place.t;
          const T* const piece = own.piece(of_type, other, pair);
          T along = pair.by_masses(by[Functions], by[Functions + 1]);
          T value[kSeconds], rise[kSeconds];  // of chi^2 F, and of its slope
#pragma unroll
          for (int c = 0; c < Functions; c += kTogether) {
            T f[kTogether], slope[kTogether];
            evaluate<true>(piece + c, Functions, t, f, slope);
            const Numbers g = numbers(c);
#pragma unroll
            for (int u = 0; u < kTogether; ++u) {
              slope[u] *= rate;
              along += g.of[u] * (dchi * f[u] + chi * slope[u]);
              if (c == 0) value[u] = own_chi * f[u], rise[u] = steep * f[u] + own_chi * slope[u];
            }
          }
          const T* const e = pair.direction;
          HarmonicPair<T>::each(T(1), e[0], e[1], e[2], Degree, [&](int l, int n, T b) {
            if (l == 0) return;
            const Numbers g = numbers(kBy + n * kSeconds);
            T p_n = 0, q_n = 0;
#pragma unroll
            for (int u = 0; u < kSeconds; ++u) p_n += g.of[u] * value[u], q_n += g.of[u] * rise[u];
            by_component[n] = p_n;
            along += q_n * b;
          });
          return along;
        });
  });
}

}  // namespace mdops::gpu_harmonic
