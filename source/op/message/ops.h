// The ops on messages. A device implements `run_message`. For frames, `message_takes_frames` says whether
// that supports them; else `message_moments`, `message_moment_gradients`, `message_sums` and `message_taken`
// are used. For rows that are a number times a vector, `message_takes_outer` says the same; else
// `message_product` computes the rows.
#pragma once

#include <utility>

#include "common/activation_code.h"
#include "common/bind.h"
#include "gemm/matmul.h"
#include "graph/row_index.h"
#include "graph/rows.h"
#include "linear/forms.h"
#include "message/message.h"
#include "neighbor_rows/neighbor_rows.h"

namespace mdops {

// The passes for rows x, or with `of_numbers` for rows that are a number times a vector, given by these
// numbers and their factor.
template <class Device, class T, bool of_numbers>
struct MessagePasses;
template <class Device, class T>
using MessageOps = MessagePasses<Device, T, false>;

template <class Device, class T, bool of_numbers>
struct MessagePasses {
  static MessageArgs<T> arguments(Checked<Device>& in, Input x, Input weight, Input p, Input q,
                                  Input row_weight, Input scale, SortedIndex first, NodeIndex second,
                                  const Optional& groups, int64_t activation, double threshold,
                                  const std::string& matmul_name) {
    MessageArgs<T> a{};
    in.place(a.x, "x", x, {kAny, kAny});
    a.rows = x.size(0), a.inputs = x.size(1);
    in.place(a.weight, "weight", weight, {a.inputs, kAny});
    const int64_t columns = weight.size(1);
    const RowIndex firsts(in, first, a.rows, "first", "first_offsets");
    const RowIndex seconds(in, second, a.rows, {"second", "second_order", "second_offsets"});
    a.first = firsts.index, a.first_offsets = firsts.offsets, a.firsts = firsts.targets;
    a.second = seconds.index, a.second_order = seconds.order, a.second_offsets = seconds.offsets;
    a.seconds = seconds.targets;
    if (groups) a.groups = take_offsets(in, a.group_offsets, *groups, a.firsts, "groups");
    in.place(a.p, "p", p, {a.firsts, columns});
    in.place(a.q, "q", q, {a.seconds, columns});
    in.take(a.row_weight, "row_weight", row_weight, {a.rows});
    in.place(a.scale, "scale", scale, {of_numbers ? kAny : scale.numel() ? a.inputs : 0});
    a.kept = scale.numel(), a.sent = columns - a.kept;
    a.activation = activation_of(in.op, activation), a.threshold = static_cast<T>(threshold);
    const Matmul matmul = matmul_of(in.op, matmul_name);
    a.parts = matmul == Matmul::tf32 || matmul == Matmul::bf16 ? 1 : 2;
    if (a.sent < 0)
      fail(in.op, "argument `weight` has ", columns, " columns, expected the ", a.kept,
           " that are kept or more");
    if (groups && a.seconds != a.firsts)
      fail(in.op, "argument `second_offsets` is of ", a.seconds, ", and there are groups of ", a.firsts);
    if (in.op.on_cpu()) {
      refuse_tf32(in.op, matmul);
      check_rows(in.op, a);
    }
    return a;
  }

  static Outputs<2> message(Checked<Device>& in, MessageArgs<T>& a) {
    Tensor sent = in.result(a.to_sent, {a.firsts, a.sent});
    Tensor kept = rows(in, a.to_kept, a.rows, a.kept);
    run_message(in.op, a);
    return {sent, kept};
  }

