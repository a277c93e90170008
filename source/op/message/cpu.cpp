#include <algorithm>

#include "common/large_results.h"
#include "common/scratch.h"
#include "graph/rows.h"
#include "linear/ops.h"
#include "message/ops.h"

namespace mdops {

namespace {

constexpr int64_t kMessageShare = 512, kMessageShares = 128;

// The shares of rows do not depend on the number of threads, so that sums over all have the same bits.
template <class T>
class Shares {
 public:
  explicit Shares(const MessageArgs<T>& args) : args_(args), rows_(args.first_offsets[args.firsts]) {}

  int64_t count() const { return count_; }

  // The first index of a share, which begins a group.
  int64_t begin(int64_t share) const {
    if (share == 0 || share == count_) return share ? args_.firsts : 0;
    const int64_t row = rows_ * share / count_, units = args_.group_offsets ? args_.groups : args_.firsts;
    int64_t low = 0, high = units;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (args_.first_offsets[first_of(middle)] < row)
        low = middle + 1;
      else
        high = middle;
    }
    return low < units ? first_of(low) : args_.firsts;
  }

 private:
  int64_t first_of(int64_t unit) const { return args_.group_offsets ? args_.group_offsets[unit] : unit; }

  const MessageArgs<T>& args_;
  const int64_t rows_, count_ = std::clamp<int64_t>(rows_ / kMessageShare, 1, kMessageShares);
};

// Rows after those of the last first index.
template <class T>
void finish_rows(const MessageArgs<T>& args) {
  const int64_t begin = args.first_offsets[args.firsts], end = args.rows;
  const T* kept = args.along_x ? args.along_x : args.x;
  if (args.to_kept)
    std::copy(kept + begin * args.kept, kept + end * args.kept, args.to_kept + begin * args.kept);
  if (!args.by_x) return;
  std::fill(args.by_row_weight + begin, args.by_row_weight + end, T(0));
  T* by_x = args.by_x + begin * args.inputs;
  if (args.kept && !args.along_x)
    std::copy(args.grad_kept + begin * args.kept, args.grad_kept + end * args.kept, by_x);
  else
    std::fill(by_x, args.by_x + end * args.inputs, T(0));
}

template <class T>
void sum_by_q(const MessageArgs<T>& args) {
  const int64_t width = args.columns();
  const ScatterArgs<T> sum{
      args.by_z, args.second, args.second_order, args.second_offsets, args.rows, args.seconds,
      width,     width,       args.by_q};
  parallel(args.seconds, 16, [&](int64_t begin, int64_t end) { MDOPS_RUN(scatter_rows, sum, begin, end); });
}

}  // namespace

template <class T>
static void run_message(const Op& op, MessageArgs<T> args) {
  struct Use;
  const MessageSizes sizes = MDOPS_RUN(message_sizes, args);
  const Shares<T> shares(args);
  Tensor packed = empty(op, {sizes.packed}, ScalarType::Byte);
  Tensor sums = empty(op, {args.by_weight ? shares.count() * sizes.sums : 0}, kDtype<T>);
  Tensor by_z =
      empty_result(op, {args.by_q && !args.group_offsets ? args.rows * args.columns() : 0}, kDtype<T>);
  args.by_z = by_z.numel() ? by_z.mutable_data_ptr<T>() : nullptr;
  T* const sums_of = args.by_weight ? sums.mutable_data_ptr<T>() : nullptr;
  MDOPS_RUN(message_pack, args, packed.mutable_data_ptr());
  parallel(shares.count(), 1, [&](int64_t begin, int64_t end) {
    const ScratchMemory<Use> memory(op, sizes.scratch);
    for (int64_t k = begin; k < end; ++k)
      MDOPS_RUN(message_rows, args, shares.begin(k), shares.begin(k + 1), packed.const_data_ptr(),
                memory.data(), sums_of ? sums_of + k * sizes.sums : nullptr);
  });
  finish_rows(args);
  if (sums_of) MDOPS_RUN(message_weights, args, sums_of, shares.count());
  if (args.by_q && !args.group_offsets) sum_by_q(args);
}

template <class T>
static bool message_takes_frames(const Op&, const MessageArgs<T>&) {
  return false;
}

template <class T>
static bool message_takes_outer(const Op&, const MessageArgs<T>&) {
  return false;
}

static Tensor message_product(const Op&, ProductForm form, Input a, Input b) {
  return product_by_pytorch(form, on_a_line(a), on_a_line(b), nullptr);
}

MDOPS_IN_PIECES(message_moments, RowMomentArgs, row_moments, args.atoms, 16)

template <class T>
static void message_moment_gradients(const Op&, const RowMomentArgs<T>& args, const T* grad, T* by_frame,
                                     T* by_x) {
  parallel(args.atoms, 16, [&](int64_t begin, int64_t end) {
    MDOPS_RUN(row_moment_gradients, args, grad, begin, end, by_frame, by_x);
  });
  const int64_t last = args.offsets[args.atoms];
  std::fill(by_frame + last * args.components, by_frame + args.rows * args.components, T(0));
  std::fill(by_x + last * args.channels, by_x + args.rows * args.channels, T(0));
}

MDOPS_IN_PIECES(message_sums, ScatterArgs, scatter_rows, args.targets, 1024)
MDOPS_IN_PIECES(message_taken, GatherArgs, gather_rows, args.rows, 1024)

}  // namespace mdops

MDOPS_ON_CPU(MessageOps, FramedMessageOps, OuterMessageOps)
