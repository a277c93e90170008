// An op as its kernels know it: its name in errors, and where it runs. Nothing here knows PyTorch.
#pragma once

#include <cstdint>
#include <string>

namespace mdops {

// An op by its name, and where its tensors must be: on the CPU, or on the GPU of that index. An op for the
// CPU passes its name alone.
struct Op {
  const char* name;
  int32_t gpu = -1;

  Op(const char* name_) : name(name_) {}
  Op(const char* name_, int32_t gpu_) : name(name_), gpu(gpu_) {}
  bool on_cpu() const { return gpu < 0; }
};

// Throws "mdops::<op>: <message>".
[[noreturn]] void fail(const Op& op, const std::string& message);

}  // namespace mdops
