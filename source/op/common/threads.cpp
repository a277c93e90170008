// `parallel` uses PyTorch's threads.
#include <torch/csrc/stable/ops.h>

#include "common/parallel.h"

namespace mdops {

int64_t thread_count() {
  return torch::stable::get_num_threads();
}

void run_in_threads(int64_t n, int64_t grain, void (*work)(const void* context, int64_t begin, int64_t end),
                    const void* context) {
  torch::stable::parallel_for(0, n, grain, [&](int64_t begin, int64_t end) { work(context, begin, end); });
}

}  // namespace mdops
