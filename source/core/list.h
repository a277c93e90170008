// Neighbours in the layout of kernels: rows of one width, ordered by the neighbours' types.
#pragma once

#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "core/model.h"

namespace mdops::core {

struct Rows {
  int64_t width = 0;
  std::vector<int32_t> neighbors, images, counts;  // (N, width), the same, (N, ntypes)

  // Finds those within the cutoff of the atoms and, if there are any, ghosts, which also get rows; with
  // periodic images. Throws if an input is wrong.
  void search(const mdops_input& input, const Box& box, double cutoff, int64_t ntypes);
};

// A copy of a list in a GPU's memory, or one made there.
struct RowsOnGpu {
  virtual ~RowsOnGpu() = default;
};

}  // namespace mdops::core

struct mdops_list {
  int64_t atoms = 0, ghosts = 0;
  int32_t ntypes = 0;
  // On the host, unless made on a GPU.
  bool is_here = true;
  std::vector<int32_t> types;
  mdops::core::Rows rows;
  // The reach of the search, A, and its periodic directions; a filled list has ghosts.
  double reach = std::numeric_limits<double>::infinity();
  // Of ghosts, for models that pass messages (mdops_neighbors); empty if not given.
  std::vector<int32_t> sources, border;
  mdops_exchange exchange{};
  int64_t halo = 0;
  uint64_t version = 0;  // changes whenever it is filled
  bool periodic[3] = {};
  // By GPU: the copy there, or what was made there. Models compute with theirs in threads of their own, so a
  // copy stays in place until the list changes.
  mutable std::map<int, std::unique_ptr<mdops::core::RowsOnGpu>> on_gpu;
  mutable std::mutex guard;  // of `on_gpu`

  // Throw mdops::core::Error; the list must then be cleared.
  void fill(const mdops_neighbors& from, int32_t count);
  void search(const mdops_input& input, double cutoff, int32_t count);
  void clear();
  // Sets its content: neighbours of the input's atoms, within this reach.
  void is_of(const mdops_input& input, double cutoff, int32_t count);
  // Refuses a list that does not reach the cutoff, or was searched in another cell than the input's.
  void check_for(const mdops_input& input, double cutoff) const;
  // Refuses a list made elsewhere than on this GPU, -1 for the CPU.
  void check_on(int gpu) const;

 private:
  void take_sources(const mdops_neighbors& from);
};
