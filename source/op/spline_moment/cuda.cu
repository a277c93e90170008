// A warp an atom, one type after the other. Into the moments: each lane prepares one neighbour (geometry,
// basis functions), then the lanes add one neighbour at a time to sums in shared memory. Out of the
// moments: the type's part of the gradient lies in shared memory, and each lane gathers for one neighbour.
#include <algorithm>

#include "common/cuda.h"
#include "common/rows.h"
#include "spline_moment/args.h"

namespace mdops {

namespace {

constexpr int kMostWarps = 8;              // in a block
constexpr size_t kSharedBytes = 48 << 10;  // what a block may use without asking
constexpr int kUnroll = 4;                 // neighbours that a lane reads before it adds the first

// Blocks that a multiprocessor should hold at once: it sets the registers of a thread.
template <class T, bool Second>
constexpr int kBlocks = sizeof(T) == 8 ? 2
                        : Second       ? 3
                                       : 4;

// Numbers that are read and written together.
template <class T, int N>
struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) Pack {
  T of[N];
};

// How the lanes share the moments of one type while they add neighbours: a group of lanes adds one neighbour,
// each of its lanes kWidth numbers of one basis function modulo 8, and every group has sums of its own. So a
// number always belongs to the same lane, and the lanes of a group to different banks: no two lanes ever
// meet. Sums in global memory are there once, for one group.
template <int Columns, bool Shared>
struct Sharing {
  static constexpr int kWidth = Columns == 4 ? 2 : 1, kGroup = 8 * Columns / kWidth;
  static constexpr int kCopies = Shared ? kWarp / kGroup : 1;
};

// Numbers of one type, rounded up so that the next copy is aligned.
template <int Columns>
__host__ __device__ constexpr int padded_size(int basis) {
  return (basis * Columns + 3) / 4 * 4;
}

// The same for sums: two rows more, to which the lanes without a share in a neighbour add zero.
template <int Columns>
__host__ __device__ constexpr int sums_size(int basis) {
  return padded_size<Columns>(basis + 2);
}

// The neighbours that the lanes of a warp have prepared: basis values (two lines of them always zero), rows
// of R, and the first basis function of each; with tangents also the derivatives of both.
template <class T, bool Tangent>
struct alignas(16) Staged {
  static constexpr int kWords = Tangent ? 2 : 1;
  Pack<T, 4> row[kWords][kWarp];
  T basis[kWords][kSplineSupport + 2][kWarp + 1];
  int32_t first[kWarp];
};

template <class T>
__device__ __forceinline__ void load_vector(const T* values, int64_t slot, T* d) {
  for (int a = 0; a < 3; ++a) d[a] = values[3 * slot + a];
}

// This lane's neighbour, into place `k` of the stage.
template <class T, bool Tangent>
__device__ __forceinline__ void prepare(const MomentArgs<T>& args, const Normalisation<T>& norm, const T* d,
                                        const T* tangent, int k, Staged<T, Tangent>* stage) {
  const RadialTerms<T> f = radial_terms(squared_length(d), args.cutoff);
  const SplinePlace<T> place = spline_place(f.s, args.grid);
  T value[kSplineSupport], slope[kSplineSupport];
  if (Tangent || place.beyond > T(0))
    spline_basis(place, args.grid.inv_step, value, slope);
  else
    spline_values(place.t, value);
  Pack<T, 4> row;
  env_row(d, f, norm, row.of);
  stage->row[0][k] = row;
  stage->first[k] = place.interval;
  for (int m = 0; m < kSplineSupport; ++m) stage->basis[0][m][k] = value[m];
  if constexpr (Tangent) {
    T ds;
    env_row_jvp(d, tangent, f, norm, row.of, &ds);
    stage->row[1][k] = row;
    for (int m = 0; m < kSplineSupport; ++m) stage->basis[1][m][k] = slope[m] * ds;
  }
}

// Place `k` of the stage without a neighbour: it adds zero.
template <class T, bool Tangent>
__device__ __forceinline__ void leave_empty(int k, Staged<T, Tangent>* stage) {
  stage->first[k] = 0;
  for (int word = 0; word <= Tangent; ++word) {
    stage->row[word][k] = Pack<T, 4>{};
    for (int m = 0; m < kSplineSupport; ++m) stage->basis[word][m][k] = T(0);
  }
}

// Adds `count` staged neighbours to the sums of one type; the places after the last are empty.
template <int Columns, bool Shared, class T, bool Tangent>
__device__ __forceinline__ void add_staged(const Staged<T, Tangent>& stage, int count, int basis, T* sums) {
  using Lanes = Sharing<Columns, Shared>;
  using Numbers = Pack<T, Lanes::kWidth>;
  const int copy = lane_index() / Lanes::kGroup, within = lane_index() % Lanes::kGroup;
  const int residue = within % 8, column = within / 8 * Lanes::kWidth;
  if (copy >= Lanes::kCopies) return;
  T* mine = sums + copy * sums_size<Columns>(basis) + column;
  for (int begin = copy; begin < count; begin += kUnroll * Lanes::kCopies) {
    int at[kUnroll];
    T value[kUnroll], slope[kUnroll];
    Numbers row[kUnroll], drow[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int k = begin + u * Lanes::kCopies, first = stage.first[k], m = (residue - first) & 7;
      at[u] = Shared || m < kSplineSupport ? (first + m) * Columns : -1;
      value[u] = stage.basis[0][m][k];
      row[u] = *reinterpret_cast<const Numbers*>(stage.row[0][k].of + column);
      if constexpr (Tangent) {
        slope[u] = stage.basis[1][m][k];
        drow[u] = *reinterpret_cast<const Numbers*>(stage.row[1][k].of + column);
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (!Shared && at[u] < 0) continue;
      Numbers* place = reinterpret_cast<Numbers*>(mine + at[u]);
      Numbers sum = *place;
      for (int a = 0; a < Lanes::kWidth; ++a) {
        if constexpr (Tangent)
          sum.of[a] += value[u] * drow[u].of[a] + slope[u] * row[u].of[a];
        else
          sum.of[a] += value[u] * row[u].of[a];
      }
      *place = sum;
    }
  }
}

template <class T>
__device__ __forceinline__ void fill(T* out, int64_t size, T value) {
  for (int64_t k = lane_index(); k < size; k += kWarp) out[k] = value;
}

template <int Columns, bool Shared, class T>
__device__ __forceinline__ void clear_sums(int basis, T* sums) {
  const int quads = sums_size<Columns>(basis) * Sharing<Columns, Shared>::kCopies / 4;
  if constexpr (Shared)
    for (int k = lane_index(); k < quads; k += kWarp) reinterpret_cast<Pack<T, 4>*>(sums)[k] = Pack<T, 4>{};
  else
    fill(sums, basis * Columns, T(0));
}

// The sum of the copies, into the result.
template <int Columns, class T>
__device__ __forceinline__ void write_sums(int basis, const T* sums, T* out) {
  constexpr int width = Columns == 4 ? 4 : 1;
  using Numbers = Pack<T, width>;
  for (int k = lane_index(); k < basis * Columns / width; k += kWarp) {
    Numbers total = reinterpret_cast<const Numbers*>(sums)[k];
#pragma unroll
    for (int copy = 1; copy < Sharing<Columns, true>::kCopies; ++copy) {
      const Numbers other = reinterpret_cast<const Numbers*>(sums + copy * sums_size<Columns>(basis))[k];
      for (int a = 0; a < width; ++a) total.of[a] += other.of[a];
    }
    reinterpret_cast<Numbers*>(out)[k] = total;
  }
}

// Smallest value over the lanes, in all of them; what is not a number if any is.
template <class T>
__device__ __forceinline__ T warp_min(T value) {
  for (int step = kWarp / 2; step; step /= 2) value = nearest_of(value, __shfl_xor_sync(kAllLanes, value, step));
  return value;
}

// Adds the neighbours [begin, begin + count) of one type to its sums; counts those within the cutoff in
// `inside`, and keeps the smallest squared distance that this lane met in `nearest`.
template <int Columns, bool Shared, class T, bool Tangent>
__device__ __forceinline__ void add_type(const MomentArgs<T>& args, const T* tangent, int64_t begin,
                                         int count, bool masked, const Normalisation<T>& norm,
                                         Staged<T, Tangent>* stage, T* sums, int* inside, T* nearest) {
  const T cutoff2 = args.cutoff.cutoff * args.cutoff.cutoff;
  for (int k = 0; k < count; k += kWarp) {
    const int64_t slot = begin + k + lane_index();
    T d[3] = {0, 0, 0}, v[3] = {0, 0, 0}, r2 = cutoff2;
    if (k + lane_index() < count) {
      load_vector(args.displacements, slot, d);
      r2 = squared_length(d);
    }
    const bool within = within_cutoff(r2, cutoff2);
    const unsigned lanes = __ballot_sync(kAllLanes, within);
    *inside += __popc(lanes);
    *nearest = nearest_of(*nearest, r2);
    if (masked) continue;
    const int before = __popc(lanes & ((1u << lane_index()) - 1));
    if (within) {
      if constexpr (Tangent) load_vector(tangent, slot, v);
      prepare(args, norm, d, v, before, stage);
    } else {
      leave_empty(__popc(lanes) + lane_index() - before, stage);
    }
    __syncwarp();
    add_staged<Columns, Shared>(*stage, __popc(lanes), args.basis(), sums);
    __syncwarp();
  }
}

// The moments of one atom, or with `Tangent` their derivative along the tangents. One type's sums are in
// shared memory, or grow in the result itself where they do not fit.
template <int Columns, bool Shared, class T, bool Tangent>
__device__ __forceinline__ void moments_of(const MomentArgs<T>& args, int64_t i, const T* tangent,
                                           const int32_t* sel, Staged<T, Tangent>* stage, T* shared_sums,
                                           T* moments, int32_t* within, T* nearest) {
  const int size = args.basis() * Columns, type = args.types[i];
  const int32_t* counts = args.counts + i * args.ntypes;
  const RowKind kind = row_kind(type, args.ntypes, counts, args.width);
  T* out = moments + i * args.ntypes * size;
  if (kind != RowKind::real) {
    const bool wrong = kind == RowKind::wrong;
    fill(out, static_cast<int64_t>(args.ntypes) * size, wrong ? not_a_number<T>() : T(0));
    if constexpr (!Tangent) {
      fill(within + i * args.ntypes, args.ntypes, 0);
      if (lane_index() == 0) nearest[i] = wrong ? not_a_number<T>() : args.cutoff.cutoff;
    }
    return;
  }
  for (int word = 0; word <= Tangent; ++word)
    for (int m = kSplineSupport; m < kSplineSupport + 2; ++m) stage->basis[word][m][lane_index()] = T(0);
  const Normalisation<T> norm = args.normalisation(type);
  T least = args.cutoff.cutoff * args.cutoff.cutoff;
  int64_t slot = i * args.width;
  for (int t = 0; t < args.ntypes; slot += counts[t++], out += size) {
    T* sums = Shared ? shared_sums : out;
    const bool masked = args.pair_mask[type * args.ntypes + t];
    int inside = 0;
    clear_sums<Columns, Shared>(args.basis(), sums);
    __syncwarp();
    add_type<Columns, Shared>(args, tangent, slot, counts[t], masked, norm, stage, sums, &inside, &least);
    if constexpr (!Tangent) {
      if (lane_index() == 0) {
        within[i * args.ntypes + t] = inside;
        add_padding<Columns>(norm, T(sel[t] - (masked ? 0 : inside)), sums);
      }
    }
    __syncwarp();
    if constexpr (Shared) write_sums<Columns>(args.basis(), sums, out);
    __syncwarp();
  }
  if constexpr (!Tangent) {
    least = warp_min(least);
    if (lane_index() == 0) nearest[i] = std::sqrt(least);
  }
}

template <int Columns, bool Shared, class T, bool Tangent>
__global__ void __launch_bounds__(kMostWarps* kWarp, kBlocks<T, Tangent>)
    moment_kernel(MomentArgs<T> args, int64_t atoms, const T* tangent, const int32_t* sel, T* moments,
                  int32_t* within, T* nearest) {
  extern __shared__ __align__(16) char shared[];
  const int warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  auto* stages = reinterpret_cast<Staged<T, Tangent>*>(shared);
  const int size = sums_size<Columns>(args.basis()) * Sharing<Columns, Shared>::kCopies;
  T* sums = reinterpret_cast<T*>(stages + warps) + warp * size;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * warps + warp;
  if (i < atoms)
    moments_of<Columns, Shared>(args, i, tangent, sel, stages + warp, sums, moments, within, nearest);
}

// P_a = sum_m weights[m] grad[m][a] of one neighbour, four numbers.
template <int Columns, bool Aligned, class T>
__device__ __forceinline__ void contract(const T* grad, const T* weights, T* p) {
  for (int a = 0; a < 4; ++a) p[a] = T(0);
#pragma unroll
  for (int m = 0; m < kSplineSupport; ++m) {
    if constexpr (Columns == 1) {
      p[0] += weights[m] * grad[m];
    } else if constexpr (Aligned && sizeof(T) == 4) {
      const float4 g = reinterpret_cast<const float4*>(grad)[m];
      p[0] += weights[m] * g.x, p[1] += weights[m] * g.y, p[2] += weights[m] * g.z, p[3] += weights[m] * g.w;
    } else if constexpr (Aligned) {
      const double2 low = reinterpret_cast<const double2*>(grad)[2 * m];
      const double2 high = reinterpret_cast<const double2*>(grad)[2 * m + 1];
      p[0] += weights[m] * low.x, p[1] += weights[m] * low.y;
      p[2] += weights[m] * high.x, p[3] += weights[m] * high.y;
    } else {
      for (int a = 0; a < 4; ++a) p[a] += weights[m] * grad[4 * m + a];
    }
  }
}

// The gradient of one pair vector from the gradient of the moments of its type, or with `Second` the Hessian
// of <grad, moments> times the pair's tangent. `Aligned`: grad can be read 16 bytes at a time.
template <int Columns, bool Second, bool Aligned, class T>
__device__ __forceinline__ void pull(const MomentArgs<T>& args, const Normalisation<T>& norm, const T* grad,
                                     const T* d, const T* tangent, T* out) {
  const RadialTerms<T> f = radial_terms(squared_length(d), args.cutoff);
  const SplinePlace<T> place = spline_place(f.s, args.grid);
  T weights[2][kSplineSupport], p[4], dp[4];
  spline_basis(place, args.grid.inv_step, weights[0], weights[1]);
  const T* rows = grad + Columns * place.interval;
  contract<Columns, Aligned>(rows, weights[0], p);
  contract<Columns, Aligned>(rows, weights[1], dp);
  if constexpr (Second) {
    T ddp[4];
    spline_basis_second(place, args.grid.inv_step, weights[0]);
    contract<Columns, Aligned>(rows, weights[0], ddp);
    pair_hessian_product(d, tangent, f, norm, p, dp, ddp, out);
  } else {
    pair_gradient(d, f, norm, p, dp, out);
  }
}

// Copies one type's gradient into shared memory; by 16 bytes where both ends allow it.
template <class T>
__device__ __forceinline__ void copy_grad(const T* from, int size, T* to) {
  constexpr int per = 16 / sizeof(T);
  if (reinterpret_cast<uintptr_t>(from) % 16 == 0 && size % per == 0)
    for (int k = lane_index(); k < size / per; k += kWarp)
      reinterpret_cast<float4*>(to)[k] = reinterpret_cast<const float4*>(from)[k];
  else
    for (int k = lane_index(); k < size; k += kWarp) to[k] = from[k];
}

// The pair gradients of one atom. `copy` holds one type's gradient; unused where that does not fit.
template <int Columns, bool Second, bool Shared, class T>
__device__ void pulled_of(const MomentArgs<T>& args, int64_t i, const T* tangent, const T* grad, T* copy,
                          T* buffer, T* out) {
  const int size = args.basis() * Columns, type = args.types[i];
  const int32_t* counts = args.counts + i * args.ntypes;
  const RowKind kind = row_kind(type, args.ntypes, counts, args.width);
  int64_t slot = i * args.width;
  const int64_t end = slot + args.width;
  if (kind == RowKind::real) {
    const Normalisation<T> norm = args.normalisation(type);
    const T cutoff2 = args.cutoff.cutoff * args.cutoff.cutoff;
    const T* of_type = grad + i * args.ntypes * size;
    for (int t = 0; t < args.ntypes; slot += counts[t++], of_type += size) {
      const bool masked = args.pair_mask[type * args.ntypes + t];
      if (Shared && counts[t] > 0 && !masked) {
        __syncwarp();
        copy_grad(of_type, size, copy);
        __syncwarp();
      }
      for (int k = 0; k < counts[t]; k += kWarp) {
        T d[3] = {0, 0, 0}, v[3] = {0, 0, 0}, g[3] = {0, 0, 0};
        const int left = counts[t] - k;
        if (lane_index() < left && !masked) {
          load_vector(args.displacements, slot + k + lane_index(), d);
          if constexpr (Second) load_vector(tangent, slot + k + lane_index(), v);
          if (within_cutoff(squared_length(d), cutoff2))
            pull<Columns, Second, Shared>(args, norm, Shared ? copy : of_type, d, v, g);
        }
        store_triples(g, buffer, out + 3 * (slot + k), left < kWarp ? left : kWarp);
      }
    }
  }
  fill(out + 3 * slot, 3 * (end - slot), kind == RowKind::wrong ? not_a_number<T>() : T(0));
}

template <int Columns, bool Second, bool Shared, class T>
__global__ void __launch_bounds__(kMostWarps* kWarp, kBlocks<T, Second>)
    pull_kernel(MomentArgs<T> args, int64_t atoms, const T* tangent, const T* grad, T* out) {
  extern __shared__ __align__(16) char shared[];
  const int warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  T* buffers = reinterpret_cast<T*>(shared);
  const int size = padded_size<Columns>(args.basis());
  T* copies = buffers + static_cast<int64_t>(warps) * 3 * kWarp;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * warps + warp;
  if (i < atoms)
    pulled_of<Columns, Second, Shared>(args, i, tangent, grad, Shared ? copies + warp * size : nullptr,
                                       buffers + warp * 3 * kWarp, out);
}

// Warps of a block of which each needs this much shared memory; 0 if not even one has it.
int warps_for(size_t bytes) {
  return static_cast<int>(std::min<size_t>(kMostWarps, kSharedBytes / bytes));
}

template <int Columns, bool Tangent, class T>
void launch_moments(const CudaOp& op, const MomentArgs<T>& args, int64_t atoms, const T* tangent,
                    const int32_t* sel, T* moments, int32_t* within, T* nearest) {
  constexpr size_t stage = sizeof(Staged<T, Tangent>);
  const size_t sums = sizeof(T) * sums_size<Columns>(args.basis()) * Sharing<Columns, true>::kCopies;
  const bool fits = warps_for(stage + sums) > 0;
  const int warps = warps_for(fits ? stage + sums : stage);
  op.launch(fits ? moment_kernel<Columns, true, T, Tangent> : moment_kernel<Columns, false, T, Tangent>,
            blocks_for(atoms, warps), warps * kWarp, warps * (fits ? stage + sums : stage), args, atoms,
            tangent, sel, moments, within, nearest);
}

template <bool Tangent, class T>
void launch_moments(const CudaOp& op, const MomentArgs<T>& args, int64_t atoms, const T* tangent,
                    const int32_t* sel, T* moments, int32_t* within, T* nearest) {
  args.radial ? launch_moments<1, Tangent>(op, args, atoms, tangent, sel, moments, within, nearest)
              : launch_moments<4, Tangent>(op, args, atoms, tangent, sel, moments, within, nearest);
}

template <int Columns, bool Second, class T>
void launch_pull(const CudaOp& op, const MomentArgs<T>& args, int64_t atoms, const T* tangent, const T* grad,
                 T* out) {
  const size_t buffer = sizeof(T) * 3 * kWarp, copy = sizeof(T) * padded_size<Columns>(args.basis());
  const bool fits = warps_for(buffer + copy) > 0;
  const int warps = warps_for(fits ? buffer + copy : buffer);
  op.launch(fits ? pull_kernel<Columns, Second, true, T> : pull_kernel<Columns, Second, false, T>,
            blocks_for(atoms, warps), warps * kWarp, warps * (fits ? buffer + copy : buffer), args, atoms,
            tangent, grad, out);
}

template <bool Second, class T>
void launch_pull(const CudaOp& op, const MomentArgs<T>& args, int64_t atoms, const T* tangent, const T* grad,
                 T* out) {
  args.radial ? launch_pull<1, Second>(op, args, atoms, tangent, grad, out)
              : launch_pull<4, Second>(op, args, atoms, tangent, grad, out);
}

std::tuple<Tensor, Tensor, Tensor> spline_moment(const Tensor& displacements, const Tensor& counts,
                                                 const Tensor& types, const Tensor& mean, const Tensor& std,
                                                 const Tensor& pair_mask, const Tensor& sel_, double cutoff,
                                                 double cutoff_smooth, double protection, double s_max,
                                                 int64_t intervals, bool radial) {
  const CudaOp op("spline_moment", "displacements", displacements);
  const MomentInputs in(op, displacements, counts, types, mean, std, pair_mask, cutoff, cutoff_smooth,
                        protection, s_max, intervals, radial);
  const Tensor sel = input(op, "sel", sel_, ScalarType::Int, {in.ntypes});
  Tensor moments = empty(op, {in.atoms, in.ntypes, in.basis(), in.columns()}, in.dtype);
  Tensor within = empty(op, {in.atoms, in.ntypes}, ScalarType::Int);
  Tensor nearest = empty(op, {in.atoms}, in.dtype);
  dispatch_float(op, in.dtype, [&](auto zero) {
    using T = decltype(zero);
    launch_moments<false>(op, in.args<T>(), in.atoms, static_cast<const T*>(nullptr),
                          sel.const_data_ptr<int32_t>(), moments.mutable_data_ptr<T>(),
                          within.mutable_data_ptr<int32_t>(), nearest.mutable_data_ptr<T>());
  });
  return {moments, within, nearest};
}

Tensor spline_moment_backward(const Tensor& grad_, const Tensor& displacements, const Tensor& counts,
                              const Tensor& types, const Tensor& mean, const Tensor& std,
                              const Tensor& pair_mask, double cutoff, double cutoff_smooth, double protection,
                              double s_max, bool radial) {
  const CudaOp op("spline_moment_backward", "displacements", displacements);
  const MomentInputs in(op, displacements, counts, types, mean, std, pair_mask, cutoff, cutoff_smooth,
                        protection, s_max, intervals_of(grad_), radial);
  const Tensor grad = in.grad(op, grad_);
  Tensor result = empty(op, {in.atoms, in.width, 3}, in.dtype);
  dispatch_float(op, in.dtype, [&](auto zero) {
    using T = decltype(zero);
    launch_pull<false>(op, in.args<T>(), in.atoms, static_cast<const T*>(nullptr), grad.const_data_ptr<T>(),
                       result.mutable_data_ptr<T>());
  });
  return result;
}

Tensor spline_moment_jvp(const Tensor& tangent_, const Tensor& displacements, const Tensor& counts,
                         const Tensor& types, const Tensor& mean, const Tensor& std, const Tensor& pair_mask,
                         double cutoff, double cutoff_smooth, double protection, double s_max,
                         int64_t intervals, bool radial) {
  const CudaOp op("spline_moment_jvp", "displacements", displacements);
  const MomentInputs in(op, displacements, counts, types, mean, std, pair_mask, cutoff, cutoff_smooth,
                        protection, s_max, intervals, radial);
  const Tensor tangent = in.pair_tensor(op, "tangent", tangent_);
  Tensor result = empty(op, {in.atoms, in.ntypes, in.basis(), in.columns()}, in.dtype);
  dispatch_float(op, in.dtype, [&](auto zero) {
    using T = decltype(zero);
    launch_moments<true>(op, in.args<T>(), in.atoms, tangent.const_data_ptr<T>(), nullptr,
                         result.mutable_data_ptr<T>(), nullptr, static_cast<T*>(nullptr));
  });
  return result;
}

Tensor spline_moment_hvp(const Tensor& tangent_, const Tensor& grad_, const Tensor& displacements,
                         const Tensor& counts, const Tensor& types, const Tensor& mean, const Tensor& std,
                         const Tensor& pair_mask, double cutoff, double cutoff_smooth, double protection,
                         double s_max, bool radial) {
  const CudaOp op("spline_moment_hvp", "displacements", displacements);
  const MomentInputs in(op, displacements, counts, types, mean, std, pair_mask, cutoff, cutoff_smooth,
                        protection, s_max, intervals_of(grad_), radial);
  const Tensor tangent = in.pair_tensor(op, "tangent", tangent_), grad = in.grad(op, grad_);
  Tensor result = empty(op, {in.atoms, in.width, 3}, in.dtype);
  dispatch_float(op, in.dtype, [&](auto zero) {
    using T = decltype(zero);
    launch_pull<true>(op, in.args<T>(), in.atoms, tangent.const_data_ptr<T>(), grad.const_data_ptr<T>(),
                      result.mutable_data_ptr<T>());
  });
  return result;
}

}  // namespace

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  m.impl("spline_moment", TORCH_BOX(&mdops::spline_moment));
  m.impl("spline_moment_backward", TORCH_BOX(&mdops::spline_moment_backward));
  m.impl("spline_moment_jvp", TORCH_BOX(&mdops::spline_moment_jvp));
  m.impl("spline_moment_hvp", TORCH_BOX(&mdops::spline_moment_hvp));
}
