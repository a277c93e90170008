// Blocks of edges that stay in the L1 cache, from their numbers and nodes to all results of a pass.
#include <algorithm>

#include "common/lane_sums.h"
#include "common/some_lanes.h"
#include "edge_convolution/edge_convolution.h"
#include "gemm/product.h"

namespace mdops::MDOPS_ISA {

namespace {

constexpr int64_t kBlock = 2 * kRows;
constexpr int64_t kMost = 64;  // edges of a node at once

// W for sums by x, W^T for edges, in lanes.
template <class T>
struct PackedFilter {
  Panels<T> weight, transposed;

  PackedFilter(const EdgeConvolutionArgs<T>& args, void* memory) {
    Arena arena{static_cast<char*>(memory)};
    if (args.by_b)
      transposed = take_panels<T>(arena, args.width, padded<T>(args.inputs));
    else if (!args.by_a)
      weight = take_panels<T>(arena, args.inputs, padded<T>(args.width));
    bytes = arena.used;
  }
  int64_t bytes;
};

// A thread's memory for one block.
template <class T>
struct FilterMemory {
  T* rows;                 // of w b followed by t
  T *b, *t, *pair;         // rows of w b, of t, and of products of nodes
  Panels<T> filter, by_b;  // b W, or products of nodes; z
  const T **a, **x;        // the nodes of each row
  T* none;                 // numbers of a missing node

  FilterMemory(const EdgeConvolutionArgs<T>& args, void* memory) {
    Arena arena{static_cast<char*>(memory)};
    rows = arena.take<T>(args.by_a ? kMost * (args.inputs + args.turns) : 0);
    b = arena.take<T>(kBlock * args.inputs), t = arena.take<T>(kBlock * args.turns);
    pair = arena.take<T>(kBlock * args.width);
    filter = take_panels<T>(arena, kBlock, padded<T>(args.width));
    by_b = take_panels<T>(arena, kBlock, padded<T>(args.inputs));
    a = arena.take<const T*>(kBlock), x = arena.take<const T*>(args.by_a ? kMost : kBlock);
    none = arena.take<T>(args.a_width());
    if (memory) std::fill_n(none, args.a_width(), T(0));
    bytes = arena.used;
  }
  int64_t bytes;
};

template <class T>
class Convolution {
  using V = Vector<T>;

 public:
  Convolution(const EdgeConvolutionArgs<T>& args, const void* packed, void* memory)
      : args_(args), filter_(args, const_cast<void*>(packed)), memory_(args, memory) {}

  void nodes(int64_t from, int64_t to) { args_.by_a ? nodes_of_a(from, to) : nodes_of_x(from, to); }

  void edges(int64_t from, int64_t to) {
    const int64_t turns = args_.turns, width = args_.width;
    for (int64_t first = from; first < to; first += kBlock) {
      const int64_t count = std::min(kBlock, to - first);
      pairs(first, count);
      gemm(count, width, ByRow<T>{memory_.pair, width}, filter_.transposed, memory_.by_b, false);
      for (int64_t r = 0; r < count; ++r) {
        const int64_t e = first + r;
        by_numbers(e, r);
        int64_t q = 0;
        for (; q + 3 <= turns; q += 3) by_turns<3>(e, r, q);
        for (; q < turns; ++q) by_turns<1>(e, r, q);
      }
    }
  }

  void weight(int64_t from, int64_t to, T* sums) {
    const int64_t inputs = args_.inputs, width = args_.width;
    const Panels<T> of{sums, inputs, padded<T>(width)};
    std::fill_n(sums, inputs * of.cols, T(0));
    for (int64_t first = from; first < to; first += kBlock) {
      const int64_t count = std::min(kBlock, to - first);
      pairs(first, count);
      for (int64_t r = 0; r < count; ++r) weigh(first + r, memory_.b + r * inputs);
      memory_.filter.each([&](auto place) {
        with_lanes<T>(std::min<int64_t>(kLanes<T>, width - place.lane()), [&](auto lanes) {
          for (int64_t r = 0; r < count; ++r)
            store(place.in(memory_.filter, r), lanes.load(memory_.pair + r * width + place.lane()));
        });
      });
      gemm(inputs, count, ByDepth<T>{memory_.b, inputs}, memory_.filter, of, true);
    }
  }

