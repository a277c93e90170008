// A warp an atom, one type after the other. Into the moments: each lane prepares one neighbour (geometry,
// basis functions), then the lanes add one neighbour at a time to accumulators in shared memory. Out of the
// moments: the type's part of the gradient lies in shared memory, and each lane gathers for one neighbour.
#include <algorithm>

#include "common/cuda.h"
#include "common/rows.h"
#include "spline_moment/args.h"

namespace mdops {

namespace {

constexpr int kMostWarps = 8;              // in a block
constexpr size_t kSharedBytes = 48 << 10;  // what a block may use without asking
constexpr int kBatch = 4;                  // neighbours whose products are formed before they are added

// The neighbours that the lanes of a warp have prepared: the basis values, filed under basis function modulo
// kClasses, the rows of R, and the first basis function of each; with tangents also the derivatives of both.
// Reads take kBatch neighbours at once; the padding keeps the lines of such a read in different banks.
constexpr int kClasses = 8, kLine = kWarp + kBatch;

template <class T>
struct alignas(16) Batch {
  T of[kBatch];
};

template <class T, bool Tangent>
struct alignas(16) Staged {
  static constexpr int kWords = Tangent ? 2 : 1;
  T basis[kWords][kClasses][kLine];
  T row[kWords][4][kLine];
  int32_t first[kWarp];
};

template <class T>
__device__ __forceinline__ Batch<T> read_batch(const T* values) {
  return *reinterpret_cast<const Batch<T>*>(values);
}

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
  T value[kSplineSupport], slope[kSplineSupport], row[4];
  spline_basis(place, args.grid.inv_step, value, slope);
  env_row(d, f, norm, row);
  stage->first[k] = place.interval;
  for (int a = 0; a < 4; ++a) stage->row[0][a][k] = row[a];
  for (int m = 0; m < kSplineSupport; ++m) stage->basis[0][(place.interval + m) % kClasses][k] = value[m];
  if constexpr (Tangent) {
    T ds;
    env_row_jvp(d, tangent, f, norm, row, &ds);
    for (int a = 0; a < 4; ++a) stage->row[1][a][k] = row[a];
    for (int m = 0; m < kSplineSupport; ++m)
      stage->basis[1][(place.interval + m) % kClasses][k] = slope[m] * ds;
  }
}

// Adds `count` staged neighbours to the moments of one type. The number (b, a) always belongs to the same
// lane, and to that lane's bank of shared memory: no two lanes ever meet.
template <int Columns, class T, bool Tangent>
__device__ __forceinline__ void add_staged(const Staged<T, Tangent>& stage, int count, T* moments) {
  constexpr int owners = kWarp / Columns;
  const int a = lane_index() % Columns, owner = lane_index() / Columns, line = owner % kClasses;
  for (int begin = 0; begin < count; begin += kBatch) {
    const Batch<int32_t> first = read_batch(stage.first + begin);
    const Batch<T> basis = read_batch(stage.basis[0][line] + begin),
                   row = read_batch(stage.row[0][a] + begin);
    Batch<T> product;
    for (int u = 0; u < kBatch; ++u) product.of[u] = basis.of[u] * row.of[u];
    if constexpr (Tangent) {
      const Batch<T> dbasis = read_batch(stage.basis[1][line] + begin),
                     drow = read_batch(stage.row[1][a] + begin);
      for (int u = 0; u < kBatch; ++u) product.of[u] = basis.of[u] * drow.of[u] + dbasis.of[u] * row.of[u];
    }
    for (int u = 0; u < kBatch; ++u) {
      const int m = (owner - first.of[u]) & (owners - 1);
      if (begin + u < count && m < kSplineSupport) moments[(first.of[u] + m) * Columns + a] += product.of[u];
    }
  }
}

template <class T>
__device__ __forceinline__ void fill(T* out, int64_t size, T value) {
  for (int64_t k = lane_index(); k < size; k += kWarp) out[k] = value;
}

// Smallest value over the lanes, in all of them.
template <class T>
__device__ __forceinline__ T warp_min(T value) {
  for (int step = kWarp / 2; step; step /= 2) {
    const T other = __shfl_xor_sync(kAllLanes, value, step);
    value = other < value ? other : value;
  }
  return value;
}

// Adds the neighbours [begin, begin + count) of one type to its moments; counts those within the cutoff in
// `inside`, and keeps the smallest squared distance that this lane met in `nearest`.
template <int Columns, class T, bool Tangent>
__device__ void add_type(const MomentArgs<T>& args, const T* tangent, int64_t begin, int count, bool masked,
                         const Normalisation<T>& norm, Staged<T, Tangent>* stage, T* moments, int* inside,
                         T* nearest) {
  const T cutoff2 = args.cutoff.cutoff * args.cutoff.cutoff;
  for (int k = 0; k < count; k += kWarp) {
    const int64_t slot = begin + k + lane_index();
    T d[3] = {0, 0, 0}, v[3] = {0, 0, 0}, r2 = cutoff2;
    if (k + lane_index() < count) {
      load_vector(args.displacements, slot, d);
      r2 = squared_length(d);
    }
    const bool within = r2 < cutoff2;
    const unsigned lanes = __ballot_sync(kAllLanes, within);
    *inside += __popc(lanes);
    *nearest = r2 < *nearest ? r2 : *nearest;
    if (masked) continue;
    if (within) {
      if constexpr (Tangent) load_vector(tangent, slot, v);
      prepare(args, norm, d, v, __popc(lanes & ((1u << lane_index()) - 1)), stage);
    }
    __syncwarp();
    add_staged<Columns>(*stage, __popc(lanes), moments);
    __syncwarp();
  }
}

// The moments of one atom, or with `Tangent` their derivative along the tangents. `accumulators` holds one
// type's moments; null where they do not fit into shared memory: then they grow in the result itself.
template <int Columns, class T, bool Tangent>
__device__ void moments_of(const MomentArgs<T>& args, int64_t i, const T* tangent, const int32_t* sel,
                           Staged<T, Tangent>* stage, T* accumulators, T* moments, int32_t* within,
                           T* nearest) {
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
  const Normalisation<T> norm = args.normalisation(type);
  T least = args.cutoff.cutoff * args.cutoff.cutoff;
  int64_t slot = i * args.width;
  for (int t = 0; t < args.ntypes; slot += counts[t++], out += size) {
    T* sums = accumulators ? accumulators : out;
    const bool masked = args.pair_mask[type * args.ntypes + t];
    int inside = 0;
    fill(sums, size, T(0));
    __syncwarp();
    add_type<Columns>(args, tangent, slot, counts[t], masked, norm, stage, sums, &inside, &least);
    if constexpr (!Tangent) {
      if (lane_index() == 0) {
        within[i * args.ntypes + t] = inside;
        add_padding<Columns>(norm, T(sel[t] - (masked ? 0 : inside)), sums);
      }
    }
    __syncwarp();
    if (accumulators)
      for (int k = lane_index(); k < size; k += kWarp) out[k] = sums[k];
    __syncwarp();
  }
  if constexpr (!Tangent) {
    least = warp_min(least);
    if (lane_index() == 0) nearest[i] = std::sqrt(least);
  }
}

template <int Columns, class T, bool Tangent>
__global__ void moment_kernel(MomentArgs<T> args, int64_t atoms, const T* tangent, const int32_t* sel,
                              bool shared_sums, T* moments, int32_t* within, T* nearest) {
  extern __shared__ __align__(16) char shared[];
  const int warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  auto* stages = reinterpret_cast<Staged<T, Tangent>*>(shared);
  T* sums = reinterpret_cast<T*>(stages + warps) + static_cast<int64_t>(warp) * args.basis() * Columns;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * warps + warp;
  if (i < atoms)
    moments_of<Columns>(args, i, tangent, sel, stages + warp, shared_sums ? sums : nullptr, moments, within,
                        nearest);
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
          if (squared_length(d) < cutoff2)
            pull<Columns, Second, Shared>(args, norm, Shared ? copy : of_type, d, v, g);
        }
        store_triples(g, buffer, out + 3 * (slot + k), left < kWarp ? left : kWarp);
      }
    }
  }
  fill(out + 3 * slot, 3 * (end - slot), kind == RowKind::wrong ? not_a_number<T>() : T(0));
}

