#include "common/lane_sums.h"
#include "common/vectors.h"
#include "neighbor_rows/neighbor_rows.h"

namespace mdops::MDOPS_ISA {

namespace {

// f(column, zero of its vector type) for all columns: whole vectors, then fours (rows of 100 have one), then
// single numbers.
template <class T, class F>
MDOPS_INLINE void each_column(int64_t columns, const F& f) {
  int64_t k = 0;
  for (; k + kLanes<T> <= columns; k += kLanes<T>) f(k, Vector<T>{});
  if constexpr (kLanes<T> > 4)
    for (; k + 4 <= columns; k += 4) f(k, Vector4<T>{});
  for (; k < columns; ++k) f(k, T(0));
}

// Sums over such columns.
template <class T>
struct Sum {
  Vector<T> whole{};
  Vector4<T> four{};
  T rest = 0;

  template <class V>
  MDOPS_INLINE void add(const V& x) {
    if constexpr (sizeof(V) == sizeof(T))
      rest += x;
    else if constexpr (sizeof(V) == sizeof(Vector<T>))
      whole += x;
    else
      four += x;
  }
  MDOPS_INLINE T value() const {
    return sum_in_registers<T>(whole) + ((four[0] + four[1]) + (four[2] + four[3])) + rest;
  }
};

// sum_m w[m] of the six rows of a table.
template <class T, class V>
MDOPS_INLINE V weighted(const T* w, const T* rows, int64_t columns, int64_t k, V sum) {
  for (int m = 0; m < kSplineSupport; ++m) sum += w[m] * load<V>(rows + m * columns + k);
  return sum;
}

// The table's rows for a row: of g without the gate, and of the part with the gate (null without one).
template <class T>
struct TableRows {
  const T *plain, *gated;

