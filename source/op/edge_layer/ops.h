// The ops of a layer's edges.
#pragma once

#include "common/activation_code.h"
#include "common/bind.h"
#include "common/given.h"
#include "common/pair_checks.h"
#include "edge_layer/edge_layer.h"
#include "graph/row_index.h"

namespace mdops {

struct EdgeLayerInputs {
  static constexpr const char* kFirst = "e";
  using Given = Listed<Times<14, const Tensor&>, Times<2, double>, bool, double, int64_t, double>;

  Tensor e;
  ScalarType dtype = e.scalar_type();
  int64_t rows = e.size(0), width = e.size(1);
  Tensor r, w, offsets, absent, own, own_bias, own_factor, queries;
  int64_t heads = queries.size(0), of_norm = heads ? width : 0;
  Tensor values, out_bias, norm, norm_bias, out_factor;
  double keep, shift, eps, threshold;
  bool gated;
  Activation activation;

  EdgeLayerInputs(const Op& op, const Tensor& e_, const Tensor& r_, const Tensor& w_, const Tensor& absent_,
                  const Tensor& offsets_, const Tensor& own_, const Tensor& own_bias_,
                  const Tensor& own_factor_, const Tensor& queries_, const Tensor& values_,
                  const Tensor& out_bias_, const Tensor& norm_, const Tensor& norm_bias_,
                  const Tensor& out_factor_, double keep_, double shift_, bool gated_, double eps_,
                  int64_t activation_, double threshold_)
      : e(float_input(op, "e", e_, {kAny, kAny})),
        r(input(op, "r", r_, dtype, {rows, 3})),
        w(input(op, "w", w_, dtype, {rows})),
        offsets(offsets_input(op, offsets_, rows)),
        absent(input(op, "absent", absent_, dtype, {offsets.size(0) - 1})),
        own(input(op, "own", own_, dtype, {width, width})),
        own_bias(input(op, "own_bias", own_bias_, dtype, {width})),
        own_factor(input(op, "own_factor", own_factor_, dtype, {width})),
        queries(input(op, "queries", queries_, dtype, {kAny, width, width})),
        values(input(op, "values", values_, dtype, {heads, width, width})),
        out_bias(input(op, "out_bias", out_bias_, dtype, {of_norm})),
        norm(input(op, "norm", norm_, dtype, {of_norm})),
        norm_bias(input(op, "norm_bias", norm_bias_, dtype, {of_norm})),
        out_factor(input(op, "out_factor", out_factor_, dtype, {of_norm})),
        keep(keep_),
        shift(shift_),
        eps(eps_),
        threshold(threshold_),
        gated(gated_),
        activation(activation_of(op, activation_)) {
    if (width == 0) fail(op, "argument `e` has no columns, expected one or more");
  }

  template <class T>
  EdgeLayerArgs<T> args() const {
    EdgeLayerArgs<T> a{};
    a.rows = rows, a.width = width, a.heads = heads, a.atoms = offsets.size(0) - 1, a.gated = gated;
    a.shift = static_cast<T>(shift), a.eps = static_cast<T>(eps), a.keep = static_cast<T>(keep);
    a.activation = activation, a.threshold = static_cast<T>(threshold);
    a.offsets = data_of(offsets);
    const auto at = [](const Tensor& t) { return t.const_data_ptr<T>(); };
    a.e = at(e), a.r = at(r), a.w = at(w), a.absent = at(absent);
    a.own = at(own), a.queries = at(queries), a.values = at(values);
    a.own_bias = at(own_bias), a.own_factor = at(own_factor), a.out_bias = at(out_bias);
    a.norm = at(norm), a.norm_bias = at(norm_bias), a.out_factor = at(out_factor);
    return a;
  }
};

template <class Device>
struct EdgeLayerOps {
  using Call = typename Device::Call;

  static Outputs<2> edge_layer(const Call& op, const EdgeLayerInputs& in) {
    Tensor out = empty(op, {in.rows, in.width}, in.dtype);
    Tensor saved = empty(op, {in.heads ? in.rows : 0, in.width}, in.dtype);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      auto args = in.args<T>();
      args.out = data_of(out), args.saved = data_of(saved);
      run_edge_layer(op, args);
    });
    return {out, saved};
  }

  static Outputs<3> edge_layer_backward(const Call& op, const EdgeLayerInputs& in, const Tensor& grad,
                                        const Tensor& saved) {
    const Tensor by = input(op, "grad", grad, in.dtype, {in.rows, in.width});
    const Tensor kept = input(op, "saved", saved, in.dtype, {in.heads ? in.rows : 0, in.width});
    Tensor by_e = empty(op, {in.rows, in.width}, in.dtype), by_r = empty(op, {in.rows, 3}, in.dtype);
    Tensor by_w = empty(op, {in.rows}, in.dtype);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      auto args = in.args<T>();
      args.grad = given<T>(by);
      args.saved = const_cast<T*>(kept.const_data_ptr<T>());  // which this pass reads alone
      args.out = data_of(by_e);
      args.by_r = data_of(by_r), args.by_w = data_of(by_w);
      run_edge_layer(op, args);
    });
    return {by_e, by_r, by_w};
  }

  MDOPS_IMPLEMENT(EdgeLayerOps, edge_layer, edge_layer_backward)
};

}  // namespace mdops
