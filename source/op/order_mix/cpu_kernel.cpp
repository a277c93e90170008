// Rows of an edge in vectors of columns.
#include "common/some_lanes.h"
#include "order_mix/order_mix.h"

namespace mdops {
namespace MDOPS_ISA {

template <class T>
void mix_rows(const OrderMixArgs<T>& args, int64_t from, int64_t to) {
  const OrderShape& shape = args.shape;
  const int64_t columns = shape.columns, rows = shape.rows();
  for (int64_t e = from; e < to; ++e) {
    const T* numbers = args.numbers + e * shape.numbers();
    int64_t first = e * rows * columns;  // of a block of rows
    for (int64_t m = 0; m <= shape.order; ++m) {
      const int64_t size = shape.size(m), of_k = args.transposed ? 1 : size,
                    of_o = args.transposed ? size : 1;
      for (int64_t sign = 0; sign < (m ? 2 : 1); ++sign, first += size * columns)
        for (int64_t o = 0; o < size; ++o)
          each_piece<T>(columns, [&](int64_t d, auto zero) {
            using V = decltype(zero);
            const int64_t to_row = first + o * columns + d;
            V sum = args.base ? load<V>(args.base + to_row) : zero;
            for (int64_t k = 0; k < size; ++k)
              sum += numbers[k * of_k + o * of_o] * load<V>(args.x + first + k * columns + d);
            store(args.y + to_row, sum);
          });
      numbers += size * size;
    }
  }
}

MDOPS_INSTANTIATE(mix_rows)

}  // namespace MDOPS_ISA
}  // namespace mdops