  // The gradients by x, weight, p, q, row_weight and scale; those by weight and scale are empty unless
  // wanted.
  static Outputs<6> message_backward(Checked<Device>& in, Input grad_sent, Input grad_kept, Input x,
                                     Input weight, Input p, Input q, Input row_weight, Input scale,
                                     SortedIndex first, NodeIndex second, const Optional& groups,
                                     int64_t activation, double threshold, const std::string& matmul,
                                     bool of_weights) {
    auto a = arguments(in, x, weight, p, q, row_weight, scale, first, second, groups, activation, threshold,
                       matmul);
    take_gradients(in, a, grad_sent, grad_kept);
    const Gradients by(in, a, of_weights);
    run_message(in.op, a);
    return {by.x, by.weight, by.p, by.q, by.row_weight, by.scale};
  }

  // The gradients by grad_sent, grad_kept, and by the inputs of `message_backward` without weights. Products
  // are float32's.
  static Outputs<8> message_backward_backward(Checked<Device>& in, Input along_x, Input along_p,
                                              Input along_q, Input along_row_weight, Input grad_sent,
                                              Input grad_kept, Input x, Input weight, Input p, Input q,
                                              Input row_weight, Input scale, SortedIndex first,
                                              NodeIndex second, const Optional& groups, int64_t activation,
                                              double threshold) {
    auto a = arguments(in, x, weight, p, q, row_weight, scale, first, second, groups, activation, threshold,
                       "float32");
    take_gradients(in, a, grad_sent, grad_kept);
    in.take(a.along_x, "along_x", along_x, {a.rows, a.inputs});
    in.take(a.along_p, "along_p", along_p, {a.firsts, a.columns()});
    in.take(a.along_q, "along_q", along_q, {a.seconds, a.columns()});
    in.take(a.along_row_weight, "along_row_weight", along_row_weight, {a.rows});
    const Gradients by(in, a, true);
    const auto [sent, kept] = message(in, a);
    return {sent, kept, by.x, by.weight, by.p, by.q, by.row_weight, by.scale};
  }

  MDOPS_IMPLEMENT_FLOATS(MessageOps, message, message_backward, message_backward_backward)

  // A new tensor of rows, possibly large (common/large_results.h).
  static Tensor rows(Checked<Device>& in, T*& to, int64_t count, int64_t width) {
    Tensor made = empty_result(in.op, {count, width}, kDtype<T>);
    to = data_of(made);
    return made;
  }

  static void take_gradients(Checked<Device>& in, MessageArgs<T>& a, Input grad_sent, Input grad_kept) {
    in.place(a.grad_sent, "grad_sent", grad_sent, {a.firsts, a.sent});
    in.place(a.grad_kept, "grad_kept", grad_kept, {a.rows, a.kept});
  }

  struct Gradients {
    Tensor x, weight, p, q, row_weight, scale;

    Gradients(Checked<Device>& in, MessageArgs<T>& a, bool of_weights)
        : x(rows(in, a.by_x, a.rows, a.inputs)),
          weight(in.result(a.by_weight, {of_weights ? a.inputs : 0, of_weights ? a.columns() : 0})),
          p(in.result(a.by_p, {a.firsts, a.columns()})),
          q(in.result(a.by_q, {a.seconds, a.columns()})),
          row_weight(in.result(a.by_row_weight, {a.rows})),
          scale(in.result(a.by_scale, {of_weights ? a.kept : 0})) {
      if (!of_weights) a.by_weight = a.by_scale = nullptr;
    }
  };

