// Binds an op's schema to its function. The ops of a family are a template over the device (ops.h), which
// checks their arguments and allocates their results; each device's code is overloads on the op's call, `Op`
// in cpu.cpp and `CudaOp` in cuda.cu. A function takes the call, its own arguments, and then those that
// several ops share. From these `arguments` makes the kernels' arguments, if the function has a parameter for
// them:
//
//   static XArgs<T> arguments(Checked<Device>& in, Input x, Input y, double cutoff);
//   static Tensor x_backward(Checked<Device>& in, XArgs<T>& a, Input grad);
//
//   MDOPS_IMPLEMENT_FLOATS(XOps, x_backward)  // in XOps<Device, T>: x_backward(grad, x, y, cutoff)
//
// T is the type of the op's first tensor. If no tensor determines it, XOps is a template over the device
// only, and uses MDOPS_IMPLEMENT. For a parameter that is a struct with a list `Parts` of types, the op takes
// an argument of each of these.
#pragma once

#include <array>

#include "common/checked.h"
#include "common/each.h"

namespace mdops {

using Library = torch::stable::detail::StableLibrary;

template <int N, class... T>
struct TensorTuple : TensorTuple<N - 1, Tensor, T...> {};
template <class... T>
struct TensorTuple<0, T...> {
  using type = std::tuple<T...>;
};
// So many tensors, as ops return them.
template <int N>
using Outputs = typename TensorTuple<N>::type;

template <class... A, class... B>
TypeList<A..., B...> operator+(TypeList<A...>, TypeList<B...>);

// The types of an op's arguments for parameters of a function.
template <class... P>
auto arguments_for(TypeList<P...>) {
  const auto for_one = []<class Q>(TypeList<Q> one) {
    if constexpr (requires { typename Q::Parts; })
      return typename Q::Parts();
    else
      return one;
  };
  return (TypeList<>() + ... + for_one(TypeList<P>()));
}

// Which of the arguments is the first one of each parameter.
template <class... P>
constexpr auto first_arguments() {
  std::array<size_t, sizeof...(P) + 1> first{};
  size_t k = 0;
  ((first[k + 1] = first[k] + decltype(arguments_for(TypeList<P>()))::kCount, ++k), ...);
  return first;
}

// The parameter of an op's arguments from that one on.
template <class P, size_t first>
P parameter(const auto& arguments) {
  if constexpr (requires { typename P::Parts; })
    return [&]<size_t... k>(std::index_sequence<k...>) {
      return P{std::get<first + k>(arguments)...};
    }(std::make_index_sequence<P::Parts::kCount>());
  else
    return std::get<first>(arguments);
}

// What a function returns, what it takes itself, and whether it takes the kernels' arguments made.
template <class F>
struct OpFunction;
template <class R, class In, class... A>
struct OpFunction<R (*)(In&, A...)> {
  using Result = R;
  using Own = TypeList<A...>;
  static constexpr bool kTakesMade = false;
};
template <class R, class In, class Made, class... A>
  requires(!std::is_const_v<Made>)
struct OpFunction<R (*)(In&, Made&, A...)> {
  using Result = R;
  using Own = TypeList<A...>;
  static constexpr bool kTakesMade = true;
};

template <size_t N>
struct OpName {
  char text[N];
  constexpr OpName(const char (&name)[N]) {
    for (size_t k = 0; k < N; ++k) text[k] = name[k];
  }
};

// `Ops` has the function of an op; `OfDoubles` the same for float64, or it is `Ops` itself.
template <class Device, OpName Name, class Ops, auto function, class OfDoubles, auto of_doubles>
struct BoundOp {
  using Function = OpFunction<decltype(function)>;
  static constexpr bool kOfOneType = std::is_same_v<Ops, OfDoubles>;

  template <class Own, class Given, class Arguments>
  struct Taking;
  template <class... Own, class... Given, class... A>
  struct Taking<TypeList<Own...>, TypeList<Given...>, TypeList<A...>> {
    static constexpr auto kFirst = first_arguments<Own..., Given...>();