 private:
  // Sums by a: sum_e w_e b_ek x_jc and sum_e t_eq x_jc of the edges of a node, the first times W and summed
  // over k.
  void nodes_of_a(int64_t from, int64_t to) {
    for (int64_t m = from; m < to; ++m) {
      T* const out = args_.by_a + m * args_.a_width();
      const int64_t begin = args_.offsets[m], end = args_.offsets[m + 1];
      if (begin == end) std::fill_n(out, args_.a_width(), T(0));
      for (int64_t p = begin; p < end; p += kMost) {
        const int64_t count = std::min(kMost, end - p);
        for (int64_t r = 0; r < count; ++r) stage(args_.order ? args_.order[p + r] : p + r, r);
        each_columns([&]<int N>(auto lanes, const auto& at) {
          sum_by_a<N>(lanes, at.column, out + at.column, count, p == begin);
        });
      }
    }
  }

  void nodes_of_x(int64_t from, int64_t to) {
    for (int64_t m = from; m < to; ++m)
      if (args_.offsets[m] == args_.offsets[m + 1])
        std::fill_n(args_.by_x + m * args_.width, args_.width, T(0));
    const int64_t end = args_.offsets[to];
    for (int64_t p = args_.offsets[from]; p < end; p += kBlock) {
      const int64_t count = std::min(kBlock, end - p);
      for (int64_t r = 0; r < count; ++r) {
        const int64_t e = args_.order ? args_.order[p + r] : p + r;
        edges_[r] = e;
        take_edge(e, r);
      }
      gemm(count, args_.inputs, ByRow<T>{memory_.b, args_.inputs}, filter_.weight, memory_.filter, false);
      for (int64_t r = 0, last; r < count; r = last) {
        const int64_t m = args_.index[edges_[r]];
        last = std::min<int64_t>(count, args_.offsets[m + 1] - p);
        const bool is_new = args_.offsets[m] >= p;
        T* const to = args_.by_x + m * args_.width;
        each_columns([&]<int N>(auto lanes, const auto& at) { sum_by_x<N>(lanes, at, to, r, last, is_new); });
      }
    }
  }

  // w b of an edge.
  void weigh(int64_t e, T* __restrict to) const {
    const T w = args_.w[e], *__restrict b = args_.b + e * args_.inputs;
    for (int64_t k = 0; k < args_.inputs; ++k) to[k] = w * b[k];
  }

  // Stages as row r an edge that adds a node to a sum by a; zeros if it does not.
  void stage(int64_t e, int64_t r) {
    const int64_t inputs = args_.inputs, turns = args_.turns;
    T* const row = memory_.rows + r * (inputs + turns);
    if (args_.x.is_none(e)) {
      memory_.x[r] = memory_.none;
      std::fill_n(row, inputs + turns, T(0));
      return;
    }
    memory_.x[r] = args_.x.at(e, args_.width);
    weigh(e, row);
    std::copy_n(args_.t + e * turns, turns, row + inputs);
  }

  // Stages as row r an edge whose a adds to a sum by x; zeros if it does not.
  void take_edge(int64_t e, int64_t r) {
    T *const b = memory_.b + r * args_.inputs, *const t = memory_.t + r * args_.turns;
    if (args_.a.is_none(e)) {
      memory_.a[r] = memory_.none;
      std::fill_n(b, args_.inputs, T(0)), std::fill_n(t, args_.turns, T(0));
      return;
    }
    weigh(e, b);
    std::copy_n(args_.t + e * args_.turns, args_.turns, t);
    memory_.a[r] = args_.a.at(e, args_.a_width());
  }

