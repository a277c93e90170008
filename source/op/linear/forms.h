// How the matrices of a product lie in memory.
#pragma once

namespace mdops {

// Row by row: C (rows, columns) is a sum over `depth`.
enum class ProductForm {
  plain,         // A (rows, depth) B (depth, columns)
  b_transposed,  // B is (columns, depth)
  a_transposed,  // A is (depth, rows)
};

}  // namespace mdops
