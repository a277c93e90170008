#include "ragged_plan/ragged_plan.h"

namespace mdops {

static void fill_plan(const Op&, const PlanArgs& args) {
  int64_t place = 0, of_bias = 0;
  bool fits = true;
  for (int64_t b = 0; b < args.sequences; ++b) {
    const PlanSequence own(args, b);
    write_pieces(args, b, own.tiles, place, of_bias);
    place += own.tiles, of_bias += own.squares, fits &= own.fits;
  }
  write_item(args, 0, fits ? place : -1, 0, 0, 0);
  for (int64_t n = place; n < args.items; ++n) write_item(args, 1 + n, -1, -1, -1, -1);
}

}  // namespace mdops

MDOPS_ON_CPU(RaggedPlanOps)
