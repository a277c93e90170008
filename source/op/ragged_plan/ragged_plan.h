// The plan of the work on sequences, whose rows attention.h describes, computed for a capacity.
#pragma once

#include "attention/attention.h"
#include "common/bind.h"

namespace mdops {

// A row of the plan, written at once.
struct alignas(4 * kPlanColumns) PlanRow {
  int32_t of[kPlanColumns];
};

struct PlanArgs {
  const int32_t* offsets;  // (sequences + 1,)
  int64_t sequences, items, max_total, max_length;
  PlanRow* plan;
};

// A sequence's pieces, and the size of its bias.
struct PlanSequence {
  int64_t tiles, squares;
  bool fits;

  MDOPS_HD PlanSequence(const PlanArgs& args, int64_t b) {
    const int64_t begin = args.offsets[b], length = args.offsets[b + 1] - begin;
    tiles = length > 0 ? (length + kPlanTile - 1) / kPlanTile : 0, squares = length * length;
    fits = begin >= 0 && length >= 0 && length <= args.max_length && begin + length <= args.max_total;
  }
};

MDOPS_HD void write_item(const PlanArgs& args, int64_t row, int64_t a, int64_t b, int64_t c, int64_t d) {
  args.plan[row] = {
      {static_cast<int32_t>(a), static_cast<int32_t>(b), static_cast<int32_t>(c), static_cast<int32_t>(d)}};
}

// The pieces of a sequence, from `place` on, as far as they fit.
MDOPS_HD void write_pieces(const PlanArgs& args, int64_t b, int64_t tiles, int64_t place, int64_t of_bias) {
  for (int64_t n = 0; n < tiles && place + n < args.items; ++n)
    write_item(args, 1 + place + n, b, n * kPlanTile, of_bias & INT32_MAX, of_bias >> 31);
}

// A device overloads `fill_plan` for the call of the op.
template <class Device>
struct RaggedPlanOps {
  static Tensor ragged_plan(Checked<Device>& in, Input offsets, int64_t max_total, int64_t max_batch,
                            int64_t max_length) {
    PlanArgs a{};
    in.take(a.offsets, "offsets", offsets, {kAny});
    a.sequences = offsets.size(0) - 1, a.items = max_batch + max_total / kPlanTile;
    a.max_total = max_total, a.max_length = max_length;
    if (a.sequences < 0 || a.sequences > max_batch)
      fail(in.op, "argument `offsets` is of ", a.sequences, " sequences, expected 0 to ", max_batch);
    if (max_total < 0 || max_total > INT32_MAX || max_batch > INT32_MAX || max_length < 0 ||
        max_length > INT32_MAX)
      fail(in.op, "arguments `max_total`, `max_batch` and `max_length` are ", max_total, ", ", max_batch,
           " and ", max_length, ", expected numbers that 32 bits count");
    int32_t* to;
    Tensor plan = in.result(to, {1 + a.items, kPlanColumns});
    a.plan = reinterpret_cast<PlanRow*>(to);
    fill_plan(in.op, a);
    return plan;
  }

  MDOPS_IMPLEMENT(RaggedPlanOps, ragged_plan)
};

}  // namespace mdops
