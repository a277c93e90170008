#include <algorithm>
#include <numeric>

#include "attention/cpu_kernel.h"
#include "attention/ops.h"
#include "common/scratch.h"

namespace mdops {

namespace {

struct AttentionScratch;

// Queries of a job of the forward pass, for long sequences.
constexpr int64_t kJobRows = 128;

// Checks the offsets' values; returns where the sequences begin in a head's bias.
std::vector<int64_t> check_offsets(const Op& op, const AttentionInputs& in) {
  const int32_t* offsets = in.offsets.const_data_ptr<int32_t>();
  if (offsets[0] < 0) fail(op, "argument `offsets` begins with ", offsets[0]);
  if (offsets[in.sequences] > in.rows)
    fail(op, "argument `offsets` ends with ", offsets[in.sequences], ", and there are ", in.rows, " rows");
  std::vector<int64_t> bias_begin(in.sequences + 1);
  for (int64_t b = 0; b < in.sequences; ++b) {
    const int64_t length = int64_t{offsets[b + 1]} - offsets[b];
    if (length < 0) fail(op, "argument `offsets` falls after sequence ", b);
    if (length > in.max_length)
      fail(op, "argument `offsets` has a sequence of ", length, " rows, and `max_length` is ", in.max_length);
    bias_begin[b + 1] = bias_begin[b] + length * length;
  }
  if (in.bias && in.bias_size() != bias_begin[in.sequences])
    fail(op, "argument `bias` has ", in.bias_size(), " numbers a head, expected ", bias_begin[in.sequences],
         ", the sum of the sequences' squared lengths");
  return bias_begin;
}

template <class T>
class AttentionRun {
 public:
  AttentionRun(const Op& op, const AttentionInputs& in, AttentionPass pass,
               const AttentionSaved* saved = nullptr, const AttentionDirections* along = nullptr)
      : op_(op), in_(in), pass_(pass), bias_begin_(check_offsets(op, in)) {
    args_.rows = in.rows, args_.heads = in.heads, args_.width = in.width, args_.value_width = in.value_width;
    args_.sequences = in.sequences, args_.gates = in.gates, args_.bias_size = in.bias_size();
    args_.offsets = data_of(in.offsets);
    args_.bias_begin = bias_begin_.data();
    args_.element = in.dtype == ScalarType::BFloat16 ? Element::bfloat16
                    : in.dtype == ScalarType::Half   ? Element::float16
                                                     : Element::same;
    args_.scale = static_cast<T>(in.scale), args_.shift = in.switches ? static_cast<T>(in.shift) : T(0);
    args_.in = {data_of(in.q),    data_of(in.k),    data_of(in.v),
                data_of(in.bias), data_of(in.gate), data_of(in.switches)};
    args_.absent = data_of(in.absent);
    if (saved) {
      args_.grad_out = data_of(saved->grad_out), args_.out = data_of(saved->out);
      args_.logsumexp = data_of(saved->logsumexp);
    }
    if (along)
      args_.direction = {data_of(along->q),    data_of(along->k),    data_of(along->v),
                         data_of(along->bias), data_of(along->gate), data_of(along->switches)};
  }

  // A result like q or v: zero in rows that belong to no sequence.
  Tensor rows(int64_t width) const {
    const std::vector<int64_t> shape{in_.rows, in_.heads, width};
    return covers() ? empty(shape, in_.dtype) : zeros(shape, in_.dtype);
  }
  Tensor logsumexp() const {
    const std::vector<int64_t> shape{in_.rows, in_.heads};
    return covers() ? empty(shape, in_.sums) : zeros(shape, in_.sums);
  }

  void run(const AttentionResults<T>& out) const {
    const std::vector<AttentionJob> jobs = all_jobs();
    if (jobs.empty()) return;
    // Equal parts of the work, which goes with the square of a length, for each thread.
    std::vector<int64_t> cost(jobs.size());
    std::transform(jobs.begin(), jobs.end(), cost.begin(), [&](const AttentionJob& job) {
      return (job.last - job.first + 16) * args_.length(job.sequence);
    });
    std::partial_sum(cost.begin(), cost.end(), cost.begin());
    int64_t longest = 0;
    for (int64_t b = 0; b < in_.sequences; ++b) longest = std::max(longest, args_.length(b));
    const int64_t bytes = MDOPS_RUN(attention_scratch_size, args_, pass_, longest);
    const int64_t threads = std::min<int64_t>(thread_count(), static_cast<int64_t>(jobs.size()));
    const auto place = [&](int64_t thread) {
      return std::upper_bound(cost.begin(), cost.end(), cost.back() * thread / threads) - cost.begin();
    };
    parallel(threads, 1, [&](int64_t begin, int64_t end) {
      const ScratchMemory<AttentionScratch> memory(op_, bytes);
      for (int64_t thread = begin; thread < end; ++thread) {
        const int64_t from = thread ? place(thread) : 0,
                      to = thread + 1 < threads ? place(thread + 1) : jobs.size();
        for (int64_t k = from; k < to; ++k)
          MDOPS_RUN(attention_run, args_, pass_, out, jobs[k], memory.data());
      }
    });
  }

