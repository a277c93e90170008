#include "neighbor_rows/gpu_loops.h"

#include <initializer_list>
#include <type_traits>

#include "neighbor_rows/gpu_kernels.h"

namespace mdops {

using namespace gpu_neighbor_rows;

namespace {

// work(numbers at once), a constant: 4 of float32 if all these rows are 16-byte aligned.
template <class T, class Work>
void with_numbers(int64_t channels, std::initializer_list<const T*> rows, const Work& work) {
  if constexpr (std::is_same_v<T, float>) {
    bool wide = channels % 4 == 0;
    for (const T* row : rows) wide &= reinterpret_cast<uintptr_t>(row) % 16 == 0;
    if (wide) return work(std::integral_constant<int, 4>{});
  }
  work(std::integral_constant<int, 1>{});
}

// The same for a warp a row: at most as many as leave no lane idle.
template <class T, class Work>
void with_numbers_of_lanes(int64_t channels, std::initializer_list<const T*> rows, const Work& work) {
  if constexpr (std::is_same_v<T, float>) {
    if (channels > kWarp && channels <= 2 * kWarp && channels % 4 == 0)
      return with_numbers<T>(
          channels, rows, [&](auto at_once) { work(std::integral_constant<int, at_once() == 4 ? 2 : 1>{}); });
    if (channels > kWarp) return with_numbers<T>(channels, rows, work);
  }
  work(std::integral_constant<int, 1>{});
}

// work(gated), a constant.
void with_gate(bool gated, const auto& work) {
  if (gated)
    work(std::true_type{});
  else
    work(std::false_type{});
}

// work(warps of an atom's block), a constant.
void with_atom_warps(const Gpu& gpu, int64_t atoms, const auto& work) {
  if (atoms < 4 * gpu.limits().multiprocessors)
    work(std::integral_constant<int, kFewAtomWarps>{});
  else
    work(std::integral_constant<int, kAtomWarps>{});
}

// work(how many components at once), a constant.
void with_components(int components, const auto& work) {
  if (components == 3)
    work(std::integral_constant<int, 3>{});
  else if (components == 4)
    work(std::integral_constant<int, 4>{});
  else
    work(std::integral_constant<int, 8>{});
}

}  // namespace

template <class T>
void run_row_list(const Gpu& gpu, const RowListArgs<T>& args, const RowListResults<T>& out) {
  const int64_t atoms = args.list.atoms, blocks = blocks_for(atoms, kWarps);
  gpu.launch(count_kernel<T>, blocks, kWarps * kWarp, 0, args, out);
  gpu.launch(scan_kernel, 1, kScanThreads, 0, out.offsets, atoms);
  gpu.launch(fill_kernel<T>, blocks, kWarps * kWarp, 0, args, out);
}

template <class T>
void run_spline_rows(const Gpu& gpu, const SplineRowsArgs<T>& args, const SplineRows<T>& out) {
  with_numbers<T>(args.channels, {args.table, out.g}, [&](auto at_once) {
    with_gate(args.gated, [&](auto gate) {
      gpu.launch(rows_kernel<T, gate(), at_once()>, blocks_for(args.rows, kWarps * kWarp), kWarps * kWarp, 0,
                 args, out);
    });
  });
}

template <class T>
void run_spline_row_gradients(const Gpu& gpu, const SplineRowsArgs<T>& args,
                              const SplineRows<T, const T*>& grad, T* out) {
  gpu.clear(out, static_cast<int64_t>(sizeof(T)) * 3 * args.list.atoms * args.list.width);
  with_numbers<T>(args.channels, {args.table, grad.g}, [&](auto at_once) {
    with_gate(args.gated, [&](auto gate) {
      gpu.launch(rows_backward_kernel<T, gate(), at_once()>, blocks_for(args.rows, kWarps * kWarp),
                 kWarps * kWarp, 0, args, grad, out);
    });
  });
}

template <class T>
void run_environment_rows(const Gpu& gpu, const EnvironmentRowsArgs<T>& args, const EnvironmentRows<T>& out,
                          int32_t* types) {
  gpu.launch_for(args.rows, kRowThreads, environment_kernel<T>, args, out, types);
}

template <class T>
void run_environment_row_gradients(const Gpu& gpu, const EnvironmentRowsArgs<T>& args,
                                   const EnvironmentRows<T, const T*>& grad, T* out) {
  gpu.clear(out, static_cast<int64_t>(sizeof(T)) * 3 * args.list.atoms * args.list.width);
  gpu.launch_for(args.rows, kRowThreads, environment_gradient_kernel<T>, args, grad, out);
}

template <class T>
void run_environment_row_seconds(const Gpu& gpu, const EnvironmentRowsArgs<T>& args, const T* v,
                                 const EnvironmentRows<T, const T*>& grad, const EnvironmentRows<T>& out,
                                 T* by_d) {
  gpu.clear(by_d, static_cast<int64_t>(sizeof(T)) * 3 * args.list.atoms * args.list.width);
  gpu.launch_for(args.rows, kRowThreads, environment_second_kernel<T>, args, v, grad, out, by_d);
}

template <class T>
void run_harmonic_rows(const Gpu& gpu, const EnvironmentRowsArgs<T>& args, int degree, T* out) {
  gpu.launch_for(args.rows, kRowThreads, harmonic_kernel<T>, args, degree, out);
}

template <class T>
void run_harmonic_row_gradients(const Gpu& gpu, const EnvironmentRowsArgs<T>& args, int degree, const T* grad,
                                T* out) {
  gpu.clear(out, static_cast<int64_t>(sizeof(T)) * 3 * args.list.atoms * args.list.width);
  gpu.launch_for(args.rows, kRowThreads, harmonic_gradient_kernel<T>, args, degree, grad, out);
}

template <class T>
void run_harmonic_row_seconds(const Gpu& gpu, const EnvironmentRowsArgs<T>& args, int degree, const T* v,
                              const T* grad, T* rows, T* by_d) {
  gpu.clear(by_d, static_cast<int64_t>(sizeof(T)) * 3 * args.list.atoms * args.list.width);
  gpu.launch_for(args.rows, kRowThreads, harmonic_second_kernel<T>, args, degree, v, grad, rows, by_d);
}

template <class T>
void run_row_moments(const Gpu& gpu, const RowMomentArgs<T>& args, T* out) {
  with_numbers_of_lanes<T>(args.channels, {args.g}, [&](auto at_once) {
    with_components(args.components, [&](auto count) {
      with_atom_warps(gpu, args.atoms, [&](auto warps) {
        gpu.launch(moments_kernel<T, at_once(), count(), warps()>, args.atoms, warps() * kWarp, 0, args, out);
      });
    });
  });
}

template <class T>
void run_row_moment_gradients(const Gpu& gpu, const RowMomentArgs<T>& args, const T* grad, T* environment,
                              T* g) {
  // If it only checks offsets, blocks are few enough to begin early.
  const int64_t blocks = (args.leaves_rest ? 1 : 2) * gpu.limits().multiprocessors;
  gpu.launch_early(clear_rows_kernel<T>, args.rows > 0 ? blocks : 0, 256, 0, args, environment, g);
  with_numbers_of_lanes<T>(args.channels, {args.g, grad, g}, [&](auto at_once) {
    with_components(args.components, [&](auto count) {
      with_atom_warps(gpu, args.atoms, [&](auto warps) {
        gpu.launch(moments_backward_kernel<T, at_once(), count(), warps()>, args.atoms, warps() * kWarp, 0,
                   args, grad, environment, g);
      });
    });
  });
}

MDOPS_INSTANTIATE(run_environment_rows, run_environment_row_gradients, run_environment_row_seconds,
                  run_harmonic_rows, run_harmonic_row_gradients, run_harmonic_row_seconds, run_row_list,
                  run_spline_rows, run_spline_row_gradients, run_row_moments, run_row_moment_gradients)

}  // namespace mdops
