// The ops on moments of angles.
#pragma once

#include "angle_moment/shape.h"
#include "common/bind.h"
#include "common/descriptor_args.h"

namespace mdops {

template <class T>
struct AngleInputs : AngleArgs<T> {
  int64_t atoms, pieces;

  void take_grid(const Op& op, int64_t exponent, int64_t octaves, int64_t fineness) {
    const std::string refusal = angle_grid_refusal(exponent, octaves, fineness);
    if (!refusal.empty()) fail(op, refusal);
    if (this->ntypes > kMostAngleTypes)
      fail(op, "argument `counts` has ", this->ntypes, " types, expected ", kMostAngleTypes, " at most");
    this->grid = {static_cast<int>(exponent), static_cast<int>(octaves), static_cast<int>(fineness)};
    pieces = this->grid.pieces();
  }
};

template <class Device, class T>
struct AngleMomentOps {
  static AngleInputs<T> arguments(Checked<Device>& in, PairTensors pairs, Input std, Input pair_mask,
                                  CutoffNumbers cutoff, int64_t exponent, int64_t octaves, int64_t fineness,
                                  bool gated) {
    AngleInputs<T> a{};
    a.atoms = take_descriptor(in, a, a.pair_mask, pairs, std, pair_mask, cutoff);
    a.take_grid(in.op, exponent, octaves, fineness);
    a.gated = gated;
    return a;
  }

  static Outputs<3> angle_moment(Checked<Device>& in, AngleInputs<T>& a) {
    T *to, *least;
    int32_t* inside;
    Tensor moments = in.result(to, {a.atoms, a.pairs(), a.pieces, kAnglePowers});
    Tensor within = in.result(inside, {a.atoms, a.ntypes}), nearest = in.result(least, {a.atoms});
    run_angle_moments<T>(in.op, a, a.atoms, to, inside, least);
    return {moments, within, nearest};
  }

  static Tensor angle_moment_backward(Checked<Device>& in, AngleInputs<T>& a, Input grad) {
    return pulled(in, a, nullptr, grad);
  }

  static Tensor angle_moment_jvp(Checked<Device>& in, AngleInputs<T>& a, Input tangent) {
    const T* along;
    in.take(along, "tangent", tangent, {a.atoms, a.width, 3});
    T* to;
    Tensor result = in.result(to, {a.atoms, a.pairs(), a.pieces, kAnglePowers});
    run_angle_moment_tangents<T>(in.op, a, a.atoms, along, to);
    return result;
  }

  static Tensor angle_moment_hvp(Checked<Device>& in, AngleInputs<T>& a, Input tangent, Input grad) {
    const T* along;
    in.take(along, "tangent", tangent, {a.atoms, a.width, 3});
    return pulled(in, a, along, grad);
  }

  MDOPS_IMPLEMENT_FLOATS(AngleMomentOps, angle_moment, angle_moment_backward, angle_moment_jvp,
                         angle_moment_hvp)

 private:
  static Tensor pulled(Checked<Device>& in, AngleInputs<T>& a, const T* tangent, Input grad) {
    const T* of_moments;
    in.take(of_moments, "grad", grad, {a.atoms, a.pairs(), a.pieces, kAnglePowers});
    T* by_d;
    Tensor result = in.result(by_d, {a.atoms, a.width, 3});
    run_angle_moment_pulls<T>(in.op, a, a.atoms, tangent, of_moments, by_d);
    return result;
  }
};

// For `tables` and `gates` (pairs, pieces, channels, kAngleRow); `gates` is empty if there are none.
template <class Device, class T>
struct AngleFeatureOps {
  struct Given : AngleInputs<T> {
    AngleTables<T> tables;
  };

  static Given arguments(Checked<Device>& in, PairTensors pairs, Input std, Input pair_mask, Input tables,
                         Input gates, CutoffNumbers cutoff, int64_t exponent, int64_t octaves,
                         int64_t fineness) {
    Given a{AngleMomentOps<Device, T>::arguments(in, pairs, std, pair_mask, cutoff, exponent, octaves,
                                                 fineness, false),
            {}};
    in.place(a.tables.plain, "tables", tables, {a.pairs(), a.pieces, kAny, kAngleRow});
    const int64_t channels = tables.size(2);
    if (channels < 1 || channels > kMostAngleChannels)
      fail(in.op, "argument `tables` has ", channels, " channels, expected one or more, ", kMostAngleChannels,
           " at most");
    in.place(a.tables.gated, "gates", gates, {kAny, a.pieces, channels, kAngleRow});
    if (gates.size(0) != 0 && gates.size(0) != a.pairs())
      fail(in.op, "argument `gates` has ", gates.size(0), " pairs of types, expected none or ", a.pairs());
    if (!gates.size(0)) a.tables.gated = nullptr;
    a.tables.channels = static_cast<int>(channels);
    return a;
  }

  static Outputs<3> angle_features(Checked<Device>& in, Given& a) {
    T *to, *least;
    int32_t* inside;
    Tensor features = in.result(to, {a.atoms, a.tables.channels});
    Tensor within = in.result(inside, {a.atoms, a.ntypes}), nearest = in.result(least, {a.atoms});
    make_angle_features<T>(in.op, a, a.tables, a.atoms, to, inside, least);
    return {features, within, nearest};
  }

  static Tensor angle_features_backward(Checked<Device>& in, Given& a, Input grad) {
    const T* of_features;
    in.take(of_features, "grad", grad, {a.atoms, a.tables.channels});
    T* by_d;
    Tensor result = in.result(by_d, {a.atoms, a.width, 3});
    make_angle_gradients<T>(in.op, a, a.tables, a.atoms, of_features, by_d);
    return result;
  }

  MDOPS_IMPLEMENT_FLOATS(AngleFeatureOps, angle_features, angle_features_backward)
};

}  // namespace mdops
