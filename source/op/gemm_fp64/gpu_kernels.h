// Products in float64 by the tensor cores, with as many blocks as the GPU holds at once, each for one tile
// after another: the next tile's data is loaded before the last one ends.
//
//   shared memory, a stage being 16 of the depth
//     A     rows of 16 numbers: piece c of two numbers is at place c ^ 4 (row % 2)
//     B     transposed: columns of 16 numbers, like A's rows; else 16 rows of all columns, 2 mod 8 apart
//
//   Lane l = 4 g + t of a warp uses numbers 2 t and 2 t + 1 of each 8 of the depth for the t-th and the (t +
//   4)-th of an instruction, of rows g and g + 8 and column g of each 16 x 8: the order does
//   not matter to a sum. So it reads two numbers at once, without bank conflicts.
//
// Two blocks share a multiprocessor: while one waits for its threads or copies, or writes, the other uses the
// tensor cores. A tile of m x n reads 8 (m + n) / (m n) bytes from L2 per product, 128 of them a cycle: 21
// bytes a cycle for 128 x 80, and L2 can give some 25. The last rows are in low tiles, with a unit of rows
// per warp, so that all multiprocessors end at about the same time.
#pragma once

#include "common/gpu_copy.h"
#include "common/gpu_mma.h"
#include "common/gpu_unroll.h"
#include "common/rows.h"
#include "gemm_fp64/gemm_fp64.h"

namespace mdops::gpu_gemm_fp64 {

constexpr int kStageDepth = 16;

// A block's warps along rows and columns, each warp's units of 16 x 8, stages in flight, blocks that share a
// multiprocessor.
template <int RowWarps, int ColWarps, int RowUnits, int ColUnits, int Stages, int Blocks>
struct ProductTile {
  static constexpr int kRowWarps = RowWarps, kColWarps = ColWarps, kRowUnits = RowUnits, kColUnits = ColUnits;
  static constexpr int kStages = Stages, kBlocks = Blocks, kThreads = kWarp * RowWarps * ColWarps;
  static constexpr int kLow = 16 * RowWarps, kRows = kLow * RowUnits, kCols = 8 * ColWarps * ColUnits;
  static constexpr int kBApart = kCols + 2;  // if B is not transposed
  static constexpr int kA = kRows * kStageDepth, kB = kStageDepth * kBApart, kStage = kA + kB;
  static constexpr int kBytes = 8 * Stages * kStage;
};

struct KernelArgs : GemmFp64Args {
  MomentRows moments;
  int high_rows = 0;  // in tiles of full height, whole tiles; the rest in low ones
};

constexpr int kNoNet = -1, kEnd = -2;

// Rows begin .. end - 1 of one net in the tile with first row `first` and first column `col0`, low or not;
// net kEnd: no more.
struct Segment {
  int first, begin, end, col0, net, low;
};

// This block's segments in order. One warp finds them, and tells the others. `ToMoments`: rows of no net
// count, too.
template <class T, bool ToMoments>
class Segments {
 public:
  MDOPS_D Segment begin(const KernelArgs& p) {
    if (lane_index() == 0) {
      const int low_rows = max(0, static_cast<int>(p.rows) - p.high_rows);
      across_ = (p.cols + T::kCols - 1) / T::kCols, high_ = p.high_rows / T::kRows * across_;
      tiles_ = high_ + (low_rows + T::kLow - 1) / T::kLow * across_;
      tile_ = static_cast<int>(blockIdx.x) - static_cast<int>(gridDim.x);
      of_ = {0, 0, 0, 0, kEnd, 0}, last_ = 0;
    }
    __syncwarp();
    return next(p);
  }

  MDOPS_D Segment next(const KernelArgs& p) {
    Segment of = of_;
    int tile = tile_, last = last_;
    __syncwarp();
    do {
      if (of.end == last) {
        tile += gridDim.x;
        if (tile >= tiles_) return {0, 0, 0, 0, kEnd, 0};
        of.low = tile >= high_;
        const int of_kind = tile - (of.low ? high_ : 0), height = of.low ? T::kLow : T::kRows;
        of.first = of.end = (of.low ? p.high_rows : 0) + of_kind / across_ * height;
        of.col0 = of_kind % across_ * T::kCols;
        last = min(of.first + height, static_cast<int>(p.rows));
      }
      // Each lane checks four rows.
      static_assert(T::kRows <= 4 * kWarp);
      const int row = of.first + 4 * lane_index(), own = row < last ? net_of(p, row) : kEnd;
      const int lane = (of.end - of.first) / 4;
      of.begin = of.end, of.net = __shfl_sync(kAllLanes, own, lane);
      const unsigned others = __ballot_sync(kAllLanes, own != of.net) & kAllLanes << lane;
      of.end = others ? min(last, of.first + 4 * (__ffs(others) - 1)) : last;
    } while (!ToMoments && of.net < 0);
    if (lane_index() == 0) of_ = of, tile_ = tile, last_ = last;
    __syncwarp();
    return of;
  }

