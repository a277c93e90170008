// The ops on messages. A device has `run_message`; `message_rows`, a new tensor of so many rows that it may
// be large; and, for frames, `message_takes_frames`, whether that has them, else `message_moments`,
// `message_moment_gradients` and `message_sums`, and `message_taken`; and for rows that are a number times a
// vector `message_takes_outer`, whether it has these, else `message_product` makes them.
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

struct MessageInputs {
  static constexpr const char* kFirst = "x";
  using Optional = const std::optional<Tensor>&;
  using Exact = Listed<Times<9, const Tensor&>, Optional, const Tensor&, Optional, int64_t, double>;
  using Given = Listed<Exact, std::string>;

  Tensor x;
  ScalarType dtype = x.scalar_type();
  int64_t rows = x.size(0), inputs = x.size(1);
  Tensor weight;
  int64_t columns = weight.size(1);
  RowIndex first, second;
  Tensor groups, p, q, row_weight, scale;
  bool grouped;
  int64_t kept = scale.numel();
  Activation activation;
  double threshold;
  Matmul matmul;
  bool of_weights;  // whether their gradients are asked for

  MessageInputs(const Op& op, const Tensor& x_, const Tensor& weight_, const Tensor& p_, const Tensor& q_,
                const Tensor& row_weight_, const Tensor& scale_, const Tensor& first_,
                const Tensor& first_offsets, const Tensor& second_, const std::optional<Tensor>& second_order,
                const Tensor& second_offsets, const std::optional<Tensor>& groups_, int64_t activation_,
                double threshold_, const std::string& matmul_ = "float32", bool of_weights_ = false,
                int64_t width = kAny)
      : x(float_input(op, "x", x_, {kAny, kAny})),
        weight(input(op, "weight", weight_, dtype, {inputs, kAny})),
        first(op, first_, std::nullopt, first_offsets, rows, {"first", "", "first_offsets"}),
        second(op, second_, second_order, second_offsets, rows, {"second", "second_order", "second_offsets"}),
        groups(groups_ ? offsets_input(op, *groups_, first.targets, "groups") : first.offsets),
        p(input(op, "p", p_, dtype, {first.targets, columns})),
        q(input(op, "q", q_, dtype, {second.targets, columns})),
        row_weight(input(op, "row_weight", row_weight_, dtype, {rows})),
        scale(input(op, "scale", scale_, dtype,
                    {!scale_.numel() ? 0
                     : width == kAny ? inputs
                                     : width})),
        grouped(groups_.has_value()),
        activation(activation_of(op, activation_)),
        threshold(threshold_),
        matmul(matmul_of(op, matmul_)),
        of_weights(of_weights_) {
    if (kept > columns)
      fail(op, "argument `weight` has ", columns, " columns, expected the ", kept, " that are kept or more");
    if (grouped && second.targets != first.targets)
      fail(op, "argument `second_offsets` is of ", second.targets, ", and there are groups of ",
           first.targets);
    if (!op.on_cpu()) return;
    refuse_tf32(op, matmul);
    check_rows(op);
  }

  int64_t sent() const { return columns - kept; }
  Tensor of_sent(const Op& op, const char* name, const Tensor& t) const {
    return input(op, name, t, dtype, {first.targets, sent()});
  }
  Tensor of_kept(const Op& op, const char* name, const Tensor& t) const {
    return input(op, name, t, dtype, {rows, kept});
  }

  template <class T>
  MessageArgs<T> args() const {
    MessageArgs<T> a{};
    a.rows = rows, a.inputs = inputs, a.sent = sent(), a.kept = kept;
    a.firsts = first.targets, a.seconds = second.targets;
    a.activation = activation, a.threshold = static_cast<T>(threshold);
    a.parts = matmul == Matmul::tf32 || matmul == Matmul::bf16 ? 1 : 2;
    a.first = data_of(first.index);
    a.first_offsets = data_of(first.offsets);
    a.second = data_of(second.index), a.second_order = second.order_data();
    a.second_offsets = data_of(second.offsets);
    if (grouped) {
      a.groups = groups.size(0) - 1;
      a.group_offsets = data_of(groups);
    }
    a.x = data_of(x), a.weight = data_of(weight);
    a.p = data_of(p), a.q = data_of(q);
    a.row_weight = data_of(row_weight), a.scale = data_of(scale);
    return a;
  }

