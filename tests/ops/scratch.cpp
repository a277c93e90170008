// A thread that uses scratch memory of several kinds one after the other: what it keeps.
#include "common/scratch.h"

#include <cstdio>
#include <cstring>

namespace {

size_t resident() {
  long all = 0, here = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (std::fscanf(file, "%ld %ld", &all, &here) != 2) here = 0;
  std::fclose(file);
  return static_cast<size_t>(here) * 4096;
}

struct A;
struct B;
struct C;
struct D;

template <class Use>
void* use(int64_t bytes) {
  const mdops::ScratchMemory<Use> memory(mdops::Op("op"), bytes);
  std::memset(memory.data(), 1, bytes);
  return memory.data();
}

}  // namespace

int main() {
  constexpr int64_t large = 24 << 20, small = 1 << 20;
  const size_t before = resident();
  use<A>(large), use<B>(large), use<C>(large), use<D>(large);
  std::printf("%zu\n", (resident() - before) >> 20);  // MiB
  use<A>(small);
  const void* first = use<A>(small);
  use<B>(small), use<C>(small);
  std::printf("%d\n", use<A>(small) == first);  // whether it is kept
  {
    const mdops::ScratchMemory<A> taken(mdops::Op("op"), 3 * large);  // more than a thread keeps
    std::memset(taken.data(), 7, 3 * large);
    use<B>(large);
    std::printf("%d\n", static_cast<const char*>(taken.data())[3 * large - 1]);
  }
  std::printf("%zu\n", (resident() - before) >> 20);
}
