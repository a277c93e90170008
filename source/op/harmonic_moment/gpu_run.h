// Chooses kernels for the inputs, for CUDA and for the emulated GPU.
#pragma once

#include <algorithm>

#include "common/gpu.h"
#include "harmonic_moment/gpu_direct.h"
#include "harmonic_moment/gpu_forces.h"
#include "harmonic_moment/gpu_kernels.h"
#include "harmonic_moment/gpu_wide.h"

namespace mdops::gpu_harmonic {

constexpr int64_t kBlockShared = 64 << 10;  // of blocks if atoms can share one: several run at once

// How many warps a block can have, of so many bytes each beside the shared ones; 0: none.
inline int warps_of(int64_t each, int64_t shared, int64_t most) {
  int warps = kWarps;
  while (warps > 0 && warps * each + shared > most) warps /= 2;
  return warps;
}

// Calls need(bytes), which allocates device memory, if an atom's data does not fit into shared memory.
template <class T, class Need>
void run_moments(const Gpu& gpu, const HarmonicMomentArgs<T>& args, const SumResults<T>& results,
                 Need&& need) {
  with_moment_degree(args.degree, [&](auto degree) {
    const int64_t staged = sizeof(Staged<T, degree()>), most = gpu.limits().shared_bytes;
    const int64_t sums = args.basis * components_to(degree()) * sizeof(T);
    const auto launch = [&](auto kernel, int warps, int64_t each, T* room) {
      gpu.launch(kernel, blocks_for(args.atoms, warps), warps * kWarp, warps * each, args, room, results);
    };
    const int64_t whole = staged + sums;
    if (const int warps = warps_of(whole, 0, std::min(most, std::max(whole, kBlockShared))))
      launch(moments_kernel<T, degree(), true>, warps, whole, nullptr);
    else
      launch(moments_kernel<T, degree(), false>, warps_of(staged, 0, most), staged,
             static_cast<T*>(need(args.atoms * sums)));
  });
}

template <class T, class Need>
void run_gradients(const Gpu& gpu, const HarmonicMomentArgs<T>& args, const SumGradients<T>& source,
                   T* pair_grad, Need&& need) {
  with_moment_degree(args.degree, [&](auto degree) {
    using Own = StagedGradients<T, degree()>;
    const int64_t tables = 2 * args.basis * Own::kStride * sizeof(T), most = gpu.limits().shared_bytes;
    const int64_t room = source.room(components_to(degree())) * sizeof(T);
    const auto launch = [&](auto kernel, int warps, int64_t shared, T* memory) {
      gpu.launch(kernel, args.atoms, warps * kWarp, shared + warps * sizeof(Own), args, memory, source,
                 pair_grad);
    };
    if (const int warps = warps_of(sizeof(Own), tables + room, most))
      launch(gradients_kernel<T, degree(), true>, warps, tables + room, nullptr);
    else
      launch(gradients_kernel<T, degree(), false>, warps_of(sizeof(Own), room, most), room,
             static_cast<T*>(need(args.atoms * tables)));
  });
}

// The kernels by polynomials: of all functions, or of those summed with harmonics.
enum class Pieces { none, all, some };

// Which of them supports a call.
template <class T>
Pieces pieces_of(const HarmonicSumArgs<T>& p) {
  if constexpr (!std::is_same_v<T, float>) return Pieces::none;
  if (p.known == p.firsts && (p.firsts == 8 || p.firsts == 16) && p.seconds == kTogether) return Pieces::all;
  return p.known == p.seconds && (p.seconds == 8 || p.seconds == 16) ? Pieces::some : Pieces::none;
}

// Persistent blocks, as each copies the polynomials: up to `most` warps of a multiprocessor, of `each` bytes.
// None if the polynomials do not fit.
struct PieceBlocks {
  int64_t blocks = 0, bytes = 0;