 private:
  // Checks that rows without a first have no second, and that a group's rows are all pairs of leading nodes.
  static void check_rows(const Op& op, const MessageArgs<T>& a) {
    const int32_t *const second_of = a.second, *const begin = a.first_offsets, *const group = a.group_offsets;
    for (int64_t r = begin[a.firsts]; r < a.rows; ++r)
      if (second_of[r] >= 0) fail(op, "row ", r, " has a second and no first");
    if (!group) return;
    parallel(a.groups, 256, [&](int64_t from, int64_t to) {
      for (int64_t g = from; g < to; ++g) {
        const int64_t of_group = group[g], end = group[g + 1];
        const int64_t size = of_group < end ? begin[of_group + 1] - begin[of_group] : 0;
        for (int64_t f = of_group; f < end; ++f) {
          const int64_t expected = f - of_group < size ? size : 0, found = begin[f + 1] - begin[f];
          if (found != expected || size > end - of_group)
            fail(op, "first ", f, " of argument `groups` has ", found, " rows, and its group is of ",
                 std::min(size, end - of_group));
          for (int64_t k = 0; k < found; ++k)
            if (second_of[begin[f] + k] != of_group + k)
              fail(op, "the second of row ", begin[f] + k, " is ", second_of[begin[f] + k], ", expected ",
                   of_group + k, " of its group");
        }
      }
    });
    if (begin[a.firsts] != begin[group[a.groups]])
      fail(op, "argument `groups` ends at first ", group[a.groups], ", and there are rows behind it");
  }
};

// Messages whose rows have frames, and some of whose rows are also gathered for other uses.
template <class Device, class T>
struct FramedMessageOps {
  using Messages = MessageOps<Device, T>;

  static MessageArgs<T> arguments(Checked<Device>& in, Input x, Input weight, Input p, Input q,
                                  Input row_weight, Input scale, Input frame, SortedIndex first,
                                  NodeIndex second, SortedIndex taken, int64_t width, int64_t activation,
                                  double threshold, const std::string& matmul) {
    auto a = Messages::arguments(in, x, weight, p, q, row_weight, scale, first, second, std::nullopt,
                                 activation, threshold, matmul);
    MessageFrames<T>& frames = a.frames;
    in.take(frames.frame, "frame", frame, {a.rows, 3});
    const RowIndex of(in, taken, kAny, "taken", "taken_offsets");
    frames.wanted = true, frames.count = of.rows, frames.width = width;
    frames.taken = of.index, frames.taken_offsets = of.offsets;
    if (width < 0 || width > a.inputs)
      fail(in.op, "argument `width` is ", width, ", and rows have ", a.inputs, " numbers");
    check_nodes(in.op, "x", x, of);
    return a;
  }

  static Outputs<4> framed_message(Checked<Device>& in, MessageArgs<T>& a) {
    const MessageFrames<T> frames = std::exchange(a.frames, {});
    T *moments_of, *rows_of;
    Tensor moments = in.result(moments_of, {a.firsts, 3, a.inputs});
    Tensor rows = in.result(rows_of, {frames.count, frames.width});
    const auto [sent, kept] = Messages::message(in, a);
    message_moments(in.op, moment_args(a, frames), moments_of);
    message_taken(in.op, GatherArgs<T>{a.x, frames.taken, nullptr, frames.count, a.rows, frames.width,
                                       a.inputs, rows_of});
    return {sent, kept, moments, rows};
  }

  // The gradients by x, p, q, row_weight and frame.
  static Outputs<5> framed_message_backward(Checked<Device>& in, MessageArgs<T>& a, Input grad_sent,
                                            Input grad_kept, Input grad_moments, Input grad_rows) {
    Messages::take_gradients(in, a, grad_sent, grad_kept);
    in.place(a.frames.grad_moments, "grad_moments", grad_moments, {a.firsts, 3, a.inputs});
    in.place(a.frames.grad_taken, "grad_rows", grad_rows, {a.frames.count, a.frames.width});
    Tensor by_frame = in.result(a.frames.by_frame, {a.rows, 3});
    const typename Messages::Gradients by(in, a, false);
    if (message_takes_frames(in.op, a)) {
      run_message(in.op, a);
    } else {
      const MessageFrames<T> frames = std::exchange(a.frames, {});
      T *const by_x = a.by_x, *by_frames;
      const Tensor own = Messages::rows(in, a.by_x, a.rows, a.inputs),
                   of_frames = Messages::rows(in, by_frames, a.rows, a.inputs);
      run_message(in.op, a);
      message_moment_gradients(in.op, moment_args(a, frames), frames.grad_moments, frames.by_frame,
                               by_frames);
      message_sums(
          in.op, ScatterArgs<T>{frames.grad_taken, frames.taken, nullptr, frames.taken_offsets, frames.count,
                                a.rows, frames.width, a.inputs, by_x, a.by_x, by_frames, a.inputs});
    }
    return {by.x, by.p, by.q, by.row_weight, by_frame};
  }