 private:
  // That rows of no first have no second, and that those of a group are of all pairs of its first things.
  void check_rows(const Op& op) const {
    const int32_t* second_of = second.index.const_data_ptr<int32_t>();
    const int32_t* begin = first.offsets.const_data_ptr<int32_t>();
    for (int64_t r = begin[first.targets]; r < rows; ++r)
      if (second_of[r] >= 0) fail(op, "row ", r, " has a second and no first");
    if (!grouped) return;
    const int32_t* group = groups.const_data_ptr<int32_t>();
    const int64_t count = groups.size(0) - 1;
    parallel(count, 256, [&](int64_t from, int64_t to) {
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
    if (begin[first.targets] != begin[group[count]])
      fail(op, "argument `groups` ends at first ", group[count], ", and there are rows behind it");
  }
};

// Of the gradients.
struct MessageGradientInputs : MessageInputs {
  using Given = Listed<MessageInputs::Given, bool>;
  using MessageInputs::MessageInputs;
};
// Of their gradients, which have float32's products.
struct MessageSecondInputs : MessageInputs {
  using Given = Exact;
  using MessageInputs::MessageInputs;
};

// Rows that are a number times a vector.
struct OuterInputs {
  Tensor number, vector, weight;

  OuterInputs(const Op& op, const Tensor& number_, const Tensor& vector_, const Tensor& weight_)
      : number(float_input(op, "number", number_, {kAny, 1})),
        vector(input(op, "vector", vector_, number.scalar_type(), {1, kAny})),
        weight(input(op, "weight", weight_, number.scalar_type(), {vector.size(1), kAny})) {}

  int64_t width() const { return vector.size(1); }
};

// Frames of rows, and what is taken of these.
struct FramedInputs {
  Tensor frame;
  RowIndex taken;
  int64_t width;

  FramedInputs(const Op& op, const MessageInputs& in, const Tensor& frame_, const Tensor& taken_,
               const Tensor& offsets, int64_t width_)
      : frame(input(op, "frame", frame_, in.dtype, {in.rows, 3})),
        taken(op, taken_, std::nullopt, offsets, taken_.dim() == 1 ? taken_.size(0) : 0,
              {"taken", "", "taken_offsets"}),
        width(width_) {
    if (width < 0 || width > in.inputs)
      fail(op, "argument `width` is ", width, ", and rows have ", in.inputs, " numbers");
    check_nodes(op, "x", in.x, taken);
  }

  template <class T>
  MessageFrames<T> args() const {
    MessageFrames<T> a{};
    a.wanted = true, a.frame = data_of(frame), a.count = taken.rows, a.width = width;
    a.taken = data_of(taken.index), a.taken_offsets = data_of(taken.offsets);
    return a;
  }
};

template <class Device>
struct MessageOps {
  using Call = typename Device::Call;

  // Of `outer_message` and of its gradients.
  struct Outer {
    static constexpr const char* kFirst = "number";
    using Given = Listed<const Tensor&, MessageInputs::Given>;

    OuterInputs of;
    MessageInputs in;

    template <class... Rest>
    Outer(const Call& op, const Tensor& number, const Tensor& vector, const Tensor& weight,
          const Rest&... rest)
        : of(op, number, Device::placed(vector), weight),
          in(op, of.number, message_product(op, ProductForm::plain, of.vector, of.weight), rest..., false,
             of.width()) {
      place(in);
    }
  };

  // Of `framed_message` and of its gradients.
  struct Framed {
    static constexpr const char* kFirst = "x";
    using Given = Listed<Times<10, const Tensor&>, MessageInputs::Optional, Times<3, const Tensor&>,
                         Times<2, int64_t>, double, std::string>;

    MessageInputs in;
    FramedInputs of;

    Framed(const Op& op, const Tensor& x, const Tensor& weight, const Tensor& p, const Tensor& q,
           const Tensor& row_weight, const Tensor& scale, const Tensor& frame, const Tensor& first,
           const Tensor& first_offsets, const Tensor& second, MessageInputs::Optional second_order,
           const Tensor& second_offsets, const Tensor& taken, const Tensor& taken_offsets, int64_t width,
           int64_t activation, double threshold, const std::string& matmul)
        : in(op, x, weight, p, q, row_weight, scale, first, first_offsets, second, second_order,
             second_offsets, std::nullopt, activation, threshold, matmul),
          of(op, in, frame, taken, taken_offsets, width) {
      place(in);
    }
  };

  static Outputs<2> message(const Call& op, const MessageInputs& in) {
    Tensor sent = empty(op, {in.first.targets, in.sent()}, in.dtype);
    Tensor kept = message_rows(op, {in.rows, in.kept}, in.dtype);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      auto args = in.args<T>();
      args.to_sent = data_of(sent), args.to_kept = data_of(kept);
      run_message(op, args);
    });
    return {sent, kept};
  }

