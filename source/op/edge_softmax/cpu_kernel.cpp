// Rows of atoms by whole vectors, several at once.
#include <type_traits>
#include <utility>

#include "common/lane_sums.h"
#include "common/some_lanes.h"
#include "common/team.h"
#include "common/tiles.h"
#include "edge_softmax/edge_softmax.h"

namespace mdops::MDOPS_ISA {

namespace {

constexpr int kVectors = 4;  // that are summed in parallel

struct VectorTeam : Alone {
  void each(int64_t begin, int64_t end, const auto& f) const {
    for (int64_t k = begin; k < end; ++k) f(k);
  }
  void meet() const {}

  template <class T>
  T dot(const T* x, const T* y, int64_t size) const {
    Vector<T> whole{};
    T rest = 0;
    each_piece<T>(size, [&]<class V>(int64_t c, V) __attribute__((always_inline)) {
      const V both = load<V>(x + c) * load<V>(y + c);
      if constexpr (std::is_same_v<V, Vector<T>>)
        whole += both;
      else if constexpr (std::is_same_v<V, T>)
        rest += both;
      else
        rest += sum_halves<2>(both, std::make_integer_sequence<int, 4>());
    });
    return size < kLanes<T> ? rest : sum_in_registers<T>(whole) + rest;
  }

  template <class T, class Find, class Write>
  void columns(const EdgeSoftmaxArgs<T>& args, const T* rows, int64_t begin, int64_t end, const Find& find,
               const Write& write) const {
    const int64_t size = args.width / args.heads, vectors = size / kLanes<T>, rest = vectors * kLanes<T>;
    for (int64_t h = 0; h < args.heads; ++h) {
      const auto add = [&]<class V, int kCount>(int64_t c) __attribute__((always_inline)) {
        constexpr int kNumbers = sizeof(V) / sizeof(T);
        V sums[kCount] = {};
        for (int64_t k = begin; k < end; ++k) {
          const EdgeEnd of = find(k);
          MDOPS_UNROLL
          for (int i = 0; i < kCount; ++i)
            sums[i] += term_of(args, rows, of, h, c + i * kNumbers, [](const T* p) { return load<V>(p); });
        }
        T found[kCount * kNumbers];
        for (int i = 0; i < kCount; ++i) store(found + i * kNumbers, sums[i]);
        for (int i = 0; i < kCount * kNumbers; ++i) write(c + i, found[i]);
      };
      each_tile<kVectors>(vectors, [&](int64_t first, auto count) __attribute__((always_inline)) {
        add.template operator()<Vector<T>, count>(h * size + first * kLanes<T>);
      });
      each_piece<T>(size - rest, [&](int64_t first, auto none) __attribute__((always_inline)) {
        add.template operator()<decltype(none), 1>(h * size + rest + first);
      });
    }
  }
};

}  // namespace

template <class T>
void softmax_atoms(const EdgeSoftmaxArgs<T>& args, int64_t begin, int64_t end) {
  for (int64_t n = begin; n < end; ++n)
    n < args.atoms ? softmax_atom(args, n, VectorTeam()) : clear_rest(args, VectorTeam());
}

template <class T>
void softmax_nodes(const EdgeSoftmaxArgs<T>& args, int64_t begin, int64_t end) {
  for (int64_t m = begin; m < end; ++m) softmax_node(args, m, VectorTeam());
}

MDOPS_INSTANTIATE(softmax_atoms, softmax_nodes)

}  // namespace mdops::MDOPS_ISA
