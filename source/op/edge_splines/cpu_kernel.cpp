// Weights with edges in lanes, then functions in lanes.
#include <algorithm>

#include "common/lane_sums.h"
#include "common/some_lanes.h"
#include "edge_splines/edge_splines.h"

namespace mdops::MDOPS_ISA {

namespace {

constexpr int64_t kBlock = 64;  // edges

template <class T>
struct BlockWeights {
  T weights[kSplineSupport][kBlock];
  int interval[kBlock];

  void set(const EdgeSplineArgs<T>& args, int64_t first, int64_t count) {
    const bool slope = args.grad != nullptr;
    slope ? set<true>(args, first, count) : set<false>(args, first, count);
  }

 private:
  template <bool slope>
  void set(const EdgeSplineArgs<T>& args, int64_t first, int64_t count) {
    const SplineGrid<T> grid = args.grid;
    const T* __restrict const lengths = args.lengths + first;
    MDOPS_INDEPENDENT
    for (int64_t k = 0; k < count; ++k) {
      T found[kSplineSupport];
      interval[k] = spline_weights(lengths[k], grid, slope, found);
      for (int b = 0; b < kSplineSupport; ++b) weights[b][k] = found[b];
    }
  }
};

}  // namespace

template <class T>
void edge_spline_rows(const EdgeSplineArgs<T>& args, int64_t from, int64_t to) {
  using V = Vector<T>;
  const int64_t functions = args.functions;
  BlockWeights<T> of;
  for (int64_t first = from; first < to; first += kBlock) {
    const int64_t count = std::min(kBlock, to - first);
    of.set(args, first, count);
    for (int64_t k = 0; k < count; ++k) {
      const int64_t e = first + k;
      if (args.is_none(e)) {
        args.grad ? void(args.out[e] = 0) : void(std::fill_n(args.out + e * functions, functions, T(0)));
        continue;
      }
      const T* const rows = args.rows(e, of.interval[k]);
      V sum{};
      for (int64_t p = 0; p < functions; p += kLanes<T>)
        with_lanes<T>(std::min<int64_t>(kLanes<T>, functions - p), [&](auto lanes) {
          V y{};
          for (int b = 0; b < kSplineSupport; ++b)
            y += of.weights[b][k] * lanes.load(rows + b * functions + p);
          if (args.grad)
            sum += y * lanes.load(args.grad + e * functions + p);
          else
            lanes.store(args.out + e * functions + p, y);
        });
      if (args.grad) args.out[e] = sum_in_registers<T>(sum);
    }
  }
}

MDOPS_INSTANTIATE(edge_spline_rows)

}  // namespace mdops::MDOPS_ISA
