// The chain's arguments at the op's entry, and its results.
#pragma once

#include <cmath>
#include <string>

#include "common/tensor.h"
#include "nose_hoover/nose_hoover.h"

namespace mdops {

struct ChainArgs {
  Tensor eta, momenta, kinetic;
  Bath bath;
  double time;
  Tensor new_eta, new_momenta, scale;

  ChainArgs(const Op& op, const Tensor& eta_, const Tensor& momenta_, const Tensor& kinetic_, double kT,
            int64_t freedom, double tau, double time_)
      : eta(input(op, "eta", eta_, ScalarType::Double, {kAny})),
        momenta(input(op, "momenta", momenta_, ScalarType::Double, {eta.size(0)})),
        kinetic(input(op, "kinetic", kinetic_, ScalarType::Double, {})),
        bath{kT, static_cast<double>(freedom), tau},
        time(time_),
        new_eta(empty(op, {eta.size(0)}, ScalarType::Double)),
        new_momenta(empty(op, {eta.size(0)}, ScalarType::Double)),
        scale(empty(op, {}, ScalarType::Double)) {
    const auto positive = [&](const char* name, double value) {
      if (!(value > 0 && std::isfinite(value)))
        fail(op,
             std::string("argument `") + name + "` is " + std::to_string(value) + ", expected more than 0");
    };
    positive("kT", kT);
    positive("freedom", static_cast<double>(freedom));
    positive("tau", tau);
    if (!std::isfinite(time)) fail(op, "argument `time` is not finite");
  }
};

}  // namespace mdops
