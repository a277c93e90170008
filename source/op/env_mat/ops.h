// The ops on rows of environments.
#pragma once

#include "common/bind.h"
#include "common/descriptor_args.h"
#include "env_mat/args.h"

namespace mdops {

template <class Device, class T>
struct EnvMatOps {
  static EnvMatArgs<T> arguments(Checked<Device>& in, PairTensors pairs, Input std, Input pair_mask,
                                 CutoffNumbers cutoff, bool radial) {
    EnvMatArgs<T> a{};
    a.atoms = take_descriptor(in, a, a.pair_mask, pairs, std, pair_mask, cutoff);
    a.columns = radial ? 1 : 4;
    return a;
  }

  static Tensor env_mat(Checked<Device>& in, PairTensors pairs, Input mean, Input std, Input pair_mask,
                        CutoffNumbers cutoff, bool radial) {
    auto a = arguments(in, pairs, std, pair_mask, cutoff, radial);
    in.take(a.mean, "mean", mean, {a.ntypes});
    T* rows;
    Tensor result = in.result(rows, {a.atoms, a.width, a.columns});
    run_env_mat(in.op, a, rows);
    return result;
  }

  static Tensor env_mat_backward(Checked<Device>& in, EnvMatArgs<T>& a, Input grad) {
    const T* of_rows;
    in.take(of_rows, "grad", grad, {a.atoms, a.width, a.columns});
    T* by_d;
    Tensor result = in.sums(by_d, {a.atoms, a.width, 3});
    run_env_mat_gradients(in.op, a, of_rows, by_d);
    return result;
  }

  static Outputs<2> env_mat_backward_backward(Checked<Device>& in, EnvMatArgs<T>& a, Input tangent,
                                              Input grad) {
    const T *of_rows, *along;
    in.take(of_rows, "grad", grad, {a.atoms, a.width, a.columns});
    in.take(along, "tangent", tangent, {a.atoms, a.width, 3});
    T *by_grad, *by_d;
    Tensor grad_grad = in.sums(by_grad, {a.atoms, a.width, a.columns});
    Tensor grad_d = in.sums(by_d, {a.atoms, a.width, 3});
    run_env_mat_seconds(in.op, a, along, of_rows, by_grad, by_d);
    return {grad_grad, grad_d};
  }

  MDOPS_IMPLEMENT_FLOATS(EnvMatOps, env_mat, env_mat_backward, env_mat_backward_backward)
};

}  // namespace mdops
