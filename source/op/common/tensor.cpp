#include "common/tensor.h"

namespace mdops {

namespace {

std::string dtype_name(ScalarType dtype) {
  return torch::headeronly::toString(dtype);
}

std::string shape_name(const auto& shape) {
  std::string text = "(";
  for (int64_t size : shape) text += (text.size() > 1 ? ", " : "") + (size < 0 ? "*" : std::to_string(size));
  return text + ")";
}

void check_shape(const Op& op, const char* name, Input tensor, std::initializer_list<int64_t> shape) {
  bool same = tensor.dim() == static_cast<int64_t>(shape.size());
  for (size_t i = 0; same && i < shape.size(); ++i)
    same = shape.begin()[i] < 0 || shape.begin()[i] == tensor.size(i);
  if (!same)
    fail(op, "argument `", name, "` has shape ", shape_name(tensor.sizes()), ", expected ",
         shape_name(shape));
}

void check_device(const Op& op, const char* name, Input tensor) {
  if (op.on_cpu() ? tensor.is_cpu() : tensor.is_cuda() && tensor.get_device_index() == op.gpu) return;
  const std::string place = op.on_cpu() ? "cpu" : "cuda:" + std::to_string(op.gpu);
  fail(op, "argument `", name, "` is on another device than the op's other arguments (", place, ")");
}

}  // namespace

void check_input(const Op& op, const char* name, Input tensor, ScalarType dtype,
                 std::initializer_list<int64_t> shape) {
  check_device(op, name, tensor);
  if (tensor.scalar_type() != dtype)
    fail(op, "argument `", name, "` has dtype ", dtype_name(tensor.scalar_type()), ", expected ",
         dtype_name(dtype));
  check_shape(op, name, tensor, shape);
}

Tensor input(const Op& op, const char* name, Input tensor, ScalarType dtype,
             std::initializer_list<int64_t> shape) {
  check_input(op, name, tensor, dtype, shape);
  return tensor.is_contiguous() ? tensor : torch::stable::contiguous(tensor);
}

Tensor float_input(const Op& op, const char* name, Input tensor, std::initializer_list<int64_t> shape) {
  const ScalarType dtype = tensor.scalar_type();
  if (dtype != ScalarType::Float && dtype != ScalarType::Double)
    fail(op, "argument `", name, "` has dtype ", dtype_name(dtype),
         ", expected Float (float32) or Double (float64)");
  return input(op, name, tensor, dtype, shape);
}

Tensor empty(const std::vector<int64_t>& shape, ScalarType dtype) {
  return torch::stable::empty({shape.data(), shape.size()}, dtype);
}

Tensor empty(const Op& op, const std::vector<int64_t>& shape, ScalarType dtype) {
  if (op.on_cpu()) return empty(shape, dtype);
  const torch::stable::Device device(torch::headeronly::DeviceType::CUDA, op.gpu);
  return torch::stable::empty({shape.data(), shape.size()}, dtype, std::nullopt, device);
}

Tensor zeros(const std::vector<int64_t>& shape, ScalarType dtype) {
  Tensor result = empty(shape, dtype);
  return torch::stable::zero_(result);
}

Tensor zeros(const Op& op, const std::vector<int64_t>& shape, ScalarType dtype) {
  Tensor result = empty(op, shape, dtype);
  return torch::stable::zero_(result);
}

}  // namespace mdops
