// Attention among the rows of each of many sequences, with what DPA-1 needs of it.
//
// The rows of all sequences follow each other; sequence b has rows offsets[b] .. offsets[b + 1]. For one head
// of one sequence, with j and l its rows,
//
//   s_jl = scale q_j.k_l + bias_jl
//   z_jl = s_jl,  or  (s_jl + shift) a_jl  with a_jl = w_j w_l  if there is a switch w
//   p_jl = exp(z_jl) / (sum_l exp(z_jl) + absent)
//   o_j  = sum_l p_jl m_jl v_l,   m_jl = (gate_j . gate_l) a_jl; an absent factor is 1
//
// `absent` is the number of further keys with logit 0 and value 0: DPA-1's empty places, whose logits are -20
// before the shift raises all by 20. logsumexp_j is ln of that sum, with them.
//
// Gradients. With G = dL/do, t_jl = G_j.v_l and delta_j = sum_l p_jl m_jl t_jl = G_j.o_j,
//
//   v_l: sum_j p_jl m_jl G_j       z_jl: p_jl (m_jl t_jl - delta_j) =: y_jl
//   s_jl, bias_jl: y_jl a_jl =: x_jl
//   q_j: scale sum_l x_jl k_l      k_l: scale sum_j x_jl q_j
//   a_jl: y_jl (s_jl + shift) + p_jl t_jl gate_j.gate_l =: b_jl      w_j: sum_l (b_jl + b_lj) w_l
//   gate_j: sum_l (e_jl + e_lj) gate_l  with  e_jl = p_jl t_jl a_jl
//
// Their gradients. Along directions u of q, k, v, bias, gate and w the sum of direction times gradient is
// <G, o'>, with o' the change of o along u: its gradient by G is o', and its gradients by the others are the
// changes of the gradients above along u at constant G. A prime is a change along u:
//
//   s' = scale (u_q,j.k_l + q_j.u_k,l) + u_bias      a' = u_w,j w_l + w_j u_w,l
//   c' = u_gate,j.gate_l + gate_j.u_gate,l
//   z' = s' a + (s + shift) a'      p' = p (z' - sum_l p z')      m' = c' a + c a'      t' = G_j.u_v,l
//   o'_j = sum_l (p' m + p m') v_l + p m u_v,l       delta'_j = G_j.o'_j
//   v: sum_j (p' m + p m') G_j
//   y' = p' (m t - delta) + p (m' t + m t' - delta')     x' = y' a + y a'
//   q: scale sum_l x' k + x u_k    k: scale sum_j x' q + x u_q     bias: x'
//   b' = y' (s + shift) + y s' + (p' t + p t') c + p t c'
//   w_j: sum_l (b'_jl + b'_lj) w_l + (b_jl + b_lj) u_w,l
//   e' = (p' t + p t') a + p t a'      gate_j: sum_l (e'_jl + e'_lj) gate_l + (e_jl + e_lj) u_gate,l
//
// Each pass recomputes the scores of a sequence, a tile of queries at a time, and never writes them.
#pragma once

#include <cstdint>

#include "common/math.h"

namespace mdops {

// The largest width of a head, and of a gate.
constexpr int64_t kMostAttentionWidth = 256, kMostGate = 8;

// A work item, a row of the plan: a sequence, the first of its queries (of the sequence, a multiple of the
// tile), and where the sequence begins in a head's bias, modulo 2^31 and divided by it. The row before them
// has the number of items, or -1 if the sequences do not fit into the plan: then results are NaN. Rows after
// the last are -1.
constexpr int64_t kPlanTile = 64, kPlanColumns = 4;

// How numbers are stored: as the kernels compute, or in 16 bits.
enum class Element : int { same, bfloat16, float16 };

// Tensors that go with q, k, v, bias, gate and switch: the arguments, directions, or gradients. Null: absent.
template <class Pointer>
struct AttentionTensors {
  Pointer q, k, v, bias, gate, switches;
};

// The arguments of a pass on the CPU, which computes in T.
template <class T>
struct AttentionArgs {
  int64_t rows, heads, width, value_width, sequences, gates, bias_size;
  const int32_t* offsets;
  const int64_t* bias_begin;  // (B,), of each sequence in a head's bias
  Element element;
  T scale, shift;
  AttentionTensors<const void*> in;
  const T* absent;
  // For the backward passes.
  const void *grad_out, *out;
  const T* logsumexp;
  AttentionTensors<const void*> direction;

  MDOPS_HD int64_t length(int64_t sequence) const { return offsets[sequence + 1] - offsets[sequence]; }
};

// Results. Those by gate and switch are per head, (H, T, C) and (H, T), in T.
template <class T>
struct AttentionResults {
  void* out;  // of the forward pass; of the last one the gradient by grad_out
  T* logsumexp;
  void *q, *k, *v, *bias;
  T *gate, *switches;
};

// Queries [first, last) of a head of a sequence; a backward pass takes all of them.
struct AttentionJob {
  int64_t sequence, head, first, last;
};

enum class AttentionPass : int { forward, backward, backward_backward };

}  // namespace mdops
