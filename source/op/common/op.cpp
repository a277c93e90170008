#include "common/op.h"

#include <stdexcept>

namespace mdops {

void fail(const Op& op, const std::string& message) {
  throw std::runtime_error(std::string("mdops::") + op.name + ": " + message);
}

}  // namespace mdops