template <int Columns, bool Second, bool Shared, class T>
__global__ void pull_kernel(MomentArgs<T> args, int64_t atoms, const T* tangent, const T* grad, T* out) {
  extern __shared__ __align__(16) char shared[];
  const int warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  T* buffers = reinterpret_cast<T*>(shared);
  const int size = (args.basis() * Columns + 3) / 4 * 4;  // keeps every warp's copy aligned
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

template <bool Tangent, class T>
void launch_moments(const CudaOp& op, const MomentArgs<T>& args, int64_t atoms, const T* tangent,
                    const int32_t* sel, T* moments, int32_t* within, T* nearest) {
  constexpr size_t stage = sizeof(Staged<T, Tangent>);
  const size_t sums = sizeof(T) * args.basis() * args.columns();
  const bool fits = warps_for(stage + sums) > 0;
  const int warps = warps_for(fits ? stage + sums : stage);
  op.launch(args.radial ? moment_kernel<1, T, Tangent> : moment_kernel<4, T, Tangent>,
            blocks_for(atoms, warps), warps * kWarp, warps * (fits ? stage + sums : stage), args, atoms,
            tangent, sel, fits, moments, within, nearest);
}

template <int Columns, bool Second, class T>
void launch_pull(const CudaOp& op, const MomentArgs<T>& args, int64_t atoms, const T* tangent, const T* grad,
                 T* out) {
  const size_t buffer = sizeof(T) * 3 * kWarp, copy = sizeof(T) * ((args.basis() * Columns + 3) / 4 * 4);
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
