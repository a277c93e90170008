#include "core/sha256.h"

#include <algorithm>
#include <cstring>

namespace mdops::core {

namespace {

constexpr uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t turned(uint32_t x, int bits) {
  return x >> bits | x << (32 - bits);
}

}  // namespace

void Sha256::block(const uint8_t* data) {
  uint32_t w[64];
  for (int k = 0; k < 16; ++k)
    w[k] = static_cast<uint32_t>(data[4 * k]) << 24 | data[4 * k + 1] << 16 | data[4 * k + 2] << 8 |
           data[4 * k + 3];
  for (int k = 16; k < 64; ++k) {
    const uint32_t a = w[k - 15], b = w[k - 2];
    w[k] = w[k - 16] + (turned(a, 7) ^ turned(a, 18) ^ a >> 3) + w[k - 7] +
           (turned(b, 17) ^ turned(b, 19) ^ b >> 10);
  }
  std::array<uint32_t, 8> s = state_;
  for (int k = 0; k < 64; ++k) {
    const uint32_t one = s[7] + (turned(s[4], 6) ^ turned(s[4], 11) ^ turned(s[4], 25)) +
                         ((s[4] & s[5]) ^ (~s[4] & s[6])) + kRound[k] + w[k];
    const uint32_t two = (turned(s[0], 2) ^ turned(s[0], 13) ^ turned(s[0], 22)) +
                         ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
    s = {one + two, s[0], s[1], s[2], s[3] + one, s[4], s[5], s[6]};
  }
  for (int k = 0; k < 8; ++k) state_[k] += s[k];
}

void Sha256::add(const void* data, size_t size) {
  const uint8_t* from = static_cast<const uint8_t*>(data);
  while (size > 0) {
    const size_t filled = size_ % 64, taken = std::min(size, 64 - filled);
    if (taken == 64) {
      block(from);
    } else {
      std::memcpy(kept_ + filled, from, taken);
      if (filled + taken == 64) block(kept_);
    }
    from += taken, size -= taken, size_ += taken;
  }
}

std::string Sha256::digest() {
  const uint64_t bits = 8 * size_;
  const uint8_t one = 0x80, zeros[64] = {};
  add(&one, 1);
  add(zeros, (120 - size_ % 64) % 64);
  uint8_t length[8];
  for (int k = 0; k < 8; ++k) length[k] = static_cast<uint8_t>(bits >> (56 - 8 * k));
  add(length, 8);
  std::string text;
  for (const uint32_t word : state_)
    for (int k = 28; k >= 0; k -= 4) text += "0123456789abcdef"[word >> k & 15];
  return text;
}

}  // namespace mdops::core
