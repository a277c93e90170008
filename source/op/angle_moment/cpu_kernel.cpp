#include "angle_moment/passes.h"

namespace mdops::MDOPS_ISA {

template <class T>
int64_t angle_scratch_size(const AngleArgs<T>& args, int channels) {
  return Memory<T>::size(args, channels);
}

// work(gate), a constant: none, or the other one.
template <Gate other, class Work>
static void with_gate(bool gated, const Work& work) {
  if (gated)
    work(std::integral_constant<Gate, other>{});
  else
    work(std::integral_constant<Gate, Gate::none>{});
}

template <class T>
void angle_forward(const AngleArgs<T>& args, int64_t begin, int64_t end, T* scratch, T* moments,
                   int32_t* within, T* nearest) {
  const Memory<T> memory(args, scratch);
  with_gate<Gate::alone>(
      args.gated, [&](auto gate) { forward<gate()>(args, memory, begin, end, moments, within, nearest); });
}

template <class T>
void angle_jvp(const AngleArgs<T>& args, const T* tangent, int64_t begin, int64_t end, T* scratch,
               T* moments) {
  const Memory<T> memory(args, scratch);
  with_gate<Gate::alone>(args.gated,
                         [&](auto gate) { jvp<gate()>(args, memory, tangent, begin, end, moments); });
}

template <class T>
void angle_pull(const AngleArgs<T>& args, const T* tangent, const T* grad, int64_t begin, int64_t end,
                T* scratch, T* pair_grad) {
  const Memory<T> memory(args, scratch);
  with_gate<Gate::alone>(args.gated, [&](auto gate) {
    tangent ? backward<gate(), true>(args, memory, tangent, grad, begin, end, pair_grad)
            : backward<gate(), false>(args, memory, tangent, grad, begin, end, pair_grad);
  });
}

template <class T>
void angle_features(const AngleArgs<T>& args, const AngleTables<T>& tables, int64_t begin, int64_t end,
                    T* scratch, T* features, int32_t* within, T* nearest) {
  const Memory<T> memory(args, scratch, tables.channels);
  with_gate<Gate::beside>(tables.gated, [&](auto gate) {
    sum_features<gate()>(args, memory, tables, begin, end, features, within, nearest);
  });
}

template <class T>
void angle_features_backward(const AngleArgs<T>& args, const AngleTables<T>& tables, const T* grad,
                             int64_t begin, int64_t end, T* scratch, T* pair_grad) {
  const Memory<T> memory(args, scratch, tables.channels);
  with_gate<Gate::beside>(tables.gated, [&](auto gate) {
    features_backward<gate()>(args, memory, tables, grad, begin, end, pair_grad);
  });
}

MDOPS_INSTANTIATE(angle_scratch_size, angle_forward, angle_jvp, angle_pull, angle_features,
                  angle_features_backward)

}  // namespace mdops::MDOPS_ISA