  // The gradients by x, weight, p, q, row_weight and scale; those by weight and scale are empty unless asked
  // for.
  static Outputs<6> message_backward(const Call& op, const MessageGradientInputs& in, const Tensor& grad_sent,
                                     const Tensor& grad_kept) {
    const Tensor of_sent = in.of_sent(op, "grad_sent", grad_sent);
    const Tensor of_kept = in.of_kept(op, "grad_kept", grad_kept);
    Gradients by(op, in, in.of_weights);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      auto args = in.args<T>();
      args.grad_sent = data_of(of_sent), args.grad_kept = data_of(of_kept);
      by.write_to(args, in.of_weights);
      run_message(op, args);
    });
    return {by.x, by.weight, by.p, by.q, by.row_weight, by.scale};
  }

  // The gradients by grad_sent, grad_kept, and by those of `message_backward` without weights.
  static Outputs<8> message_backward_backward(const Call& op, const MessageSecondInputs& in,
                                              const Tensor& along_x_, const Tensor& along_p_,
                                              const Tensor& along_q_, const Tensor& along_row_weight_,
                                              const Tensor& grad_sent, const Tensor& grad_kept) {
    const Tensor of_sent = in.of_sent(op, "grad_sent", grad_sent);
    const Tensor of_kept = in.of_kept(op, "grad_kept", grad_kept);
    const Tensor along_x = input(op, "along_x", along_x_, in.dtype, {in.rows, in.inputs});
    const Tensor along_p = input(op, "along_p", along_p_, in.dtype, {in.first.targets, in.columns});
    const Tensor along_q = input(op, "along_q", along_q_, in.dtype, {in.second.targets, in.columns});
    const Tensor along_row_weight = input(op, "along_row_weight", along_row_weight_, in.dtype, {in.rows});
    Tensor sent = empty(op, {in.first.targets, in.sent()}, in.dtype);
    Tensor kept = message_rows(op, {in.rows, in.kept}, in.dtype);
    Gradients by(op, in, true);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      auto args = in.args<T>();
      args.grad_sent = data_of(of_sent), args.grad_kept = data_of(of_kept);
      args.along_x = data_of(along_x), args.along_p = data_of(along_p);
      args.along_q = data_of(along_q);
      args.along_row_weight = data_of(along_row_weight);
      args.to_sent = data_of(sent), args.to_kept = data_of(kept);
      by.write_to(args, true);
      run_message(op, args);
    });
    return {sent, kept, by.x, by.weight, by.p, by.q, by.row_weight, by.scale};
  }

  static Outputs<4> framed_message(const Call& op, const Framed& given) {
    const MessageInputs& in = given.in;
    const FramedInputs& of = given.of;
    Tensor sent = empty(op, {in.first.targets, in.sent()}, in.dtype);
    Tensor kept = message_rows(op, {in.rows, in.kept}, in.dtype);
    Tensor moments = empty(op, {in.first.targets, 3, in.inputs}, in.dtype);
    Tensor rows = empty(op, {of.taken.rows, of.width}, in.dtype);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      auto args = in.args<T>();
      args.to_sent = data_of(sent), args.to_kept = data_of(kept);
      const MessageFrames<T> frames = of.args<T>();
      run_message(op, args);
      message_moments(op, moment_args(args, frames), moments.mutable_data_ptr<T>());
      message_taken(op, GatherArgs<T>{args.x, frames.taken, nullptr, frames.count, in.rows, frames.width,
                                      in.inputs, data_of(rows)});
    });
    return {sent, kept, moments, rows};
  }

  // The gradients by x, p, q, row_weight and frame.
  static Outputs<5> framed_message_backward(const Call& op, const Framed& given, const Tensor& grad_sent,
                                            const Tensor& grad_kept, const Tensor& grad_moments,
                                            const Tensor& grad_rows) {
    const MessageInputs& in = given.in;
    const FramedInputs& of = given.of;
    const Tensor of_sent = Device::placed(in.of_sent(op, "grad_sent", grad_sent));
    const Tensor of_kept = Device::placed(in.of_kept(op, "grad_kept", grad_kept));
    const Tensor of_moments =
        Device::placed(input(op, "grad_moments", grad_moments, in.dtype, {in.first.targets, 3, in.inputs}));
    const Tensor of_rows =
        Device::placed(input(op, "grad_rows", grad_rows, in.dtype, {of.taken.rows, of.width}));
    Gradients by(op, in, false);
    Tensor by_frame = empty(op, {in.rows, 3}, in.dtype);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      auto args = in.args<T>();
      args.grad_sent = data_of(of_sent), args.grad_kept = data_of(of_kept);
      by.write_to(args, false);
      MessageFrames<T> frames = of.args<T>();
      frames.grad_moments = data_of(of_moments), frames.grad_taken = data_of(of_rows);
      frames.by_frame = data_of(by_frame);
      if (takes(op, args, frames)) return run_message(op, args);
      const Tensor own = message_rows(op, {in.rows, in.inputs}, in.dtype),
                   of_frames = message_rows(op, {in.rows, in.inputs}, in.dtype);
      T *const by_x = args.by_x, *const by_frames = data_of(of_frames);
      args.by_x = data_of(own);
      run_message(op, args);
      message_moment_gradients(op, moment_args(args, frames), frames.grad_moments, frames.by_frame,
                               by_frames);
      message_sums(
          op, ScatterArgs<T>{frames.grad_taken, frames.taken, nullptr, frames.taken_offsets, frames.count,
                             in.rows, frames.width, in.inputs, by_x, data_of(own), by_frames, in.inputs});
    });
    return {by.x, by.p, by.q, by.row_weight, by_frame};
  }

  static Outputs<2> outer_message(const Call& op, const Outer& given) {
    const MessageInputs& in = given.in;
    const OuterInputs& of = given.of;
    Tensor sent = empty(op, {in.first.targets, in.sent()}, in.dtype);
    Tensor kept = message_rows(op, {in.rows, in.kept}, in.dtype);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      auto args = in.args<T>();
      args.to_sent = data_of(sent), args.to_kept = data_of(kept);
      if (takes(op, args, of)) return run_message(op, args);
      const Tensor rows = message_product(op, ProductForm::plain, of.number, of.vector);
      args.x = data_of(rows);
      run_message(op, args);
    });
    return {sent, kept};
  }

  // The gradients by number, p, q and row_weight.
  static Outputs<4> outer_message_backward(const Call& op, const Outer& given, const Tensor& grad_sent,
                                           const Tensor& grad_kept) {
    const MessageInputs& in = given.in;
    const OuterInputs& of = given.of;
    const Tensor of_sent = Device::placed(in.of_sent(op, "grad_sent", grad_sent));
    const Tensor of_kept = Device::placed(in.of_kept(op, "grad_kept", grad_kept));
    Gradients by(op, in, false);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      auto args = in.args<T>();
      args.grad_sent = data_of(of_sent), args.grad_kept = data_of(of_kept);
      by.write_to(args, false);
      args.outer.by_number = std::exchange(args.by_x, nullptr);
      if (takes(op, args, of)) return run_message(op, args);
      const Tensor rows = message_product(op, ProductForm::plain, of.number, of.vector);
      Tensor by_rows = message_rows(op, {in.rows, of.width()}, in.dtype);
      args.x = data_of(rows), args.by_x = data_of(by_rows);
      run_message(op, args);
      by.x = message_product(op, ProductForm::b_transposed, by_rows, of.vector);
    });
    return {by.x, by.p, by.q, by.row_weight};
  }

  MDOPS_IMPLEMENT(MessageOps, message, message_backward, message_backward_backward, framed_message,
                  framed_message_backward, outer_message, outer_message_backward)

 private:
  // Where the kernels that take frames read them, so that bits do not depend on where memory begins.
  static void place(MessageInputs& in) {
    for (Tensor* tensor : {&in.x, &in.weight, &in.p, &in.q, &in.scale}) *tensor = Device::placed(*tensor);
  }
  // Whether the message's kernels have the frames, too, which they then get.
  template <class Call, class T>
  static bool takes(const Call& op, MessageArgs<T>& args, const MessageFrames<T>& frames) {
    args.frames = frames;
    const bool they_do = message_takes_frames(op, args);
    if (!they_do) args.frames = {};
    return they_do;
  }
  // Whether the message's kernels have rows that are a number times a vector, which they then get; else what
  // they need for whole rows.
  template <class Call, class T>
  static bool takes(const Call& op, MessageArgs<T>& args, const OuterInputs& of) {
    args.inputs = of.width(), args.x = nullptr;
    args.outer.number = data_of(of.number), args.outer.vector = data_of(of.vector);
    const bool they_do = message_takes_outer(op, args);
    if (!they_do) args.outer = {}, args.weight = data_of(of.weight);
    return they_do;
  }
  template <class T>
  static RowMomentArgs<T> moment_args(const MessageArgs<T>& args, const MessageFrames<T>& frames) {
    return {frames.frame, args.x, args.first_offsets, args.rows, args.inputs, args.firsts, false, 3};
  }

  struct Gradients {
    Tensor x, weight, p, q, row_weight, scale;

    template <class O>
    Gradients(const O& op, const MessageInputs& in, bool of_weights)
        : x(message_rows(op, {in.rows, in.inputs}, in.dtype)),
          weight(empty(op, {of_weights ? in.inputs : 0, of_weights ? in.columns : 0}, in.dtype)),
          p(empty(op, {in.first.targets, in.columns}, in.dtype)),
          q(empty(op, {in.second.targets, in.columns}, in.dtype)),
          row_weight(empty(op, {in.rows}, in.dtype)),
          scale(empty(op, {of_weights ? in.kept : 0}, in.dtype)) {}

    template <class T>
    void write_to(MessageArgs<T>& args, bool of_weights) {
      args.by_x = data_of(x), args.by_p = data_of(p);
      args.by_q = data_of(q), args.by_row_weight = data_of(row_weight);
      if (!of_weights) return;
      args.by_weight = data_of(weight), args.by_scale = data_of(scale);
    }
  };
};

}  // namespace mdops
