// In the place of source/op/common/gpu_mma.h: instructions on matrices of 16-bit numbers on the emulated GPU.
#pragma once

namespace mdops {

// Of matrix n of `ldmatrix`: where lane 8 n + row said that its row is.
inline const char* emulated_matrix_row(const char* all, int n, int row) {
  return emulated_lane<const char*>(all, 8 * n + row);
}

inline void load_matrices(uint32_t (&r)[4], uint32_t at) {
  const char* const shared = emulated_memory() + at;
  emulated_check(shared, 16);
  const char* all = emulated_exchange(&shared, sizeof(shared));
  const int lane = threadIdx.x % 32;
  for (int n = 0; n < 4; ++n) std::memcpy(&r[n], emulated_matrix_row(all, n, lane / 4) + 4 * (lane % 4), 4);
}

inline void load_transposed(uint32_t (&r)[4], uint32_t at) {
  const char* const shared = emulated_memory() + at;
  emulated_check(shared, 16);
  const char* all = emulated_exchange(&shared, sizeof(shared));
  const int lane = threadIdx.x % 32;
  for (int n = 0; n < 4; ++n) {
    uint16_t half[2];
    for (int k = 0; k < 2; ++k)
      std::memcpy(&half[k], emulated_matrix_row(all, n, 2 * (lane % 4) + k) + 2 * (lane / 4), 2);
    r[n] = half[0] | static_cast<uint32_t>(half[1]) << 16;
  }
}

template <bool Bfloat>
float emulated_half(uint32_t word, int k) {
  const uint16_t bits = static_cast<uint16_t>(word >> 16 * k);
  if (Bfloat) return __uint_as_float(static_cast<uint32_t>(bits) << 16);
  __half_raw raw;
  raw.x = bits;
  return __half2float(__half(raw));
}

template <bool Bfloat>
void multiply_16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  struct Operands {
    uint32_t a[4], b[2];
  } const given{{a[0], a[1], a[2], a[3]}, {b0, b1}};
  const char* all = emulated_exchange(&given, sizeof(given));
  const int lane = threadIdx.x % 32;
  for (int n = 0; n < 4; ++n) {
    const int row = lane / 4 + n / 2 * 8, column = 2 * (lane % 4) + n % 2;
    double sum = c[n];
    for (int k = 0; k < 16; ++k) {
      const auto left = emulated_lane<Operands>(all, row % 8 * 4 + k % 8 / 2);
      const auto right = emulated_lane<Operands>(all, column * 4 + k % 8 / 2);
      sum += static_cast<double>(emulated_half<Bfloat>(left.a[row / 8 + k / 8 * 2], k % 2)) *
             emulated_half<Bfloat>(right.b[k / 8], k % 2);
    }
    c[n] = static_cast<float>(sum);
  }
}
inline void multiply_here(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  multiply_16<false>(c, a, b0, b1);
}

// TF32: of float32 the lowest 13 bits are not there.
inline float emulated_tf32(uint32_t bits) {
  return __uint_as_float(bits & 0xffffe000u);
}

inline void multiply_8(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  struct Operands {
    uint32_t a[4], b[2];
  } const given{{a[0], a[1], a[2], a[3]}, {b0, b1}};
  const char* all = emulated_exchange(&given, sizeof(given));
  const int lane = threadIdx.x % 32;
  for (int n = 0; n < 4; ++n) {
    const int row = lane / 4 + n / 2 * 8, column = 2 * (lane % 4) + n % 2;
    double sum = c[n];
    for (int k = 0; k < 8; ++k) {
      const auto left = emulated_lane<Operands>(all, row % 8 * 4 + k % 4);
      const auto right = emulated_lane<Operands>(all, column * 4 + k % 4);
      sum += static_cast<double>(emulated_tf32(left.a[row / 8 + k / 4 * 2])) * emulated_tf32(right.b[k / 4]);
    }
    c[n] = static_cast<float>(sum);
  }
}

}  // namespace mdops
