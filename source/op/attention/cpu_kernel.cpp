#include "attention/cpu_kernel.h"

#include "attention/passes.h"

namespace mdops::MDOPS_ISA {

namespace {

// Calls work(passes) with the kernels for this number of gates; DPA-1 has three.
template <class T, class Work>
int64_t with_passes(const AttentionArgs<T>& args, int64_t length, int64_t sequence, int64_t head,
                    void* scratch, const Work& work) {
  switch (args.gates) {
    case 0:
      return work(AttentionPasses<T, 0>(args, length, sequence, head, scratch));
    case 3:
      return work(AttentionPasses<T, 3>(args, length, sequence, head, scratch));
    default:
      return work(AttentionPasses<T, -1>(args, length, sequence, head, scratch));
  }
}

// Without memory it only counts the bytes needed.
template <class T>
int64_t run(const AttentionArgs<T>& args, AttentionPass pass, const AttentionResults<T>& out, int64_t length,
            const AttentionJob& job, void* scratch) {
  return with_passes(args, length, job.sequence, job.head, scratch, [&](auto passes) {
    if (pass == AttentionPass::forward)
      passes.forward(out, job.sequence, job.first, job.last);
    else if (pass == AttentionPass::backward)
      passes.backward(out);
    else
      passes.backward_backward(out);
    return passes.arena.used;
  });
}

}  // namespace

template <class T>
int64_t attention_scratch_size(const AttentionArgs<T>& args, AttentionPass pass, int64_t length) {
  return run<T>(args, pass, {}, length, {}, nullptr);
}

template <class T>
void attention_run(const AttentionArgs<T>& args, AttentionPass pass, const AttentionResults<T>& out,
                   const AttentionJob& job, void* scratch) {
  run<T>(args, pass, out, args.length(job.sequence), job, scratch);
}

template <class T>
void attention_sum(const AttentionArgs<T>& args, const T* parts, int64_t count, int64_t from, int64_t to,
                   void* out) {
  constexpr int64_t some = 256;
  T sum[some];
  for (int64_t first = from; first < to; first += some) {
    const int64_t size = to - first < some ? to - first : some;
    for (int64_t k = 0; k < size; ++k) sum[k] = parts[first + k];
    for (int64_t h = 1; h < args.heads; ++h)
      for (int64_t k = 0; k < size; ++k) sum[k] += parts[h * count + first + k];
    store_numbers(sum, size, args.element, out, first);
  }
}

MDOPS_INSTANTIATE(attention_scratch_size, attention_run, attention_sum)

}  // namespace mdops::MDOPS_ISA
