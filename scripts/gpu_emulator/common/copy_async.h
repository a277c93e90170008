// In the place of source/op/common/copy_async.h: the same on the emulated GPU.
#pragma once

namespace mdops {

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

}  // namespace mdops
