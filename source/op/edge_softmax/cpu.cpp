#include <algorithm>

#include "common/team.h"
#include "edge_softmax/ops.h"

namespace mdops {

namespace {

constexpr int64_t kSoftmaxAtoms = 8;  // a piece of work, at least
constexpr int64_t kColumns = 16;      // that are summed side by side

struct OneThread : Alone {
  template <class F>
  void each(int64_t begin, int64_t end, const F& f) const {
    for (int64_t k = begin; k < end; ++k) f(k);
  }
  void meet() const {}
  template <class T>
  T dot(const T* x, const T* y, int64_t size) const {
    T sum = 0;
    for (int64_t c = 0; c < size; ++c) sum += x[c] * y[c];
    return sum;
  }
  template <class Find, class Term, class Write>
  void columns(int64_t width, int64_t begin, int64_t end, const Find& find, const Term& term,
               const Write& write) const {
    using T = decltype(term(find(begin), 0));
    for (int64_t first = 0; first < width; first += kColumns) {
      const int64_t count = std::min(kColumns, width - first);
      T sums[kColumns] = {};
      for (int64_t k = begin; k < end; ++k) {
        const auto found = find(k);
        for (int64_t c = 0; c < count; ++c) sums[c] += term(found, first + c);
      }
      for (int64_t c = 0; c < count; ++c) write(first + c, sums[c]);
    }
  }
};

}  // namespace

template <class T>
static void run_edge_softmax(const Op&, const EdgeSoftmaxArgs<T>& args) {
  parallel_each(args.atoms, kSoftmaxAtoms, [&](int64_t n) { softmax_atom(args, n, OneThread()); });
  clear_rest(args, OneThread());
  if (!args.grad) return;
  parallel_each(args.nodes, kSoftmaxAtoms, [&](int64_t m) { softmax_node(args, m, OneThread()); });
}

}  // namespace mdops

MDOPS_ON_CPU(EdgeSoftmaxOps)
