// Attention of the edges of an atom to each other, where keys and values are the edges' numbers x, which all
// heads share. For one head h of one atom, with j and l its edges,
//
//   s_jl = q_j.x_l     c_jl = r_j.r_l     a_jl = w_j w_l
//   u_jl = s_jl, or s_jl c_jl with a gate     z_jl = (u_jl + shift) a_jl
//   p_jl = exp(z_jl) / (sum_l exp(z_jl) + absent)     m_jl = c_jl a_jl
//   o_j  = sum_l p_jl m_jl x_l
//
// q (E, H, K) is multiplied with the first K of the V numbers of x. `absent` is the number of further edges,
// with logit 0 and value 0.
//
// Gradients. With G = dL/do, t_jl = G_j.x_l and delta_j = sum_l p_jl m_jl t_jl:
//
//   z: p (m t - delta) =: y     u: y a     s: y a c, or y a     c: p t a + (y a s)
//   a: y (u + shift) + p t c     q_j: sum_l s_jl x_l     x_l: sum_j s_jl q_j + p_jl m_jl G_j
//   r_j: sum_l (c_jl + c_lj) r_l, and so w_j
//
// where a name stands for the gradient by it. Their gradients along directions (a prime is a change along
// them): the gradient by G is o', and those by q, x, r and w are the changes of the gradients above at
// constant G.
#pragma once

#include "common/isa.h"
#include "common/math.h"

namespace mdops {

// Members of other passes are null.
template <class T>
struct EdgeAttentionArgs {
  int64_t rows, heads, keys, values, atoms, longest;  // E, H, K, V, N, the most edges of an atom
  bool gated;
  T shift;
  const int32_t* offsets;           // (N + 1,)
  const T *q, *x, *r, *w, *absent;  // (E, H, K), (E, V), (E, 3), (E,), (N,)
  const T* grad = nullptr;          // G (E, H, V)
  const T *along_q = nullptr, *along_x = nullptr, *along_r = nullptr, *along_w = nullptr;
  T* out = nullptr;  // o, or the gradient by G
  T *by_q = nullptr, *by_x = nullptr, *by_r = nullptr, *by_w = nullptr;
};

// A pair of edges, or several in the lanes of N; numbers of a head.
template <class N>
struct EdgePair {
  N s, c, a;

  MDOPS_HD N raised(auto shift, bool gated) const { return (gated ? s * c : s) + shift; }
  MDOPS_HD N logit(auto shift, bool gated) const { return raised(shift, gated) * a; }
};

// The changes of a pair.
template <class N>
struct EdgePairChange {
  N s, c, a, t;

  // u'
  MDOPS_HD N raised(const EdgePair<N>& of, bool gated) const { return gated ? s * of.c + of.s * c : s; }
  MDOPS_HD N logit(const EdgePair<N>& of, auto shift, bool gated) const {
    return raised(of, gated) * of.a + of.raised(shift, gated) * a;
  }
  MDOPS_HD N factor(const EdgePair<N>& of) const { return c * of.a + of.c * a; }  // m'
};

template <class N>
struct EdgePairGradients {
  N s, c, a;
  N share;  // p m
};

template <class N, class T>
MDOPS_HD EdgePairGradients<N> edge_pair_gradients(const EdgePair<N>& of, const N& p, const N& t, T delta,
                                                  T shift, bool gated) {
  const N m = of.c * of.a, y = p * (m * t - delta), by_u = y * of.a, pt = p * t;
  const N by_c = pt * of.a, by_s = gated ? by_u * of.c : by_u;
  return {by_s, gated ? by_c + by_u * of.s : by_c, y * of.raised(shift, gated) + pt * of.c, p * m};
}

// Changes of those, with changes p' of p and delta' of delta; and those themselves.
template <class N>
struct EdgePairSeconds {
  EdgePairGradients<N> first, second;
};

template <class N, class T>
MDOPS_HD EdgePairSeconds<N> edge_pair_seconds(const EdgePair<N>& of, const EdgePairChange<N>& change,
                                              const N& p, const N& p_change, const N& t, T delta,
                                              T delta_change, T shift, bool gated) {
  const N m = of.c * of.a, m_change = change.factor(of);
  const N y = p * (m * t - delta);
  const N y_change = p_change * (m * t - delta) + p * (m_change * t + m * change.t - delta_change);
  const N by_u = y * of.a, by_u_change = y_change * of.a + y * change.a;
  const N pt = p * t, pt_change = p_change * t + p * change.t;
  EdgePairGradients<N> changes{
      by_u_change, pt_change * of.a + pt * change.a,
      y_change * of.raised(shift, gated) + y * change.raised(of, gated) + pt_change * of.c + pt * change.c,
      p_change * m + p * m_change};
  if (gated) {
    changes.s = by_u_change * of.c + by_u * change.c;
    changes.c = changes.c + by_u_change * of.s + by_u * change.s;
  }
  return {edge_pair_gradients(of, p, t, delta, shift, gated), changes};
}

// Bytes that a thread needs for atoms with n edges; then atoms [from, to).
MDOPS_DECLARE_KERNELS(int64_t edge_attention_bytes(const EdgeAttentionArgs<T>& args, int64_t n))
MDOPS_DECLARE_KERNELS(void edge_attention_atoms(const EdgeAttentionArgs<T>& args, int64_t from, int64_t to,
                                                void* scratch))

}  // namespace mdops
