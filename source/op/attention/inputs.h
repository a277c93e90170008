// The arguments of the ops on attention, checked at entry; for the CPU and for GPUs.
#pragma once

#include "attention/attention.h"
#include "gemm/matmul.h"

namespace mdops {

struct AttentionInputs {
  Tensor q, k, v, offsets, plan;
  Optional bias, gate, switches, absent;
  // of the tensors; of logsumexp and absent: float32, or float64 for float64
  ScalarType dtype, sums = dtype == ScalarType::Double ? dtype : ScalarType::Float;
  Matmul matmul;
  double scale, shift;
  int64_t rows, heads, width, value_width, sequences, gates, max_length;

  AttentionInputs(const Op& op, Input q_, Input k_, Input v_, Input offsets_, Input plan_,
                  const Optional& bias_, const Optional& gate_, const Optional& switch_,
                  const Optional& absent_, double scale_, double shift_, int64_t max_length_,
                  const std::string& matmul_)
      : q(q_),
        k(k_),
        v(v_),
        offsets(input(op, "offsets", offsets_, ScalarType::Int, {kAny})),
        plan(input(op, "plan", plan_, ScalarType::Int, {kAny, kPlanColumns})),
        dtype(q_.scalar_type()),
        matmul(matmul_of(op, matmul_)),
        scale(scale_),
        shift(shift_),
        max_length(max_length_) {
    if (dtype != ScalarType::Float && dtype != ScalarType::Double && dtype != ScalarType::BFloat16 &&
        dtype != ScalarType::Half)
      fail(op, "argument `q` must be of float32, float64, bfloat16 or float16");
    q = input(op, "q", q_, dtype, {kAny, kAny, kAny});
    rows = q.size(0), heads = q.size(1), width = q.size(2);
    k = input(op, "k", k_, dtype, {rows, heads, width});
    v = input(op, "v", v_, dtype, {rows, heads, kAny});
    value_width = v.size(2);
    if (heads < 1) fail(op, "argument `q` has no heads");
    if (width < 1 || width > kMostAttentionWidth || value_width < 1 || value_width > kMostAttentionWidth)
      fail(op, "arguments `q`, `k` and `v` have heads of width ", width, " and ", value_width,
           ", expected 1 to ", kMostAttentionWidth);
    if (offsets.size(0) < 1)
      fail(op, "argument `offsets` is empty, expected one more than there are sequences");
    if (plan.size(0) < 1) fail(op, "argument `plan` is empty");
    sequences = offsets.size(0) - 1;
    if (max_length < 0) fail(op, "argument `max_length` is negative");
    if (rows > INT32_MAX - kPlanTile) fail(op, "rows must fit into 32-bit indices");
    if (bias_) bias = input(op, "bias", *bias_, dtype, {heads, kAny});
    if (gate_) {
      gate = input(op, "gate", *gate_, dtype, {rows, kAny});
      if (gate->size(1) < 1 || gate->size(1) > kMostGate)
        fail(op, "argument `gate` has ", gate->size(1), " columns, expected 1 to ", kMostGate);
    }
    gates = gate ? gate->size(1) : 0;
    if (switch_) switches = input(op, "switch", *switch_, dtype, {rows});
    if (absent_) absent = input(op, "absent", *absent_, sums, {sequences});
    if (op.on_cpu()) refuse_tf32(op, matmul);
  }

  // Size of the bias of a head; -1 without one.
  int64_t bias_size() const { return bias ? bias->size(1) : -1; }
};

// Further arguments of the backward passes.
struct AttentionSaved {
  Tensor grad_out, out, logsumexp;

  AttentionSaved(const Op& op, const AttentionInputs& in, Input grad_out_, Input out_, Input logsumexp_)
      : grad_out(input(op, "grad_out", grad_out_, in.dtype, {in.rows, in.heads, in.value_width})),
        out(input(op, "out", out_, in.dtype, {in.rows, in.heads, in.value_width})),
        logsumexp(input(op, "logsumexp", logsumexp_, in.sums, {in.rows, in.heads})) {}
};

// The directions of the second derivative; those of absent arguments must be absent, other absent ones count
// as zero.
struct AttentionDirections {
  Tensor q, k, v;
  Optional bias, gate, switches;

  AttentionDirections(const Op& op, const AttentionInputs& in, Input q_, Input k_, Input v_,
                      const Optional& bias_, const Optional& gate_, const Optional& switch_)
      : q(input(op, "dq", q_, in.dtype, {in.rows, in.heads, in.width})),
        k(input(op, "dk", k_, in.dtype, {in.rows, in.heads, in.width})),
        v(input(op, "dv", v_, in.dtype, {in.rows, in.heads, in.value_width})) {
    if ((bias_ && !in.bias) || (gate_ && !in.gate) || (switch_ && !in.switches))
      fail(op, "arguments `dbias`, `dgate` and `dswitch` go with `bias`, `gate` and `switch`");
    if (bias_) bias = input(op, "dbias", *bias_, in.dtype, {in.heads, in.bias_size()});
    if (gate_) gate = input(op, "dgate", *gate_, in.dtype, {in.rows, in.gates});
    if (switch_) switches = input(op, "dswitch", *switch_, in.dtype, {in.rows});
  }
};

}  // namespace mdops