  // The factors of the sums of an edge's own numbers, or null.
  const T* own_of(int64_t e) const {
    if (!args_.own || args_.a.is_none(e)) return nullptr;
    return args_.own + args_.a.index[e] * args_.turns * args_.inputs;
  }

  // By b and w of row r, whose products with W^T are in by_b.
  void by_numbers(int64_t e, int64_t r) const {
    const int64_t inputs = args_.inputs, turns = own_of(e) ? args_.turns : 0;
    const T w = args_.w[e], *b = args_.b + e * inputs, *t = args_.t + e * args_.turns, *own = own_of(e);
    T* const z = args_.by_b + e * inputs;
    V sum{};
    const auto take = [&](auto lanes, int64_t k, const V& value) __attribute__((always_inline)) {
      if (args_.by_w) sum += lanes.load(b + k) * value;
      V by = w * value;
      for (int64_t q = 0; q < turns; ++q) by += t[q] * lanes.load(own + q * inputs + k);
      lanes.store(z + k, by);
    };
    memory_.by_b.each([&](auto place) __attribute__((always_inline)) {
      const int64_t k = place.lane(), left = inputs - k;
      const V value = vector_at(place.in(memory_.by_b, r));
      left < kLanes<T> ? take(SomeLanes<T, false>{left}, k, value) : take(SomeLanes<T, true>{left}, k, value);
    });
    if (args_.by_w) args_.by_w[e] = sum_in_registers<T>(sum);
  }

  // By t of row r: Turns of them, from number q on.
  template <int Turns>
  MDOPS_INLINE void by_turns(int64_t e, int64_t r, int64_t q) const {
    V sums[Turns] = {};
    add_dots<Turns>(memory_.x[r], memory_.a[r] + (1 + q) * args_.width, args_.width, sums);
    if (const T* const own = own_of(e))
      add_dots<Turns>(args_.b + e * args_.inputs, own + q * args_.inputs, args_.inputs, sums);
    for (int s = 0; s < Turns; ++s) args_.by_t[e * args_.turns + q + s] = sum_in_registers<T>(sums[s]);
  }

  // sums += x times each of the rows, with `width` numbers.
  template <int Rows>
  static MDOPS_INLINE void add_dots(const T* x, const T* rows, int64_t width, V (&sums)[Rows]) {
    int64_t c = 0;
    for (; c + kLanes<T> <= width; c += kLanes<T>)
      for (int s = 0; s < Rows; ++s) sums[s] += vector_at(x + c) * vector_at(rows + s * width + c);
    const SomeLanes<T, false> rest{width - c};
    if (rest.count > 0)
      for (int s = 0; s < Rows; ++s) sums[s] += rest.load(x + c) * rest.load(rows + s * width + c);
  }

  // The nodes of a block of edges, and their products; zeros if one is missing.
  void pairs(int64_t first, int64_t count) {
    const int64_t width = args_.width;
    for (int64_t r = 0; r < count; ++r) {
      const int64_t e = first + r;
      const bool none = args_.a.is_none(e) || args_.x.is_none(e);
      const T* __restrict a = memory_.a[r] = none ? memory_.none : args_.a.at(e, args_.a_width());
      const T* __restrict x = memory_.x[r] = none ? memory_.none : args_.x.at(e, width);
      T* __restrict to = memory_.pair + r * width;
      for (int64_t c = 0; c < width; ++c) to[c] = a[c] * x[c];
    }
  }

  // Columns from `column` on, and their filters.
  struct Columns {
    int64_t column;
    const T* filter;
    int64_t stride;

    V filter_at(int64_t row, int n) const { return vector_at(filter + row * stride + n * kLanes<T>); }
  };

