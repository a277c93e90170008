// An error in the core, as the code and the message for its caller.
#pragma once

#include <stdexcept>
#include <string>

#include "core/mdops.h"

namespace mdops::core {

struct Error : std::runtime_error {
  int status;
  Error(int status_, const std::string& message) : std::runtime_error(message), status(status_) {}
};

// The advice if a file has no part for the core.
constexpr char kOtherwise[] =
    "or set MDOPS_PYTHON (`mdops lammps` does) to a Python that has mdops, which evaluates any model beside "
    "the "
    "program";

[[noreturn]] inline void damaged(const std::string& why) {
  throw Error(MDOPS_FILE, why);
}

}  // namespace mdops::core
