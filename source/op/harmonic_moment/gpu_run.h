// Which kernels take what there is, for CUDA and for the emulated GPU.
#pragma once

#include <algorithm>

#include "common/gpu.h"
#include "harmonic_moment/gpu_direct.h"
#include "harmonic_moment/gpu_kernels.h"
#include "harmonic_moment/gpu_wide.h"

namespace mdops {

namespace gpu_harmonic {

constexpr int64_t kBlockShared = 64 << 10;  // that blocks take where atoms can share one: several run at once

// How many warps of a block have so many bytes each beside those that they share; 0: not one.
inline int warps_of(int64_t each, int64_t shared, int64_t most) {
  int warps = kWarps;
  while (warps > 0 && warps * each + shared > most) warps /= 2;
  return warps;
}

// Runs need(bytes of device memory), which gives these, where what an atom has does not fit into shared
// memory.
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

// The kernels by polynomials: of all functions, or of those that are summed with harmonics.
enum class Pieces { none, all, some };

// Which of them take a call.
template <class T>
Pieces pieces_of(const HarmonicSumArgs<T>& p) {
  if constexpr (!std::is_same_v<T, float>) return Pieces::none;
  if (p.known == p.firsts && (p.firsts == 8 || p.firsts == 16) && p.seconds == kTogether) return Pieces::all;
  return p.known == p.seconds && (p.seconds == 8 || p.seconds == 16) ? Pieces::some : Pieces::none;
}

// Launches kernel(args, p, more...), whose blocks of so many warps need `each` bytes a warp. Blocks stay, as
// each copies the polynomials: up to `most` warps of a multiprocessor. False where the polynomials do not
// fit.
template <class T, class Kernel, class... Args>
bool run_pieces(const Gpu& gpu, const HarmonicMomentArgs<T>& args, const HarmonicSumArgs<T>& p, int warps,
                int most, int64_t each, const Kernel& kernel, const Args&... more) {
  const int64_t lines = static_cast<int64_t>(args.ntypes) * args.ntypes * args.grid.intervals;
  const int64_t bytes = warps * each + lines * piece_stride<T>(p.known) * sizeof(T);
  const int64_t shared = gpu.limits().shared_bytes;
  if (bytes > shared) return false;
  const int64_t at_once = std::clamp<int64_t>(shared / bytes, 1, most / warps) * gpu.limits().multiprocessors;
  gpu.launch(kernel, std::min(blocks_for(args.atoms, warps), at_once), warps * kWarp, bytes, args, p,
             more...);
  return true;
}

// work(functions or those with harmonics): what kernels have as a constant.
template <class Work>
bool with_functions(int64_t given, const Work& work) {
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
          return run_pieces(gpu, args, p, kDirectWarps, 16, sizeof(Waiting<T>),
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

template <class T, class Need>
void run_sum_gradients(const Gpu& gpu, const HarmonicMomentArgs<T>& args, const HarmonicSumArgs<T>& p,
                       const T* by_first, const T* by_second, T* pair_grad, Need&& need) {
  bool done = false;
  if constexpr (std::is_same_v<T, float>) {
    const Pieces known = pieces_of(p);
    with_moment_degree(args.degree, [&](auto degree) {
      const int64_t by = components_to(degree()) * p.seconds * sizeof(T);
      if (known == Pieces::all)
        done = with_functions(p.firsts, [&](auto n) {
          const int64_t each = sizeof(Waiting<T>) + (p.firsts + kTogether) * sizeof(T) + by;
          return run_pieces(gpu, args, p, kDirectWarps, 24, each, direct_gradients_kernel<T, degree(), n()>,
                            by_first, by_second, pair_grad);
        });
      if (known != Pieces::some) return;
      const int row = static_cast<int>(args.row());
      T* const by_moments = static_cast<T*>(need(2 * args.atoms * row * sizeof(T)));
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
      done = with_functions(p.seconds, [&](auto n) {
        const int64_t each = sizeof(Waiting<T>) + by + 2 * row * sizeof(T);
        return run_pieces(gpu, args, p, kWideWarps, 16, each, wide_gradients_kernel<T, degree(), n()>,
                          by_first, by_second, by_moments, pair_grad);
      });
    });
  }
  if (!done) run_gradients(gpu, args, SumGradients<T>{p, by_first, by_second}, pair_grad, need);
}

}  // namespace gpu_harmonic

}  // namespace mdops
