// Sums forces and virials in a kernel that makes the gradients of pairs, in float32, a warp per atom and a
// lane per pair; `PairSums` (gpu_pair_sums.h) does it for gradients in memory. A bound of all terms must be
// known beforehand; a larger term counts as not finite.
#pragma once

#include "displacements/gpu_pair_sums.h"

namespace mdops {

using PairForceSums = PairSums<PairForce<float, false>>;

struct ForceSumArgs {
  PairRows rows;
  PairSumSpace space;
  double* row_sums;
};

// The sums of one warp. All lanes call all functions.
template <int Warps>
class ForceSums {
 public:
  static constexpr int kWords = kWarp * kBufferStride<PairForce<float, false>>;  // of the warps' `buffers`
  // The least `largest`, so that float32 can hold the scale.
  static constexpr double kLeast = 0x1p-62;

  __device__ ForceSums(const ForceSumArgs& args, int64_t* buffers)
      : rows_(args.rows),
        space_(args.space),
        row_sums_(args.row_sums),
        buffers_(buffers),
        buffer_(buffers + warp_index() * kWords),
        largest_(static_cast<float>(args.space.largest[0])),
        scale_(static_cast<float>(FixedPoint(args.space.largest[0], slots(args.rows)).scale)) {}

  // The atom of row i.
  __device__ void begin(int64_t i) {
    const int32_t named = rows_.batch[i], system = named >= 0 && named < rows_.systems ? named : -1;
    if (!space_.blocks && system != system_ && system_ >= 0) flush_system();
    system_ = system, is_wrong_ = system < 0;
    own_[0] = own_[1] = own_[2] = 0;
  }

  // In slot `slot` of row i.
  __device__ int32_t neighbor(int64_t i, int slot) const { return rows_.neighbors[i * rows_.width + slot]; }

  // Adds the gradient g of pair vector d to neighbour j (none: -1), in lanes with a pair.
  __device__ void add(bool is_there, int32_t j, const float* d, const float* g) {
    const int lane = lane_index();
    const bool is_known = is_there && j >= 0 && j < rows_.atoms;
    bool is_finite = true;
    for (int a = 0; a < 3; ++a) is_finite &= fabsf(g[a]) <= largest_;
    is_wrong_ |= is_known ? !is_finite : is_there && j != -1;
    float added[3];
    for (int a = 0; a < 3; ++a) added[a] = is_known && is_finite ? g[a] : 0.0f;
    for (int a = 0; a < 3; ++a) {
      const int64_t term = __float2ll_rn(added[a] * scale_);
      own_[a] += term;
      buffer_[lane * kStride + a] = -term;
      for (int b = 0; b < 3; ++b) of_system_[3 * a + b] += pair_virial(added, d, a, b);
    }
    buffer_[lane * kStride + 3] = !is_finite;
    __syncwarp();
    add_words<kStride - 1>(buffer_, 3, is_known ? j : -1, space_.neighbors);
    __syncwarp();
  }

  // A wrong row's sums are NaN.
  __device__ void end(int64_t i, RowKind kind) {
    const bool any = __any_sync(kAllLanes, kind == RowKind::wrong || (kind == RowKind::real && is_wrong_));
    for (int a = 0; a < 3; ++a) {
      const int64_t sum = warp_sum(own_[a]);
      if (lane_index() == 0)
        row_sums_[3 * i + a] =
            any ? not_a_number<double>() : static_cast<double>(sum) / static_cast<double>(scale_);
    }
    if (any && system_ >= 0) of_system_[0] = not_a_number<double>();
  }

  // After the last row, all threads of the block.
  __device__ void finish() {
    if (space_.blocks) {
      sum_block<Warps>(of_system_, reinterpret_cast<double*>(buffers_), kWords, space_);
    } else if (system_ >= 0) {
      flush_system();
    }
  }

 private:
  static constexpr int kStride = kBufferStride<PairForce<float, false>>;

  static __device__ int64_t slots(const PairRows& rows) {
    const int64_t slots = rows.rows * rows.width;
    return slots > 0 ? slots : 1;
  }
  __device__ void flush_system() {
    flush<1>(of_system_, FixedPoint(space_.largest[1], slots(rows_)), space_.systems, rows_.systems, system_);
  }

  const PairRows rows_;
  const PairSumSpace space_;
  double* const row_sums_;
  int64_t *const buffers_, *const buffer_;
  const float largest_, scale_;
  int32_t system_ = -1;
  bool is_wrong_ = false;
  int64_t own_[3];
  double of_system_[kSystem] = {};
};

}  // namespace mdops
