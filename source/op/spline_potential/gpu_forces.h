// A warp an atom, from the gradient of its features to forces: dT, dA, pair forces, the virial.
#pragma once

#include "spline_potential/gpu_moments.h"

namespace mdops {

// One warp's part of the shared memory.
struct ForceMemory {
  float4* moments;  // [moment_rows]: dA, in the rows that are touched
  float* t;         // [4][table_width]: dT
  float4* narrow;   // [axis]: T_<
  float4* grad;     // [axis]: the part of dT_< that comes from T_<'s own place in D
  int64_t* sums;    // [kWarp][3]: forces on neighbours
  int32_t* others;  // [kWarp]: the neighbours
  int64_t* virial;  // [10]: of this atom, and its system (-1: none)
  int16_t* rows;    // [moment_rows + 4]

  static MDOPS_HD int bytes(const StepArgs& p) { return bytes(p.moment_rows(), p.table_width, p.axis); }
  static MDOPS_HD int bytes(int moment_rows, int table_width, int axis) {
    return 16 * (moment_rows + table_width + 2 * round_up(axis, 8)) + 28 * kWarp + 80 +
           round_up(2 * (moment_rows + 4), 16);
  }
  __device__ ForceMemory(char* shared, int warp, const StepArgs& p) {
    const int n = p.moment_rows();
    moments = reinterpret_cast<float4*>(shared + warp * bytes(n, p.table_width, p.axis));
    t = reinterpret_cast<float*>(moments + n);
    narrow = reinterpret_cast<float4*>(t + 4 * p.table_width);
    grad = narrow + round_up(p.axis, 8);
    sums = reinterpret_cast<int64_t*>(grad + round_up(p.axis, 8));
    others = reinterpret_cast<int32_t*>(sums + 3 * kWarp);
    virial = reinterpret_cast<int64_t*>(others + kWarp);
    rows = reinterpret_cast<int16_t*>(virial + 10);
  }
};

// Lane k gets the sum over the warp of v[k]: 31 exchanges for 32 sums. A lane keeps the half of the sums that
// a bit of its index names and gives the other half away, then the same with half as many.
template <int Half, int Size>
MDOPS_D float transposed_sum(float (&v)[Size]) {
  const bool upper = lane_index() & Half;
#pragma unroll
  for (int k = 0; k < Half; ++k) {
    const float keep = upper ? v[k + Half] : v[k], give = upper ? v[k] : v[k + Half];
    v[k] = keep + __shfl_xor_sync(kAllLanes, give, Half);
  }
  if constexpr (Half > 1) return transposed_sum<Half / 2>(v);
  return v[0];
}

// dT[a][k] = sum_l dD[l][k] T[a][l], and for k < M2 also sum_k' dD[k][k'] T[a][k'], times the weight: for the
// warp's share of D's rows, `Together` at a time.
template <int Together, class Who>
MDOPS_D void features_to_t(const StepArgs& p, const float* d_row, const float* t_row, float weight,
                           const Who& who, const ForceMemory& m) {
  const int lane = lane_index();
  const Features features = p.features();
  const auto begin = [&] {
    for (int l = lane; l < round_up(p.axis, 8); l += kWarp) {
      m.grad[l] = m.narrow[l] = make_float4(0, 0, 0, 0);
      if (l < p.axis)
        m.narrow[l] = p.plain ? make_float4(weight, 0, 0, 0)
                              : make_float4(weight * t_row[l], weight * t_row[p.table_width + l],
                                            weight * t_row[2 * p.table_width + l],
                                            weight * t_row[3 * p.table_width + l]);
    }
    __syncwarp();
  };
  if constexpr (Who::kAlone) begin();
  for (int from = 0; from < p.table_width; from += 4 * kWarp) {
    const int column = from + 4 * lane;
    const bool mine = column < features.width;
    float4 t[4], grad[4], d[Together];
    const auto load = [&](int first) {
#pragma unroll
      for (int k = 0; k < Together; ++k) {  // loads first: they take long
        const int l = first + k;
        d[k] = make_float4(0, 0, 0, 0);
        if (l < p.axis && mine && column >= Features::first(l))
          d[k] = *reinterpret_cast<const float4*>(d_row + features.row(l) + column);
      }
    };
    if constexpr (!Who::kAlone) load(Together * who.rank);
#pragma unroll
    for (int a = 0; a < 4; ++a) {
      grad[a] = t[a] = make_float4(0, 0, 0, 0);
      if (!mine) continue;
      const float4 v = *reinterpret_cast<const float4*>(t_row + a * p.table_width + column);
      t[a] = make_float4(weight * v.x, weight * v.y, weight * v.z, weight * v.w);
    }
    if (!Who::kAlone && from == 0) begin();
    for (int first = Together * who.rank; first < p.axis; first += Together * who.size) {
      float own[4 * Together];
      if (Who::kAlone || first > Together * who.rank) load(first);
#pragma unroll
      for (int k = 0; k < Together; ++k) {
        const float4 c = m.narrow[first + k];
        const float by[4] = {c.x, c.y, c.z, c.w};
#pragma unroll
        for (int a = 0; a < 4; ++a) {
          grad[a].x += d[k].x * by[a], grad[a].y += d[k].y * by[a], grad[a].z += d[k].z * by[a],
              grad[a].w += d[k].w * by[a];
          own[4 * k + a] = d[k].x * t[a].x + d[k].y * t[a].y + d[k].z * t[a].z + d[k].w * t[a].w;
        }
      }
      float sum = transposed_sum<2 * Together>(own);
#pragma unroll
      for (int d = 4 * Together; d < kWarp; d *= 2) sum += __shfl_xor_sync(kAllLanes, sum, d);
      if (4 * Together == kWarp || lane < 4 * Together) reinterpret_cast<float*>(m.grad + first)[lane] += sum;
    }
    if (column < p.table_width)
#pragma unroll
      for (int a = 0; a < 4; ++a) *reinterpret_cast<float4*>(m.t + a * p.table_width + column) = grad[a];
  }
  __syncwarp();
  for (int k = lane; k < 4 * p.axis && !p.plain; k += kWarp)
    m.t[k % 4 * p.table_width + k / 4] += reinterpret_cast<const float*>(m.grad)[k];
  __syncwarp();
}

// dA[b][a] = C[b] . dT[a] in the warp's share of the listed rows: eight lanes a row, four rows at a time,
// loading the next ones meanwhile. `follow` waits for dT.
template <class Who>
MDOPS_D void t_to_moments(const StepArgs& p, const float* table, int count, const Who& who,
                          const ForceMemory& m, const auto& follow) {
  constexpr int lanes = 8, blocks = 4, rows = kWarp / lanes;
  const int group = lane_index() / lanes, u = lane_index() % lanes, begin = rows * who.rank;
  const bool upper4 = u & 4, upper2 = u & 2;
  for (int from = 0; from < p.table_width; from += 4 * kWarp) {
    float4 grad[blocks][4], c[blocks];
    int at[blocks];  // missing columns count zero, whatever the table has there
    int row = 0;
    const auto load = [&] {
      row = Who::kAlone || begin < count ? m.rows[begin + group] : 0;
#pragma unroll
      for (int b = 0; b < blocks; ++b) {
        at[b] = from + 4 * (b * lanes + u) < p.table_width ? from + 4 * (b * lanes + u) : 0;
        c[b] = coefficients(table, row * p.table_width + at[b]);
      }
    };
    if constexpr (!Who::kAlone) load();
    if (from == 0) follow();
#pragma unroll
    for (int b = 0; b < blocks; ++b) {
      const int column = from + 4 * (b * lanes + u);
      const bool there = column < p.table_width;
#pragma unroll
      for (int a = 0; a < 4; ++a)
        grad[b][a] = there ? *reinterpret_cast<const float4*>(m.t + a * p.table_width + column)
                           : make_float4(0, 0, 0, 0);
    }
    if constexpr (Who::kAlone) load();
    for (int k = begin; k < count; k += rows * who.size) {
      const int apart = rows * who.size, next_row = k + apart < count ? m.rows[k + apart + group] : row;
      float sum[4] = {};
#pragma unroll
      for (int b = 0; b < blocks; ++b) {
        const float4 now = c[b];
        c[b] = coefficients(table, next_row * p.table_width + at[b]);
#pragma unroll
        for (int a = 0; a < 4; ++a)
          sum[a] += now.x * grad[b][a].x + now.y * grad[b][a].y + now.z * grad[b][a].z + now.w * grad[b][a].w;
      }
      const float s0 = (upper4 ? sum[2] : sum[0]) + __shfl_xor_sync(kAllLanes, upper4 ? sum[0] : sum[2], 4);
      const float s1 = (upper4 ? sum[3] : sum[1]) + __shfl_xor_sync(kAllLanes, upper4 ? sum[1] : sum[3], 4);
      float s = (upper2 ? s1 : s0) + __shfl_xor_sync(kAllLanes, upper2 ? s0 : s1, 2);
      s += __shfl_xor_sync(kAllLanes, s, 1);
      if (u % 2 == 0 && k + group < count) {
        float* out = reinterpret_cast<float*>(m.moments + row) + u / 2;
        *out = from == 0 ? s : *out + s;
      }
      row = next_row;
    }
  }
  __syncwarp();
}

// Adds three numbers of each lane's pair to those of its neighbour from `first` on. Lanes from `count` on
// have none.
MDOPS_D void add_to_neighbors(const StepArgs& p, const ForceMemory& m, int count, int stride, int first,
                              const int64_t (&values)[3]) {
  const int lane = lane_index();
#pragma unroll
  for (int a = 0; a < 3; ++a) m.sums[3 * lane + a] = values[a];
  __syncwarp();
  // Consecutive lanes add to one atom's numbers, which are one sector of memory.
#pragma unroll
  for (int q = 0; q < 3; ++q) {
    const int at = q * kWarp + lane;
    if (at / 3 < count)
      atomic_add(p.atom_sums + static_cast<int64_t>(stride) * m.others[at / 3] + first + at % 3, m.sums[at]);
  }
  __syncwarp();
}

// The atom's virial, for `add_virials`.
MDOPS_D void keep_virial(const StepArgs& p, int i, float sum, const ForceMemory& m) {
  const int lane = lane_index();
  if (lane < 9) {
    if (!(fabs(sum) < kMostVirial)) fail_system_of(p, i);
    m.virial[lane] = __float2ll_rn(sum * static_cast<float>(1 / kVirialUnit));
  }
}

// An atom's pairs within the cutoff: how many, and the first of a lane's.
struct KeptPairs {
  const float4* pairs;
  int count = 0;
  float4 first = {0, 0, 0, 0};

