// Blocks of rows of one table, with a row's columns in lanes: the table is the left factor, read in place.
#include <algorithm>
#include <type_traits>

#include "gemm/product.h"
#include "moment_product/moment_product.h"

namespace mdops::MDOPS_ISA {

namespace {

template <class T>
int columns_at_once(const MomentProductArgs<T>& args) {
  return static_cast<int>(std::clamp<int64_t>(args.columns, 1, Panels<T>::kWide));
}

// A thread's memory, of one block.
template <class T>
struct MomentMemory {
  Panels<T> in, out;
  T* lines;  // of each lane

  MomentMemory(const MomentProductArgs<T>& args, int64_t lanes, void* memory) {
    Arena arena{static_cast<char*>(memory)};
    in = take_panels<T>(arena, args.depth, lanes), out = take_panels<T>(arena, args.width, lanes);
    lines = arena.take<T>(lanes * std::max(args.depth, args.width));
    bytes = arena.used;
  }
  int64_t bytes;
};

// to[k * to_stride + c] = from[k * from_stride + c] for c < columns: mostly four.
template <class T>
void copy_columns(int columns, int64_t count, const T* from, int64_t from_stride, T* to, int64_t to_stride) {
  const auto copy = [&](auto wide) {
    for (int64_t k = 0; k < count; ++k, from += from_stride, to += to_stride)
      for (int c = 0; c < wide; ++c) to[c] = from[c];
  };
  columns == 4 ? copy(std::integral_constant<int, 4>{}) : copy(columns);
}

template <bool Back, class T>
void block(const MomentProductArgs<T>& args, const int32_t* rows, int64_t count, int first, int columns,
           void* scratch) {
  const int64_t used = count * columns, lanes = padded<T>(used);
  const MomentMemory<T> memory(args, lanes, scratch);
  const T* const table = args.table + args.kind_of(rows[0]) * int64_t{args.depth} * args.width;
  if constexpr (Back) {
    for (int64_t r = 0; r < count; ++r)
      std::copy_n(args.in + args.template in_at<true>(rows[r], 0, first), columns * args.depth,
                  memory.lines + r * columns * args.depth);
    rows_to_lanes(memory.lines, args.depth, used, args.depth, memory.in);
    gemm(args.width, args.depth, ByRow<T>{table, args.depth}, memory.in, memory.out, false);
    for (int64_t r = 0; r < count; ++r)
      copy_columns(columns, args.width, memory.out.panel(0) + r * columns, lanes,
                   args.out + args.template out_at<true>(rows[r], 0, first), args.columns);
  } else {
    for (int64_t r = 0; r < count; ++r)
      copy_columns(columns, args.depth, args.in + args.template in_at<false>(rows[r], 0, first), args.columns,
                   memory.in.panel(0) + r * columns, lanes);
    for (int d = 0; d < args.depth; ++d) std::fill_n(memory.in.panel(0, d) + used, lanes - used, T(0));
    gemm(args.width, args.depth, ByDepth<T>{table, args.width}, memory.in, memory.out, false);
    lanes_to_rows(memory.out, used, args.width, memory.lines, args.width);
    for (int64_t r = 0; r < count; ++r)
      std::copy_n(memory.lines + r * columns * args.width, columns * args.width,
                  args.out + args.template out_at<false>(rows[r], 0, first));
  }
}

template <class T>
void all_columns(const MomentProductArgs<T>& args, bool back, const int32_t* rows, int64_t count,
                 void* scratch) {
  const int at_once = columns_at_once(args);
  for (int first = 0; first < args.columns; first += at_once) {
    const int columns = std::min(at_once, args.columns - first);
    back ? block<true>(args, rows, count, first, columns, scratch)
         : block<false>(args, rows, count, first, columns, scratch);
  }
}

}  // namespace

#define MDOPS_DEFINE(T)                                                                                     \
  MomentProductSizes moment_product_sizes(const MomentProductArgs<T>& args) {                               \
    const int64_t lanes = Panels<T>::kWide;                                                                 \
    return {lanes / columns_at_once(args), MomentMemory<T>(args, lanes, nullptr).bytes};                    \
  }                                                                                                         \
  void moment_product_rows(const MomentProductArgs<T>& args, bool back, const int32_t* rows, int64_t count, \
                           void* scratch) {                                                                 \
    all_columns(args, back, rows, count, scratch);                                                          \
  }
MDOPS_DEFINE(float)
MDOPS_DEFINE(double)
#undef MDOPS_DEFINE

}  // namespace mdops::MDOPS_ISA