  // Adds the staged edges of a node: N vectors of the convolution and of all other sums.
  template <int N, class Lanes>
  MDOPS_INLINE void sum_by_a(Lanes lanes, int64_t column, T* to, int64_t count, bool is_new) const {
    V y[N];
    for (int n = 0; n < N; ++n) y[n] = is_new ? V{} : lanes.load(to + n * kLanes<T>);
    int64_t k = 0;
    for (; k + kRows <= args_.inputs; k += kRows) filtered<N, kRows>(lanes, column, k, count, y);
    for (; k < args_.inputs; ++k) filtered<N, 1>(lanes, column, k, count, y);
    for (int n = 0; n < N; ++n) lanes.store(to + n * kLanes<T>, y[n]);
    int64_t q = 0;
    for (; q + 3 <= args_.turns; q += 3) turned<N, 3>(lanes, column, q, to, count, is_new);
    for (; q < args_.turns; ++q) turned<N, 1>(lanes, column, q, to, count, is_new);
  }

  // sums += rows (count, Rows), from number `first` on, transposed times x.
  template <int N, int Rows, class Lanes>
  MDOPS_INLINE void add_products(Lanes lanes, int64_t column, int64_t first, int64_t count,
                                 V (&sums)[Rows][N]) const {
    const int64_t stride = args_.inputs + args_.turns;
    const T* row = memory_.rows + first;
    for (int64_t e = 0; e < count; ++e, row += stride) {
      const T* const x = memory_.x[e] + column;
      V values[N];
      for (int n = 0; n < N; ++n) values[n] = lanes.load(x + n * kLanes<T>);
      for (int r = 0; r < Rows; ++r)
        for (int n = 0; n < N; ++n) sums[r][n] += row[r] * values[n];
    }
  }
  template <int N, int Rows, class Lanes>
  MDOPS_INLINE void filtered(Lanes lanes, int64_t column, int64_t k, int64_t count, V (&y)[N]) const {
    V sums[Rows][N] = {};
    add_products<N, Rows>(lanes, column, k, count, sums);
    for (int r = 0; r < Rows; ++r)
      for (int n = 0; n < N; ++n)
        y[n] += lanes.load(args_.weight + (k + r) * args_.width + column + n * kLanes<T>) * sums[r][n];
  }
  template <int N, int Turns, class Lanes>
  MDOPS_INLINE void turned(Lanes lanes, int64_t column, int64_t q, T* to, int64_t count, bool is_new) const {
    V sums[Turns][N];
    const auto place = [&](int s, int n) { return to + (1 + q + s) * args_.width + n * kLanes<T>; };
    for (int s = 0; s < Turns; ++s)
      for (int n = 0; n < N; ++n) sums[s][n] = is_new ? V{} : lanes.load(place(s, n));
    add_products<N, Turns>(lanes, column, args_.inputs + q, count, sums);
    for (int s = 0; s < Turns; ++s)
      for (int n = 0; n < N; ++n) lanes.store(place(s, n), sums[s][n]);
  }

  template <int N, class Lanes>
  MDOPS_INLINE void sum_by_x(Lanes lanes, const Columns& at, T* to, int64_t r, int64_t last,
                             bool is_new) const {
    V sums[N];
    to += at.column;
    for (int n = 0; n < N; ++n) sums[n] = is_new ? V{} : lanes.load(to + n * kLanes<T>);
    for (int64_t k = r; k < last; ++k) {
      const T *a = memory_.a[k] + at.column, *t = memory_.t + k * args_.turns;
      V values[N];
      for (int n = 0; n < N; ++n) values[n] = at.filter_at(k, n) * lanes.load(a + n * kLanes<T>);
      for (int64_t q = 0; q < args_.turns; ++q) {
        a += args_.width;
        for (int n = 0; n < N; ++n) values[n] += t[q] * lanes.load(a + n * kLanes<T>);
      }
      for (int n = 0; n < N; ++n) sums[n] += values[n];
    }
    for (int n = 0; n < N; ++n) lanes.store(to + n * kLanes<T>, sums[n]);
  }

