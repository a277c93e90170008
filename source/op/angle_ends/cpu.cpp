#include <limits>

#include "angle_ends/ops.h"

namespace mdops {

constexpr int64_t kAngleEndRows = 64;  // minimum rows per piece

// Calls make(row, column, NaN) for each number.
template <class T, class F>
static void for_end_numbers(const AngleEndsArgs<T>& args, int64_t rows, int64_t columns, const F& make) {
  parallel_each(rows, kAngleEndRows, [&](int64_t row) {
    for (int64_t c = 0; c < columns; ++c) make(args, row, c, std::numeric_limits<T>::quiet_NaN());
  });
}

template <class T>
static void run_angle_ends(const Op&, const AngleEndsArgs<T>& args) {
  for_end_numbers(args, args.rows, 2 * args.columns, make_end<T>);
}

template <class T>
static void run_angle_end_gradients(const Op&, const AngleEndsArgs<T>& args) {
  for_end_numbers(args, args.rows, args.inputs, make_by_x<T>);
  for_end_numbers(args, args.atoms, args.columns, make_by_atom<T>);
}

}  // namespace mdops

MDOPS_ON_CPU(AngleEndsOps)
