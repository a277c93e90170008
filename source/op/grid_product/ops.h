// The op on products at points of a grid. A device has `run_grid`.
#pragma once

#include "common/bind.h"
#include "grid_product/grid_product.h"

namespace mdops {

template <class Device, class T>
struct GridOps {
  static Tensor grid_product(Checked<Device>& in, Input a, Input b, Input out, Input u, Input v,
                             bool by_angles) {
    GridArgs<T> args{};
    in.place(args.u, "u", u, {kAny, kAny, kAny});
    args.atoms = u.size(0), args.first = u.size(1), args.channels = u.size(2);
    in.place(args.v, "v", v, {args.atoms, kAny, args.channels});
    in.take(args.a, "a", a, {kAny, args.first});
    args.points = a.size(0), args.second = v.size(1);
    in.take(args.b, "b", b, {args.points, args.second});
    in.take(args.out, "out", out, {args.points, kAny});
    args.results = out.size(1), args.by_angles = by_angles;
    Tensor y = in.result(args.y, {args.atoms, args.results, args.channels});
    run_grid(in.op, args);
    return y;
  }

  MDOPS_IMPLEMENT_FLOATS(GridOps, grid_product)
};

}  // namespace mdops
