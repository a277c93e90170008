#include "spline_potential/block.h"

namespace mdops::MDOPS_ISA {

namespace {

template <class T>
void block(const PotentialArgs<T>& args, const NetWeights<T>& weights, const int32_t* ids, int64_t count,
           T* memory, PotentialResults<T>& out) {
  const int64_t lanes = padded<T>(count);
  const StepBlock<T> s(args, memory, lanes);
  const double scale = args.scale[args.net_of(args.types[ids[0]])];
  const FittingShape& shape = args.net;
  const Net<T> net{shape, weights.layer, weights.bf16.units ? &weights.bf16 : nullptr, s.net.split,
                   Net<T>::few_of(count)};
  const Features<T> features{shape, weights};
  form_block(args, ids, count, s, out);
  {
    MDOPS_STAGE(net_up);
    net_forward(net, s.net, features, [&](const Group& group, const Panels<T>& out) {
      MDOPS_STAGE(features);
      form_group(shape, s.t_lanes, group, out);
    });
    net_output(net, s.net.value[net.last()], s.energy);
  }
  for (int64_t a = 0; a < count; ++a)
    out.energy[ids[a]] = scale * s.energy[a] + args.shift[args.types[ids[a]]];
  {
    MDOPS_STAGE(net_down);
    clear_from(s.grad_t_lanes, 0);
    net_backward(net, s.net, static_cast<T>(scale), features,
                 [&](const Group& group, int64_t, const Panels<T>& grad) {
                   MDOPS_STAGE(feature_gradient);
                   unform_group(shape, s.t_lanes, group, grad, s.grad_t_lanes);
                 });
  }
  spread_block(args, ids, count, s, out);
}

}  // namespace

template <class T>
int64_t scratch_size(const PotentialArgs<T>& args) {
  return StepBlock<T>(args, nullptr, args.block).size();
}

template <class T>
void potential(const PotentialArgs<T>& args, const NetWeights<T>& weights, const int32_t* ids, int64_t count,
               T* scratch, PotentialResults<T>& out) {
  StepBlock<T>(args, scratch, args.block).atoms.clear();
  each_block(count, args.block,
             [&](int64_t from, int64_t to) { block(args, weights, ids + from, to - from, scratch, out); });
}

MDOPS_INSTANTIATE(scratch_size, potential)

}  // namespace mdops::MDOPS_ISA
