// Rows of numbers, one an atom or a system, to which a thread adds, in pages: it has those that it used.
#pragma once

#include <cstdint>

#include "common/math.h"

namespace mdops {

// For the kernels. A page is zero when it is first used.
template <class T>
struct PagedRows {
  static constexpr int kPageBits = 7;
  static constexpr int64_t kPage = int64_t{1} << kPageBits;  // rows

  int64_t stride = 0;               // numbers of a row
  const int32_t* places = nullptr;  // of the rows (spatial_order.h); null: in the order of their numbers
  T** pages = nullptr;              // null: no page yet; itself null if the rows are not wanted
  void* owner = nullptr;
  T* (*make)(void* owner, int64_t page) = nullptr;

  MDOPS_HD explicit operator bool() const { return pages != nullptr; }

  MDOPS_HD T* row(int64_t k) const {
    const int64_t place = places ? places[k] : k, page = place >> kPageBits;
    T* rows = pages[page];
    if (__builtin_expect(rows == nullptr, 0)) rows = make(owner, page);
    return rows + (place & (kPage - 1)) * stride;
  }
};

}  // namespace mdops