  // The pass with gradients by everything, after those that are given: by bias, gate and switch of size 0
  // where these are absent.
  AttentionGradients gradients(AttentionResults<T> out) const {
    const Tensor q = rows(in_.width), k = rows(in_.width), v = rows(in_.value_width);
    const Tensor bias = in_.bias ? empty({in_.heads, in_.bias_size()}, in_.dtype) : empty({0}, in_.dtype);
    Tensor gate_parts = parts(in_.gates), switch_parts = parts(in_.switches ? 1 : 0);
    out.q = q.mutable_data_ptr(), out.k = k.mutable_data_ptr(), out.v = v.mutable_data_ptr();
    out.bias = in_.bias ? bias.mutable_data_ptr() : nullptr;
    out.gate = in_.gate ? gate_parts.mutable_data_ptr<T>() : nullptr;
    out.switches = in_.switches ? switch_parts.mutable_data_ptr<T>() : nullptr;
    run(out);
    const Tensor gate = in_.gate ? sum(gate_parts, {in_.rows, in_.gates}) : empty({0}, in_.dtype);
    const Tensor switches = in_.switches ? sum(switch_parts, {in_.rows}) : empty({0}, in_.dtype);
    return {q, k, v, bias, gate, switches};
  }

 private:
  bool covers() const { return args_.offsets[0] == 0 && args_.offsets[in_.sequences] == in_.rows; }

  // The gradients of each head by what all heads share.
  Tensor parts(int64_t columns) const {
    const std::vector<int64_t> shape{in_.heads, in_.rows * columns};
    return covers() ? empty(shape, in_.sums) : zeros(shape, in_.sums);
  }
  Tensor sum(Input parts, const std::vector<int64_t>& shape) const {
    Tensor result = empty(shape, in_.dtype);
    const int64_t count = result.numel();
    parallel(count, 1 << 14, [&](int64_t begin, int64_t end) {
      MDOPS_RUN(attention_sum, args_, parts.const_data_ptr<T>(), count, begin, end,
                result.mutable_data_ptr());
    });
    return result;
  }

  std::vector<AttentionJob> all_jobs() const {
    std::vector<AttentionJob> jobs;
    jobs.reserve(in_.sequences * in_.heads);
    for (int64_t b = 0; b < in_.sequences; ++b) {
      const int64_t length = args_.length(b);
      const int64_t most = pass_ == AttentionPass::forward && length >= 2 * kJobRows ? kJobRows : length;
      for (int64_t h = 0; h < in_.heads; ++h)
        for (int64_t first = 0; first < length; first += most)
          jobs.push_back({b, h, first, std::min(first + most, length)});
    }
    return jobs;
  }

  const Op& op_;
  const AttentionInputs& in_;
  AttentionPass pass_;
  std::vector<int64_t> bias_begin_;
  AttentionArgs<T> args_{};
};

// f(T{}) with the type that the kernels compute in.
auto dispatch(const AttentionInputs& in, const auto& f) {
  return in.dtype == ScalarType::Double ? f(double{}) : f(float{});
}

}  // namespace

static Outputs<2> attend(const Op& op, const AttentionInputs& in) {
  return dispatch(in, [&](auto zero) -> Outputs<2> {
    using T = decltype(zero);
    const AttentionRun<T> pass(op, in, AttentionPass::forward);
    const Tensor out = pass.rows(in.value_width);
    Tensor logsumexp = pass.logsumexp();
    AttentionResults<T> results{};
    results.out = out.mutable_data_ptr(), results.logsumexp = data_of(logsumexp);
    pass.run(results);
    return {out, logsumexp};
  });
}

static AttentionGradients attention_gradients(const Op& op, const AttentionInputs& in,
                                              const AttentionSaved& saved) {
  return dispatch(
      in, [&]<class T>(T) { return AttentionRun<T>(op, in, AttentionPass::backward, &saved).gradients({}); });
}

static auto attention_seconds(const Op& op, const AttentionInputs& in, const AttentionSaved& saved,
                              const AttentionDirections& along) {
  return dispatch(in, [&]<class T>(T) {
    const AttentionRun<T> pass(op, in, AttentionPass::backward_backward, &saved, &along);
    const Tensor grad_grad = pass.rows(in.value_width);
    AttentionResults<T> results{};
    results.out = grad_grad.mutable_data_ptr();
    return std::tuple_cat(std::make_tuple(grad_grad), pass.gradients(results));
  });
}

}  // namespace mdops

MDOPS_ON_CPU(AttentionOps)
