#include "common/pair_checks.h"

#include <algorithm>

namespace mdops {

void check_range(const Op& op, const char* name, const int32_t* v, int64_t count, int64_t low, int64_t high) {
  if (!op.on_cpu()) return;
  const int32_t least = static_cast<int32_t>(low), most = static_cast<int32_t>(high - 1);
  parallel(count, 1 << 16, [&](int64_t begin, int64_t end) {
    // If a number is out of range one difference is negative, even if the other overflows.
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

void check_counts(const Op& op, const int32_t* counts, int64_t atoms, int64_t ntypes, int64_t capacity) {
  if (!op.on_cpu()) return;
  for (int64_t i = 0; i < atoms; ++i) {
    int64_t sum = 0;
    bool negative = false;
    for (int64_t t = 0; t < ntypes; ++t) {
      negative |= counts[i * ntypes + t] < 0;
      sum += counts[i * ntypes + t];
    }
    if (negative || sum > capacity)
      fail(op, "argument `counts` has a row, of atom ", i, ", that is negative or sums to ", sum,
           ", more than the ", capacity, " slots of a row");
  }
}

void check_offsets(const Op& op, const int32_t* o, int64_t atoms, int64_t rows, const char* of, bool leaves) {
  if (atoms < 0) fail(op, "argument `offsets` is empty, expected one more than there are atoms");
  if (!op.on_cpu()) return;
  if (o[0] != 0 || (leaves ? o[atoms] > rows : o[atoms] != rows))
    fail(op, "argument `offsets` goes from ", o[0], " to ", o[atoms], ", expected from 0 to ",
         (leaves ? "at most " : ""), "the ", rows, " rows of `", of, "`");
  for (int64_t i = 0; i < atoms; ++i)
    if (o[i + 1] < o[i]) fail(op, "argument `offsets` falls after atom ", i);
}

}  // namespace mdops