  template <class T>
  PieceBlocks(const Gpu& gpu, const HarmonicMomentArgs<T>& args, const HarmonicSumArgs<T>& p, int warps,
              int most, int64_t each) {
    const int64_t lines = static_cast<int64_t>(args.ntypes) * args.ntypes * args.grid.intervals;
    const int64_t shared = gpu.limits().shared_bytes;
    bytes = warps * each + lines * piece_stride<T>(p.known) * sizeof(T);
    if (bytes > shared) return;
    const int64_t at_once =
        std::clamp<int64_t>(shared / bytes, 1, most / warps) * gpu.limits().multiprocessors;
    blocks = std::min(blocks_for(args.atoms, warps), at_once);
    fits = true;
  }
  bool fits = false;
};

// Launches kernel(args, p, more...) in these. False where the polynomials do not fit.
template <class T, class Kernel, class... Args>
bool run_pieces(const Gpu& gpu, const HarmonicMomentArgs<T>& args, const HarmonicSumArgs<T>& p, int warps,
                int most, int64_t each, const Kernel& kernel, const Args&... more) {
  const PieceBlocks in(gpu, args, p, warps, most, each);
  if (in.fits) gpu.launch(kernel, in.blocks, warps * kWarp, in.bytes, args, p, more...);
  return in.fits;
}

// work(functions, or those with harmonics), a constant for kernels.
bool with_functions(int64_t given, const auto& work) {
  return given == 8 ? work(std::integral_constant<int, 8>{}) : work(std::integral_constant<int, 16>{});
}

template <class T>
void run_typed_product(const Gpu& gpu, const TypedProduct<T>& p) {
  const int64_t across = blocks_for(p.columns, kTileRows) * p.tables;
  gpu.launch(typed_product_kernel<T>, blocks_for(p.atoms, kTileRows) * across, kTileThreads, 0, p);
}

template <class T, class Need>
void run_sums(const Gpu& gpu, const HarmonicMomentArgs<T>& args, const HarmonicSumArgs<T>& p,
              const HarmonicSums<T>& out, Need&& need) {
  bool done = false;
  if constexpr (std::is_same_v<T, float>) {
    const Pieces known = pieces_of(p);
    with_moment_degree(args.degree, [&](auto degree) {
      if (known == Pieces::all)
        done = with_functions(p.firsts, [&](auto n) {
          return run_pieces(gpu, args, p, kDirectWarps, degree() == 2 ? 24 : 16, sizeof(Waiting<T>),
                            direct_sums_kernel<T, degree(), n()>, out);
        });
      if (known != Pieces::some) return;
      const int row = static_cast<int>(args.row());
      T* const moments = static_cast<T*>(need(args.atoms * row * sizeof(T)));
      done = with_functions(p.seconds, [&](auto n) {
        const int64_t each = sizeof(Waiting<T>) + sizeof(WideStage<T, degree(), n()>) + row * sizeof(int32_t);
        return run_pieces(gpu, args, p, kWideWarps, 16, each, wide_sums_kernel<T, degree(), n()>, moments,
                          out);
      });
      if (done)
        run_typed_product(gpu, TypedProduct<T>{moments,
                                               row,
                                               {p.table},
                                               out.first,
                                               p.width(),
                                               row,
                                               static_cast<int>(p.firsts),
                                               1,
                                               args.types,
                                               args.ntypes,
                                               args.atoms});
    });
  }
  if (!done) run_moments(gpu, args, SumResults<T>{p, out}, need);
}

// Bytes of a warp in the kernels for gradients by pair vectors, which `To` stores.
template <class To, class T>
int64_t direct_bytes(const HarmonicMomentArgs<T>& args, const HarmonicSumArgs<T>& p) {
  const int64_t by = p.firsts + kTogether + components_to(args.degree) * p.seconds;
  return sizeof(Waiting<T>) + by * sizeof(T) + To::kBytes;
}
template <class To, class T>
int64_t wide_bytes(const HarmonicMomentArgs<T>& args, const HarmonicSumArgs<T>& p) {
  const int64_t by = components_to(args.degree) * p.seconds + 2 * args.row();
  return sizeof(Waiting<T>) + by * sizeof(T) + To::kBytes;
}

constexpr int kDirectMost = 24, kWideMost = 16;  // warps of a multiprocessor

// The gradients by the moments of splines and of their slopes, (N, 2, row).
template <class T>
void run_gradients_by_moments(const Gpu& gpu, const HarmonicMomentArgs<T>& args, const HarmonicSumArgs<T>& p,
                              const T* by_first, T* by_moments) {
  const int row = static_cast<int>(args.row());
  run_typed_product(gpu, TypedProduct<T>{by_first,
                                         p.width(),
                                         {p.rows[0], p.rows[1]},
                                         by_moments,
                                         2 * row,
                                         static_cast<int>(p.firsts),
                                         row,
                                         2,
                                         args.types,
                                         args.ntypes,
                                         args.atoms});
}

template <class T, class Need>
void run_sum_gradients(const Gpu& gpu, const HarmonicMomentArgs<T>& args, const HarmonicSumArgs<T>& p,
                       const T* by_first, const T* by_second, T* pair_grad, Need&& need) {
  bool done = false;
  if constexpr (std::is_same_v<T, float>) {
    using To = PairGradients<T>;
    const Pieces known = pieces_of(p);
    with_moment_degree(args.degree, [&](auto degree) {
      if (known == Pieces::all)
        done = with_functions(p.firsts, [&](auto n) {
          return run_pieces(gpu, args, p, kDirectWarps, kDirectMost, direct_bytes<To>(args, p),
                            direct_gradients_kernel<T, degree(), n(), To>, by_first, by_second, pair_grad);
        });
      if (known != Pieces::some) return;
      T* const by_moments = static_cast<T*>(need(2 * args.atoms * args.row() * sizeof(T)));
      run_gradients_by_moments(gpu, args, p, by_first, by_moments);
      done = with_functions(p.seconds, [&](auto n) {
        return run_pieces(gpu, args, p, kWideWarps, kWideMost, wide_bytes<To>(args, p),
                          wide_gradients_kernel<T, degree(), n(), To>, by_first, by_second, by_moments,
                          pair_grad);
      });
    });
  }
  if (!done) run_gradients(gpu, args, SumGradients<T>{p, by_first, by_second}, pair_grad, need);
}

// Forces and virials without storing the gradients of pairs. False if no kernel supports this.
bool run_forces(const Gpu& gpu, const HarmonicMomentArgs<float>& args, const HarmonicSumArgs<float>& p,
                const HarmonicForceArgs<float>& of, auto&& need) {
  using Direct = PairForces<kDirectWarps>;
  using Wide = PairForces<kWideWarps>;
  const Pieces known = pieces_of(p);
  if (known == Pieces::none) return false;
  const bool all = known == Pieces::all;
  const PieceBlocks in(gpu, args, p, all ? kDirectWarps : kWideWarps, all ? kDirectMost : kWideMost,
                       all ? direct_bytes<Direct>(args, p) : wide_bytes<Wide>(args, p));
  if (!in.fits) return false;
  const PairForceSums sums{gpu, of.rows};
  const int64_t words = sums.words(in.blocks), moments = all ? 0 : 2 * args.atoms * args.row();
  int64_t* const memory = static_cast<int64_t*>(need(words * sizeof(int64_t) + moments * sizeof(float)));
  float* const by_moments = reinterpret_cast<float*>(memory + words);
  const ForceSumArgs to{of.rows, sums.begin(memory, in.blocks, of.forces), of.forces};
  gpu.launch(
      largest_gradient_kernel,
      std::min(blocks_for(args.atoms, kBoundWarps), int64_t{kBoundBlocks} * gpu.limits().multiprocessors),
      kBoundWarps * kWarp, 0, args, p, of, to.space.largest);
  if (!all) run_gradients_by_moments(gpu, args, p, of.by_first, by_moments);
  with_moment_degree(args.degree, [&](auto degree) {
    with_functions(all ? p.firsts : p.seconds, [&](auto n) {
      if (all)
        gpu.launch(direct_gradients_kernel<float, degree(), n(), Direct>, in.blocks, kDirectWarps * kWarp,
                   in.bytes, args, p, of.by_first, of.by_second, to);
      else
        gpu.launch(wide_gradients_kernel<float, degree(), n(), Wide>, in.blocks, kWideWarps * kWarp, in.bytes,
                   args, p, of.by_first, of.by_second, by_moments, to);
      return true;
    });
  });
  sums.end(to.space, of.forces, of.virial, nullptr);
  return true;
}

}  // namespace mdops::gpu_harmonic
