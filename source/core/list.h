// Neighbours as the kernels read them: rows of one width, ordered by the neighbours' types.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "core/model.h"

namespace mdops::core {

struct Rows {
  int64_t width = 0;
  std::vector<int32_t> neighbors, images, counts;  // (N, width), the same, (N, ntypes)

  // Those within the cutoff of the atoms and, if there are any, ghosts, which get rows, too; with those of
  // periodic images. Throws where an input is wrong.
  void search(const mdops_input& input, const Box& box, double cutoff, int64_t ntypes);
};

// A copy of a list in a GPU's memory, or one that was made there.
struct RowsOnGpu {
  const int gpu;
  explicit RowsOnGpu(int index) : gpu(index) {}
  virtual ~RowsOnGpu() = default;
};

}  // namespace mdops::core

struct mdops_list {
  int64_t atoms = 0, ghosts = 0;
  int32_t ntypes = 0;
  // Here, unless it was made on a GPU.
  bool is_here = true;
  std::vector<int32_t> types;
  mdops::core::Rows rows;
  // Of the GPU that has it, or used it last.
  mutable std::unique_ptr<mdops::core::RowsOnGpu> there;
  mutable std::mutex guard;  // of `there`

  // Throws mdops::core::Error, and is empty then.
  void fill(const mdops_neighbors& from, int32_t count);
  void search(const mdops_input& input, double cutoff, int32_t count);
  void clear();
  // Refuses a list that was made elsewhere than on this GPU, -1 for the CPU.
  void check_on(int gpu) const;
};
