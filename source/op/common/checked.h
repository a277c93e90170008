// Checks the tensors of an op's call, and makes the kernels' arguments from them.
#pragma once

#include <cmath>
#include <utility>

#include "common/pair_checks.h"

namespace mdops {

inline void check_positive(const Op& op, const std::string& name, double value) {
  if (!(value > 0 && std::isfinite(value)))
    fail(op, "argument `", name, "` is ", value, ", expected more than 0");
}

template <class... A>
struct TypeList {
  static constexpr size_t kCount = sizeof...(A);
};
// Of so many tensors, for a struct of them (common/bind.h).
template <size_t N, class... A>
struct TensorParts : TensorParts<N - 1, Input, A...> {};
template <class... A>
struct TensorParts<0, A...> : TypeList<A...> {};

// Each names its argument, and the kernels' pointer for it, whose type is the required dtype. The tensors
// live as long as the call; copies, until the kernels are launched.
template <class Device>
class Checked {
 public:
  const typename Device::Call& op;

  // `knows_type`: the required type of all floating-point tensors is known.
  explicit Checked(const typename Device::Call& call, bool knows_type = false)
      : op(call), knows_type_(knows_type) {}
  Checked(const Checked&) = delete;

  // Calls f(T{}) with T the type of a tensor: float64, else float32. `take` refuses others.
  auto for_type_of(Input tensor, const auto& f) {
    tells_type_ = &tensor;
    return tensor.scalar_type() == ScalarType::Double ? f(double{}) : f(float{});
  }

  // Null if the tensor is empty.
  template <class N>
  void take(const N*& to, const char* name, Input tensor, std::initializer_list<int64_t> shape) {
    to = data_of(checked<N>(name, tensor, shape));
  }
  // Null also if there is no tensor.
  template <class N>
  void take(const N*& to, const char* name, const Optional& tensor, std::initializer_list<int64_t> shape) {
    if (tensor) take(to, name, *tensor, shape);
  }

  // Also checks that values are in [low, high), if the op checks values.
  void take_range(const int32_t*& to, const char* name, Input tensor, std::initializer_list<int64_t> shape,
                  int64_t low, int64_t high) {
    take(to, name, tensor, shape);
    check_range(op, name, to, tensor.numel(), low, high);
  }

  // Copies if necessary, so that kernels compute the same bits wherever the tensor is.
  template <class N>
  void place(const N*& to, const char* name, Input tensor, std::initializer_list<int64_t> shape) {
    const Tensor& found = checked<N>(name, tensor, shape);
    to = data_of(Device::is_placed(found) ? found : copies_.emplace_back(torch::stable::clone(found)));
  }
  template <class N>
  void place(const N*& to, const char* name, const Optional& tensor, std::initializer_list<int64_t> shape) {
    if (tensor) place(to, name, *tensor, shape);
  }

  // The same for kernels in which null means absent: not null for an empty tensor.
  template <class N>
  void give(const N*& to, const char* name, Input tensor, std::initializer_list<int64_t> shape) {
    static const N none{};
    place(to, name, tensor, shape);
    if (!to) to = &none;
  }

  // Data that a forward pass saved, and only a backward pass reads.
  template <class N>
  void take_saved(N*& to, const char* name, Input tensor, std::initializer_list<int64_t> shape) {
    const N* from;
    place(from, name, tensor, shape);
    to = const_cast<N*>(from);
  }

  // A new tensor, which kernels write.
  template <class N>
  Tensor result(N*& to, const std::vector<int64_t>& shape) const {
    Tensor made = empty(op, shape, kDtype<N>);
    to = data_of(made);
    return made;
  }
  // The same for sums, to which loops add.
  template <class N>
  Tensor sums(N*& to, const std::vector<int64_t>& shape) const {
    Tensor made = Device::summed(op, shape, kDtype<N>);
    to = data_of(made);
    return made;
  }

 private:
  // Without `knows_type` an op is called for the type of the first of them.
  template <class N>
  const Tensor& checked(const char* name, Input tensor, std::initializer_list<int64_t> shape) {
    const bool tells_type =
        &tensor == tells_type_ || (std::is_floating_point_v<N> && !std::exchange(knows_type_, true));
    if (tells_type && tensor.scalar_type() != kDtype<N>)
      float_input(op, name, tensor, shape);  // may refuse it
    check_input(op, name, tensor, kDtype<N>, shape);
    return tensor.is_contiguous() ? tensor : copies_.emplace_back(torch::stable::contiguous(tensor));
  }

  Tensors copies_;
  bool knows_type_;
  const Tensor* tells_type_ = nullptr;
};

}  // namespace mdops
