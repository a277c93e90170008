// Attention on a GPU from the host: which kernels, their launches.
#pragma once

#include "attention/gpu_plain.h"

namespace mdops {
namespace gpu_attention {

template <class T>
class Attention {
 public:
  using A = Sums<T>;

  Attention(const Gpu& gpu, const AttentionArgs<T>& args, int32_t* bad) : gpu_(gpu), p_(args) {
    gpu_.launch(prepare_kernel<T>, kPrepareBlocks, kPrepareThreads, 0, p_, bad);
    p_.bad = bad;
  }

  void forward(const ForwardResults<T>& r) const {
    gpu_.launch(plain_forward_kernel<T>, plain_blocks(), kPlainThreads, 0, p_, r);
    fill({r.out, of_values()}, {}, {}, {}, {r.logsumexp, p_.heads});
  }

  // `grad_gate` and `grad_switch` null where they are not asked for.
  void backward(const GradientArgs<T>& g, T* grad_gate, T* grad_switch) const {
    delta(g);
    gradients<false>(g, {}, grad_gate, grad_switch);
    fill({g.grad_q, of_keys()}, {g.grad_k, of_keys()}, {g.grad_v, of_values()}, {}, {}, whole_bias(g));
  }

  void backward_backward(const GradientArgs<T>& g, const Directions<T>& u, T* grad_gate,
                         T* grad_switch) const {
    delta(g);
    gpu_.launch(plain_change_kernel<T>, plain_blocks(), kPlainThreads, 0, p_, g, u);
    gradients<true>(g, u, grad_gate, grad_switch);
    fill({g.grad_q, of_keys()}, {g.grad_k, of_keys()}, {g.grad_v, of_values()},
         {g.grad_grad_out, of_values()}, {}, whole_bias(g));
  }

 private:
  int64_t plain_blocks() const { return static_cast<int64_t>(p_.items) * kSubtiles * p_.heads; }
  int64_t of_keys() const { return static_cast<int64_t>(p_.heads) * p_.width; }
  int64_t of_values() const { return static_cast<int64_t>(p_.heads) * p_.value_width; }
  RowsToFill<T> whole_bias(const GradientArgs<T>& g) const { return {g.grad_bias, p_.heads * p_.bias_size}; }

  void fill(RowsToFill<T> a, RowsToFill<T> b, RowsToFill<T> c, RowsToFill<T> d, RowsToFill<A> sums,
            RowsToFill<T> whole = {}) const {
    gpu_.launch(fill_kernel<T>, kPrepareBlocks, kPrepareThreads, 0, p_, a, b, c, d, sums, whole);
  }

  void delta(const GradientArgs<T>& g) const {
    const int64_t rows = static_cast<int64_t>(p_.rows) * p_.heads;
    gpu_.launch(delta_kernel<T>, blocks_for(rows * kWarp, kPlainThreads), kPlainThreads, 0, p_, g);
  }

  template <bool Second>
  void gradients(const GradientArgs<T>& g, const Directions<T>& u, T* grad_gate, T* grad_switch) const {
    gpu_.launch(plain_gradient_kernel<T, Side::queries, Second>, plain_blocks(), kPlainThreads, 0, p_, g, u);
    gpu_.launch(plain_gradient_kernel<T, Side::keys, Second>, plain_blocks(), kPlainThreads, 0, p_, g, u);
    if (grad_gate || grad_switch)
      gpu_.launch(sum_parts_kernel<T>, blocks_for(static_cast<int64_t>(p_.rows) * (p_.gates + 1), kPlainThreads),
                  kPlainThreads, 0, p_, g.parts, 2 * p_.heads, grad_gate, grad_switch);
  }

  const Gpu& gpu_;
  AttentionArgs<T> p_;
};

}  // namespace gpu_attention
}  // namespace mdops
