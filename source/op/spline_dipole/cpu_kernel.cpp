#include "spline_dipole/spline_dipole.h"

#include "spline_potential/block.h"

namespace mdops::MDOPS_ISA {

namespace {

// The dipoles and U of a block's atoms.
template <class T>
void form_dipoles(const DipoleArgs<T>& args, const int32_t* ids, int64_t count, const StepBlock<T>& s,
                  const Panels<T>& c, PotentialResults<T>& out) {
  c.each([&](auto place) {
    const Lanes<T> t(args.net, s.t_lanes, place);
    Vector<T> mu[3] = {};
    for (int m = 0; m < args.net.width; ++m) {
      const Vector<T> own = vector_at(place.in(c, m));
      for (int b = 0; b < 3; ++b) mu[b] += own * t(1 + b, m);
    }
    for (int64_t a = place.lane(); a < place.lane() + kLanes<T> && a < count; ++a) {
      const int64_t i = ids[a];
      double energy = 0;
      for (int b = 0; b < 3; ++b) {
        args.dipole[3 * i + b] = mu[b][a - place.lane()];
        if (args.field) energy -= args.field[3 * i + b] * args.dipole[3 * i + b];
      }
      out.energy[i] = energy;
    }
  });
}

// U's gradient by T without the net, and that by the net's outputs, which it replaces.
template <class T>
void begin_gradient(const DipoleArgs<T>& args, const int32_t* ids, int64_t count, const StepBlock<T>& s,
                    const Panels<T>& c) {
  c.each([&](auto place) {
    const Lanes<T> t(args.net, s.t_lanes, place), grad(args.net, s.grad_t_lanes, place);
    alignas(64) T field[3][kLanes<T>] = {};
    for (int64_t a = place.lane(); a < place.lane() + kLanes<T> && a < count; ++a)
      for (int b = 0; b < 3; ++b)
        field[b][a - place.lane()] = static_cast<T>(args.field[3 * int64_t{ids[a]} + b]);
    for (int m = 0; m < args.net.width; ++m) {
      T* const at = place.in(c, m);
      const Vector<T> own = vector_at(at);
      Vector<T> by_c{};
      for (int b = 0; b < 3; ++b) {
        const Vector<T> f = vector_at(field[b]);
        by_c -= f * t(1 + b, m);
        store(grad.at(1 + b, m), -f * own);
      }
      store(at, by_c);
    }
  });
}

template <class T>
void block(const DipoleArgs<T>& args, const NetWeights<T>& weights, const int32_t* ids, int64_t count,
           T* memory, PotentialResults<T>& out) {
  const StepBlock<T> s(args, memory, padded<T>(count));
  const FittingShape& shape = args.net;
  const Net<T> net{shape, weights.layer};
  const Features<T> features{shape, weights};
  const Panels<T>& last = s.net.value[net.last()];
  form_block(args, ids, count, s, out);
  net_forward(net, s.net, features,
              [&](const Group& group, const Panels<T>& to) { form_group(shape, s.t_lanes, group, to); });
  form_dipoles(args, ids, count, s, last, out);
  if (!args.field) return;
  clear_from(s.grad_t_lanes, 0);
  begin_gradient(args, ids, count, s, last);
  hidden_backward(net, s.net, features, [&](const Group& group, int64_t, const Panels<T>& grad) {
    unform_group(shape, s.t_lanes, group, grad, s.grad_t_lanes);
  });
  spread_block(args, ids, count, s, out);
}

}  // namespace

template <class T>
int64_t dipole_scratch_size(const DipoleArgs<T>& args) {
  return StepBlock<T>(args, nullptr, args.block).size();
}

template <class T>
void dipole(const DipoleArgs<T>& args, const NetWeights<T>& weights, const int32_t* ids, int64_t count,
            T* scratch, PotentialResults<T>& out) {
  StepBlock<T>(args, scratch, args.block).atoms.clear();
  int32_t own[kBlock];
  int64_t found = 0;
  for (int64_t k = 0; k < count; ++k) {
    if (args.has_dipole[args.types[ids[k]]]) own[found++] = ids[k];
    if (found && (found == args.block || k + 1 == count)) block(args, weights, own, found, scratch, out);
    if (found == args.block) found = 0;
  }
}

MDOPS_INSTANTIATE(dipole_scratch_size, dipole)

}  // namespace mdops::MDOPS_ISA