    static typename Function::Result call(A... arguments) {
      const auto op = Device::make(Name.text, arguments...);
      const std::tuple<A&...> all(arguments...);
      return [&]<size_t... own, size_t... given>(std::index_sequence<own...>, std::index_sequence<given...>) {
        return pass(op, parameter<Own, kFirst[own]>(all)...,
                    parameter<Given, kFirst[sizeof...(Own) + given]>(all)...);
      }(std::index_sequence_for<Own...>(), std::index_sequence_for<Given...>());
    }

    static typename Function::Result pass(const typename Device::Call& op, Own... own, Given... given) {
      Checked<Device> in(op, kOfOneType);
      const auto run = [&]<class Of>(auto f) {
        if constexpr (Function::kTakesMade) {
          auto made = Of::arguments(in, given...);
          return f(in, made, own...);
        } else {
          return f(in, own...);
        }
      };
      if constexpr (!kOfOneType) {
        const Tensor* first = first_tensor([](const Tensor&) { return true; }, given..., own...);
        if (first->scalar_type() == ScalarType::Double) return run.template operator()<OfDoubles>(of_doubles);
      }
      return run.template operator()<Ops>(function);
    }
  };

  static auto given() {
    if constexpr (Function::kTakesMade)
      return typename OpFunction<std::decay_t<decltype(Ops::arguments)>>::Own();
    else
      return TypeList<>();
  }
  using Own = typename Function::Own;
  using Given = decltype(given());
  using Boxed = Taking<Own, Given, decltype(arguments_for(Own() + Given()))>;
};

template <class Device, OpName Name, class Ops, auto function, class OfDoubles = Ops,
          auto of_doubles = function>
void bind(Library& m) {
  using Bound = BoundOp<Device, Name, Ops, function, OfDoubles, of_doubles>;
  m.impl(Name.text, TORCH_BOX(&Bound::Boxed::call));
}

template <template <class> class Ops, class Device>
void implement(Library& m) {
  Ops<Device>::implement(m);
}
template <template <class, class> class Ops, class Device>
void implement(Library& m) {
  Ops<Device, float>::implement(m);
}

// In a template `Ops` over the device: its functions of these names implement the ops of these names.
#define MDOPS_IMPLEMENT(Ops, ...)                   \
  static void implement(Library& m) {               \
    using Own = Ops;                                \
    MDOPS_LOOK(MDOPS_EACH(MDOPS_BIND, __VA_ARGS__)) \
  }
#define MDOPS_BIND(name) bind<Device, #name, Own, &Own::name>(m);
// In a template over the device and float or double.
#define MDOPS_IMPLEMENT_FLOATS(Ops, ...)                   \
  static void implement(Library& m) {                      \
    using OfFloats = Ops<Device, float>;                   \
    using OfDoubles = Ops<Device, double>;                 \
    MDOPS_LOOK(MDOPS_EACH(MDOPS_BIND_FLOATS, __VA_ARGS__)) \
  }
#define MDOPS_BIND_FLOATS(name) \
  bind<Device, #name, OfFloats, &OfFloats::name, OfDoubles, &OfDoubles::name>(m);

// In cpu.cpp: name(op, args, others...) with `Args` is kernel(args, begin, end, others...) of pieces of
// `count` things, in threads.
#define MDOPS_IN_PIECES(name, Args, kernel, count, grain)                                           \
  template <class T, class... Others>                                                               \
  static void name(const Op&, const Args<T>& args, const Others&... more) {                         \
    parallel(count, grain,                                                                          \
             [&](int64_t begin, int64_t end) { MDOPS_RUN(kernel<T>, args, begin, end, more...); }); \
  }

// The ops of such templates on a CPU, in cpu.cpp, and on a GPU, in cuda.cu.
#define MDOPS_ON_CPU(...)                                  \
  STABLE_TORCH_LIBRARY_IMPL(mdops, CPU, m) {               \
    MDOPS_LOOK(MDOPS_EACH(MDOPS_ON_THIS_CPU, __VA_ARGS__)) \
  }
#define MDOPS_ON_THIS_CPU(Ops) mdops::implement<mdops::Ops, mdops::OnCpu>(m);
#define MDOPS_ON_GPU(...)                                  \
  STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {              \
    MDOPS_LOOK(MDOPS_EACH(MDOPS_ON_THIS_GPU, __VA_ARGS__)) \
  }
#define MDOPS_ON_THIS_GPU(Ops) mdops::implement<mdops::Ops, mdops::OnGpu>(m);

}  // namespace mdops