 private:
  static MDOPS_D int net_of(const KernelArgs& p, int row) {
    int net = 0;
    if constexpr (ToMoments) {
      const int atom = p.moments.row_atom[row / 4];
      net = atom >= 0 && atom < p.moments.atoms ? p.moments.kinds[atom] : kNoNet;
    } else {
      if (p.tile_net) net = p.tile_net[row / p.tile_rows];
      if (p.nets == 1) net = min(net, 0);
    }
    return net >= 0 && net < p.nets ? net : kNoNet;
  }

  Segment of_;
  int across_, high_, tiles_, tile_, last_;
};

// A block's segments in shared memory: those in flight, and the next.
template <class T, bool ToMoments>
struct Work {
  static constexpr int kMost = T::kStages + 2;
  Segments<T, ToMoments> all;
  Segment at[kMost];

  static MDOPS_D int after(int item) { return item + 1 == kMost ? 0 : item + 1; }
};

// Copies stages to shared memory, ahead of the products; between two calls the block waits for all its
// threads. `Two`: depth and columns are even, and numbers come in pairs.
template <class T, bool Transposed, bool Two, class Work>
class Fetch {
 public:
  MDOPS_D Fetch(const KernelArgs& p, double* shared, Work& work) : p_(p), shared_(shared), work_(work) {}

  MDOPS_D void next() {
    const Segment& of = work_.at[item_];
    thread_ = threadIdx.x;
    asm volatile("" : "+r"(thread_));  // recomputing from it costs less than registers
    if (of.net != kEnd) {
      if (k0_ == 0) begin(of);
      double* const to = shared_ + slot_ * T::kStage;
      const int left = p_.depth - k0_;  // of the depth
      copy_lines<T::kRows>(a_, of.begin - of.first, of.end - of.first, left, to);
      a_ += kStageDepth;
      if constexpr (Transposed) {
        copy_lines<T::kCols>(b_, 0, p_.cols - of.col0, left, to + T::kA);
        b_ += kStageDepth;
      } else {
        copy_rows_of_b(p_.cols - of.col0, left, to + T::kA);
        b_ += static_cast<int64_t>(kStageDepth) * p_.cols;
      }
      k0_ += kStageDepth;
      if (k0_ >= p_.depth) k0_ = 0, item_ = Work::after(item_);
    }
    commit_copies();
    slot_ = slot_ + 1 == T::kStages ? 0 : slot_ + 1;
  }

 private:
  static constexpr int kSize = Two ? 2 : 1, kPieces = kStageDepth / kSize;

  MDOPS_D void begin(const Segment& of) {
    if (threadIdx.x < kWarp) {
      const Segment next = work_.all.next(p_);
      if (threadIdx.x == 0) work_.at[Work::after(item_)] = next;
    }
    a_ = p_.a + static_cast<int64_t>(of.first) * p_.depth;
    b_ = p_.b + static_cast<int64_t>(max(of.net, 0)) * p_.depth * p_.cols +
         (Transposed ? static_cast<int64_t>(of.col0) * p_.depth : of.col0);
  }

  // Copies lines of the depth, of which lines lo .. hi - 1 exist; products with the others are unused.
  template <int Lines>
  MDOPS_D void copy_lines(const double* from, int lo, int hi, int left, double* to) const {
    const int k = thread_ % kPieces * kSize;
    constexpr int apart = T::kThreads / kPieces;
    static_assert(T::kThreads % kPieces == 0);
    const double* own = from + static_cast<int64_t>(thread_ / kPieces) * p_.depth + k;
#pragma unroll
    for (int n = 0; n < (Lines + apart - 1) / apart; ++n) {
      const int line = thread_ / kPieces + n * apart;
      if (Lines % apart && line >= Lines) break;
      if (line >= lo && line < hi)
        copy_to_shared<Two ? 16 : 8>(to + line * kStageDepth + (k / 2 ^ 4 * (line & 1)) * 2 + k % 2, own,
                                     k < left);
      own += static_cast<int64_t>(apart) * p_.depth;
    }
  }

  MDOPS_D void copy_rows_of_b(int cols, int left, double* to) const {
    constexpr int across = T::kCols / kSize, all = kStageDepth * across;
#pragma unroll
    for (int n = 0; n < (all + T::kThreads - 1) / T::kThreads; ++n) {
      const int at = thread_ + n * T::kThreads;
      if (all % T::kThreads && at >= all) break;
      const int k = at / across, col = at % across * kSize;
      const bool in_bounds = k < left && col < cols;
      copy_to_shared<Two ? 16 : 8>(to + k * T::kBApart + col, b_ + static_cast<int64_t>(k) * p_.cols + col,
                                   in_bounds);
    }
  }

