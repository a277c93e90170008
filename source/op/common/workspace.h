// Memory that the kernels of a call share.
#pragma once

#include <cstdint>

namespace mdops {

// Device memory of one call, split into pieces aligned to 256 bytes. Two passes: without memory it only
// counts.
class Workspace {
 public:
  explicit Workspace(char* memory) : memory_(memory) {}

  template <class T>
  T* take(int64_t n) {
    T* piece = reinterpret_cast<T*>(memory_ == nullptr ? nullptr : memory_ + size_);
    size_ += (n * static_cast<int64_t>(sizeof(T)) + 255) / 256 * 256;
    return piece;
  }
  int64_t size() const { return size_; }

  // How many bytes `divide` uses of one.
  static int64_t bytes(const auto& divide) {
    Workspace counted(nullptr);
    divide(counted);
    return counted.size();
  }

 private:
  char* memory_;
  int64_t size_ = 0;
};

}  // namespace mdops
