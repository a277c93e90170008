// Replaces source/op/so2_layer/gpu_multiply_rows.h: products of warpgroups on the emulated GPU.
#pragma once

#include "common/gpu_wgmma.h"

namespace mdops {

template <int kSign = 1, int Size>
void multiply_rows(float (&d)[Size], const uint32_t (&a)[4], uint64_t b, int add) {
  struct Rows {
    uint32_t a[4];
  } const given{{a[0], a[1], a[2], a[3]}};
  const char* all = emulated_exchange(&given, sizeof(given));
  add_products(
      reinterpret_cast<float (&)[Size / 4][4]>(d), add != 0,
      [&](int row, int k) {
        const auto of_lane = emulated_lane<Rows>(all, row % 8 * 4 + k % 8 / 2);
        return kSign * emulated_half<false>(of_lane.a[row / 8 + k / 8 * 2], k % 2);
      },
      [&](int k, int column) { return number_in<false>(b, column, k); });
}

}  // namespace mdops
