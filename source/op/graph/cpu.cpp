#include <algorithm>
#include <limits>

#include "common/team.h"
#include "graph/ops.h"

namespace mdops {

namespace {

constexpr int64_t kGraphAtoms = 16, kGraphRows = 1024;  // minimum per piece

// The slots that are edges of the atoms [begin, end), in `picked` from the row's first slot on, and how many.
template <class T>
void pick_edges(const EdgeListArgs<T>& args, int64_t begin, int64_t end, int32_t* picked, int64_t* sizes) {
  struct Near : Candidate<T> {
    bool masked;
  };
  std::vector<Near> near;
  const auto& list = args.list;
  for (int64_t i = begin; i < end; ++i) {
    const int32_t type = list.types[i];
    near.clear();
    int64_t slot = i * list.width;
    for (int t = 0; type >= 0 && t < list.ntypes; ++t)
      for (const int64_t last = slot + list.counts[i * list.ntypes + t]; slot < last; ++slot) {
        const Candidate<T> candidate = args.candidate(slot);
        if (candidate.neighbor >= 0 && within_cutoff(candidate.r2, args.cutoff2))
          near.push_back({candidate, args.pair_mask[type * list.ntypes + t]});
      }
    const int64_t size = near.size(), taken = std::min(size, args.edge_sel);
    // Where there is room for none they are only counted, in any order if all have places.
    if (args.capacity || taken < size || args.angle_sel)
      std::sort(near.begin(), near.end(), [](const Near& a, const Near& b) { return a.before(b); });
    int32_t* to = picked + i * list.width;
    int32_t angles = 0, inner = 0;
    sizes[i] = 0;
    for (int64_t k = 0; k < size; ++k) inner += args.within_angle_cutoff(near[k].r2);
    for (int64_t k = 0; k < taken; ++k) {
      if (near[k].masked) continue;
      to[sizes[i]++] = near[k].slot;
      angles += args.makes_angles(k, near[k].r2);
    }
    args.angle_neighbors[i] = angles;
    args.within[2 * i] = static_cast<int32_t>(size), args.within[2 * i + 1] = inner;
  }
}

// Replaces numbers by the sums of all before each; returns the total.
int64_t sum_before(int64_t* numbers, int64_t n) {
  int64_t sum = 0;
  for (int64_t k = 0; k < n; ++k) {
    const int64_t own = numbers[k];
    numbers[k] = sum, sum += own;
  }
  return sum;
}

template <class T>
void softmax_column(const SoftmaxArgs<T>& args, int64_t segment, int64_t column) {
  const int64_t begin = args.offsets[segment], end = args.offsets[segment + 1];
  T max = -std::numeric_limits<T>::infinity();
  for (int64_t e = begin; e < end; ++e) max = std::max(max, args.x[e * args.columns + column]);
  SoftmaxSums<T> sums;
  for (int64_t e = begin; e < end; ++e) sums.add(args, e * args.columns + column, max);
  sums.normalize();
  for (int64_t e = begin; e < end; ++e) sums.write(args, e * args.columns + column, max);
}

}  // namespace

template <class T>
static void run_graph(const Op&, const EdgeListArgs<T>& args) {
  const int64_t atoms = args.list.atoms, width = args.list.width;
  std::vector<int64_t> starts(atoms + 1);
  const auto picked = std::make_unique_for_overwrite<int32_t[]>(atoms * width);
  parallel(atoms, kGraphAtoms,
           [&](int64_t begin, int64_t end) { pick_edges(args, begin, end, picked.get(), starts.data()); });
  const int64_t all = sum_before(starts.data(), atoms), edges = all > args.capacity ? 0 : all;
  starts[atoms] = all;
  args.needed[0] = all, args.needed[1] = -1;
  parallel_each(atoms, kGraphAtoms, [&](int64_t i) {
    args.offsets[i] = static_cast<int32_t>(std::min(starts[i], edges));
    std::fill_n(args.edge_of_slot + i * width, width, -1);
    if (!edges) args.angle_neighbors[i] = 0;
    for (int64_t e = starts[i]; edges && e < starts[i + 1]; ++e)
      args.write_edge(e, i, picked[i * width + e - starts[i]]);
  });
  args.offsets[atoms] = static_cast<int32_t>(edges);
  for (int32_t* const of : {args.i, args.j, args.slots}) std::fill(of + edges, of + args.capacity, -1);
  std::fill(args.edge_images + edges, args.edge_images + args.capacity, 0);
}

static void run_graph(const Op&, const ReverseArgs& args) {
  parallel_each(args.edges, kGraphRows, [&](int64_t e) { args.run(e); });
}

static void run_graph(const Op&, const OrderArgs& args) {
  std::vector<int64_t> places(args.rows + 1);
  for (int64_t e = 0; e < args.edges; ++e)
    if (args.index[e] >= 0) ++places[args.index[e]];
  const int64_t all = sum_before(places.data(), args.rows + 1);
  for (int64_t m = 0; m <= args.rows; ++m) args.offsets[m] = static_cast<int32_t>(places[m]);
  for (int64_t e = 0; e < args.edges; ++e)
    if (args.index[e] >= 0) args.order[places[args.index[e]]++] = static_cast<int32_t>(e);
  std::fill(args.order + all, args.order + args.edges, -1);
}

static void run_graph(const Op&, const EdgeAngleArgs& args) {
  std::vector<int64_t> starts(args.atoms + 1);
  for (int64_t i = 0; i < args.atoms; ++i) starts[i] = static_cast<int64_t>(args.counts[i]) * args.counts[i];
  const int64_t all = sum_before(starts.data(), args.atoms), angles = all > args.capacity ? 0 : all;
  starts[args.atoms] = all;
  args.needed[0] = all, args.needed[1] = -1;
  parallel_each(args.atoms, kGraphAtoms, [&](int64_t i) {
    for (int64_t e = args.offsets[i]; e < args.offsets[i + 1]; ++e)
      args.angle_offsets[e] = angles ? args.angles_before(i, starts[i], e - args.offsets[i]) : 0;
    for (int64_t q = 0; angles && q < starts[i + 1] - starts[i]; ++q) args.write_angle(i, starts[i], q);
  });
  for (int64_t e = args.offsets[args.atoms]; e <= args.edges; ++e)
    args.angle_offsets[e] = static_cast<int32_t>(angles);
  for (int64_t a = angles; a < args.capacity; ++a) args.write_no_angle(a);
}

MDOPS_IN_PIECES(run_graph, GatherArgs, gather_rows, args.rows, kGraphRows)
MDOPS_IN_PIECES(run_graph, ScatterArgs, scatter_rows, args.targets, kGraphAtoms)
MDOPS_IN_PIECES(run_graph, ProductArgs, row_products, args.rows, kGraphRows)
MDOPS_IN_PIECES(run_graph, WeightedSumArgs, weighted_sums, args.targets, kGraphAtoms)

template <class T>
static void run_graph(const Op&, const SoftmaxArgs<T>& args) {
  parallel_each(args.segments, kGraphAtoms, [&](int64_t m) {
    for (int64_t c = 0; c < args.columns; ++c) softmax_column(args, m, c);
  });
  const int64_t first = args.offsets[args.segments] * args.columns;
  std::fill(args.of_x + first, args.of_x + args.rows * args.columns, T(0));
  if (args.of_grad) std::fill(args.of_grad + first, args.of_grad + args.rows * args.columns, T(0));
}

template <class T>
static void run_graph(const Op&, const SegmentWeightArgs<T>& args) {
  parallel_each(args.segments, kGraphAtoms, [&](int64_t m) {
    for (int64_t c = 0; c < args.columns; ++c) weigh_segment(args, m, c, Alone());
  });
  for (int64_t at = args.offsets[args.segments] * args.columns; at < args.rows * args.columns; ++at)
    args.fill(at, T(0));
}

}  // namespace mdops

MDOPS_ON_CPU(GraphOps, EdgeListOps, EdgeRowOps, SegmentWeightOps, SegmentSoftmaxOps)
