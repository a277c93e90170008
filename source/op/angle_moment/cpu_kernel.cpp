#include "angle_moment/passes.h"

namespace mdops::MDOPS_ISA {

template <class T>
int64_t angle_scratch_size(const AngleArgs<T>& args, int channels) {
  return Memory<T>::size(args, channels);
}

template <class T>
void angle_forward(const AngleArgs<T>& args, int64_t begin, int64_t end, T* scratch, T* moments,
                   int32_t* within, T* nearest) {
  const Memory<T> memory(args, scratch);
  if (args.gated)
    forward<Gate::alone>(args, memory, begin, end, moments, within, nearest);
  else
    forward<Gate::none>(args, memory, begin, end, moments, within, nearest);
}

template <class T>
void angle_backward(const AngleArgs<T>& args, const T* grad, int64_t begin, int64_t end, T* scratch,
                    T* pair_grad) {
  const Memory<T> memory(args, scratch);
  if (args.gated)
    backward<Gate::alone, false>(args, memory, static_cast<const T*>(nullptr), grad, begin, end, pair_grad);
  else
    backward<Gate::none, false>(args, memory, static_cast<const T*>(nullptr), grad, begin, end, pair_grad);
}

template <class T>
void angle_jvp(const AngleArgs<T>& args, const T* tangent, int64_t begin, int64_t end, T* scratch,
               T* moments) {
  const Memory<T> memory(args, scratch);
  if (args.gated)
    jvp<Gate::alone>(args, memory, tangent, begin, end, moments);
  else
    jvp<Gate::none>(args, memory, tangent, begin, end, moments);
}

template <class T>
void angle_hvp(const AngleArgs<T>& args, const T* tangent, const T* grad, int64_t begin, int64_t end,
               T* scratch, T* pair_grad) {
  const Memory<T> memory(args, scratch);
  if (args.gated)
    backward<Gate::alone, true>(args, memory, tangent, grad, begin, end, pair_grad);
  else
    backward<Gate::none, true>(args, memory, tangent, grad, begin, end, pair_grad);
}

template <class T>
void angle_features(const AngleArgs<T>& args, const AngleTables<T>& tables, int64_t begin, int64_t end,
                    T* scratch, T* features, int32_t* within, T* nearest) {
  const Memory<T> memory(args, scratch, tables.channels);
  if (tables.gated)
    sum_features<Gate::beside>(args, memory, tables, begin, end, features, within, nearest);
  else
    sum_features<Gate::none>(args, memory, tables, begin, end, features, within, nearest);
}

template <class T>
void angle_features_backward(const AngleArgs<T>& args, const AngleTables<T>& tables, const T* grad,
                             int64_t begin, int64_t end, T* scratch, T* pair_grad) {
  const Memory<T> memory(args, scratch, tables.channels);
  if (tables.gated)
    features_backward<Gate::beside>(args, memory, tables, grad, begin, end, pair_grad);
  else
    features_backward<Gate::none>(args, memory, tables, grad, begin, end, pair_grad);
}

MDOPS_INSTANTIATE(angle_scratch_size, angle_forward, angle_backward, angle_jvp, angle_hvp, angle_features,
                  angle_features_backward)

}  // namespace mdops::MDOPS_ISA
