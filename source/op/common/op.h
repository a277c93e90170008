// An op for its kernels: its name in errors, and its device. Nothing here uses PyTorch.
#pragma once

#include <cstdint>
#include <string>

namespace mdops {

// An op's name, and where its tensors must be: on the CPU, or on the GPU with that index. CPU ops pass only
// the name.
struct Op {
  const char* name;
  int32_t gpu = -1;

  Op(const char* name_) : name(name_) {}
  Op(const char* name_, int32_t gpu_) : name(name_), gpu(gpu_) {}
  bool on_cpu() const { return gpu < 0; }
};

// Throws "mdops::<op>: <message>".
[[noreturn]] void fail(const Op& op, const std::string& message);

// The same with texts and numbers in the message's order.
[[noreturn]] void fail(const Op& op, const auto& first, const auto& second, const auto&... rest) {
  const auto text = [](const auto& part) {
    if constexpr (requires { std::to_string(part); })
      return std::to_string(part);
    else
      return std::string(part);
  };
  fail(op, ((text(first) + text(second)) + ... + text(rest)));
}

}  // namespace mdops
