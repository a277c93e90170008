// The ops of attention among edges. A device has `run_edge_attention`.
#pragma once

#include <algorithm>

#include "common/bind.h"
#include "edge_attention/edge_attention.h"
#include "graph/row_index.h"

namespace mdops {

template <class Device, class T>
struct EdgeAttentionOps {
  static EdgeAttentionArgs<T> arguments(Checked<Device>& in, Input q, Input x, Input r, Input w, Input absent,
                                        Input offsets, double shift, bool gated, int64_t longest) {
    EdgeAttentionArgs<T> a{};
    in.take(a.q, "q", q, {kAny, kAny, kAny});
    a.rows = q.size(0), a.heads = q.size(1), a.keys = q.size(2);
    in.take(a.x, "x", x, {a.rows, kAny});
    a.values = x.size(1);
    in.take(a.r, "r", r, {a.rows, 3});
    in.take(a.w, "w", w, {a.rows});
    a.atoms = take_offsets(in, a.offsets, offsets, a.rows);
    in.take(a.absent, "absent", absent, {a.atoms});
    a.shift = static_cast<T>(shift), a.gated = gated, a.longest = std::min(longest, a.rows);
    if (a.keys > a.values)
      fail(in.op, "argument `x` has ", a.values, " numbers an edge, expected the ", a.keys,
           " of `q` or more");
    if (longest < 0 || longest > INT32_MAX)
      fail(in.op, "argument `longest` is ", longest, ", expected 0 to 2^31 - 1");
    for (int64_t i = 0; in.op.on_cpu() && i < a.atoms; ++i)
      if (const int32_t count = a.offsets[i + 1] - a.offsets[i]; count > longest)
        fail(in.op, "argument `offsets` has ", count, " edges of atom ", i, ", and `longest` is ", longest);
    return a;
  }

  static Tensor edge_attention(Checked<Device>& in, EdgeAttentionArgs<T>& a) {
    Tensor out = in.result(a.out, {a.rows, a.heads, a.values});
    run_edge_attention(in.op, a);
    return out;
  }

  static Outputs<4> edge_attention_backward(Checked<Device>& in, EdgeAttentionArgs<T>& a, Input grad) {
    in.give(a.grad, "grad", grad, {a.rows, a.heads, a.values});
    Gradients by(in, a);
    run_edge_attention(in.op, a);
    return {by.q, by.x, by.r, by.w};
  }

  static Outputs<5> edge_attention_backward_backward(Checked<Device>& in, EdgeAttentionArgs<T>& a,
                                                     Input along_q, Input along_x, Input along_r,
                                                     Input along_w, Input grad) {
    in.give(a.grad, "grad", grad, {a.rows, a.heads, a.values});
    in.take(a.along_q, "along_q", along_q, {a.rows, a.heads, a.keys});
    in.give(a.along_x, "along_x", along_x, {a.rows, a.values});
    in.take(a.along_r, "along_r", along_r, {a.rows, 3});
    in.take(a.along_w, "along_w", along_w, {a.rows});
    Tensor by_grad = in.result(a.out, {a.rows, a.heads, a.values});
    Gradients by(in, a);
    run_edge_attention(in.op, a);
    return {by_grad, by.q, by.x, by.r, by.w};
  }

  MDOPS_IMPLEMENT_FLOATS(EdgeAttentionOps, edge_attention, edge_attention_backward,
                         edge_attention_backward_backward)

 private:
  struct Gradients {
    Tensor q, x, r, w;

    Gradients(Checked<Device>& in, EdgeAttentionArgs<T>& a)
        : q(in.result(a.by_q, {a.rows, a.heads, a.keys})),
          x(in.result(a.by_x, {a.rows, a.values})),
          r(in.result(a.by_r, {a.rows, 3})),
          w(in.result(a.by_w, {a.rows})) {}
  };
};

}  // namespace mdops
