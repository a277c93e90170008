// The CPU's kernels on sequences, for each instruction set.
#pragma once

#include "attention/attention.h"
#include "common/isa.h"

namespace mdops {

// Bytes of scratch memory for a sequence of this length.
MDOPS_DECLARE_KERNELS(int64_t attention_scratch_size(const AttentionArgs<T>& args, AttentionPass pass,
                                                     int64_t length))
MDOPS_DECLARE_KERNELS(void attention_run(const AttentionArgs<T>& args, AttentionPass pass,
                                         const AttentionResults<T>& out, const AttentionJob& job,
                                         void* scratch))
// Numbers [from, to) of `count`: sums the heads' parts (H, count) into their gradient.
MDOPS_DECLARE_KERNELS(void attention_sum(const AttentionArgs<T>& args, const T* parts, int64_t count,
                                         int64_t from, int64_t to, void* out))

}  // namespace mdops
