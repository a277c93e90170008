// Replaces source/op/common/gpu_mma.h: instructions on matrices on the emulated GPU.
#pragma once

namespace mdops {

// The address of a row of matrix n of `ldmatrix`, from lane 8 n + row.
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

// c += A B of 16 rows, 8 columns and 8 words of depth: term(left, right, k) is the product of
// numbers k of a word of a row and of one of a column.
template <int Depth, class Term>
void emulated_product(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, const Term& term) {
  struct Operands {
    uint32_t a[4], b[2];
  } const given{{a[0], a[1], a[2], a[3]}, {b0, b1}};
  const char* all = emulated_exchange(&given, sizeof(given));
  const int lane = threadIdx.x % 32;
  constexpr int kHalf = Depth / 2, kOfWord = Depth / 8;
  for (int n = 0; n < 4; ++n) {
    const int row = lane / 4 + n / 2 * 8, column = 2 * (lane % 4) + n % 2;
    double sum = c[n];
    for (int k = 0; k < Depth; ++k) {
      const int word = k % kHalf / kOfWord;
      const auto left = emulated_lane<Operands>(all, row % 8 * 4 + word);
      const auto right = emulated_lane<Operands>(all, column * 4 + word);
      sum += term(left.a[row / 8 + k / kHalf * 2], right.b[k / kHalf], k % kOfWord);
    }
    c[n] = static_cast<float>(sum);
  }
}

template <bool Bfloat>
void multiply_16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulated_product<16>(c, a, b0, b1, [](uint32_t left, uint32_t right, int half) {
    return static_cast<double>(emulated_half<Bfloat>(left, half)) * emulated_half<Bfloat>(right, half);
  });
}
inline void multiply_here(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  multiply_16<false>(c, a, b0, b1);
}

// TF32 is float32 without the lowest 13 bits.
inline float emulated_tf32(uint32_t bits) {
  return __uint_as_float(bits & 0xffffe000u);
}

inline void multiply_8(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulated_product<8>(c, a, b0, b1, [](uint32_t left, uint32_t right, int) {
    return static_cast<double>(emulated_tf32(left)) * emulated_tf32(right);
  });
}

inline void multiply_add(double (&c)[4], const double (&a)[4], double b0, double b1) {
  struct Operands {
    double a[4], b[2];
  } const given{{a[0], a[1], a[2], a[3]}, {b0, b1}};
  const char* all = emulated_exchange(&given, sizeof(given));
  const int lane = threadIdx.x % 32;
  for (int n = 0; n < 4; ++n) {
    const int row = lane / 4 + n / 2 * 8, column = 2 * (lane % 4) + n % 2;
    for (int k = 0; k < 8; ++k)
      c[n] += emulated_lane<Operands>(all, row % 8 * 4 + k % 4).a[row / 8 + k / 4 * 2] *
              emulated_lane<Operands>(all, column * 4 + k % 4).b[k / 4];
  }
}

}  // namespace mdops
