// Numbers of 16 bits in memory, float32 in the kernels; for one instruction set.
#pragma once

#include <cstring>

#include "attention/attention.h"
#include "common/vectors.h"

namespace mdops::MDOPS_ISA {

template <class To, class From>
MDOPS_INLINE To bits_as(From from) {
  To to;
  std::memcpy(&to, &from, sizeof(To));
  return to;
}

constexpr float kHalfScale = 0x1p112f;  // between the exponents of float16 and float32

MDOPS_INLINE float widened(uint16_t h, Element element) {
  if (element == Element::bfloat16) return bits_as<float>(uint32_t{h} << 16);
  const float size = bits_as<float>((uint32_t{h} & 0x7fffu) << 13) * kHalfScale;
  const uint32_t bits = bits_as<uint32_t>(size);
  return bits_as<float>((size >= 65536.0f ? bits | 0x7f800000u : bits) | (uint32_t{h} & 0x8000u) << 16);
}

// To the nearest, ties to even.
MDOPS_INLINE uint16_t narrowed(float x, Element element) {
  const uint32_t bits = bits_as<uint32_t>(x), sign = bits >> 16 & 0x8000u;
  if (element == Element::bfloat16)
    return x != x ? 0x7fc0u : static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
  float size = bits_as<float>(bits & 0x7fffffffu);
  size = size > 65536.0f ? 65536.0f : size;
  // Adding this power of two and taking it away rounds to the last place of float16.
  uint32_t exponent = bits_as<uint32_t>(size) & 0x7f800000u;
  exponent = exponent < 0x38800000u ? 0x38800000u : exponent;
  const float place = bits_as<float>(exponent + (13u << 23)), rounded = (size + place) - place;
  const uint32_t half = bits_as<uint32_t>(rounded * (1.0f / kHalfScale)) >> 13;
  return static_cast<uint16_t>(sign | (x != x ? 0x7e00u : half));
}

// `count` numbers from place `from` on.
template <class T>
inline void load_numbers(const void* base, int64_t from, int64_t count, Element element, T* to) {
  if (element == Element::same) {
    const T* p = static_cast<const T*>(base) + from;
    for (int64_t k = 0; k < count; ++k) to[k] = p[k];
    return;
  }
  const uint16_t* p = static_cast<const uint16_t*>(base) + from;
  if (element == Element::bfloat16)
    for (int64_t k = 0; k < count; ++k) to[k] = static_cast<T>(widened(p[k], Element::bfloat16));
  else
    for (int64_t k = 0; k < count; ++k) to[k] = static_cast<T>(widened(p[k], Element::float16));
}

template <class T>
inline void store_numbers(const T* numbers, int64_t count, Element element, void* base, int64_t to) {
  if (element == Element::same) {
    T* p = static_cast<T*>(base) + to;
    for (int64_t k = 0; k < count; ++k) p[k] = numbers[k];
    return;
  }
  uint16_t* p = static_cast<uint16_t*>(base) + to;
  for (int64_t k = 0; k < count; ++k) p[k] = narrowed(static_cast<float>(numbers[k]), element);
}

}  // namespace mdops::MDOPS_ISA
