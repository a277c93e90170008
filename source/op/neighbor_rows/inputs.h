// The arguments of the ops on rows of neighbours, checked at entry; for the CPU and for GPUs.
#pragma once

#include <cmath>

#include "common/bind.h"
#include "common/cutoff.h"
#include "common/pair_checks.h"
#include "graph/row_index.h"
#include "neighbor_rows/harmonics.h"
#include "neighbor_rows/neighbor_rows.h"
#include "spline_moment/knots.h"

namespace mdops {

// A pair list whose slots are ordered by type.
struct SlotInputs {
  Tensor displacements, counts = displacements, types = displacements;
  ScalarType dtype = displacements.scalar_type();
  int64_t atoms = displacements.size(0), width = displacements.size(1), ntypes;

  SlotInputs(const Op& op, const Tensor& displacements_, const Tensor& counts_, const Tensor& types_)
      : displacements(float_input(op, "displacements", displacements_, {kAny, kAny, 3})) {
    counts = input(op, "counts", counts_, ScalarType::Int, {atoms, kAny});
    ntypes = counts.size(1);
    types = input(op, "types", types_, ScalarType::Int, {atoms});
    if (atoms * width > INT32_MAX) fail(op, "argument `displacements` has more slots than 32 bits count");
    if (op.on_cpu()) {
      check_range(op, "types", types, -1, ntypes);
      check_counts(op, counts, width);
    }
  }

  template <class T>
  SlotArgs<T> args() const {
    return {data_of(displacements), data_of(counts), data_of(types), atoms, width, static_cast<int>(ntypes)};
  }
};

struct RowListInputs {
  static constexpr const char* kFirst = "displacements";
  using Given = Listed<Times<5, const Tensor&>, double>;

  SlotInputs list;
  Tensor pair_mask, zeroed;
  double cutoff;

  RowListInputs(const Op& op, const Tensor& displacements, const Tensor& counts, const Tensor& types,
                const Tensor& pair_mask_, const Tensor& zeroed_, double cutoff_)
      : list(op, displacements, counts, types),
        pair_mask(input(op, "pair_mask", pair_mask_, ScalarType::Bool, {list.ntypes, list.ntypes})),
        zeroed(input(op, "zeroed", zeroed_, ScalarType::Bool, {list.ntypes, list.ntypes})),
        cutoff(cutoff_) {
    if (!(cutoff > 0) || !std::isfinite(cutoff))
      fail(op, "argument `cutoff` is ", cutoff, " A, expected a finite number > 0");
  }

  template <class T>
  RowListArgs<T> args() const {
    const T c = static_cast<T>(cutoff);
    return {list.args<T>(), data_of(pair_mask), data_of(zeroed), c * c};
  }
};

// Slots that are rows, and of what their numbers are made.
struct EnvironmentRowsInputs {
  static constexpr const char* kFirst = "displacements";
  using Given = Listed<Times<6, const Tensor&>, Times<3, double>, int64_t>;

  SlotInputs list;
  Tensor slots, mean, std;
  double cutoff, cutoff_smooth, protection;
  int64_t rows;

  EnvironmentRowsInputs(const Op& op, const Tensor& displacements, const Tensor& slots_, const Tensor& counts,
                        const Tensor& types, const Tensor& mean_, const Tensor& std_, double cutoff_,
                        double cutoff_smooth_, double protection_, int64_t rows_)
      : list(op, displacements, counts, types),
        slots(input(op, "slots", slots_, ScalarType::Int, {list.atoms * list.width})),
        mean(input(op, "mean", mean_, list.dtype, {list.ntypes})),
        std(input(op, "std", std_, list.dtype, {list.ntypes, 2})),
        cutoff(cutoff_),
        cutoff_smooth(cutoff_smooth_),
        protection(protection_),
        rows(rows_) {
    check_cutoff(op, cutoff, cutoff_smooth, protection);
    if (rows < 0 || rows > list.atoms * list.width)
      fail(op, "argument `rows` is ", rows, ", expected 0 to the number of slots");
    if (op.on_cpu()) {
      const int32_t* at = slots.const_data_ptr<int32_t>();
      for (int64_t k = 0; k < rows; ++k)
        if (at[k] < -1 || at[k] >= list.atoms * list.width)
          fail(op, "argument `slots` holds ", at[k], ", expected -1 or a slot");
    }
  }

  template <class T>
  EnvironmentRowsArgs<T> args() const {
    return {list.args<T>(),
            data_of(slots),
            data_of(mean),
            data_of(std),
            {static_cast<T>(cutoff), static_cast<T>(cutoff_smooth), static_cast<T>(protection)},
            rows};
  }
};

// Rows with harmonics to a degree.
struct HarmonicRowsInputs : EnvironmentRowsInputs {
  using Given = Listed<EnvironmentRowsInputs::Given, int64_t>;

  int degree, components = components_to(degree);

  HarmonicRowsInputs(const Op& op, const Tensor& displacements, const Tensor& slots_, const Tensor& counts,
                     const Tensor& types, const Tensor& mean_, const Tensor& std_, double cutoff_,
                     double cutoff_smooth_, double protection_, int64_t rows_, int64_t degree_)
      : EnvironmentRowsInputs(op, displacements, slots_, counts, types, mean_, std_, cutoff_, cutoff_smooth_,
                              protection_, rows_),
        degree(degree_ < 2 || degree_ > kMostDegrees ? 0 : static_cast<int>(degree_)) {
    if (degree == 0) fail(op, "argument `degree` is ", degree_, ", expected 2 to ", kMostDegrees);
  }

  Tensor grad(const Op& op, const Tensor& grad_) const {
    return input(op, "grad", grad_, list.dtype, {rows, components});
  }
};

// Results of environment_rows, or gradients by them.
struct EnvironmentRowsTensors {
  Tensor environment, switches, directions;

