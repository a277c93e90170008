// The descriptor's features D = T^T T_< of a block of atoms, an atom a lane, for one instruction set.
//
// D[k][l], k < width, l < axis, is symmetric in its first axis x axis entries, so a net sees those once (l <=
// k), the weights of the two equal ones added: its "head". All others, k >= axis, have the order of the net's
// weights. D is never stored whole: it is computed from T in groups of rows k, each multiplied at once by the
// first layer's weights; the same backwards. T is [4][t_width] rows, t_width in whole vectors.
#pragma once

#include "common/panels.h"
#include "spline_potential/groups.h"

namespace mdops::MDOPS_ISA {

template <class T>
constexpr int64_t t_width(const FittingShape& net) {
  return padded<T>(net.width);
}

// A vector of lanes of T: T[a][k].
template <class T>
struct Lanes {
  T* base;
  int64_t width, t_width;

  Lanes(const FittingShape& net, const Panels<T>& t, const auto& place)
      : base(place.in(t, 0)), width(place.width), t_width(mdops::MDOPS_ISA::t_width<T>(net)) {}

  T* at(int a, int k) const { return base + (a * t_width + k) * width; }
  Vector<T> operator()(int a, int k) const { return vector_at(at(a, k)); }
};

// A column of T.
template <class T>
struct Column {
  Vector<T> a[4];
  Column(const Lanes<T>& t, int k) : a{t(0, k), t(1, k), t(2, k), t(3, k)} {}
};

template <class T>
inline void form_group(const FittingShape& net, const Panels<T>& t, const Group& group,
                       const Panels<T>& out) {
  out.each([&](auto place) {
    const Lanes<T> at(net, t, place);
    T* to = place.in(out, 0);
    for (int k = group.first; k < group.last; ++k) {
      const Column<T> own(at, k);
      if (net.plain) {
        store(to, own.a[0]);
        to += place.width;
        continue;
      }
      for (int l = 0; l < net.row_features(k); ++l, to += place.width)
        store(to, own.a[0] * at(0, l) + own.a[1] * at(1, l) + own.a[2] * at(2, l) + own.a[3] * at(3, l));
    }
  });
}

// The same of the derivative along dT.
template <class T>
inline void form_tangent(const FittingShape& net, const Panels<T>& t, const Panels<T>& dt, const Group& group,
                         const Panels<T>& out) {
  out.each([&](auto place) {
    const Lanes<T> at(net, t, place), d(net, dt, place);
    T* to = place.in(out, 0);
    for (int k = group.first; k < group.last; ++k) {
      const Column<T> own(at, k), change(d, k);
      if (net.plain) {
        store(to, change.a[0]);
        to += place.width;
        continue;
      }
      for (int l = 0; l < net.row_features(k); ++l, to += place.width) {
        Vector<T> sum{};
        for (int a = 0; a < 4; ++a) sum += own.a[a] * d(a, l) + change.a[a] * at(a, l);
        store(to, sum);
      }
    }
  });
}

// Adds to the gradient of T what a group's gives it:  dT[a][k] += dD[k][l] T[a][l],  dT[a][l] += dD[k][l]
// T[a][k].
template <class T>
inline void unform_group(const FittingShape& net, const Panels<T>& t, const Group& group,
                         const Panels<T>& grad, const Panels<T>& grad_t) {
  grad.each([&](auto place) {
    const Lanes<T> at(net, t, place), out(net, grad_t, place);
    const T* from = place.in(grad, 0);
    for (int k = group.first; k < group.last; ++k) {
      if (net.plain) {
        T* to = out.at(0, k);
        store(to, vector_at(to) + vector_at(from));
        from += place.width;
        continue;
      }
      const Column<T> own(at, k);
      Vector<T> sum[4] = {};
      for (int l = 0; l < net.row_features(k); ++l, from += place.width) {
        const Vector<T> d = vector_at(from);
        for (int a = 0; a < 4; ++a) {
          T* to = out.at(a, l);
          sum[a] += d * at(a, l);
          store(to, vector_at(to) + d * own.a[a]);
        }
      }
      for (int a = 0; a < 4; ++a) {
        T* to = out.at(a, k);
        store(to, vector_at(to) + sum[a]);
      }
    }
  });
}

// The features of a descriptor as a net takes them in (gemm/layers.h).
template <class T>
struct Features {
  const FittingShape& net;
  const NetWeights<T>& weights;

  void each(const auto& work) const {
    each_group(net, kGroup, [&](const Group& group, int64_t before) {
      work(group, before, group_weights(net, weights, group));
    });
  }
};

}  // namespace mdops::MDOPS_ISA