  template <class Who>
  MDOPS_D KeptPairs(const StepArgs& p, int i, int type, const float4* pairs_, const Who& who)
      : pairs(pairs_) {
    for (int t = 0; t < p.ntypes; ++t)
      count += p.places.masked(type, t) ? 0 : p.within[static_cast<int64_t>(i) * p.ntypes + t];
    const int k = kWarp * who.rank + lane_index();
    if (!Who::kAlone && k < count) first = pairs[k];
  }
};

// The forces of the warp's share of the kept pairs: on the neighbours, on the atom itself; with `Virials`
// also the pairs' own virials, -g (x) d, on the neighbours. Exact sums of rounded pair forces: those on all
// atoms add up to zero. Returns the share of the atom's virial W = -sum d (x) g, a number in each of nine
// lanes; one warp alone keeps it itself.
template <bool Gated, bool Virials, class Who>
MDOPS_D float scatter_forces(const StepArgs& p, int i, int type, const KeptPairs& pairs, const Who& who,
                             const ForceMemory& m) {
  const int lane = lane_index();
  const Normalisation<float> norm = p.normalisation(type);
  const int32_t* within = p.within + static_cast<int64_t>(i) * p.ntypes;
  const int kept = pairs.count;
  int64_t own[3] = {0, 0, 0};
  float w[16] = {};
  for (int k = kWarp * who.rank; k < kept; k += kWarp * who.size) {
    int64_t fixed[3] = {0, 0, 0};
    float d[3] = {0, 0, 0}, g[3] = {0, 0, 0};
    int j = 0;
    if (k + lane < kept) {
      int table = p.table_row(0);
      for (int t = 0, end = 0; t < p.ntypes; ++t) {
        end += p.places.masked(type, t) ? 0 : within[t];
        if (k + lane >= end) table += p.basis();
      }
      const float4 pair = !Who::kAlone && k == kWarp * who.rank ? pairs.first : pairs.pairs[k + lane];
      d[0] = pair.x, d[1] = pair.y, d[2] = pair.z;
      const float* grad = reinterpret_cast<const float*>(m.moments + table);
      pull<4, Gated ? Gate::beside : Gate::none, false, true>(
          p.cutoff, p.grid, norm, grad, reinterpret_cast<const float*>(m.moments), d, d, g);
      j = __float_as_int(pair.w);
#pragma unroll
      for (int a = 0; a < 3; ++a) {
        if (!(fabsf(g[a]) < p.most_force)) fail_system_of(p, i), fail_system_of(p, j);
        fixed[a] = -__float2ll_rn(g[a] * static_cast<float>(1 / kForceUnit));
        own[a] -= fixed[a];
#pragma unroll
        for (int b = 0; b < 3; ++b) w[3 * b + a] -= d[b] * g[a];
      }
    }
    m.others[lane] = j;
    constexpr int stride = Virials ? 16 : 4;
    const int count = kept - k < kWarp ? kept - k : kWarp;
    add_to_neighbors(p, m, count, stride, 0, fixed);
    if constexpr (Virials) {
#pragma unroll
      for (int b = 0; b < 3; ++b) {
        int64_t row[3];
#pragma unroll
        for (int a = 0; a < 3; ++a) {
          const float value = g[b] * d[a];
          if (!(fabsf(value) < p.most_virial)) fail_system_of(p, j);
          row[a] = -__float2ll_rn(value * static_cast<float>(1 / kVirialUnit));
        }
        add_to_neighbors(p, m, count, stride, 4 * (b + 1), row);
      }
    }
  }
#pragma unroll
  for (int a = 0; a < 3; ++a) {
    own[a] = warp_sum(own[a]);
    if (lane == a) atomic_add(p.atom_sums + (Virials ? 16 : 4) * static_cast<int64_t>(i) + a, own[a]);
  }
  float sum = transposed_sum<8>(w);
  sum += __shfl_xor_sync(kAllLanes, sum, 16);
  if constexpr (Who::kAlone) keep_virial(p, i, sum, m);
  return sum;
}

// The rows of the moments that an atom's neighbours touch, in m.rows; how many there are.
MDOPS_D int touched_rows(const StepArgs& p, int64_t row, const ForceMemory& m) {
  return list_rows(p.touched + row * p.words(), p.words(), m.rows);
}

// Adds an atom's forces, from the gradient of its D, times the weight of its energy.
template <bool Gated, bool Virials>
MDOPS_D void atom_forces(const StepArgs& p, int64_t row, int i, const float* d_row, float weight,
                         const ForceMemory& m) {
  const int type = p.types[i];
  {
    MDOPS_STAGE(feature_gradient);
    features_to_t<8>(p, d_row, p.t + row * 4 * p.table_width, weight, OneWarp{}, m);
  }
  {
    MDOPS_STAGE(uncontract);
    const int count = touched_rows(p, row, m);
    t_to_moments(p, table_of(p, type), count, OneWarp{}, m, [] {});
  }
  const KeptPairs pairs(p, i, type, p.pairs + row * p.list_width, OneWarp{});
  scatter_forces<Gated, Virials>(p, i, type, pairs, OneWarp{}, m);
}

// For one lane.
MDOPS_D void write_energy(const StepArgs& p, int64_t row, int i) {
  const int type = p.types[i];
  double sum = p.net.nets[p.net_of(type) * p.net.net_size + p.out_bias];
  for (int k = 0; k < p.output_parts; ++k) sum += p.net.output[row * p.output_parts + k];
  p.energy[i] = p.scale[p.net_of(type)] * sum + p.shift[type];
}

// The atom of a row whose forces count, or -1.
MDOPS_D int real_atom_of(const StepArgs& p, int64_t row) {
  const int i = atom_of(p, row);
  return i >= 0 && p.batch[i] >= 0 && p.batch[i] < p.systems ? i : -1;
}

// Adds the virials of a block's rows; rows without a system have -1 for it. The warps that hold them are
// `apart` apart. All threads must call it.
MDOPS_D void add_virials(const StepArgs& p, char* shared, int apart = 1) {
  __syncthreads();
  // The virials of adjacent rows of one system are written as one sum.
  if (threadIdx.x >= kVirialSums) return;
  const int warps = blockDim.x / kWarp;
  int64_t sum = 0;
  for (int w = 0; w < warps; w += apart) {
    const int64_t* virial = ForceMemory(shared, w, p).virial;
    if (virial[9] < 0) continue;
    sum += virial_part(virial[threadIdx.x % 9], threadIdx.x);
    const int64_t next = w + apart < warps ? ForceMemory(shared, w + apart, p).virial[9] : -1;
    if (next == virial[9]) continue;
    atomic_add(p.virial_sums + kVirialSums * virial[9] + threadIdx.x, sum);
    sum = 0;
  }
}

template <bool Gated, bool Virials>
__global__ void __launch_bounds__(kAtomThreads, 2) forces_kernel(StepArgs p) {
  follow_kernels();
  extern __shared__ __align__(16) char shared[];
  MDOPS_STAGE(forces);
  const int warp = threadIdx.x / kWarp;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (blockDim.x / kWarp) + warp;
  const ForceMemory m(shared, warp, p);
  const int i = real_atom_of(p, row);
  if (i >= 0) atom_forces<Gated, Virials>(p, row, i, p.net.inputs + row * p.net.net.inputs, 1.0f, m);
  if (lane_index() == 0) {
    m.virial[9] = i >= 0 ? p.batch[i] : -1;
    if (i >= 0) write_energy(p, row, i);
  }
  add_virials(p, shared);
}

}  // namespace mdops
