#include "common/cuda.h"
#include "linear/cuda_call.h"
#include "linear/ops.h"
#include "message/gpu_run.h"
#include "message/ops.h"
#include "neighbor_rows/gpu_loops.h"

namespace mdops {

namespace {

constexpr int kSumThreads = 256;

// a, or a + b.
template <class T>
__global__ void __launch_bounds__(kSumThreads) add_kernel(int64_t count, const T* a, const T* b, T* to) {
  const int64_t k = static_cast<int64_t>(blockIdx.x) * kSumThreads + threadIdx.x;
  if (k < count) to[k] = b ? a[k] + b[k] : a[k];
}

template <class T>
class MessageCall {
 public:
  MessageCall(const CudaOp& op, const MessageArgs<T>& args)
      : op_(op),
        args_(args),
        pass_(gpu_message::pass_of(args)),
        is_plain_(gpu_message::goes_plain(op, args)),
        by_z_(is_plain_ ? from_inputs(args.x) : rows_of(needs_by_z(), args.columns())),
        dz_(is_second() && is_plain_ ? from_inputs(args.along_x)
                                     : rows_of(is_second() && args.by_weight, args.columns())),
        of_scales_(rows_of(args.by_scale != nullptr, args.kept)) {
    args_.by_z = data(by_z_);
  }

  void run() {
    gpu_message::run(op_, args_, {data(dz_), data(of_scales_)});
    if (is_plain_ && pass_ != gpu_message::Pass::forward) {
      const Tensor found = layer_product(op_, ProductForm::b_transposed, by_z_, weight());
      write(found, is_second() || !args_.kept ? nullptr : args_.grad_kept, args_.by_x);
    }
    if (!args_.by_weight) return;
    // x^T by z; or x^T h + u_x^T dz.
    const Tensor first = product(args_.x, by_z_),
                 second = args_.along_x ? product(args_.along_x, dz_) : first;
    write(first, args_.along_x ? second.const_data_ptr<T>() : nullptr, args_.by_weight);
    if (args_.kept) write(column_sums(of_scales_), nullptr, args_.by_scale);
  }

 private:
  bool is_second() const { return pass_ == gpu_message::Pass::second; }
  bool needs_by_z() const {
    if (pass_ == gpu_message::Pass::forward) return false;
    return args_.by_weight || !gpu_message::goes_in_groups(op_, args_);
  }
  Tensor rows_of(bool wanted, int64_t columns) const {
    return empty(op_, {wanted ? args_.rows : 0, columns}, kDtype<T>);
  }
  static T* data(Input tensor) {
    return tensor.numel() ? const_cast<T*>(tensor.const_data_ptr<T>()) : nullptr;
  }

  // An argument as a tensor.
  Tensor matrix(const T* values, int64_t rows, int64_t columns) const {
    const int64_t sizes[] = {rows, columns}, strides[] = {columns, 1};
    const Tensor like = empty(op_, {0}, kDtype<T>);
    return torch::stable::from_blob(const_cast<T*>(values), {sizes, 2}, {strides, 2}, like.device(),
                                    kDtype<T>);
  }
  Tensor weight() const { return matrix(args_.weight, args_.inputs, args_.columns()); }
  // x W, of the argument x or its tangent.
  Tensor from_inputs(const T* x) const {
    if (args_.inputs)
      return layer_product(op_, ProductForm::plain, matrix(x, args_.rows, args_.inputs), weight());
    Tensor nothing = rows_of(true, args_.columns());
    op_.clear(data(nothing), nothing.numel() * sizeof(T));
    return nothing;
  }
  // x^T values, of an argument x.
  Tensor product(const T* x, Input values) const {
    return layer_product(op_, ProductForm::a_transposed, matrix(x, args_.rows, args_.inputs), values);
  }
  void write(Input a, const T* b, T* to) const {
    op_.launch_for(a.numel(), kSumThreads, add_kernel<T>, a.numel(), a.const_data_ptr<T>(), b, to);
  }

  const CudaOp& op_;
  MessageArgs<T> args_;
  gpu_message::Pass pass_;
  bool is_plain_;
  Tensor by_z_, dz_, of_scales_;  // computed from the above
};

}  // namespace

template <class T>
static void run_message(const CudaOp& op, const MessageArgs<T>& args) {
  MessageCall<T>(op, args).run();
}

template <class T>
static bool message_takes_frames(const CudaOp& op, const MessageArgs<T>& args) {
  return gpu_message::takes_frames(op, args);
}

template <class T>
static bool message_takes_outer(const CudaOp& op, const MessageArgs<T>& args) {
  return gpu_message::takes_outer(op, args);
}

static Tensor message_product(const CudaOp& op, ProductForm form, Input a, Input b) {
  return layer_product(op, form, a, b);
}

template <class T>
static void message_moments(const CudaOp& op, const RowMomentArgs<T>& args, T* out) {
  run_row_moments(op, args, out);
}

template <class T>
static void message_moment_gradients(const CudaOp& op, const RowMomentArgs<T>& args, const T* grad,
                                     T* by_frame, T* by_x) {
  run_row_moment_gradients(op, args, grad, by_frame, by_x);
}

template <class T>
static void message_sums(const CudaOp& op, const ScatterArgs<T>& args) {
  run_graph(op, args);
}

template <class T>
static void message_taken(const CudaOp& op, const GatherArgs<T>& args) {
  run_graph(op, args);
}

}  // namespace mdops

MDOPS_ON_GPU(MessageOps, FramedMessageOps, OuterMessageOps)
