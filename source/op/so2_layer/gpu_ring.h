// Weights that do not fit into shared memory come through a ring of stages there, by bulk copies that
// barriers count, in the order in which all tiles of a block need them. The last warp to finish a stage
// starts the copy that replaces it: so a warpgroup waits for the other only when it is a whole ring ahead.
#pragma once

#include "common/gpu_barrier.h"
#include "common/gpu_copy.h"
#include "common/gpu_warp.h"

namespace mdops::gpu_so2 {

// `Stages` has the number of a tile's stages, `count`, and the begin of stage k in the packed weights,
// `begin(k)`; begin(k + 1) - begin(k) is its size. kWarps warps read each stage.
template <int kWarps, class Stages>
class StageRing {
 public:
  static MDOPS_HD constexpr int64_t bytes(int slots, int slot_bytes) {
    return slots * (slot_bytes + static_cast<int64_t>(sizeof(uint64_t) + sizeof(unsigned)));
  }

  // All threads of the block call it. `memory`: shared, aligned for swizzles.
  MDOPS_D StageRing(char* memory, int slots, int slot_bytes, const char* packed, const Stages& stages,
                    int64_t tiles)
      : stages_(stages),
        packed_(packed),
        memory_(memory),
        slots_(slots),
        slot_bytes_(slot_bytes),
        left_(static_cast<int>(tiles) * stages.count) {
    if (threadIdx.x == 0) {
      for (int k = 0; k < slots_; ++k) init_barrier(shared_address(barriers() + k), 1), done()[k] = 0;
      publish_barriers();
    }
    __syncthreads();
    for (int k = 0; k < slots_; ++k, advance()) {
      if (threadIdx.x == 0 && k < left_) ask(k);
    }
    left_ -= slots_;
  }

  // Waits for the next stage to multiply, and returns it.
  MDOPS_D const char* next() {
    wait_for(shared_address(barriers() + slot_), phase_);
    const char* const at = memory_ + slot_ * slot_bytes_;
    if (++slot_ == slots_) slot_ = 0, phase_ ^= 1;
    return at;
  }

  // This warp has finished one more stage.
  MDOPS_D void let_go() {
    __syncwarp();  // no lane still waits for the stage
    // The products that read it are complete: there is nothing to fence.
    if (lane_index() == 0 && atomicAdd(done() + freed_, 1u) % kWarps == kWarps - 1 && left_ > 0) ask(freed_);
    if (++freed_ == slots_) freed_ = 0;
    --left_, advance();
  }

 private:
  MDOPS_D uint64_t* barriers() const { return reinterpret_cast<uint64_t*>(memory_ + slots_ * slot_bytes_); }
  MDOPS_D unsigned* done() const { return reinterpret_cast<unsigned*>(barriers() + slots_); }

  // Starts the copy of stage next_ to a slot.
  MDOPS_D void ask(int slot) const {
    const uint32_t barrier = shared_address(barriers() + slot);
    const int64_t begin = stages_.begin(next_);
    const int bytes = static_cast<int>(stages_.begin(next_ + 1) - begin);
    expect_bytes(barrier, bytes);
    copy_bulk(shared_address(memory_ + slot * slot_bytes_), packed_ + begin, bytes, barrier);
  }
  MDOPS_D void advance() {
    if (++next_ == stages_.count) next_ = 0;
  }

  const Stages& stages_;
  const char* const packed_;
  char* const memory_;
  const int slots_, slot_bytes_;
  int slot_ = 0, phase_ = 0;  // of the next stage to multiply
  int freed_ = 0, next_ = 0;  // the next slot to free, and the stage that follows in it
  int left_;                  // stages whose copies have not started
};

// The tiles of a block: as many as all blocks have, then its share of the rest, in halves if there are enough
// blocks: a half takes half the time.
class TileShare {
 public:
  // For tiles of `rows` edges.
  MDOPS_D TileShare(int64_t edges, int rows) : edges_(edges), rows_(rows) {
    const int64_t step = gridDim.x * static_cast<int64_t>(rows);
    rounds_ = edges / step;
    const int64_t rest = edges - rounds_ * step;
    size_ = rest <= gridDim.x * static_cast<int64_t>(rows / 2) ? rows / 2 : rows;
    last_ = rounds_ * step + blockIdx.x * size_;
  }
  // The number of tiles of this block; the first edge of tile k, and its number of edges.
  MDOPS_D int64_t count() const { return rounds_ + (last_ < edges_); }
  MDOPS_D int64_t first(int64_t k) const {
    return k < rounds_ ? (k * gridDim.x + blockIdx.x) * rows_ : last_;
  }
  MDOPS_D int edges(int64_t k) const {
    return static_cast<int>(k < rounds_ ? rows_ : k < count() ? min(size_, edges_ - last_) : 0);
  }

 private:
  int64_t edges_, rounds_, size_, last_;
  int rows_;
};

}  // namespace mdops::gpu_so2