  EnvironmentRowsTensors(const Op& op, const EnvironmentRowsInputs& in)
      : environment(empty(op, {in.rows, 4}, in.list.dtype)),
        switches(empty(op, {in.rows}, in.list.dtype)),
        directions(empty(op, {in.rows, 3}, in.list.dtype)) {}

  EnvironmentRowsTensors(const Op& op, const EnvironmentRowsInputs& in, const Tensor& environment_,
                         const Tensor& switches_, const Tensor& directions_)
      : environment(input(op, "grad_environment", environment_, in.list.dtype, {in.rows, 4})),
        switches(input(op, "grad_switch", switches_, in.list.dtype, {in.rows})),
        directions(input(op, "grad_directions", directions_, in.list.dtype, {in.rows, 3})) {}

  template <class T>
  EnvironmentRows<T> results() {
    return {data_of(environment), data_of(switches), data_of(directions)};
  }
  template <class T>
  EnvironmentRows<T, const T*> gradients() const {
    return {data_of(environment), data_of(switches), data_of(directions)};
  }
};

struct SplineRowsInputs : EnvironmentRowsInputs {
  using Given = Listed<Times<7, const Tensor&>, Times<5, double>, int64_t, bool>;

  Tensor table;
  double s_max, grading;
  int64_t channels = table.size(3), functions = table.size(1), intervals = table.size(2) - kSplineSupport + 1;
  bool gated;

  SplineRowsInputs(const Op& op, const Tensor& displacements, const Tensor& slots_, const Tensor& counts,
                   const Tensor& types, const Tensor& mean_, const Tensor& std_, const Tensor& table_,
                   double cutoff_, double cutoff_smooth_, double protection_, double s_max_, double grading_,
                   int64_t rows_, bool gated_)
      : EnvironmentRowsInputs(op, displacements, slots_, counts, types, mean_, std_, cutoff_, cutoff_smooth_,
                              protection_, rows_),
        table(input(op, "table", table_, list.dtype, {list.ntypes, list.ntypes + gated_, kAny, kAny})),
        s_max(s_max_),
        grading(grading_),
        gated(gated_) {
    check_knots(op, s_max, grading);
    if (intervals < 1 || channels < 1)
      fail(op, "argument `table` has ", table.size(2), " functions of ", channels,
           " numbers, expected at least 6 of 1");
  }

  template <class T>
  SplineRowsArgs<T> args() const {
    return {
        EnvironmentRowsInputs::args<T>(), data_of(table), spline_grid<T>(intervals, s_max, grading), channels,
        static_cast<int>(functions),      gated};
  }
};

// Results of spline_rows, or gradients by them.
struct SplineRowsTensors : EnvironmentRowsTensors {
  Tensor g;

  SplineRowsTensors(const Op& op, const SplineRowsInputs& in)
      : EnvironmentRowsTensors(op, in), g(empty(op, {in.rows, in.channels}, in.list.dtype)) {}

  SplineRowsTensors(const Op& op, const SplineRowsInputs& in, const Tensor& environment_,
                    const Tensor& switches_, const Tensor& directions_, const Tensor& g_)
      : EnvironmentRowsTensors(op, in, environment_, switches_, directions_),
        g(input(op, "grad_g", g_, in.list.dtype, {in.rows, in.channels})) {}

  template <class T>
  SplineRows<T> results() {
    return {data_of(environment), data_of(switches), data_of(directions), data_of(g)};
  }
  template <class T>
  SplineRows<T, const T*> gradients() const {
    return {data_of(environment), data_of(switches), data_of(directions), data_of(g)};
  }
};

struct RowMomentInputs {
  static constexpr const char* kFirst = "environment";
  using Given = Listed<Times<3, const Tensor&>, bool, Times<3, const std::optional<Tensor>&>>;

  Tensor environment, g = environment, offsets;
  std::optional<RowIndex> of_nodes;
  ScalarType dtype = environment.scalar_type();
  int64_t rows = environment.size(0), channels, atoms, components = environment.size(1);
  bool leaves_rest;

  RowMomentInputs(const Op& op, const Tensor& environment_, const Tensor& g_, const Tensor& offsets_,
                  bool leaves_rest_, const std::optional<Tensor>& index, const std::optional<Tensor>& order,
                  const std::optional<Tensor>& node_offsets)
      : environment(float_input(op, "environment", environment_, {kAny, kAny})),
        offsets(input(op, "offsets", offsets_, ScalarType::Int, {kAny})),
        leaves_rest(leaves_rest_) {
    if (components > kMostComponents)
      fail(op, "argument `environment` has ", components, " columns, expected up to ", kMostComponents);
    g = input(op, "g", g_, dtype, {index ? kAny : rows, kAny});
    channels = g.size(1);
    if (index.has_value() != node_offsets.has_value())
      fail(op, "arguments `index` and `node_offsets` are given together or not at all");
    if (index) {
      of_nodes.emplace(op, *index, order, *node_offsets, rows,
                       RowIndex::Names{"index", "order", "node_offsets"});
      check_nodes(op, "g", g, *of_nodes);
    }
    check_offsets(op, offsets, rows, "g", true);
    atoms = offsets.size(0) - 1;
  }

  Tensor grad(const Op& op, const Tensor& grad_) const {
    return input(op, "grad", grad_, dtype, {atoms, components, channels});
  }

  template <class T>
  RowMomentArgs<T> args() const {
    RowMomentArgs<T> args{
        data_of(environment),        data_of(g), data_of(offsets), rows, channels, atoms, leaves_rest,
        static_cast<int>(components)};
    if (of_nodes) args.index = data_of(of_nodes->index);
    args.nodes = g.size(0);
    return args;
  }
};

}  // namespace mdops
