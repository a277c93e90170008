// Tensors at an op's entry: checked, contiguous, with errors that name op and argument. With it come the
// standard headers of what ops take and return, which those that include it do not repeat.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "common/op.h"
#include "common/parallel.h"

namespace mdops {

using torch::headeronly::ScalarType, torch::stable::Tensor;
using Input = const Tensor&;  // an argument of an op
using Tensors = std::vector<Tensor>;
using Optional = std::optional<Tensor>;

// Any size, in the shape given to `input`.
constexpr int64_t kAny = -1;

// Checks that `tensor` is on the op's device and has the requested dtype and shape.
void check_input(const Op& op, const char* name, Input tensor, ScalarType dtype,
                 std::initializer_list<int64_t> shape);
// The same, and the tensor made contiguous.
Tensor input(const Op& op, const char* name, Input tensor, ScalarType dtype,
             std::initializer_list<int64_t> shape);
// The same for a tensor of float32 or float64.
Tensor float_input(const Op& op, const char* name, Input tensor, std::initializer_list<int64_t> shape);

// New tensors on the CPU, or on the op's device.
Tensor empty(const std::vector<int64_t>& shape, ScalarType dtype);
Tensor empty(const Op& op, const std::vector<int64_t>& shape, ScalarType dtype);
Tensor zeros(const std::vector<int64_t>& shape, ScalarType dtype);
Tensor zeros(const Op& op, const std::vector<int64_t>& shape, ScalarType dtype);

// The numbers of a tensor, or null, for a pointer that determines their type, and whether it writes them.
class TensorData {
 public:
  explicit TensorData(const Tensor* tensor) : tensor_(tensor) {}
  template <class T>
  operator T*() const {
    if (!tensor_) return nullptr;
    if constexpr (std::is_same_v<T, const void>)
      return tensor_->const_data_ptr();
    else if constexpr (std::is_const_v<T>)
      return tensor_->const_data_ptr<std::remove_const_t<T>>();
    else
      return tensor_->mutable_data_ptr<T>();
  }

 private:
  const Tensor* tensor_;
};
inline TensorData data_of(Input tensor) {
  return TensorData(&tensor);
}
inline TensorData data_of(const Tensor* tensor) {
  return TensorData(tensor);
}
inline TensorData data_of(const std::optional<Tensor>& tensor) {
  return TensorData(tensor ? &*tensor : nullptr);
}

template <class T>
constexpr ScalarType kDtype = ScalarType::Undefined;
template <>
inline constexpr ScalarType kDtype<float> = ScalarType::Float;
template <>
inline constexpr ScalarType kDtype<double> = ScalarType::Double;
template <>
inline constexpr ScalarType kDtype<int32_t> = ScalarType::Int;
template <>
inline constexpr ScalarType kDtype<int64_t> = ScalarType::Long;
template <>
inline constexpr ScalarType kDtype<bool> = ScalarType::Bool;

// f(T{}) with T the C++ type of float32 or float64.
auto dispatch_float(const Op& op, ScalarType dtype, const auto& f) {
  if (dtype == ScalarType::Float) return f(float{});
  if (dtype == ScalarType::Double) return f(double{});
  fail(op, "the compute dtype must be float32 or float64");
}

// The first tensor of an op's arguments, or of lists and structs among them, that satisfies `is_it`, or null.
const Tensor* first_tensor(const auto& is_it, const auto&... arguments) {
  const Tensor* first = nullptr;
  const auto look = [&](const auto& argument) {
    if constexpr (std::is_convertible_v<decltype(argument), Input>) {
      Input tensor = argument;
      if (!first && is_it(tensor)) first = &tensor;
    } else if constexpr (std::is_same_v<decltype(argument), const std::vector<Tensor>&>) {
      for (const Tensor& tensor : argument)
        if (!first && is_it(tensor)) first = &tensor;
    }
  };
  (look(arguments), ...);
  return first;
}

// Makes the call of an op from its arguments, if its checks are a template over the device (ops.h).
struct OnCpu {
  using Call = Op;
  template <class... A>
  static Op make(const char* name, const A&...) {
    return Op(name);
  }
  // An input placed so that kernels compute the same bits.
  static Tensor placed(Input tensor) { return tensor; }
  static bool is_placed(const Tensor&) { return true; }
  // A result to which loops add, and which kernels write.
  static Tensor summed(const Op& op, const std::vector<int64_t>& shape, ScalarType dtype) {
    return zeros(op, shape, dtype);
  }
};

}  // namespace mdops
