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

// The same with texts and numbers as they follow each other in the message.
template <class First, class Second, class... Rest>
[[noreturn]] void fail(const Op& op, const First& first, const Second& second, const Rest&... rest) {
  const auto text = [](const auto& part) {
    if constexpr (requires { std::to_string(part); })
      return std::to_string(part);
    else
      return std::string(part);
  };
  fail(op, ((text(first) + text(second)) + ... + text(rest)));
}

}  // namespace mdops
