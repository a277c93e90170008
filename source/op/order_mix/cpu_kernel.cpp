#include "common/some_lanes.h"
#include "order_mix/order_mix.h"

namespace mdops {
namespace MDOPS_ISA {

namespace {

template <class T, class V>
struct VectorOfColumns {
  using Value = V;

  V load(const T* p) const { return MDOPS_ISA::load<V>(p); }
  void store(T* p, const V& value) const { MDOPS_ISA::store(p, value); }
};

}  // namespace

template <class T>
void mix_rows(const OrderMixArgs<T>& args, int64_t from, int64_t to) {
  for (int64_t e = from; e < to; ++e)
    each_piece<T>(args.shape.columns, [&](int64_t d, auto zero) {
      mix_column(args, e, d, VectorOfColumns<T, decltype(zero)>{});
    });
}

MDOPS_INSTANTIATE(mix_rows)

}  // namespace MDOPS_ISA
}  // namespace mdops
