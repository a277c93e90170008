// Activation functions by the codes that ops are given.
#pragma once

#include <string>

#include "common/activation.h"
#include "common/op.h"

namespace mdops {

inline Activation activation_of(const Op& op, int64_t code, const char* argument = "activation") {
  if (code < 0 || code > static_cast<int64_t>(Activation::silut))
    fail(op,
         std::string("argument `") + argument + "` is " + std::to_string(code) + ", not one of mdops' codes");
  return static_cast<Activation>(code);
}

}  // namespace mdops
