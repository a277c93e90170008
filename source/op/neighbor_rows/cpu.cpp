#include <algorithm>

#include "neighbor_rows/listing.h"
#include "neighbor_rows/ops.h"

namespace mdops {

namespace {

constexpr int64_t kAtomGrain = 16, kRowGrain = 512;  // a piece of work, at least

void for_rows(int64_t rows, const auto& f) {
  parallel_each(rows, kRowGrain, [&](int64_t n) { f(n); });
}

}  // namespace

template <class T>
static void run_row_list(const Op&, const RowListArgs<T>& args, const RowListResults<T>& out) {
  const int64_t atoms = args.list.atoms;
  parallel(atoms, kAtomGrain, [&](int64_t begin, int64_t end) { count_rows(args, begin, end, out); });
  sum_offsets(atoms, out);
  parallel(atoms, kAtomGrain, [&](int64_t begin, int64_t end) { fill_slots(args, begin, end, out); });
  std::fill(out.slots + out.offsets[atoms], out.slots + atoms * args.list.width, -1);
}

MDOPS_IN_PIECES(run_spline_rows, SplineRowsArgs, spline_rows, args.rows, kRowGrain)
MDOPS_IN_PIECES(run_spline_row_gradients, SplineRowsArgs, spline_row_gradients, args.rows, kRowGrain)

template <class T>
static void run_environment_rows(const Op&, const EnvironmentRowsArgs<T>& args, const EnvironmentRows<T>& out,
                                 int32_t* types) {
  for_rows(args.rows, [&](int64_t n) { environment_row(args, n, out, types); });
}

template <class T>
static void run_environment_row_gradients(const Op&, const EnvironmentRowsArgs<T>& args,
                                          const EnvironmentRows<T, const T*>& grad, T* out) {
  for_rows(args.rows, [&](int64_t n) { environment_row_gradient(args, n, grad, out); });
}

template <class T>
static void run_environment_row_seconds(const Op&, const EnvironmentRowsArgs<T>& args, const T* v,
                                        const EnvironmentRows<T, const T*>& grad,
                                        const EnvironmentRows<T>& out, T* by_d) {
  for_rows(args.rows, [&](int64_t n) { environment_row_second(args, n, v, grad, out, by_d); });
}

template <class T>
static void run_harmonic_rows(const Op&, const EnvironmentRowsArgs<T>& args, int degree, T* out) {
  const int64_t components = components_to(degree);
  for_rows(args.rows, [&](int64_t n) { harmonic_row(args, degree, n, out + components * n); });
}

template <class T>
static void run_harmonic_row_gradients(const Op&, const EnvironmentRowsArgs<T>& args, int degree,
                                       const T* grad, T* out) {
  for_rows(args.rows, [&](int64_t n) { harmonic_row_gradient(args, degree, n, grad, out); });
}

template <class T>
static void run_harmonic_row_seconds(const Op&, const EnvironmentRowsArgs<T>& args, int degree, const T* v,
                                     const T* grad, T* rows, T* by_d) {
  for_rows(args.rows, [&](int64_t n) { harmonic_row_second(args, degree, n, v, grad, rows, by_d); });
}

MDOPS_IN_PIECES(run_row_moments, RowMomentArgs, row_moments, args.atoms, kAtomGrain)

template <class T>
static void run_row_moment_gradients(const Op&, const RowMomentArgs<T>& args, const T* grad, T* environment,
                                     T* g) {
  parallel(args.atoms, kAtomGrain, [&](int64_t begin, int64_t end) {
    MDOPS_RUN(row_moment_gradients, args, grad, begin, end, environment, g);
  });
  const int64_t last = args.offsets[args.atoms];  // rows after it belong to no atom
  std::fill(environment + last * args.components, environment + args.rows * args.components, T(0));
  std::fill(g + last * args.channels, g + args.rows * args.channels, T(0));
}

}  // namespace mdops

MDOPS_ON_CPU(RowListOps, SplineRowsOps, EnvironmentRowsOps, HarmonicRowsOps, RowMomentOps)
