// Replaces source/op/message/gpu_prefetch.h: an emulated GPU has no caches.
#pragma once

namespace mdops {

inline void prefetch(const void*) {}

}  // namespace mdops