  // Calls work<N>(lanes, columns) for all columns, N vectors at a time.
  void each_columns(const auto& work) const {
    const Panels<T>& filter = memory_.filter;
    for (int64_t col = 0; col < filter.cols; col += Panels<T>::kWide) {
      const int64_t width = filter.width(col);
      const T* from = filter.panel(col);
      if (col + width > args_.width) {
        for (int64_t c = 0; c < width; c += kLanes<T>)
          with_lanes<T>(std::min<int64_t>(kLanes<T>, args_.width - col - c), [&](auto lanes) {
            work.template operator()<1>(lanes, Columns{col + c, from + c, width});
          });
      } else if (width == kLanes<T>) {
        work.template operator()<1>(SomeLanes<T, true>{kLanes<T>}, Columns{col, from, width});
      } else if (width == 2 * kLanes<T>) {
        work.template operator()<2>(SomeLanes<T, true>{kLanes<T>}, Columns{col, from, width});
      } else {
        work.template operator()<kPanel>(SomeLanes<T, true>{kLanes<T>}, Columns{col, from, width});
      }
    }
  }

  const EdgeConvolutionArgs<T>& args_;
  const PackedFilter<T> filter_;
  const FilterMemory<T> memory_;
  int64_t edges_[kBlock];
};

}  // namespace

template <class T>
EdgeConvolutionSizes convolution_sizes(const EdgeConvolutionArgs<T>& args) {
  return {PackedFilter<T>(args, nullptr).bytes, FilterMemory<T>(args, nullptr).bytes,
          args.inputs * padded<T>(args.width)};
}

template <class T>
void convolution_pack(const EdgeConvolutionArgs<T>& args, void* packed) {
  const PackedFilter<T> to(args, packed);
  const auto rows = [&](const Panels<T>& panels, int64_t count, const auto& value) {
    for (int64_t r = 0; r < panels.rows; ++r)
      panels.each([&](auto place) {
        for (int64_t k = 0; k < kLanes<T>; ++k) {
          const int64_t column = place.lane() + k;
          place.in(panels, r)[k] = column < count ? value(r, column) : T(0);
        }
      });
  };
  if (args.by_b)
    rows(to.transposed, args.inputs, [&](int64_t c, int64_t k) { return args.weight[k * args.width + c]; });
  else if (!args.by_a)
    rows(to.weight, args.width, [&](int64_t k, int64_t c) { return args.weight[k * args.width + c]; });
}

template <class T>
void convolution_nodes(const EdgeConvolutionArgs<T>& args, int64_t from, int64_t to, const void* packed,
                       void* scratch) {
  Convolution<T>(args, packed, scratch).nodes(from, to);
}

template <class T>
void convolution_edges(const EdgeConvolutionArgs<T>& args, int64_t from, int64_t to, const void* packed,
                       void* scratch) {
  Convolution<T>(args, packed, scratch).edges(from, to);
}

template <class T>
void convolution_weight(const EdgeConvolutionArgs<T>& args, int64_t from, int64_t to, void* scratch,
                        T* sums) {
  Convolution<T>(args, nullptr, scratch).weight(from, to, sums);
}

template <class T>
void convolution_weight_sum(const EdgeConvolutionArgs<T>& args, const T* sums, int64_t shares) {
  const int64_t lanes = padded<T>(args.width), size = args.inputs * lanes;
  for (int64_t k = 0; k < args.inputs; ++k) {
    T* const to = args.by_weight + k * args.width;
    std::fill_n(to, args.width, T(0));
    for (int64_t s = 0; s < shares; ++s)
      Panels<T>{const_cast<T*>(sums) + s * size, args.inputs, lanes}.each([&](auto place) {
        const T* from = place.in(Panels<T>{const_cast<T*>(sums) + s * size, args.inputs, lanes}, k);
        const int64_t count = std::min<int64_t>(kLanes<T>, args.width - place.lane());
        for (int64_t c = 0; c < count; ++c) to[place.lane() + c] += from[c];
      });
  }
}

MDOPS_INSTANTIATE(convolution_sizes, convolution_pack, convolution_nodes, convolution_edges,
                  convolution_weight, convolution_weight_sum)

}  // namespace mdops::MDOPS_ISA
