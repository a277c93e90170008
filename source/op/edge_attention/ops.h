// The ops of attention among edges. A device has `run_edge_attention`.
#pragma once

#include <algorithm>

#include "common/bind.h"
#include "common/given.h"
#include "common/pair_checks.h"
#include "edge_attention/edge_attention.h"
#include "graph/row_index.h"

namespace mdops {

struct EdgeAttentionInputs {
  static constexpr const char* kFirst = "q";
  using Given = Listed<Times<6, const Tensor&>, double, bool, int64_t>;

  Tensor q;
  ScalarType dtype = q.scalar_type();
  int64_t rows = q.size(0), heads = q.size(1), keys = q.size(2);
  Tensor x;
  int64_t values = x.size(1);
  Tensor r, w, offsets, absent;
  double shift;
  bool gated;
  int64_t longest;

  EdgeAttentionInputs(const Op& op, const Tensor& q_, const Tensor& x_, const Tensor& r_, const Tensor& w_,
                      const Tensor& absent_, const Tensor& offsets_, double shift_, bool gated_,
                      int64_t longest_)
      : q(float_input(op, "q", q_, {kAny, kAny, kAny})),
        x(input(op, "x", x_, dtype, {rows, kAny})),
        r(input(op, "r", r_, dtype, {rows, 3})),
        w(input(op, "w", w_, dtype, {rows})),
        offsets(offsets_input(op, offsets_, rows)),
        absent(input(op, "absent", absent_, dtype, {offsets.size(0) - 1})),
        shift(shift_),
        gated(gated_),
        longest(longest_) {
    if (keys > values)
      fail(op, "argument `x` has ", values, " numbers an edge, expected the ", keys, " of `q` or more");
    if (longest < 0 || longest > INT32_MAX)
      fail(op, "argument `longest` is ", longest, ", expected 0 to 2^31 - 1");
    if (!op.on_cpu()) return;
    const int32_t* o = offsets.const_data_ptr<int32_t>();
    for (int64_t i = 0; i + 1 < offsets.size(0); ++i)
      if (o[i + 1] - o[i] > longest)
        fail(op, "argument `offsets` has ", o[i + 1] - o[i], " edges of atom ", i, ", and `longest` is ",
             longest);
  }

  Tensor like_q(const Op& op, const char* name, const Tensor& t) const {
    return input(op, name, t, dtype, {rows, heads, keys});
  }
  Tensor like_out(const Op& op, const char* name, const Tensor& t) const {
    return input(op, name, t, dtype, {rows, heads, values});
  }

  template <class T>
  EdgeAttentionArgs<T> args() const {
    EdgeAttentionArgs<T> a{};
    a.rows = rows, a.heads = heads, a.keys = keys, a.values = values, a.atoms = offsets.size(0) - 1;
    a.longest = std::min(longest, rows), a.gated = gated, a.shift = static_cast<T>(shift);
    a.offsets = data_of(offsets);
    a.q = data_of(q), a.x = data_of(x), a.r = data_of(r);
    a.w = data_of(w), a.absent = data_of(absent);
    return a;
  }
};

template <class Device>
struct EdgeAttentionOps {
  using Call = typename Device::Call;

  static Tensor edge_attention(const Call& op, const EdgeAttentionInputs& in) {
    Tensor out = empty(op, {in.rows, in.heads, in.values}, in.dtype);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      auto args = in.args<T>();
      args.out = data_of(out);
      run_edge_attention(op, args);
    });
    return out;
  }

  static Outputs<4> edge_attention_backward(const Call& op, const EdgeAttentionInputs& in,
                                            const Tensor& grad) {
    const Tensor of_out = in.like_out(op, "grad", grad);
    Gradients by{op, in};
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      auto args = in.args<T>();
      args.grad = given<T>(of_out);
      by.write_to(args);
      run_edge_attention(op, args);
    });
    return {by.q, by.x, by.r, by.w};
  }

  static Outputs<5> edge_attention_backward_backward(const Call& op, const EdgeAttentionInputs& in,
                                                     const Tensor& along_q_, const Tensor& along_x_,
                                                     const Tensor& along_r_, const Tensor& along_w_,
                                                     const Tensor& grad) {
    const Tensor of_out = in.like_out(op, "grad", grad), along_q = in.like_q(op, "along_q", along_q_);
    const Tensor along_x = input(op, "along_x", along_x_, in.dtype, {in.rows, in.values});
    const Tensor along_r = input(op, "along_r", along_r_, in.dtype, {in.rows, 3});
    const Tensor along_w = input(op, "along_w", along_w_, in.dtype, {in.rows});
    Tensor by_grad = empty(op, {in.rows, in.heads, in.values}, in.dtype);
    Gradients by{op, in};
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      auto args = in.args<T>();
      args.grad = given<T>(of_out);
      args.along_q = data_of(along_q), args.along_x = given<T>(along_x);
      args.along_r = data_of(along_r), args.along_w = data_of(along_w);
      args.out = data_of(by_grad);
      by.write_to(args);
      run_edge_attention(op, args);
    });
    return {by_grad, by.q, by.x, by.r, by.w};
  }

  MDOPS_IMPLEMENT(EdgeAttentionOps, edge_attention, edge_attention_backward, edge_attention_backward_backward)

 private:
  struct Gradients {
    const Op& op;
    const EdgeAttentionInputs& in;
    Tensor q = empty(op, {in.rows, in.heads, in.keys}, in.dtype);
    Tensor x = empty(op, {in.rows, in.values}, in.dtype);
    Tensor r = empty(op, {in.rows, 3}, in.dtype), w = empty(op, {in.rows}, in.dtype);

    template <class T>
    void write_to(EdgeAttentionArgs<T>& args) {
      args.by_q = data_of(q), args.by_x = data_of(x);
      args.by_r = data_of(r), args.by_w = data_of(w);
    }
  };
};

}  // namespace mdops
