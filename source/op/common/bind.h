// From an op's schema to its function. An op takes arguments of its own, then those of its inputs, which are
// checked when they are made:
//
//   struct XInputs {
//     static constexpr const char* kFirst = "x";                    // a tensor on the op's device
//     using Given = Listed<Times<2, const Tensor&>, double, bool>;  // what comes behind the op
//     XInputs(const Op& op, const Tensor& x, const Tensor& y, double cutoff, bool gated);
//   };
//   static Tensor x_backward(const Call& op, const XInputs& in, const Tensor& grad);
//
//   bind<Device, "x_backward", &XOps::x_backward>(m);  // x_backward(grad, x, y, cutoff, gated)
#pragma once

#include <type_traits>

#include "common/tensor.h"

namespace mdops {

using Library = torch::stable::detail::StableLibrary;

template <class... A>
struct TypeList {};

template <class... Lists>
struct JoinedTypes;
template <>
struct JoinedTypes<> {
  using type = TypeList<>;
};
template <class A, class... Rest>
struct JoinedTypes<A, Rest...> : JoinedTypes<TypeList<A>, Rest...> {};
template <class... A>
struct JoinedTypes<TypeList<A...>> {
  using type = TypeList<A...>;
};
template <class... A, class... B, class... Rest>
struct JoinedTypes<TypeList<A...>, TypeList<B...>, Rest...> : JoinedTypes<TypeList<A..., B...>, Rest...> {};
template <class... A, class B, class... Rest>
struct JoinedTypes<TypeList<A...>, B, Rest...> : JoinedTypes<TypeList<A..., B>, Rest...> {};

// The types of arguments, of which some are lists of types themselves.
template <class... Types>
using Listed = typename JoinedTypes<Types...>::type;

template <int N, class A>
struct RepeatedType : JoinedTypes<typename RepeatedType<N - 1, A>::type, A> {};
template <class A>
struct RepeatedType<0, A> : JoinedTypes<> {};
template <int N, class A>
using Times = typename RepeatedType<N, A>::type;

template <class F>
struct OpSignature;
template <class R, class C, class I, class... Own>
struct OpSignature<R (*)(C, I, Own...)> {
  using Result = R;
  using Inputs = std::remove_cvref_t<I>;
  using List = TypeList<Own...>;
};

template <size_t N>
struct OpName {
  char text[N];
  constexpr OpName(const char (&name)[N]) {
    for (size_t k = 0; k < N; ++k) text[k] = name[k];
  }
};

template <class Device, OpName Name, auto Function>
struct BoundOp {
  using Signature = OpSignature<decltype(Function)>;
  using Inputs = typename Signature::Inputs;

  template <class Own, class Given>
  struct Taking;
  template <class... Own, class First, class... Given>
  struct Taking<TypeList<Own...>, TypeList<First, Given...>> {
    static typename Signature::Result call(Own... own, First first, Given... given) {
      const auto op = Device::make(Name.text, Inputs::kFirst, first);
      Inputs in(op, first, given...);
      return Function(op, in, own...);
    }
  };
  using Boxed = Taking<typename Signature::List, typename Inputs::Given>;
};

template <class Device, OpName Name, auto Function>
void bind(Library& m) {
  using Boxed = typename BoundOp<Device, Name, Function>::Boxed;
  m.impl(Name.text, TORCH_BOX(&Boxed::call));
}

}  // namespace mdops