  TableRows(const SplineRowsArgs<T>& args, const Row<T>& row, int interval)
      : plain(args.table + args.channels * args.table_row(row.type, args.gated ? 0 : row.kind, interval)),
        gated(args.gated ? args.table + args.channels * args.table_row(row.type, 1 + row.kind, interval)
                         : nullptr) {}
};

// f(first, how many, a constant) for all components of rows.
MDOPS_INLINE void each_components(int components, const auto& f) {
  int first = 0;
  for (; first + 8 <= components; first += 8) f.template operator()<8>(first);
  for (; first + 4 <= components; first += 4) f.template operator()<4>(first);
  for (; first + 3 <= components; first += 3) f.template operator()<3>(first);
  for (; first < components; ++first) f.template operator()<1>(first);
}

}  // namespace

template <class T>
void spline_rows(const SplineRowsArgs<T>& args, int64_t begin, int64_t end, const SplineRows<T>& out) {
  for (int64_t n = begin; n < end; ++n) {
    T *g = out.g + n * args.channels, *environment = out.environment + 4 * n,
      *direction = out.directions + 3 * n;
    const int64_t slot = args.slots[n];
    const Row<T> row = row_of_slot(args, slot);
    if (row.is_wrong) {  // empty: others were refused
      out.switches[n] = 0;
      for (int a = 0; a < 4; ++a) environment[a] = 0;
      for (int a = 0; a < 3; ++a) direction[a] = 0;
      for (int64_t k = 0; k < args.channels; ++k) g[k] = 0;
      continue;
    }
    const RowTerms<T> terms(row.d, args.cutoff);
    row_numbers(row, terms, environment, direction);
    out.switches[n] = terms.w;
    const SplinePlace<T> place = spline_place(terms.f.s, args.grid);
    T value[kSplineSupport], slope[kSplineSupport];
    spline_basis(place, value, slope);
    const TableRows<T> table(args, row, place.interval);
    each_column<T>(args.channels, [&](int64_t k, auto zero) {
      using V = decltype(zero);
      V x = weighted(value, table.plain, args.channels, k, zero);
      if (table.gated) x += terms.w * weighted(value, table.gated, args.channels, k, zero);
      store<V>(g + k, x);
    });
  }
}

template <class T>
void spline_row_gradients(const SplineRowsArgs<T>& args, int64_t begin, int64_t end,
                          const SplineRows<T, const T*>& grad, T* out) {
  for (int64_t n = begin; n < end; ++n) {
    const int64_t slot = args.slots[n];
    const Row<T> row = row_of_slot(args, slot);
    if (row.is_wrong) continue;
    const RowTerms<T> terms(row.d, args.cutoff);
    const SplinePlace<T> place = spline_place(terms.f.s, args.grid);
    T value[kSplineSupport], slope[kSplineSupport];
    spline_basis(place, value, slope);
    const TableRows<T> table(args, row, place.interval);
    const T* by_g = grad.g + n * args.channels;
    Sum<T> by_s, by_switch;
    each_column<T>(args.channels, [&](int64_t k, auto zero) {
      using V = decltype(zero);
      const V u = load<V>(by_g + k);
      V change = weighted(slope, table.plain, args.channels, k, zero);
      if (table.gated) {
        change += terms.w * weighted(slope, table.gated, args.channels, k, zero);
        by_switch.add(u * weighted(value, table.gated, args.channels, k, zero));
      }
      by_s.add(u * change);
    });
    row_gradient(row, terms, grad.environment + 4 * n, grad.switches[n] + by_switch.value(),
                 grad.directions + 3 * n, by_s.value(), out + 3 * slot);
  }
}

template <class T>
int64_t row_of_g(const RowMomentArgs<T>& args, int64_t row) {
  return args.index ? args.index[row] : row;
}

template <class T>
void row_moments(const RowMomentArgs<T>& args, int64_t begin, int64_t end, T* out) {
  const int64_t components = args.components;
  for (int64_t i = begin; i < end; ++i)
    each_components(args.components, [&]<int Count>(int first) {
      T* t = out + args.channels * (components * i + first);
      const T* const rows = args.environment + first;
      each_column<T>(args.channels, [&](int64_t k, auto zero) {
        using V = decltype(zero);
        V sum[Count];
        for (V& x : sum) x = zero;
        for (int64_t j = args.offsets[i]; j < args.offsets[i + 1]; ++j) {
          const int64_t from = row_of_g(args, j);
          if (from < 0) continue;
          const V g = load<V>(args.g + args.channels * from + k);
          for (int a = 0; a < Count; ++a) sum[a] += rows[components * j + a] * g;
        }
        for (int a = 0; a < Count; ++a) store<V>(t + a * args.channels + k, sum[a]);
      });
    });
}

template <class T>
void row_moment_gradients(const RowMomentArgs<T>& args, const T* grad, int64_t begin, int64_t end,
                          T* by_environment, T* by_g) {
  const int64_t components = args.components;
  for (int64_t i = begin; i < end; ++i)
    for (int64_t j = args.offsets[i]; j < args.offsets[i + 1]; ++j)
      each_components(args.components, [&]<int Count>(int first) {
        const int64_t from = row_of_g(args, j);
        const T* const t = grad + args.channels * (components * i + first);
        const T* const g = args.g + args.channels * from;
        const T* row = args.environment + components * j + first;
        T* const x_row = by_g + args.channels * j;
        Sum<T> sum[Count];
        each_column<T>(args.channels, [&](int64_t k, auto zero) {
          using V = decltype(zero);
          const V of_g = from < 0 ? zero : load<V>(g + k);
          V x = first ? load<V>(x_row + k) : zero;
          // Unrolled to keep the sums in registers.
          MDOPS_UNROLL
          for (int a = 0; a < Count; ++a) {
            const V u = load<V>(t + a * args.channels + k);
            x += row[a] * u;
            sum[a].add(u * of_g);
          }
          store<V>(x_row + k, x);
        });
        MDOPS_UNROLL
        for (int a = 0; a < Count; ++a) by_environment[components * j + first + a] = sum[a].value();
      });
}

MDOPS_INSTANTIATE(spline_rows, spline_row_gradients, row_moments, row_moment_gradients)

}  // namespace mdops::MDOPS_ISA
