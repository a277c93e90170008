// The owner of each of many rows, and each owner's rows, checked at an op's entry.
#pragma once

#include "common/checked.h"
#include "graph/rows.h"

namespace mdops {

// Takes offsets of segments of `rows` rows, one more than segments. Returns the number of segments.
int64_t take_offsets(auto& in, const int32_t*& to, Input offsets, int64_t rows,
                     const char* name = "offsets") {
  in.take(to, name, offsets, {kAny});
  const int64_t segments = offsets.size(0) - 1;
  if (segments < 0)
    fail(in.op, "argument `", name, "` is empty, expected one number more than there are segments");
  if (!in.op.on_cpu()) return segments;
  for (int64_t m = 0; m < segments; ++m)
    if (to[m + 1] < to[m]) fail(in.op, "argument `", name, "` falls after segment ", m);
  if (to[0] != 0 || to[segments] > rows)
    fail(in.op, "argument `", name, "` goes from ", to[0], " to ", to[segments],
         ", expected from 0 to at most the ", rows, " rows");
  return segments;
}

// The node of each of many rows, as given to ops.
struct NodeIndex {
  const Tensor& index;
  const Optional& order;
  const Tensor& offsets;
  using Parts = TypeList<const Tensor&, const Optional&, const Tensor&>;
};
// The same for rows sorted by node.
struct SortedIndex {
  const Tensor &index, &offsets;
  using Parts = TypeList<const Tensor&, const Tensor&>;
};

// The same, checked.
struct RowIndex {
  struct Names {
    const char *index, *order, *offsets;
  };
  Names names;
  const int32_t *index, *order = nullptr, *offsets;  // (rows,), (rows,) or null, (targets + 1,)
  int64_t rows, targets;

  // For `expected` rows, or any number.
  RowIndex(auto& in, const NodeIndex& of, int64_t expected, Names names_ = {"index", "order", "offsets"})
      : names(names_) {
    in.take(index, names.index, of.index, {expected});
    rows = of.index.size(0), targets = take_offsets(in, offsets, of.offsets, rows, names.offsets);
    in.take(order, names.order, of.order, {rows});
    if (!in.op.on_cpu()) return;
    check_range(in.op, names.index, index, rows, -1, targets);
    check(in.op);
  }
  RowIndex(auto& in, const SortedIndex& of, int64_t expected, const char* name = "index",
           const char* name_of_offsets = "offsets")
      : RowIndex(in, NodeIndex{of.index, std::nullopt, of.offsets}, expected, {name, "", name_of_offsets}) {}

 private:
  // Checks that `order` and `offsets` name each row once, under its own node.
  void check(const Op& op) const {
    parallel(targets, 4096, [&](int64_t from, int64_t to) {
      for (int64_t m = from; m < to; ++m) {
        int64_t before = -1;
        for (int64_t p = offsets[m]; p < offsets[m + 1]; ++p) {
          const int64_t row = order ? order[p] : p;
          if (row <= before || row >= rows || index[row] != m)
            fail(op,
                 (order ? std::string("arguments `") + names.order + "` and `" + names.offsets + "` have"
                        : std::string("argument `") + names.offsets + "` has"),
                 " row ", row, " at place ", p, " as one of node ", m,
                 ", expected the rows of each node in `", names.index, "`, rising");
          before = row;
        }
      }
    });
    int64_t named = 0;
    for (int64_t row = 0; row < rows; ++row) named += index[row] >= 0;
    if (named != offsets[targets])
      fail(op, "argument `", names.index, "` has ", named, " rows of nodes, and `", names.offsets,
           "` ends at ", offsets[targets]);
  }
};

// Checks that `x` has a row for each node.
inline void check_nodes(const Op& op, const char* name, Input x, const RowIndex& of) {
  if (of.targets != x.size(0))
    fail(op, "argument `", name, "` has ", x.size(0), " rows, and `", of.names.offsets, "` is of ",
         of.targets);
}

// Rows of nodes, one per node.
template <class T>
void set_nodes(const Op& op, NodeRows<T>& nodes, const char* name, Input x, const RowIndex& of) {
  check_nodes(op, name, x, of);
  nodes.index = of.index, nodes.nodes = of.targets;
}

}  // namespace mdops
