// The arguments of the ops of angle moments, checked at entry.
#pragma once

#include "angle_moment/shape.h"
#include "common/descriptor_args.h"

namespace mdops {

struct AngleInputs : DescriptorInputs {
  using Given = Listed<DescriptorInputs::Given, Times<3, int64_t>, bool>;

  int64_t exponent, octaves, fineness;
  bool gated;

  AngleInputs(const Op& op, const Tensor& displacements, const Tensor& counts, const Tensor& types,
              const Tensor& std, const Tensor& pair_mask, double cutoff, double cutoff_smooth,
              double protection, int64_t exponent_, int64_t octaves_, int64_t fineness_, bool gated_)
      : DescriptorInputs(op, displacements, counts, types, std, pair_mask, cutoff, cutoff_smooth, protection),
        exponent(exponent_),
        octaves(octaves_),
        fineness(fineness_),
        gated(gated_) {
    const std::string refusal = angle_grid_refusal(exponent, octaves, fineness);
    if (!refusal.empty()) fail(op, refusal);
    if (ntypes > kMostAngleTypes)
      fail(op, "argument `counts` has ", ntypes, " types, expected ", kMostAngleTypes, " at most");
  }

  int64_t pairs() const { return ntypes * (ntypes + 1) / 2; }
  int64_t pieces() const { return 2 * ((octaves << fineness) + 1); }
  Tensor grad(const Op& op, const Tensor& tensor) const {
    return input(op, "grad", tensor, dtype, {atoms, pairs(), pieces(), kAnglePowers});
  }

  template <class T>
  AngleArgs<T> args() const {
    AngleArgs<T> a{};
    a.displacements = data_of(displacements), a.counts = data_of(counts), a.types = data_of(types);
    a.std = data_of(std), a.pair_mask = data_of(pair_mask), a.cutoff = cutoff_as<T>();
    a.grid = {static_cast<int>(exponent), static_cast<int>(octaves), static_cast<int>(fineness)};
    a.width = width, a.ntypes = static_cast<int>(ntypes), a.gated = gated;
    return a;
  }
};

// `tables` and `gates` (pairs, pieces, channels, kAngleRow); `gates` without a number where there are none.
struct AngleFeatureInputs : AngleInputs {
  using Given = Listed<Times<7, const Tensor&>, Times<3, double>, Times<3, int64_t>>;

  Tensor plain, gates;
  int64_t channels = plain.size(2);

  AngleFeatureInputs(const Op& op, const Tensor& displacements, const Tensor& counts, const Tensor& types,
                     const Tensor& std, const Tensor& pair_mask, const Tensor& tables, const Tensor& gates_,
                     double cutoff, double cutoff_smooth, double protection, int64_t exponent,
                     int64_t octaves, int64_t fineness)
      : AngleInputs(op, displacements, counts, types, std, pair_mask, cutoff, cutoff_smooth, protection,
                    exponent, octaves, fineness, false),
        plain(input(op, "tables", tables, dtype, {pairs(), pieces(), kAny, kAngleRow})) {
    if (channels < 1 || channels > kMostAngleChannels)
      fail(op, "argument `tables` has ", channels, " channels, expected one or more, ", kMostAngleChannels,
           " at most");
    gates = input(op, "gates", gates_, dtype, {kAny, pieces(), channels, kAngleRow});
    if (gates.size(0) != 0 && gates.size(0) != pairs())
      fail(op, "argument `gates` has ", gates.size(0), " pairs of types, expected none or ", pairs());
  }

  template <class T>
  AngleTables<T> tables() const {
    return {data_of(plain), data_of(gates.size(0) ? &gates : nullptr), static_cast<int>(channels)};
  }
};

}  // namespace mdops
