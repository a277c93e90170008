// A lane per edge.
#include <algorithm>

#include "common/vectors.h"
#include "edge_frames/edge_frames.h"

namespace mdops::MDOPS_ISA {

namespace {

// A number for each of several edges.
template <class T>
struct OfEdges {
  Vector<T> of;

  OfEdges(T value = 0) : of(Vector<T>{} + value) {}
  explicit OfEdges(const Vector<T>& numbers) : of(numbers) {}

  OfEdges operator+(const OfEdges& other) const { return OfEdges(of + other.of); }
  OfEdges operator-(const OfEdges& other) const { return OfEdges(of - other.of); }
  OfEdges operator*(const OfEdges& other) const { return OfEdges(of * other.of); }
  OfEdges operator/(const OfEdges& other) const { return OfEdges(of / other.of); }
  OfEdges& operator+=(const OfEdges& other) { return of += other.of, *this; }
};

template <class T>
OfEdges<T> root_of(const OfEdges<T>& x) {
  T roots[kLanes<T>];
  store(roots, x.of);
  for (T& root : roots) root = std::sqrt(root);
  return OfEdges<T>(vector_at(roots));
}
template <class T>
OfEdges<T> inverse_of(const OfEdges<T>& x) {
  return OfEdges<T>(T(1)) / x;
}

// Which edges point up.
template <class T>
struct UpOfEdges {
  OfEdges<T> sign;

  UpOfEdges operator!() const { return {OfEdges<T>() - sign}; }
};
template <class T>
UpOfEdges<T> is_up(const OfEdges<T>& z) {
  const VectorIndex<T> yes = z.of >= T(0);
  return {OfEdges<T>(yes ? Vector<T>{} + T(1) : Vector<T>{} - T(1))};
}
template <class T>
OfEdges<T> sign_of(const UpOfEdges<T>& up) {
  return up.sign;
}

// Adjacent edges, and where their numbers are: `width` of each.
template <class T>
struct Edges {
  int64_t first;
  int count;

  // Lanes after the last edge repeat its numbers.
  OfEdges<T> load(const T* numbers, int64_t width, int64_t at) const {
    T found[kLanes<T>];
    for (int k = 0; k < kLanes<T>; ++k) found[k] = numbers[(first + std::min(k, count - 1)) * width + at];
    return OfEdges<T>(vector_at(found));
  }
  void store(T* numbers, int64_t width, int64_t at, const OfEdges<T>& values) const {
    T found[kLanes<T>];
    MDOPS_ISA::store(found, values.of);
    for (int k = 0; k < count; ++k) numbers[(first + k) * width + at] = found[k];
  }
};

template <class T, class Work>
void each_edges(int64_t from, int64_t to, const Work& work) {
  for (int64_t e = from; e < to; e += kLanes<T>)
    work(Edges<T>{e, static_cast<int>(std::min<int64_t>(kLanes<T>, to - e))});
}

template <class T>
Direction<OfEdges<T>> direction_of(const T* vectors, const Edges<T>& edges) {
  const OfEdges<T> vector[3] = {edges.load(vectors, 3, 0), edges.load(vectors, 3, 1),
                                edges.load(vectors, 3, 2)};
  return Direction<OfEdges<T>>(vector);
}

}  // namespace

template <class T>
void frame_rows_of(const FrameArgs<T>& args, int64_t degree, int64_t from, int64_t to) {
  const int order = args.shape.order;
  with_degree(degree, [&]<int kDegree>() {
    constexpr int columns = frame_columns(kDegree);
    const int64_t numbers = frame_rows(kDegree, order) * columns;
    std::fill(args.turn + from * numbers, args.turn + to * numbers, T(0));
    each_edges<T>(from, to, [&](const Edges<T>& edges) {
      const Direction<OfEdges<T>> direction = direction_of(args.vectors, edges);
      each_frame_number<kDegree, T>(direction.n[0], direction.n[1], direction.n[2], is_up(direction.n[2]),
                                    order, [&](int row, int column, const OfEdges<T>& number) {
                                      if (order >= 0)
                                        edges.store(args.turn, numbers, row * columns + column, number);
                                      if (row <= kDegree)
                                        edges.store(args.harmonics, columns, column, number);
                                    });
    });
  });
}

template <class T>
void frame_gradients_of(const FrameBackwardArgs<T>& args, int64_t degree, int64_t from, int64_t to) {
  using N = Derived<T, OfEdges<T>>;
  const int order = args.shape.order;
  with_degree(degree, [&]<int kDegree>() {
    constexpr int columns = frame_columns(kDegree);
    const int64_t numbers = frame_rows(kDegree, order) * columns;
    each_edges<T>(from, to, [&](const Edges<T>& edges) {
      const Direction<OfEdges<T>> direction = direction_of(args.vectors, edges);
      OfEdges<T> by_n[3];
      each_frame_number<kDegree, T>(N(direction.n[0], 0), N(direction.n[1], 1), N(direction.n[2], 2),
                                    is_up(direction.n[2]), order, [&](int row, int column, const N& number) {
                                      OfEdges<T> grad;
                                      if (order >= 0)
                                        grad += edges.load(args.by_turn, numbers, row * columns + column);
                                      if (row <= kDegree)
                                        grad += edges.load(args.by_harmonics, columns, column);
                                      for (int a = 0; a < 3; ++a) by_n[a] += grad * number.by[a];
                                    });
      for (int a = 0; a < 3; ++a) edges.store(args.by_vectors, 3, a, direction.by_vector(by_n, a));
    });
  });
}

MDOPS_INSTANTIATE(frame_rows_of, frame_gradients_of)

}  // namespace mdops::MDOPS_ISA
