// Neighbours as the kernels read them: rows of one width, ordered by the neighbours' types.
#pragma once

#include <cstdint>
#include <vector>

#include "core/mdops.h"

namespace mdops::core {

struct Rows {
  int64_t width = 0;
  std::vector<int32_t> neighbors, images, counts;  // (N, width), the same, (N, ntypes)

  // Those of an atom's periodic images, too, found within the cutoff. Throws where an input is wrong.
  void search(const mdops_input& input, const double* cell, const bool* periodic, const int32_t* systems,
              double cutoff, int64_t ntypes);
};

}  // namespace mdops::core

struct mdops_list {
  int64_t atoms = 0, ghosts = 0;
  int32_t ntypes = 0;
  std::vector<int32_t> types;
  mdops::core::Rows rows;

  // Throws mdops::core::Error, and is empty then.
  void fill(const mdops_neighbors& from, int32_t count);
};
