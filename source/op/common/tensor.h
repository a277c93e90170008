// Tensors at an op's entry: checked, contiguous, with errors that name op and argument.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <cstdint>
#include <exception>
#include <initializer_list>
#include <mutex>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

namespace mdops {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

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

// Any size, in the shape given to `input`.
constexpr int64_t kAny = -1;

// `tensor` made contiguous, after checking that it lies on the op's device and has the dtype and shape asked
// for.
Tensor input(const Op& op, const char* name, const Tensor& tensor, ScalarType dtype,
             std::initializer_list<int64_t> shape);
// The same for a tensor of float32 or float64.
Tensor float_input(const Op& op, const char* name, const Tensor& tensor,
                   std::initializer_list<int64_t> shape);

// New tensors on the CPU, or on the op's device.
Tensor empty(const std::vector<int64_t>& shape, ScalarType dtype);
Tensor empty(const Op& op, const std::vector<int64_t>& shape, ScalarType dtype);
Tensor zeros(const std::vector<int64_t>& shape, ScalarType dtype);
Tensor zeros(const Op& op, const std::vector<int64_t>& shape, ScalarType dtype);

template <class T>
constexpr ScalarType kDtype = ScalarType::Undefined;
template <>
inline constexpr ScalarType kDtype<float> = ScalarType::Float;
template <>
inline constexpr ScalarType kDtype<double> = ScalarType::Double;

// f(T{}) with T the C++ type of float32 or float64.
template <class F>
auto dispatch_float(const Op& op, ScalarType dtype, const F& f) {
  if (dtype == ScalarType::Float) return f(float{});
  if (dtype == ScalarType::Double) return f(double{});
  fail(op, "the compute dtype must be float32 or float64");
}

// f(begin, end) over pieces of [0, n) in torch's threads; an exception of any piece is rethrown here,
// because none may cross the C interface below.
template <class F>
void parallel(int64_t n, int64_t grain, const F& f) {
  std::exception_ptr error;
  std::mutex guard;
  torch::stable::parallel_for(0, n, grain, [&](int64_t begin, int64_t end) {
    try {
      f(begin, end);
    } catch (...) {
      const std::lock_guard<std::mutex> lock(guard);
      error = std::current_exception();
    }
  });
  if (error) std::rethrow_exception(error);
}

}  // namespace mdops
