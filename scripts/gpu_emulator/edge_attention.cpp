// Runs the GPU kernels of attention among edges on the host. scripts/emulate_edge_attention.py calls it with
// the pointers of its tensors, arguments first, and with their sizes.
#include "edge_attention/gpu_kernels.h"

#include "fibers.h"

namespace {

using namespace mdops;

template <class T>
void run(bool gated, double shift, Pointers next, const int64_t* sizes) {
  EdgeAttentionArgs<T> a{};
  for (const T** array :
       {&a.along_q, &a.along_x, &a.along_r, &a.along_w, &a.grad, &a.q, &a.x, &a.r, &a.w, &a.absent})
    *array = next();
  a.offsets = next();
  for (T** array : {&a.out, &a.by_q, &a.by_x, &a.by_r, &a.by_w}) *array = next();
  a.rows = sizes[0], a.heads = sizes[1], a.keys = sizes[2], a.values = sizes[3], a.atoms = sizes[4];
  a.longest = sizes[5], a.gated = gated, a.shift = static_cast<T>(shift);
  const Gpu gpu({2, 90, static_cast<int>(sizes[6])});
  const gpu_edge_attention::Plan<T> plan(gpu, a);
  std::vector<T> memory(plan.memory() + 4, std::numeric_limits<T>::quiet_NaN());
  T* const begin = memory.data() + (16 - reinterpret_cast<uintptr_t>(memory.data()) % 16) % 16 / sizeof(T);
  gpu_edge_attention::run(gpu, a, plan, begin);
}

}  // namespace

extern "C" void run_edge_attention(bool is_double, bool gated, double shift, void** pointers,
                                   int64_t* sizes) {
  is_double ? run<double>(gated, shift, pointers, sizes) : run<float>(gated, shift, pointers, sizes);
}
