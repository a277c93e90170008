// Replaces source/op/common/gpu_copy.h: the same on the emulated GPU, whose addresses in shared memory
// start at its beginning.
#pragma once

namespace mdops {

inline uint32_t shared_address(const void* shared) {
  return static_cast<uint32_t>(static_cast<const char*>(shared) - emulated_memory());
}

template <int Bytes>
void copy_to_shared(uint32_t shared, const void* from, int count) {
  char* const to = emulated_memory() + shared;
  emulated_check(to, Bytes);
  emulated_copy(to, from, count);
  if (count < Bytes) emulated_copy(to + count, nullptr, Bytes - count);
}
template <int Bytes>
void copy_to_shared(void* shared, const void* from, bool there) {
  emulated_check(shared, Bytes);
  emulated_copy(shared, there ? from : nullptr, Bytes);
}
inline void wait_for_copies() {
  emulated_wait(-1);
}
inline void commit_copies() {
  emulated_commit();
}
template <int Pending>
void wait_for_copies() {
  emulated_wait(Pending);
}

inline void copy_bulk(uint32_t shared, const void* from, int bytes, uint32_t barrier) {
  emulated_copy_bulk(emulated_memory() + shared, from, bytes, barrier);
}

}  // namespace mdops
