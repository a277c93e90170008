// SHA-256 (FIPS 180-4), the checksum of mdops' files.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace mdops::core {

class Sha256 {
 public:
  void add(const void* data, size_t size);
  void add(const std::string& text) { add(text.data(), text.size()); }
  // In hexadecimal digits; nothing can be added afterwards.
  std::string digest();

 private:
  void block(const uint8_t* data);

  std::array<uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  uint8_t kept_[64];
  uint64_t size_ = 0;
};

}  // namespace mdops::core
