// From an op's schema to its function. The ops of a family are a template over the device (ops.h), which
// checks their arguments at entry and makes their results; what a device does are overloads on the call of an
// op, `Op` in cpu.cpp and `CudaOp` in cuda.cu. An op takes arguments of its own, then those of its inputs,
// which are checked when they are made:
//
//   struct XInputs {
//     static constexpr const char* kFirst = "x";                    // a tensor on the op's device
//     using Given = Listed<Times<2, const Tensor&>, double, bool>;  // what comes behind the op
//     XInputs(const Op& op, const Tensor& x, const Tensor& y, double cutoff, bool gated);
//   };
//   static Tensor x_backward(const Call& op, const XInputs& in, const Tensor& grad);
//
//   MDOPS_IMPLEMENT(XOps, x_backward)  // in XOps: x_backward(grad, x, y, cutoff, gated)
//
// Functions that take none of these take the op's arguments as they are.
#pragma once

#include <type_traits>

#include "common/each.h"
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

template <class List>
struct TupleOf;
template <class... A>
struct TupleOf<TypeList<A...>> {
  using type = std::tuple<A...>;
};
// So many tensors, as ops return them.
template <int N>
using Outputs = typename TupleOf<Times<N, Tensor>>::type;

template <class F>
struct OpSignature {
  using Inputs = void;  // it takes an op's arguments as they are
};
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
  if constexpr (requires { OpSignature<decltype(Function)>::Inputs::kFirst; })
    m.impl(Name.text, TORCH_BOX((&BoundOp<Device, Name, Function>::Boxed::call)));
  else
    m.impl(Name.text, TORCH_BOX(Function));
}

// In a template `Ops` over the device: its functions of these names implement the ops of these names.
#define MDOPS_IMPLEMENT(Ops, ...)                   \
  static void implement(Library& m) {               \
    using Own = Ops;                                \
    MDOPS_LOOK(MDOPS_EACH(MDOPS_BIND, __VA_ARGS__)) \
  }
#define MDOPS_BIND(name) bind<Device, #name, &Own::name>(m);

// In cpu.cpp: name(op, args, others...) is kernel(args, begin, end, others...) of pieces of `count` things,
// in threads.
#define MDOPS_IN_PIECES(name, kernel, count, grain)                                                 \
  template <class T, template <class> class Args, class... Others>                                  \
  static void name(const Op&, const Args<T>& args, const Others&... more) {                         \
    parallel(count, grain,                                                                          \
             [&](int64_t begin, int64_t end) { MDOPS_RUN(kernel<T>, args, begin, end, more...); }); \
  }

// The ops of such a template on a CPU, in cpu.cpp, and on a GPU, in cuda.cu.
#define MDOPS_ON_CPU(Ops)                    \
  STABLE_TORCH_LIBRARY_IMPL(mdops, CPU, m) { \
    mdops::Ops<mdops::OnCpu>::implement(m);  \
  }
#define MDOPS_ON_GPU(Ops)                     \
  STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) { \
    mdops::Ops<mdops::OnGpu>::implement(m);   \
  }

}  // namespace mdops
