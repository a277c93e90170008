#include "common/rebuilt.h"

#include <dlfcn.h>

#include <cstring>
#include <mutex>

namespace mdops {

namespace {

std::atomic<RebuiltKernels*> newest{nullptr};
std::mutex guard;  // for changes of the list

RebuiltKernels* find(const char* key) {
  for (RebuiltKernels* k = newest; k; k = k->next)
    if (k->key == key) return k;
  return nullptr;
}

void install(const char* path, const char* key) {
  const std::lock_guard<std::mutex> lock(guard);
  if (find(key)) return;
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) throw std::string(dlerror());
  const auto function = reinterpret_cast<const KernelTable* (*)()>(dlsym(library, "mdops_kernel_table"));
  if (!function) throw std::string(path) + " has no function mdops_kernel_table";
  const KernelTable* table = function();
  if (table->version != kTableVersion)
    throw std::string(path) + " has a table of version " + std::to_string(table->version) +
        ", and this mdops calls version " + std::to_string(kTableVersion);
  newest = new RebuiltKernels{table, key, false, newest};
}

}  // namespace

const RebuiltKernels* rebuilt_kernels() {
  return newest.load(std::memory_order_acquire);
}

}  // namespace mdops

// Called by mdops.jit. `key` names a library. An installed one is not yet in use; a second call does nothing.
// Returns 0, or 1 with the reason in `why`, of `size` bytes.
MDOPS_EXPORT int mdops_install_kernels(const char* path, const char* key, char* why, int64_t size) {
  std::string reason;
  try {
    mdops::install(path, key);
    return 0;
  } catch (const std::string& text) {
    reason = text;
  } catch (const std::exception& error) {
    reason = error.what();
  }
  std::strncpy(why, reason.c_str(), static_cast<size_t>(size - 1));
  why[size - 1] = '\0';
  return 1;
}

// Sets whether the ops call it. Returns the previous state, -1 if there is no such library.
MDOPS_EXPORT int mdops_use_kernels(const char* key, int used) {
  const std::lock_guard<std::mutex> lock(mdops::guard);
  mdops::RebuiltKernels* kernels = mdops::find(key);
  return kernels ? kernels->used.exchange(used != 0) : -1;
}
