// Further arguments of the ops on layers of attention of an atom's neighbours, checked; for the CPU and for
// GPUs.
#pragma once

#include "attention/attention.h"
#include "common/bind.h"

namespace mdops {

// Attention over rows that are sequences, one per atom: its `plan`, which GPUs need, and gate and switch, if
// any.
struct NeighborAttention {
  const int32_t* plan = nullptr;
  int64_t items, max_length;
  bool gated, switched;

  template <class T>
  NeighborAttention(auto& in, AttentionArgs<T>& a, const char* rows_name, int64_t rows, Input offsets,
                    const Optional& gate, const Optional& switches, const Optional& absent, double shift,
                    const Optional& plan_, int64_t max_length_)
      : items(plan_ ? plan_->size(0) - 1 : 0),
        max_length(max_length_),
        gated(gate.has_value()),
        switched(switches.has_value()) {
    in.take(a.offsets, "offsets", offsets, {kAny});
    a.rows = rows, a.heads = 1, a.sequences = offsets.size(0) - 1, a.gates = gated ? 3 : 0;
    check_offsets(in.op, a.offsets, a.sequences, rows, rows_name);
    a.shift = switched ? static_cast<T>(shift) : T(0);
    const T *of_gate = nullptr, *of_switch = nullptr;
    in.take(of_gate, "gate", gate, {rows, 3});
    in.take(of_switch, "switch", switches, {rows});
    a.in.gate = of_gate, a.in.switches = of_switch;
    in.take(a.absent, "absent", absent, {a.sequences});
    if (max_length < 0) fail(in.op, "argument `max_length` is negative");
    in.place(plan, "plan", plan_, {kAny, kPlanColumns});
  }

  // The gradients by gate and switch, empty if the pointers are null.
  template <class T>
  Outputs<2> results(auto& in, int64_t rows, T*& gate, T*& switches) const {
    const Outputs<2> made{in.result(gate, gated ? std::vector<int64_t>{rows, 3} : std::vector<int64_t>{0}),
                          in.result(switches, {switched ? rows : 0})};
    if (!gated) gate = nullptr;
    if (!switched) switches = nullptr;
    return made;
  }
};

}  // namespace mdops
