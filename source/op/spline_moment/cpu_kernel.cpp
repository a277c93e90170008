#include <type_traits>

#include "spline_moment/row.h"

namespace mdops::MDOPS_ISA {

namespace {

// The neighbours of one atom within the cutoff, collected a chunk at a time.
template <class T>
struct Chunk {
  alignas(64) T x[kChunk], y[kChunk], z[kChunk], vx[kChunk], vy[kChunk], vz[kChunk];
  alignas(64) int32_t table[kChunk], slot[kChunk];
  int size = 0;

  Pairs<T> pairs() const { return {x, y, z, table, size}; }
  Pairs<T> tangents() const { return {vx, vy, vz, table, size}; }
};

// Calls work(chunk) for atom i's neighbours within the cutoff, and counts them by type in within[t] (when
// given); the pairs that the mask leaves out are counted and not worked on. Returns the smallest squared
// distance.
template <class T, class Work>
T for_neighbors(const MomentArgs<T>& args, int64_t i, const T* tangent, int32_t* within, const Work& work) {
  const T cutoff2 = args.cutoff.cutoff * args.cutoff.cutoff;
  T nearest = cutoff2;
  Chunk<T> chunk;
  int64_t slot = i * args.width;
  for (int t = 0; t < args.ntypes; ++t) {
    const bool masked = args.places.masked(args.types[i], t);
    int32_t inside = 0;
    for (int32_t end = args.counts[i * args.ntypes + t], k = 0; k < end; ++k, ++slot) {
      const T* d = args.displacements + 3 * slot;
      const T r2 = squared_length(d);
      if (!within_cutoff(r2, cutoff2)) continue;
      ++inside;
      nearest = nearest_of(nearest, r2);
      if (masked) continue;
      const int n = chunk.size++;
      chunk.x[n] = d[0], chunk.y[n] = d[1], chunk.z[n] = d[2];
      if (tangent)
        chunk.vx[n] = tangent[3 * slot], chunk.vy[n] = tangent[3 * slot + 1],
        chunk.vz[n] = tangent[3 * slot + 2];
      chunk.table[n] = t * args.basis();
      chunk.slot[n] = static_cast<int32_t>(slot - i * args.width);
      if (chunk.size == kChunk) {
        work(chunk);
        chunk.size = 0;
      }
    }
    if (within) within[t] = inside;
  }
  if (chunk.size) work(chunk);
  return nearest;
}

template <class T>
Centre<T> centre(const MomentArgs<T>& args, int64_t i) {
  return {args.normalisation(args.types[i]), args.cutoff, args.grid};
}

template <int Columns, Gate G, class T>
void forward(const MomentArgs<T>& args, int64_t begin, int64_t end, T* moments, int32_t* within, T* nearest) {
  const int64_t stride = static_cast<int64_t>(args.ntypes) * args.basis() * Columns;
  for (int64_t i = begin; i < end; ++i) {
    T* out = moments + i * stride;
    int32_t* counted = within + i * args.ntypes;
    for (int64_t k = 0; k < stride; ++k) out[k] = 0;
    for (int t = 0; t < args.ntypes; ++t) counted[t] = 0;
    nearest[i] = args.cutoff.cutoff;
    if (args.types[i] < 0) continue;
    const Centre<T> c = centre(args, i);
    int32_t first[kChunk];
    const T r2 = for_neighbors(args, i, static_cast<const T*>(nullptr), counted, [&](const Chunk<T>& chunk) {
      add_moments<Columns, G>(chunk.pairs(), c, out, first);
    });
    nearest[i] = std::sqrt(r2);
    if (G != Gate::none) continue;
    args.places.each_absent(i, args.types[i], counted, [&](int t, int slots) {
      add_padding<Columns>(c.norm, T(slots), out + static_cast<int64_t>(t) * args.basis() * Columns);
    });
  }
}

template <int Columns, Gate G, class T>
void jvp(const MomentArgs<T>& args, const T* tangent, int64_t begin, int64_t end, T* moments) {
  const int64_t stride = static_cast<int64_t>(args.ntypes) * args.basis() * Columns;
  for (int64_t i = begin; i < end; ++i) {
    T* out = moments + i * stride;
    for (int64_t k = 0; k < stride; ++k) out[k] = 0;
    if (args.types[i] < 0) continue;
    const Centre<T> c = centre(args, i);
    for_neighbors(args, i, tangent, nullptr, [&](const Chunk<T>& chunk) {
      add_moments_jvp<Columns, G>(chunk.pairs(), chunk.tangents(), c, out);
    });
  }
}

// `Second`: the Hessian product along `tangent` instead of the gradient.
template <int Columns, Gate G, bool Second, class T>
void pull(const MomentArgs<T>& args, const T* tangent, const T* grad, int64_t begin, int64_t end,
          T* pair_grad) {
  const int64_t stride = static_cast<int64_t>(args.ntypes) * args.basis() * Columns;
  for (int64_t i = begin; i < end; ++i) {
    T* out = pair_grad + 3 * i * args.width;
    for (int64_t k = 0; k < 3 * args.width; ++k) out[k] = 0;
    if (args.types[i] < 0) continue;
    const Centre<T> c = centre(args, i);
    for_neighbors(args, i, tangent, nullptr, [&](const Chunk<T>& chunk) {
      alignas(64) T gx[kChunk], gy[kChunk], gz[kChunk];
      if constexpr (Second)
        pull_hessian_product<Columns, G>(chunk.pairs(), chunk.tangents(), c, grad + i * stride, gx, gy, gz);
      else
        pull_gradient<Columns, G>(chunk.pairs(), c, grad + i * stride, gx, gy, gz);
      for (int k = 0; k < chunk.size; ++k) {
        T* g = out + 3 * chunk.slot[k];
        g[0] = gx[k], g[1] = gy[k], g[2] = gz[k];
      }
    });
  }
}

// work(columns, gate), constants both.
template <class T, class Work>
void with_kind(const MomentArgs<T>& args, const Work& work) {
  using Gates = std::integral_constant<Gate, Gate::alone>;
  using Plain = std::integral_constant<Gate, Gate::none>;
  if (args.radial)
    work(std::integral_constant<int, 1>{}, Plain{});
  else if (args.gated)
    work(std::integral_constant<int, 4>{}, Gates{});
  else
    work(std::integral_constant<int, 4>{}, Plain{});
}

}  // namespace

template <class T>
void moment_forward(const MomentArgs<T>& args, int64_t begin, int64_t end, T* moments, int32_t* within,
                    T* nearest) {
  with_kind(args, [&](auto columns, auto gate) {
    forward<columns(), gate()>(args, begin, end, moments, within, nearest);
  });
}

template <class T>
void moment_jvp(const MomentArgs<T>& args, const T* tangent, int64_t begin, int64_t end, T* moments) {
  with_kind(args,
            [&](auto columns, auto gate) { jvp<columns(), gate()>(args, tangent, begin, end, moments); });
}

template <class T>
void moment_pull(const MomentArgs<T>& args, const T* tangent, const T* grad, int64_t begin, int64_t end,
                 T* pair_grad) {
  with_kind(args, [&](auto columns, auto gate) {
    tangent ? pull<columns(), gate(), true>(args, tangent, grad, begin, end, pair_grad)
            : pull<columns(), gate(), false>(args, tangent, grad, begin, end, pair_grad);
  });
}

MDOPS_INSTANTIATE(moment_forward, moment_jvp, moment_pull)

}  // namespace mdops::MDOPS_ISA
