// The ops on neighbour lists, their arguments checked at entry in all but their values. A device has
// `search_matrix` and `search_pairs`.
#pragma once

#include "common/bind.h"
#include "neighbor/neighbor.h"

namespace mdops {

struct NeighborInputs {
  static constexpr const char* kFirst = "positions";
  using Given = Listed<Times<5, const Tensor&>, double>;

  Tensor positions, cell, pbc, batch, types;
  double cutoff;
  int64_t atoms = positions.size(0), systems = cell.size(0);

  NeighborInputs(const Op& op, const Tensor& positions_, const Tensor& cell_, const Tensor& pbc_,
                 const Tensor& batch_, const Tensor& types_, double cutoff_)
      : positions(input(op, "positions", positions_, ScalarType::Double, {kAny, 3})),
        cell(input(op, "cell", cell_, ScalarType::Double, {kAny, 3, 3})),
        pbc(input(op, "pbc", pbc_, ScalarType::Bool, {cell.size(0), 3})),
        batch(input(op, "batch", batch_, ScalarType::Int, {positions.size(0)})),
        types(input(op, "types", types_, ScalarType::Int, {positions.size(0)})),
        cutoff(cutoff_) {
    if (!(cutoff > 0 && cutoff <= kLargestLength))
      fail(op, "argument `cutoff` is ", cutoff, ", expected a positive length up to 1e9 A");
  }
};

template <class Device>
struct NeighborOps {
  using Call = typename Device::Call;

  static Outputs<4> neighbor_matrix(const Tensor& positions, const Tensor& cell, const Tensor& pbc,
                                    const Tensor& batch, const Tensor& types, double cutoff, int64_t ntypes,
                                    int64_t capacity, bool sort) {
    const auto op = Device::make("neighbor_matrix", "positions", positions);
    const NeighborInputs in(op, positions, cell, pbc, batch, types, cutoff);
    if (capacity < 0) fail(op, "argument `capacity` is ", capacity, ", expected at least 0");
    return search_matrix(op, in, ntypes, capacity, sort);
  }

  static Outputs<3> neighbor_pairs(const Call& op, const NeighborInputs& in) { return search_pairs(op, in); }

  MDOPS_IMPLEMENT(NeighborOps, neighbor_matrix, neighbor_pairs)
};

}  // namespace mdops
