// Four of AMX's tiles, of 16 rows of 64 bytes: 0 and 1 are sums. With MDOPS_TILES_EMULATED they are arrays,
// so that code with them runs on a processor without (tests/ops/test_tiles.py).
#pragma once

#include <cstdint>

#include "common/math.h"

#if defined(MDOPS_TILES_EMULATED)
#include <cstring>
#else
#include <immintrin.h>
#endif

namespace mdops::MDOPS_ISA {

namespace {

constexpr int kTileA = 2, kTileB = 3;  // the factors

#if defined(MDOPS_TILES_EMULATED)

thread_local float emulated_tiles[4][16][16];

struct Tiles {};

template <int Tile>
inline void tile_zero() {
  std::memset(emulated_tiles[Tile], 0, sizeof(emulated_tiles[Tile]));
}
template <int Tile>
inline void tile_load(const void* from, int64_t stride) {
  for (int r = 0; r < 16; ++r)
    std::memcpy(emulated_tiles[Tile][r], static_cast<const char*>(from) + r * stride, 64);
}
template <int Tile>
inline void tile_store(void* to, int64_t stride) {
  for (int r = 0; r < 16; ++r) std::memcpy(static_cast<char*>(to) + r * stride, emulated_tiles[Tile][r], 64);
}
template <int Sum>
inline void tile_product() {
  const auto half = [](const float& pair, int k) {
    uint32_t bits;
    std::memcpy(&bits, &pair, sizeof(bits));
    bits = k ? bits & 0xffff0000 : bits << 16;
    float x;
    std::memcpy(&x, &bits, sizeof(x));
    return x;
  };
  for (int r = 0; r < 16; ++r)
    for (int pair = 0; pair < 16; ++pair)
      for (int k = 0; k < 2; ++k) {
        const float a = half(emulated_tiles[kTileA][r][pair], k);
        for (int lane = 0; lane < 16; ++lane)
          emulated_tiles[Sum][r][lane] += a * half(emulated_tiles[kTileB][pair][lane], k);
      }
}

#else

// Tiles exist while one of these lives.
class Tiles {
 public:
  Tiles() {
    struct alignas(64) Shapes {
      uint8_t palette = 1, start = 0, reserved[14] = {};
      uint16_t bytes[16] = {64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16};
    };
    const Shapes shapes;
    asm volatile("" ::"m"(shapes));
    _tile_loadconfig(&shapes);
  }
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
};

// A tile's number is in the instruction. GCC's intrinsics do not declare that a load reads memory.
#define MDOPS_EACH_TILE(work) work(0) work(1) work(2) work(3)

template <int Tile>
MDOPS_INLINE void tile_zero() {
#define MDOPS_TILE(n) \
  if constexpr (Tile == n) _tile_zero(n);
  MDOPS_EACH_TILE(MDOPS_TILE)
#undef MDOPS_TILE
}
template <int Tile>
MDOPS_INLINE void tile_load(const void* from, int64_t stride) {
#define MDOPS_TILE(n) \
  if constexpr (Tile == n) _tile_loadd(n, from, stride);
  MDOPS_EACH_TILE(MDOPS_TILE)
#undef MDOPS_TILE
}
template <int Tile>
MDOPS_INLINE void tile_store(void* to, int64_t stride) {
#define MDOPS_TILE(n) \
  if constexpr (Tile == n) _tile_stored(n, to, stride);
  MDOPS_EACH_TILE(MDOPS_TILE)
#undef MDOPS_TILE
}
#undef MDOPS_EACH_TILE
template <int Sum>
MDOPS_INLINE void tile_product() {
  static_assert(Sum < kTileA && kTileA == 2 && kTileB == 3);
  if constexpr (Sum == 0) _tile_dpbf16ps(0, 2, 3);
  if constexpr (Sum == 1) _tile_dpbf16ps(1, 2, 3);
}

#endif

template <int Tile>
MDOPS_INLINE void tile_reload(const void* from, int64_t stride) {
  tile_zero<Tile>();
  tile_load<Tile>(from, stride);
}

}  // namespace

}  // namespace mdops::MDOPS_ISA
