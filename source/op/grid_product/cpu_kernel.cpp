// Some channels of an atom at a time, which stay in the nearest cache, and four points at once.
#include <algorithm>

#include "common/panels.h"
#include "grid_product/angles.h"

namespace mdops::MDOPS_ISA {

namespace {

constexpr int64_t kPoints = 4, kVectors = 2;

template <class T>
constexpr int64_t kWide = kVectors * kLanes<T>;  // channels

// The matrices by four points: of each column four numbers side by side, zeros behind the last point. Of a
// grid of rotations tables (angles.h).
template <class T>
struct PackedGrid {
  T *a, *b, *out;
  int64_t bytes;

  PackedGrid(const GridArgs<T>& args, void* memory) {
    Arena arena{static_cast<char*>(memory)};
    const auto take_tables = [&]<int L>() {
      for (T** table : {&a, &b, &out}) *table = arena.take<T>(grid_angles::Grid<L>::kTables);
      bytes = arena.used;
    };
    if (grid_angles::with_degree(args, take_tables)) return;
    const int64_t points = (args.points + kPoints - 1) / kPoints * kPoints;
    a = arena.take<T>(points * args.first);
    b = arena.take<T>(points * args.second);
    out = arena.take<T>(points * args.results);
    bytes = arena.used;
  }
};

template <class T>
void pack(const T* from, int64_t points, int64_t columns, T* to) {
  for (int64_t g = 0; g < points; g += kPoints)
    for (int64_t d = 0; d < columns; ++d)
      for (int64_t k = 0; k < kPoints; ++k, ++to) *to = g + k < points ? from[(g + k) * columns + d] : T(0);
}

template <class T>
struct Lanes {
  Vector<T> v[kVectors];
};

// The values of four points.
template <class T>
inline void values(const T* matrix, const T* rows, int64_t columns, Lanes<T> (&found)[kPoints]) {
  for (int64_t d = 0; d < columns; ++d, matrix += kPoints, rows += kWide<T>) {
    MDOPS_UNROLL
    for (int k = 0; k < kPoints; ++k) MDOPS_UNROLL
    for (int i = 0; i < kVectors; ++i) found[k].v[i] += matrix[k] * vector_at(rows + i * kLanes<T>);
  }
}

template <class T>
void rows_of(const T* from, int64_t rows, int64_t channels, int64_t width, T* to) {
  for (int64_t d = 0; d < rows; ++d) {
    std::copy(from + d * channels, from + d * channels + width, to + d * kWide<T>);
    std::fill(to + d * kWide<T> + width, to + (d + 1) * kWide<T>, T(0));
  }
}

template <class T>
void atoms_of(const GridArgs<T>& args, int64_t from, int64_t to, const void* packed, T* memory) {
  const PackedGrid<T> matrices(args, const_cast<void*>(packed));
  const int64_t channels = args.channels;
  T *const u = memory, *const v = u + args.first * kWide<T>, *const y = v + args.second * kWide<T>;
  for (int64_t n = from; n < to; ++n)
    for (int64_t c = 0; c < channels; c += kWide<T>) {
      const int64_t width = std::min(kWide<T>, channels - c);
      rows_of(args.u + n * args.first * channels + c, args.first, channels, width, u);
      rows_of(args.v + n * args.second * channels + c, args.second, channels, width, v);
      std::fill(y, y + args.results * kWide<T>, T(0));
      for (int64_t g = 0; g < args.points; g += kPoints) {
        Lanes<T> of_u[kPoints] = {}, of_v[kPoints] = {};
        values(matrices.a + g * args.first, u, args.first, of_u);
        values(matrices.b + g * args.second, v, args.second, of_v);
        for (int k = 0; k < kPoints; ++k)
          for (int i = 0; i < kVectors; ++i) of_u[k].v[i] *= of_v[k].v[i];
        const T* out = matrices.out + g * args.results;
        for (int64_t d = 0; d < args.results; ++d, out += kPoints)
          for (int i = 0; i < kVectors; ++i) {
            T* const at = y + d * kWide<T> + i * kLanes<T>;
            Vector<T> sum = vector_at(at);
            for (int k = 0; k < kPoints; ++k) sum += out[k] * of_u[k].v[i];
            store(at, sum);
          }
      }
      for (int64_t d = 0; d < args.results; ++d)
        std::copy(y + d * kWide<T>, y + d * kWide<T> + width, args.y + (n * args.results + d) * channels + c);
    }
}

// Of one channel after the other, or of as many as a vector has.
template <int L, class T>
void atoms_by_angles(const GridArgs<T>& args, int64_t from, int64_t to, const void* packed) {
  const PackedGrid<T> tables(args, const_cast<void*>(packed));
  constexpr int count = grid_angles::Grid<L>::kCoefficients;
  const int64_t channels = args.channels;
  for (int64_t n = from; n < to; ++n) {
    const auto run = [&](int64_t c, auto zero, const auto& read, const auto& write) {
      const int64_t first = n * count * channels + c;
      decltype(zero) u[count], v[count], y[count] = {};
      for (int d = 0; d < count; ++d) {
        u[d] = read(args.u + first + d * channels);
        v[d] = read(args.v + first + d * channels);
      }
      const auto of_u = [&](int d) { return u[d]; };
      const auto of_v = [&](int d) { return v[d]; };
      grid_angles::add_product<L>(tables.a, tables.b, tables.out, of_u, of_v, y);
      for (int d = 0; d < count; ++d) write(args.y + first + d * channels, y[d]);
    };
    int64_t c = 0;
    for (; c + kLanes<T> <= channels; c += kLanes<T>)
      run(
          c, Vector<T>{}, [](const T* p) { return vector_at(p); },
          [](T* p, const Vector<T>& value) { store(p, value); });
    for (; c < channels; ++c) run(c, T(0), [](const T* p) { return *p; }, [](T* p, T value) { *p = value; });
  }
}

}  // namespace

template <class T>
void grid_pack(const GridArgs<T>& args, void* packed) {
  const PackedGrid<T> to(args, packed);
  const auto pack_tables = [&]<int L>() {
    for (int k = 0; k < grid_angles::Grid<L>::kTables; ++k) {
      to.a[k] = grid_angles::table_number<L>(args.a, k), to.b[k] = grid_angles::table_number<L>(args.b, k);
      to.out[k] = grid_angles::table_number<L>(args.out, k);
    }
  };
  if (grid_angles::with_degree(args, pack_tables)) return;
  pack(args.a, args.points, args.first, to.a);
  pack(args.b, args.points, args.second, to.b);
  pack(args.out, args.points, args.results, to.out);
}

template <class T>
PackedSizes grid_sizes(const GridArgs<T>& args) {
  const int64_t rows = args.first + args.second + args.results;
  return {PackedGrid<T>(args, nullptr).bytes, static_cast<int64_t>(rows * kWide<T> * sizeof(T))};
}

template <class T>
void grid_atoms(const GridArgs<T>& args, int64_t from, int64_t to, const void* packed, void* scratch) {
  if (grid_angles::with_degree(args, [&]<int L>() { atoms_by_angles<L>(args, from, to, packed); })) return;
  atoms_of(args, from, to, packed, static_cast<T*>(scratch));
}

MDOPS_INSTANTIATE(grid_sizes, grid_pack, grid_atoms)

}  // namespace mdops::MDOPS_ISA