  const KernelArgs& p_;
  double* const shared_;
  Work& work_;
  const double *a_ = nullptr, *b_ = nullptr;
  int k0_ = 0, slot_ = 0, item_ = 0, thread_ = 0;
};

// With RowUnits units of rows per warp.
template <class T, bool Transposed, int RowUnits>
MDOPS_D void multiply_stage(const double* shared, double (&sum)[T::kRowUnits][T::kColUnits][4]) {
  const int lane = lane_index(), warp = threadIdx.x / kWarp, g = lane / 4, t = lane % 4;
  const double* const rows = shared + (warp / T::kColWarps * 16 * RowUnits + g) * kStageDepth;
  const double* const cols = shared + T::kA;
  const int col = warp % T::kColWarps * 8 * T::kColUnits + g;
#pragma unroll 1
  for (int half = 0; half < 2; ++half) {
    const int place = ((4 * half + t) ^ 4 * (g & 1)) * 2;
    double a[RowUnits][4];
#pragma unroll
    for (int m = 0; m < RowUnits; ++m) {
      const double2 x = *reinterpret_cast<const double2*>(rows + 16 * m * kStageDepth + place);
      const double2 y = *reinterpret_cast<const double2*>(rows + (16 * m + 8) * kStageDepth + place);
      a[m][0] = x.x, a[m][1] = y.x, a[m][2] = x.y, a[m][3] = y.y;
    }
#pragma unroll
    for (int u = 0; u < T::kColUnits; ++u) {
      double2 b;
      if constexpr (Transposed) {
        b = *reinterpret_cast<const double2*>(cols + (col + 8 * u) * kStageDepth + place);
      } else {
        const double* const own = cols + (8 * half + 2 * t) * T::kBApart + col + 8 * u;
        b = make_double2(own[0], own[T::kBApart]);
      }
#pragma unroll
      for (int m = 0; m < RowUnits; ++m) multiply_add(sum[m][u], a[m], b.x, b.y);
    }
  }
}

// `ToMoments`: with transposed matrices.
template <class T, bool Transposed, bool Two, bool ToMoments>
__global__ void __launch_bounds__(T::kThreads, T::kBlocks) product_kernel(KernelArgs p) {
  using OwnWork = Work<T, ToMoments>;
  extern __shared__ __align__(16) char double_product_memory[];
  double* const shared = reinterpret_cast<double*>(double_product_memory);
  __shared__ OwnWork work;
  const int lane = lane_index(), warp = threadIdx.x / kWarp;
  const int col = warp % T::kColWarps * 8 * T::kColUnits + 2 * (lane % 4);
  Fetch<T, Transposed, Two, OwnWork> ahead(p, shared, work);
  if (warp == 0) {
    const Segment first = work.all.begin(p);
    if (lane == 0) work.at[0] = first;
  }
  for (int stage = 0; stage < T::kStages - 1; ++stage) {
    __syncthreads();
    ahead.next();
  }
  for (int slot = 0, item = 0; work.at[item].net != kEnd; item = OwnWork::after(item)) {
    double sum[T::kRowUnits][T::kColUnits][4] = {};
    const bool low = work.at[item].low;
    for (int k0 = 0; k0 < p.depth; k0 += kStageDepth) {
      wait_for_copies<T::kStages - 2>();
      __syncthreads();  // all copies of this stage are complete, and the one before is no longer needed
      ahead.next();
      if (low)
        multiply_stage<T, Transposed, 1>(shared + slot * T::kStage, sum);
      else
        multiply_stage<T, Transposed, T::kRowUnits>(shared + slot * T::kStage, sum);
      slot = slot + 1 == T::kStages ? 0 : slot + 1;
    }
    const Segment& now = work.at[item];
    const int row = warp / T::kColWarps * 16 * (low ? 1 : T::kRowUnits) + lane / 4;
    const int left = p.cols - now.col0 - col;
    unrolled<T::kRowUnits, 2>([&](int m, int h) {
      const int r = now.first + row + 16 * m + 8 * h;
      if ((low && m > 0) || r < now.begin || r >= now.end) return;
      int64_t place = static_cast<int64_t>(r) * p.cols;
      if constexpr (ToMoments) {
        const int atom = p.moments.row_atom[r / 4];
        if (atom < 0 || atom >= p.moments.atoms) return;
        place = 4 * (static_cast<int64_t>(atom) * p.cols);
      }
      double* const to = p.c + place + (ToMoments ? 4 * (now.col0 + col) + r % 4 : now.col0 + col);
#pragma unroll
      for (int u = 0; u < T::kColUnits; ++u) {
        double x = sum[m][u][2 * h], y = sum[m][u][2 * h + 1];
        constexpr int apart = ToMoments ? 4 : 1;
        if (ToMoments && now.net < 0) x = y = not_a_number<double>();
        if constexpr (Two && !ToMoments) {
          if (8 * u < left) *reinterpret_cast<double2*>(to + 8 * u) = make_double2(x, y);
        } else {
          if (8 * u < left) to[8 * u * apart] = x;
          if (8 * u + 1 < left) to[(8 * u + 1) * apart] = y;
        }
      }
    });
  }
  wait_for_copies<0>();
}

// 128 x 80; with fewer stages if a GPU has less shared memory.
template <int Stages>
using TileOf = ProductTile<2, 2, 4, 5, Stages, 2>;
using Tile = TileOf<4>;

}  // namespace mdops::gpu_gemm_fp64
