// A net's outputs and their gradient over a block of atoms, for one instruction set.
#pragma once

#include "gemm/layers.h"

namespace mdops::MDOPS_ISA {

// A block's memory.
template <class T>
struct NetBlock {
  Panels<T> extra;              // further inputs
  Panels<T> value[kMaxLayers];  // after activation, timestep and residual
  Panels<T> slope[kMaxLayers];  // timestep * f'
  T* work;                      // a group of features
  uint16_t* split;              // for products of `parts` bfloat16 parts
  int64_t lanes;

  // For groups of at most `features`.
  NetBlock(const NetShape& net, int64_t features, int64_t lanes_, Arena& arena, int parts = 0)
      : lanes(lanes_) {
    extra = take_panels<T>(arena, net.extra, lanes);
    for (int n = 0; n < net.layers; ++n) {
      value[n] = take_panels<T>(arena, net.neurons[n], lanes);
      slope[n] = take_panels<T>(arena, net.neurons[n], lanes);
    }
    work = arena.take<T>(features * lanes);
    split = arena.take<uint16_t>(parts ? bf16_split_size(net, features, lanes, parts) : 0);
  }
};

// Whether the first layer adds its inputs: only in a net without features, as their groups are not saved.
inline bool adds_extra(const NetShape& net) {
  return net.features == 0 && net.residual[0];
}

// Calls work(to, from) for the numbers of the first layer's outputs and the further inputs added to them.
template <class T, class Work>
inline void each_added(const NetShape& net, const Panels<T>& outputs, const Panels<T>& extra,
                       const Work& work) {
  for (int64_t row = 0; adds_extra(net) && row < net.neurons[0]; ++row)
    outputs.each([&](auto place) { work(place.in(outputs, row), place.in(extra, row % net.extra)); });
}

// Fills the block's values and slopes, from features and further inputs.
template <class T, class Source, class Form>
inline void net_forward(const Net<T>& net, const NetBlock<T>& block, const Source& source, const Form& form) {
  first_product(net, source, form, block.work, block.value[0]);
  add_extra(net, block.extra, block.value[0]);
  layers_up(net, block.value, block.value, [&](int n) {
    activate_layer(net, n, block.value[n], [&, n](int64_t row, auto place, T timestep) {
      T *value = place.in(block.value[n], row), *slope = place.in(block.slope[n], row);
      return [=](int k, T f, T df) {
        value[k] = f * timestep;
        slope[k] = df * timestep;
      };
    });
    if (n == 0)
      each_added(net.shape, block.value[0], block.extra,
                 [](T* to, const T* from) { store(to, vector_at(to) + vector_at(from)); });
  });
}

// Calls use(group, before, gradient) with the gradient by a group's features, from that by the last hidden
// layer's output in its value. Overwrites the block: value[n] becomes the gradient of layer n's output,
// slope[n] that of its product.
template <class T, class Source, class Use>
inline void hidden_backward(const Net<T>& net, const NetBlock<T>& block, const Source& source,
                            const Use& use) {
  layers_down(net, block.value, [&](int n) {
    const Panels<T>&grad = block.value[n], &slope = block.slope[n];
    for (int64_t row = 0; row < net.neurons(n); ++row)
      grad.each([&](auto place) {
        T* s = place.in(slope, row);
        store(s, vector_at(s) * vector_at(place.in(grad, row)));
      });
    return slope;
  });
  const auto to = [&](const auto& group, int64_t) {
    return Panels<T>{block.work, group.features, block.lanes};
  };
  first_backward(net, source, block.slope[0], to, use);
}

// The same for scale * output; `scale` is a number, or points to one for each lane.
template <class T, class Scale, class Source, class Use>
inline void net_backward(const Net<T>& net, const NetBlock<T>& block, const Scale& scale,
                         const Source& source, const Use& use) {
  output_gradient(net, scale, block.value[net.last()]);
  hidden_backward(net, block, source, use);
}

}  // namespace mdops::MDOPS_ISA
