// Rows by whole vectors, whose lanes have sums of their own.
#include "common/lane_sums.h"
#include "degree_norm/degree_norm.h"

namespace mdops::MDOPS_ISA {

namespace {

struct RowPlace {
  int64_t of_row, k;

  bool in_first(int64_t) const { return of_row == 0; }
  int64_t row(int64_t) const { return of_row; }
};

struct VectorTeam {
  template <class F>
  void each(int64_t rows, int64_t channels, const F& f) const {
    for (int64_t d = 0; d < rows; ++d) {
      MDOPS_INDEPENDENT
      for (int64_t k = d * channels; k < (d + 1) * channels; ++k) f(RowPlace{d, k});
    }
  }
  template <class T, class F>
  T sum(int64_t rows, int64_t channels, const F& f) const {
    Vector<T> lanes{};
    T rest = 0;
    for (int64_t d = 0; d < rows; ++d) {
      int64_t k = d * channels;
      const int64_t end = k + channels;
      for (; k + kLanes<T> <= end; k += kLanes<T>) {
        T of[kLanes<T>];
        for (int lane = 0; lane < kLanes<T>; ++lane) of[lane] = f(RowPlace{d, k + lane});
        lanes += vector_at(of);
      }
      for (; k < end; ++k) rest += f(RowPlace{d, k});
    }
    return sum_in_registers<T>(lanes) + rest;
  }
};

}  // namespace

template <class T>
void norm_atoms(const NormArgs<T>& args, int64_t begin, int64_t end) {
  for (int64_t n = begin; n < end; ++n) norm_atom(args, n, VectorTeam());
}

MDOPS_INSTANTIATE(norm_atoms)

}  // namespace mdops::MDOPS_ISA
