// The ops of a layer's edges.
#pragma once

#include "common/activation_code.h"
#include "common/bind.h"
#include "edge_layer/edge_layer.h"
#include "graph/row_index.h"

namespace mdops {

template <class Device, class T>
struct EdgeLayerOps {
  static EdgeLayerArgs<T> arguments(Checked<Device>& in, Input e, Input r, Input w, Input absent,
                                    Input offsets, Input own, Input own_bias, Input own_factor, Input queries,
                                    Input values, Input out_bias, Input norm, Input norm_bias,
                                    Input out_factor, double keep, double shift, bool gated, double eps,
                                    int64_t activation, double threshold) {
    EdgeLayerArgs<T> a{};
    in.take(a.e, "e", e, {kAny, kAny});
    const int64_t rows = a.rows = e.size(0), width = a.width = e.size(1);
    if (width == 0) fail(in.op, "argument `e` has no columns, expected one or more");
    in.take(a.r, "r", r, {rows, 3});
    in.take(a.w, "w", w, {rows});
    a.atoms = take_offsets(in, a.offsets, offsets, rows);
    in.take(a.absent, "absent", absent, {a.atoms});
    in.take(a.own, "own", own, {width, width});
    in.take(a.own_bias, "own_bias", own_bias, {width});
    in.take(a.own_factor, "own_factor", own_factor, {width});
    in.take(a.queries, "queries", queries, {kAny, width, width});
    a.heads = queries.size(0);
    in.take(a.values, "values", values, {a.heads, width, width});
    const int64_t of_norm = a.heads ? width : 0;
    in.take(a.out_bias, "out_bias", out_bias, {of_norm});
    in.take(a.norm, "norm", norm, {of_norm});
    in.take(a.norm_bias, "norm_bias", norm_bias, {of_norm});
    in.take(a.out_factor, "out_factor", out_factor, {of_norm});
    a.shift = static_cast<T>(shift), a.eps = static_cast<T>(eps), a.keep = static_cast<T>(keep);
    a.gated = gated, a.activation = activation_of(in.op, activation);
    a.threshold = static_cast<T>(threshold);
    return a;
  }

  static Outputs<2> edge_layer(Checked<Device>& in, EdgeLayerArgs<T>& a) {
    Tensor out = in.result(a.out, {a.rows, a.width});
    Tensor saved = in.result(a.saved, {a.heads ? a.rows : 0, a.width});
    run_edge_layer(in.op, a);
    return {out, saved};
  }

  static Outputs<3> edge_layer_backward(Checked<Device>& in, EdgeLayerArgs<T>& a, Input grad, Input saved) {
    in.give(a.grad, "grad", grad, {a.rows, a.width});
    in.take_saved(a.saved, "saved", saved, {a.heads ? a.rows : 0, a.width});
    Tensor by_e = in.result(a.out, {a.rows, a.width}), by_r = in.result(a.by_r, {a.rows, 3});
    Tensor by_w = in.result(a.by_w, {a.rows});
    run_edge_layer(in.op, a);
    return {by_e, by_r, by_w};
  }

  MDOPS_IMPLEMENT_FLOATS(EdgeLayerOps, edge_layer, edge_layer_backward)
};

}  // namespace mdops
