#include "ragged_plan/ragged_plan.h"

namespace mdops {

namespace {

Tensor ragged_plan(const Tensor& offsets, int64_t max_total, int64_t max_batch, int64_t max_length) {
  const Op op("ragged_plan");
  return make_plan(op, offsets, max_total, max_batch, max_length, [](const PlanArgs& args) {
    int64_t place = 0, of_bias = 0;
    bool fits = true;
    for (int64_t b = 0; b < args.sequences; ++b) {
      const PlanSequence own(args, b);
      write_pieces(args, b, own.tiles, place, of_bias);
      place += own.tiles, of_bias += own.squares, fits &= own.fits;
    }
    write_item(args, 0, fits ? place : -1, 0, 0, 0);
    for (int64_t n = place; n < args.items; ++n) write_item(args, 1 + n, -1, -1, -1, -1);
  });
}

}  // namespace

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CPU, m) {
  m.impl("ragged_plan", TORCH_BOX(&mdops::ragged_plan));
}
