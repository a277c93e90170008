// Which thing each of many rows belongs to, and where the rows of each are, checked at an op's entry.
#pragma once

#include "common/pair_checks.h"
#include "common/tensor.h"

namespace mdops {

// Offsets of segments into so many rows, one more than there are segments.
inline Tensor offsets_input(const Op& op, const Tensor& offsets_, int64_t rows,
                            const std::string& name = "offsets") {
  const Tensor offsets = input(op, name.c_str(), offsets_, ScalarType::Int, {kAny});
  const int64_t segments = offsets.size(0) - 1;
  if (segments < 0)
    fail(op, "argument `", name, "` is empty, expected one number more than there are segments");
  if (!op.on_cpu()) return offsets;
  const int32_t* o = offsets.const_data_ptr<int32_t>();
  for (int64_t m = 0; m < segments; ++m)
    if (o[m + 1] < o[m]) fail(op, "argument `", name, "` falls after segment ", m);
  if (o[0] != 0 || o[segments] > rows)
    fail(op, "argument `", name, "` goes from ", o[0], " to ", o[segments],
         ", expected from 0 to at most the ", rows, " rows");
  return offsets;
}

// Which node each of so many rows belongs to.
struct RowIndex {
  struct Names {
    const char *index, *order, *offsets;
  };
  Names names;
  Tensor index, order, offsets;
  bool ordered;
  int64_t rows = index.size(0), targets = offsets.size(0) - 1;

  RowIndex(const Op& op, const Tensor& index_, const std::optional<Tensor>& order_, const Tensor& offsets_,
           int64_t rows_, Names names_ = {"index", "order", "offsets"})
      : names(names_),
        index(input(op, names.index, index_, ScalarType::Int, {rows_})),
        order(index),
        offsets(offsets_input(op, offsets_, index.size(0), names.offsets)),
        ordered(order_.has_value()) {
    if (ordered) order = input(op, names.order, *order_, ScalarType::Int, {rows});
    if (op.on_cpu()) check(op);
  }

  const int32_t* order_data() const { return ordered ? order.const_data_ptr<int32_t>() : nullptr; }

 private:
  // That `order` and `offsets` name each row once, under its own node.
  void check(const Op& op) const {
    const int32_t *of = index.const_data_ptr<int32_t>(), *o = order_data();
    const int32_t* begin = offsets.const_data_ptr<int32_t>();
    check_range(op, names.index, index, -1, targets);
    parallel(targets, 4096, [&](int64_t from, int64_t to) {
      for (int64_t m = from; m < to; ++m) {
        int64_t before = -1;
        for (int64_t p = begin[m]; p < begin[m + 1]; ++p) {
          const int64_t row = o ? o[p] : p;
          if (row <= before || row >= rows || of[row] != m)
            fail(op,
                 (o ? std::string("arguments `") + names.order + "` and `" + names.offsets + "` have"
                    : std::string("argument `") + names.offsets + "` has"),
                 " row ", row, " at place ", p, " as one of node ", m,
                 ", expected the rows of each node in `", names.index, "`, rising");
          before = row;
        }
      }
    });
    int64_t named = 0;
    for (int64_t row = 0; row < rows; ++row) named += of[row] >= 0;
    if (named != begin[targets])
      fail(op, "argument `", names.index, "` has ", named, " rows of nodes, and `", names.offsets,
           "` ends at ", begin[targets]);
  }
};

// That there is a row of `x` for each node that the rows may belong to.
inline void check_nodes(const Op& op, const char* name, const Tensor& x, const RowIndex& of) {
  if (of.targets != x.size(0))
    fail(op, "argument `", name, "` has ", x.size(0), " rows, and `", of.names.offsets, "` is of ",
         of.targets);
}

}  // namespace mdops
