// A model of a file, ready to compute.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/mdops.h"

namespace mdops::core {

class Model {
 public:
  virtual ~Model() = default;

  // Throw Error, or what the kernels' checks throw.
  static std::unique_ptr<Model> load(const std::string& path, const mdops_options& options);
  virtual void compute(const mdops_input& input, mdops_output& output) = 0;
  virtual void set_threads(int threads) = 0;
  virtual mdops_info info() const = 0;
};

}  // namespace mdops::core