  MDOPS_IMPLEMENT_FLOATS(FramedMessageOps, framed_message, framed_message_backward)

 private:
  static RowMomentArgs<T> moment_args(const MessageArgs<T>& a, const MessageFrames<T>& frames) {
    return {frames.frame, a.x, a.first_offsets, a.rows, a.inputs, a.firsts, false, 3};
  }
};

// Messages of rows that are a number times a vector.
template <class Device, class T>
struct OuterMessageOps {
  using Messages = MessagePasses<Device, T, true>;

  // Arguments with the numbers and the vector times the weight, and what whole rows need.
  struct Given : MessageArgs<T> {
    Tensor number, vector, weight_of_rows, weight_of_numbers;
  };

  static Given arguments(Checked<Device>& in, Input number, Input vector, Input weight, Input p, Input q,
                         Input row_weight, Input scale, SortedIndex first, NodeIndex second,
                         const Optional& groups, int64_t activation, double threshold,
                         const std::string& matmul) {
    const Tensor u = Device::placed(input(in.op, "vector", vector, kDtype<T>, {1, kAny}));
    const int64_t width = u.size(1);
    const Tensor w = input(in.op, "weight", weight, kDtype<T>, {width, kAny});
    const Tensor n = input(in.op, "number", number, kDtype<T>, {kAny, 1});
    const Tensor of_numbers = message_product(in.op, ProductForm::plain, u, w);
    Given a{Messages::arguments(in, n, of_numbers, p, q, row_weight, scale, first, second, groups, activation,
                                threshold, matmul),
            n, u, w, of_numbers};
    if (a.kept && a.kept != width)
      fail(in.op, "argument `scale` has ", a.kept, " numbers, expected none or ", width);
    return a;
  }

  static Outputs<2> outer_message(Checked<Device>& in, Given& a) {
    Tensor rows;
    if (!takes(in, a)) rows = whole_rows(in, a);
    return Messages::message(in, a);
  }

  // The gradients by number, p, q and row_weight.
  static Outputs<4> outer_message_backward(Checked<Device>& in, Given& a, Input grad_sent, Input grad_kept) {
    Messages::take_gradients(in, a, grad_sent, grad_kept);
    typename Messages::Gradients by(in, a, false);
    a.outer.by_number = std::exchange(a.by_x, nullptr);
    if (takes(in, a)) {
      run_message(in.op, a);
    } else {
      const Tensor rows = whole_rows(in, a), by_rows = Messages::rows(in, a.by_x, a.rows, a.inputs);
      run_message(in.op, a);
      by.x = message_product(in.op, ProductForm::b_transposed, by_rows, a.vector);
    }
    return {by.x, by.p, by.q, by.row_weight};
  }

  MDOPS_IMPLEMENT_FLOATS(OuterMessageOps, outer_message, outer_message_backward)

 private:
  // Whether the message's kernels support rows that are a number times a vector; if so, `a` gets these.
  static bool takes(Checked<Device>& in, Given& a) {
    a.inputs = a.vector.size(1), a.x = nullptr;
    a.outer.number = data_of(a.number), a.outer.vector = data_of(a.vector);
    return message_takes_outer(in.op, a);
  }
  // Otherwise sets up whole rows.
  static Tensor whole_rows(Checked<Device>& in, Given& a) {
    Tensor rows = message_product(in.op, ProductForm::plain, a.number, a.vector);
    a.outer = {}, a.weight = data_of(a.weight_of_rows), a.x = data_of(rows);
    return rows;
  }
};

}  // namespace mdops
