// The choice of kernels for messages.
#pragma once

#include <type_traits>

#include "graph/gpu_rows.h"
#include "message/gpu_groups.h"
#include "message/gpu_plain.h"
#include "message/gpu_tensor.h"

namespace mdops::gpu_message {

// Calls f.operator()<eights, pass>(), for rows that tensor cores support.
template <int kEights, class F>
auto with_pass(Pass pass, const F& f) {
  if (pass == Pass::forward) return f.template operator()<kEights, Pass::forward>();
  if (pass == Pass::backward) return f.template operator()<kEights, Pass::backward>();
  return f.template operator()<kEights, Pass::second>();
}
auto with_tensor_kernel(const MessageArgs<float>& args, const auto& f) {
  const Pass pass = pass_of(args);
  if (args.inputs == 32) return with_pass<4>(pass, f);
  if (args.inputs == 64) return with_pass<8>(pass, f);
  return with_pass<16>(pass, f);
}

// Whether kernels take whole groups; these also sum h for Q, and the others need `by_z`.
template <class T>
bool goes_in_groups(const Gpu& gpu, const MessageArgs<T>& args) {
  if constexpr (std::is_same_v<T, float>) {
    if (args.groups > 0 && by_tensor_cores(gpu, args))
      return with_tensor_kernel(args, [&]<int kEights, Pass pass>() {
        return kEights <= kGroupEights && group_warps<kEights, pass>(gpu, args) >= kFewestGroupWarps;
      });
  }
  return false;
}

// Whether kernels also compute the gradients of frames.
template <class T>
bool takes_frames(const Gpu& gpu, const MessageArgs<T>& args) {
  if constexpr (std::is_same_v<T, float>) return tensor_cores_take_frames(gpu, args);
  return false;
}

// Whether kernels support rows that are a number times a vector.
template <class T>
bool takes_outer(const Gpu& gpu, const MessageArgs<T>& args) {
  const bool is_silu = args.activation == Activation::silu || args.activation == Activation::silut;
  return is_silu && reinterpret_cast<uintptr_t>(args.outer.vector) % (4 * sizeof(T)) == 0 &&
         goes_in_groups(gpu, args);
}

template <int kEights, Pass pass, Way way>
void run_pass(const Gpu& gpu, const MessageArgs<float>& args, const Memory<float>& memory, bool in_groups) {
  if constexpr (pass == Pass::backward && way != Way::any && kEights <= kFramedEights) {
    if (args.frames.wanted) return run_tensor<kEights, pass, way, true>(gpu, args, memory);
  }
  if constexpr (kEights <= kGroupEights) {
    if constexpr (pass != Pass::second && way == Way::silu) {
      if (args.outer.number) return run_groups<kEights, pass, way, true>(gpu, args, memory);
    }
    if (in_groups) return run_groups<kEights, pass, way, false>(gpu, args, memory);
  }
  run_tensor<kEights, pass, way, false>(gpu, args, memory);
}

// Whether the kernels of any width are used, with products before and after.
template <class T>
bool goes_plain(const Gpu& gpu, const MessageArgs<T>& args) {
  if constexpr (std::is_same_v<T, float>) return !by_tensor_cores(gpu, args);
  return true;
}

template <class T>
void run(const Gpu& gpu, const MessageArgs<T>& args, const Memory<T>& memory) {
  const bool in_groups = goes_in_groups(gpu, args);
  if (goes_plain(gpu, args)) run_plain(gpu, args, memory);
  if constexpr (std::is_same_v<T, float>) {
    if (by_tensor_cores(gpu, args))
      with_tensor_kernel(args, [&]<int kEights, Pass pass>() {
        const bool is_silu = args.activation == Activation::silu || args.activation == Activation::silut;
        if constexpr (pass != Pass::second) {
          if (is_silu && args.parts == 1 && !args.outer.number)
            return run_pass<kEights, pass, Way::silu_of_one>(gpu, args, memory, in_groups);
        }
        is_silu ? run_pass<kEights, pass, Way::silu>(gpu, args, memory, in_groups)
                : run_pass<kEights, pass, Way::any>(gpu, args, memory, in_groups);
      });
  }
  if (args.by_q && !in_groups)
    run_graph(gpu, ScatterArgs<T>{args.by_z, args.second, args.second_order, args.second_offsets, args.rows,
                                  args.seconds, args.columns(), args.columns(), args.by_q});
}

}  // namespace mdops::gpu_message
