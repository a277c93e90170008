// From an op's schema to its function. The ops of a family are a template over the device (ops.h), which
// checks their arguments at entry and makes their results; what a device does are overloads on the call of an
// op, `Op` in cpu.cpp and `CudaOp` in cuda.cu. An op of floating-point numbers takes arguments of its own,
// then those that several ops share, of which `arguments` makes what kernels get. It is a template over the
// type of the first tensor that `arguments` is given, or the op itself where it takes nothing made:
//
//   template <class T>
//   static XArgs<T> arguments(Checked<Device>& in, const Tensor& x, const Tensor& y, double cutoff);
//   template <class T>
//   static Tensor x_backward(Checked<Device>& in, XArgs<T>& a, const Tensor& grad);
//
//   MDOPS_IMPLEMENT_FLOATS(XOps, x_backward)  // in XOps: x_backward(grad, x, y, cutoff)
//
// Others are functions without templates, and what they share is a struct:
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

#include "common/checked.h"
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

// A function of an op of floating-point numbers, and whether it takes the kernels' arguments made.
template <class F>
struct FloatFunction;
template <class R, class In, class... A>
struct FloatFunction<R (*)(In&, A...)> {
  using Result = R;
  using Own = TypeList<A...>;
  static constexpr bool kTakesMade = false;
};
template <class R, class In, class Made, class... A>
  requires(!std::is_const_v<Made>)
struct FloatFunction<R (*)(In&, Made&, A...)> {
  using Result = R;
  using Own = TypeList<A...>;
  static constexpr bool kTakesMade = true;
};

template <class Device, class Ops, OpName Name, auto OfFloats, auto OfDoubles>
struct BoundFloatOp {
  using Function = FloatFunction<decltype(OfFloats)>;

  template <class Own, class Given>
  struct Taking;
  template <class... Own, class... Given>
  struct Taking<TypeList<Own...>, TypeList<Given...>> {
    static typename Function::Result call(Own... own, Given... given) {
      const auto op = Device::make(Name.text, given..., own...);
      Checked<Device> in(op);
      const auto run = [&]<class T>(auto function, T) {
        if constexpr (Function::kTakesMade) {
          auto made = Ops::template arguments<T>(in, given...);
          return function(in, made, own...);
        } else {
          return function(in, own...);
        }
      };
      const Tensor* first = first_tensor([](const Tensor&) { return true; }, given..., own...);
      return first->scalar_type() == ScalarType::Double ? run(OfDoubles, double{}) : run(OfFloats, float{});
    }
  };

  static auto given() {
    if constexpr (Function::kTakesMade)
      return typename FloatFunction<decltype(&Ops::template arguments<float>)>::Own();
    else
      return TypeList<>();
  }
  using Boxed = Taking<typename Function::Own, decltype(given())>;
};

template <class Device, class Ops, OpName Name, auto OfFloats, auto OfDoubles>
void bind_floats(Library& m) {
  m.impl(Name.text, TORCH_BOX((&BoundFloatOp<Device, Ops, Name, OfFloats, OfDoubles>::Boxed::call)));
}

// In a template `Ops` over the device: its functions of these names implement the ops of these names.
#define MDOPS_IMPLEMENT(Ops, ...)                   \
  static void implement(Library& m) {               \
    using Own = Ops;                                \
    MDOPS_LOOK(MDOPS_EACH(MDOPS_BIND, __VA_ARGS__)) \
  }
#define MDOPS_BIND(name) bind<Device, #name, &Own::name>(m);
// Its functions for float and for double.
#define MDOPS_IMPLEMENT_FLOATS(Ops, ...)                   \
  static void implement(Library& m) {                      \
    using Own = Ops;                                       \
    MDOPS_LOOK(MDOPS_EACH(MDOPS_BIND_FLOATS, __VA_ARGS__)) \
  }
#define MDOPS_BIND_FLOATS(name) \
  bind_floats<Device, Own, #name, &Own::template name<float>, &Own::template name<double>>(m);

// In cpu.cpp: name(op, args, others...) is kernel(args, begin, end, others...) of pieces of `count` things,
// in threads.
#define MDOPS_IN_PIECES(name, kernel, count, grain)                                                 \
  template <class T, template <class> class Args, class... Others>                                  \
  static void name(const Op&, const Args<T>& args, const Others&... more) {                         \
    parallel(count, grain,                                                                          \
             [&](int64_t begin, int64_t end) { MDOPS_RUN(kernel<T>, args, begin, end, more...); }); \
  }

// The ops of such templates on a CPU, in cpu.cpp, and on a GPU, in cuda.cu.
#define MDOPS_ON_CPU(...)                                  \
  STABLE_TORCH_LIBRARY_IMPL(mdops, CPU, m) {               \
    MDOPS_LOOK(MDOPS_EACH(MDOPS_ON_THIS_CPU, __VA_ARGS__)) \
  }
#define MDOPS_ON_THIS_CPU(Ops) mdops::Ops<mdops::OnCpu>::implement(m);
#define MDOPS_ON_GPU(...)                                  \
  STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {              \
    MDOPS_LOOK(MDOPS_EACH(MDOPS_ON_THIS_GPU, __VA_ARGS__)) \
  }
#define MDOPS_ON_THIS_GPU(Ops) mdops::Ops<mdops::OnGpu>::implement(m);

}  // namespace mdops
