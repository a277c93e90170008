// Rows by whole vectors, with a sum per lane.
#include "common/lane_sums.h"
#include "degree_norm/degree_norm.h"

namespace mdops::MDOPS_ISA {

namespace {

// A vector of a row.
template <class V>
struct RowPlace {
  int64_t of_row, k;

  template <class T>
  MDOPS_INLINE V load(const T* from) const {
    return MDOPS_ISA::load<V>(from + k);
  }
  template <class T>
  MDOPS_INLINE void store(T* to, const V& value) const {
    MDOPS_ISA::store(to + k, value);
  }
  MDOPS_INLINE bool in_first(int64_t) const { return of_row == 0; }
  MDOPS_INLINE int64_t row(int64_t) const { return of_row; }
};

template <class T>
struct VectorTeam {
  MDOPS_INLINE void each(int64_t rows, int64_t channels, const auto& f) const {
    for (int64_t d = 0; d < rows; ++d) {
      int64_t k = d * channels;
      const int64_t end = k + channels;
      for (; k + kLanes<T> <= end; k += kLanes<T>) f(RowPlace<Vector<T>>{d, k});
      for (; k < end; ++k) f(RowPlace<T>{d, k});
    }
  }
  MDOPS_INLINE T sum(int64_t rows, int64_t channels, const auto& f) const {
    Vector<T> lanes{};
    T rest = 0;
    each(rows, channels, [&]<class V>(const RowPlace<V>& p) __attribute__((always_inline)) {
      if constexpr (sizeof(V) == sizeof(T))
        rest += f(p);
      else
        lanes += f(p);
    });
    return sum_in_registers<T>(lanes) + rest;
  }
};

}  // namespace

template <class T>
void norm_atoms(const NormArgs<T>& args, int64_t begin, int64_t end) {
  for (int64_t n = begin; n < end; ++n) norm_atom(args, n, VectorTeam<T>());
}

MDOPS_INSTANTIATE(norm_atoms)

}  // namespace mdops::MDOPS_ISA
