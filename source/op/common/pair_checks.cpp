#include "common/pair_checks.h"

#include <algorithm>
#include <limits>

namespace mdops {

constexpr int64_t kLargestIndex = std::numeric_limits<int32_t>::max();

void check_range(const Op& op, const char* name, const Tensor& values, int64_t low, int64_t high) {
  if (!op.on_cpu()) return;
  const int32_t* v = values.const_data_ptr<int32_t>();
  const int32_t least = static_cast<int32_t>(low), most = static_cast<int32_t>(high - 1);
  parallel(values.numel(), 1 << 16, [&](int64_t begin, int64_t end) {
    // Of a number beyond an end one difference is negative, whether or not the other overflows.
    uint32_t signs = 0;
    for (int64_t k = begin; k < end; ++k) {
      const auto value = static_cast<uint32_t>(v[k]);
      signs |= (value - static_cast<uint32_t>(least)) | (static_cast<uint32_t>(most) - value);
    }
    if (!(signs >> 31)) return;
    const int32_t* wrong = std::find_if(v + begin, v + end, [&](int32_t x) { return x < least || x > most; });
    fail(op, "argument `", name, "` holds ", *wrong, ", expected values in [", low, ", ", high, ")");
  });
}

void check_neighbors(const Op& op, const Tensor& neighbors, int64_t atoms) {
  check_range(op, "neighbors", neighbors, -1, atoms);
}

void check_counts(const Op& op, const Tensor& counts, int64_t capacity) {
  if (!op.on_cpu()) return;
  const int32_t* c = counts.const_data_ptr<int32_t>();
  const int64_t types = counts.size(1);
  for (int64_t i = 0; i < counts.size(0); ++i) {
    int64_t sum = 0;
    bool negative = false;
    for (int64_t t = 0; t < types; ++t) {
      negative |= c[i * types + t] < 0;
      sum += c[i * types + t];
    }
    if (negative || sum > capacity)
      fail(op, "argument `counts` has a row, of atom ", i, ", that is negative or sums to ", sum,
           ", more than the ", capacity, " slots of a row");
  }
}

void check_offsets(const Op& op, const Tensor& offsets, int64_t rows, const char* of, bool leaves) {
  const int64_t atoms = offsets.size(0) - 1;
  if (atoms < 0) fail(op, "argument `offsets` is empty, expected one more than there are atoms");
  if (!op.on_cpu()) return;
  const int32_t* o = offsets.const_data_ptr<int32_t>();
  if (o[0] != 0 || (leaves ? o[atoms] > rows : o[atoms] != rows))
    fail(op, "argument `offsets` goes from ", o[0], " to ", o[atoms], ", expected from 0 to ",
         (leaves ? "at most " : ""), "the ", rows, " rows of `", of, "`");
  for (int64_t i = 0; i < atoms; ++i)
    if (o[i + 1] < o[i]) fail(op, "argument `offsets` falls after atom ", i);
}

PairList::PairList(const Op& op, const Tensor& batch_, const Tensor& neighbors_, int64_t systems)
    : batch(input(op, "batch", batch_, ScalarType::Int, {neighbors_.dim() ? neighbors_.size(0) : 0})),
      neighbors(input(op, "neighbors", neighbors_, ScalarType::Int, {kAny, kAny})),
      atoms(neighbors.size(0)),
      width(neighbors.size(1)) {
  if (atoms > kLargestIndex || width > kLargestIndex || systems < 0 || systems > kLargestIndex)
    fail(op, "atoms, slots of a row and systems must fit into 32-bit indices");
  check_range(op, "batch", batch, 0, systems);
  check_neighbors(op, neighbors, atoms);
}

}  // namespace mdops
