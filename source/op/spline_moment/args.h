// Places for neighbours, from ops' arguments.
#pragma once

#include "common/pair_checks.h"
#include "spline_moment/places.h"

namespace mdops {

// `sel`, `zeroed` and `padding` of the ops whose descriptors have places, checked at entry.
struct PlaceInputs {
  Tensor zeroed, sel, padding;
  bool shared;  // by all types

  // `padding` is empty where each type has places of its own.
  PlaceInputs() = default;
  PlaceInputs(const Op& op, Input zeroed_, Input sel_, Input padding_, int64_t atoms, int64_t ntypes)
      : zeroed(input(op, "zeroed", zeroed_, ScalarType::Bool, {ntypes, ntypes})),
        sel(input(op, "sel", sel_, ScalarType::Int, {kAny})),
        padding(input(op, "padding", padding_, ScalarType::Int, {kAny})),
        shared(padding.size(0) > 0) {
    if (sel.size(0) != (shared ? 1 : ntypes) && !(atoms == 0 && sel.size(0) == 1))
      fail(op, "argument `sel` has ", sel.size(0), " numbers, expected ",
           (shared ? "1 beside `padding`" : "one for each type without `padding`"));
    if (shared && padding.size(0) != atoms)
      fail(op, "argument `padding` has ", padding.size(0), " types, expected none, or one for each of ",
           atoms, " atoms");
    check_range(op, "padding", padding, 0, ntypes);
  }

  Places places(const bool* pair_mask, int64_t ntypes) const {
    return {pair_mask, data_of(zeroed), data_of(sel), data_of(shared ? &padding : nullptr),
            static_cast<int>(ntypes)};
  }
};

}  // namespace mdops
