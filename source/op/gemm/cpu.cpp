#include <algorithm>
#include <atomic>

#include "common/large_results.h"
#include "common/scratch.h"
#include "gemm/bf16_pack.h"
#include "gemm/ops.h"

namespace mdops {

namespace {

// Blocks of rows that threads take dynamically: for work whose results do not depend on where a block begins,
// nor on its thread: sums over rows have fixed shares. Threads are never equally fast, due to other processes
// or the thread that shares a core, and with equal shares all wait for the slowest.
//
// A block is a thread's share of the remaining rows, so that the last ones are small, but at most `most`
// rows; if no thread needs a second block, all are equal.
class RowBlocks {
 public:
  RowBlocks(int64_t rows, int64_t threads, int64_t most)
      : rows_(rows), threads_(threads), most_(most), least_(rows <= threads * most ? part_of(rows) : kTile) {}

  // The next block, [from, to); false if none is left.
  bool next(int64_t* from, int64_t* to) {
    int64_t first = next_.load(std::memory_order_relaxed), end;
    do {
      if (first >= rows_) return false;
      end = std::min(rows_, first + std::max(least_, std::min(most_, part_of(rows_ - first))));
    } while (!next_.compare_exchange_weak(first, end, std::memory_order_relaxed));
    *from = first, *to = end;
    return true;
  }

 private:
  static constexpr int64_t kTile = 16;  // rows that any kernel processes at once

  int64_t part_of(int64_t rows) const {
    const int64_t part = (rows + threads_ - 1) / threads_;
    return (part + kTile - 1) / kTile * kTile;
  }

  const int64_t rows_, threads_, most_, least_;
  std::atomic<int64_t> next_{0};
};

struct MlpScratch;
struct PackedMemory;

// The layers in memory, with zeros and ones for absent biases and timesteps.
template <class T>
struct MlpLayers {
  std::vector<T> zeros, ones;
  std::optional<ScratchMemory<PackedMemory>> packed;
  Bf16Net bf16{};
  MlpArgs<T> args{};

  MlpLayers(const Op& op, const MlpInputs& in) {
    const int64_t widest = *std::max_element(in.shape.neurons, in.shape.neurons + in.shape.layers);
    zeros.assign(widest, T(0)), ones.assign(widest, T(1));
    args.shape = in.shape;
    args.x = data_of(in.x);
    for (int n = 0; n < in.shape.layers; ++n) {
      const Tensor &bias = in.biases[n], &timestep = in.timesteps[n];
      args.timed[n] = in.has_timestep(n);
      args.layers[n] = {data_of(in.weights[n]), bias.numel() ? bias.const_data_ptr<T>() : zeros.data(),
                        timestep.numel() ? timestep.const_data_ptr<T>() : ones.data()};
    }
    if (const int parts = bf16_parts(in.matmul, kDtype<T>)) pack(op, parts);
  }

 private:
  void pack(const Op& op, int parts) {
    const auto groups = [&](const auto& work) {
      const int64_t features = args.shape.features;
      for (int64_t from = 0; from < features; from += kMlpGroup)
        work(std::min(kMlpGroup, features - from), args.layers[0].weight + from * args.shape.neurons[0]);
    };
    const int64_t size = Bf16Layout<T>(args.shape, args.layers, parts, groups, nullptr, &bf16).size;
    packed.emplace(op, size * sizeof(uint16_t));
    const Bf16Layout<T> layout(args.shape, args.layers, parts, groups, static_cast<uint16_t*>(packed->data()),
                               &bf16);
    constexpr int64_t grain = 16;
    parallel(layout.tiles(), grain, [&](int64_t begin, int64_t end) { layout.pack(begin, end, parts); });
    args.bf16 = &bf16;
  }
};

// A row's results do not depend on its thread. For sums over rows, every thread has an equal share, so that
// they depend only on the number of threads.
template <class T>
void run(const Op& op, const MlpInputs& in, MlpTask<T> task, MlpGradients* grads) {
  const MlpLayers<T> layers(op, in);
  const MlpArgs<T>& args = layers.args;
  task.past_caches = in.rows * args.shape.features * static_cast<int64_t>(sizeof(T)) >= kLargeArray;
  const int64_t threads =
      std::min<int64_t>(torch::stable::get_num_threads(), std::max<int64_t>(1, in.rows / 16));
  RowBlocks blocks(in.rows, threads, args.rows_at_once());
  std::vector<std::vector<T>> sums(grads ? threads : 0);
  parallel(threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t thread = begin; thread < end; ++thread) {
      MlpTask<T> own = task;
      if (grads) {
        sums[thread].assign(MlpSums(args).size, T(0));
        own.sums = sums[thread].data();
      }
      const ScratchMemory<MlpScratch> memory(op, MDOPS_RUN(mlp_scratch_size, args, own) * sizeof(T));
      T* const scratch = static_cast<T*>(memory.data());
      int64_t from = in.rows * thread / threads, to = in.rows * (thread + 1) / threads;
      if (grads) {
        MDOPS_RUN(mlp_rows, args, own, from, to, scratch);
        continue;
      }
      while (blocks.next(&from, &to)) MDOPS_RUN(mlp_rows, args, own, from, to, scratch);
    }
  });
  if (!grads) return;
  std::vector<T*> parts;
  for (std::vector<T>& part : sums) parts.push_back(part.data());
  constexpr int64_t unit = 64;  // rows of a matrix
  for (int n = 0; n < in.shape.layers; ++n) {
    const auto pointer = [](Tensor& tensor) {
      return tensor.numel() ? tensor.template mutable_data_ptr<T>() : nullptr;
    };
    const MlpLayerGradients<T> out{pointer(grads->weights[n]), pointer(grads->biases[n]),
                                   pointer(grads->timesteps[n])};
    const int64_t rows = args.inputs(n);
    parallel((rows + unit - 1) / unit, 1, [&](int64_t begin, int64_t end) {
      MDOPS_RUN(mlp_collect, args, n, begin * unit, std::min(end * unit, rows), parts.data(), threads, out);
    });
  }
}

// The results are rows of the inputs' dtype.
Tensor rows_of(const Op& op, const MlpInputs& in, int64_t columns) {
  return empty_result(op, {in.rows, columns}, in.dtype);
}

// Which of bf16.h's kernels are used.
std::string cpu_bf16() {
  return bf16_units() ? bf16_units()->name : "";
}

}  // namespace

static Tensor mlp_values(const Op& op, const MlpInputs& in) {
  Tensor value = rows_of(op, in, in.outputs);
  dispatch_float(op, in.dtype, [&]<class T>(T) {
    MlpTask<T> task{};
    task.value = data_of(value);
    run(op, in, task, nullptr);
  });
  return value;
}

static Outputs<2> mlp_values_and_gradients(const Op& op, const MlpInputs& in) {
  Tensor value = rows_of(op, in, in.outputs), gradient = rows_of(op, in, in.shape.features);
  dispatch_float(op, in.dtype, [&]<class T>(T) {
    MlpTask<T> task{};
    task.value = data_of(value), task.grad_x = data_of(gradient);
    task.of_first_output = true;
    run(op, in, task, nullptr);
  });
  return {value, gradient};
}

static Tensor mlp_gradients(const Op& op, const MlpInputs& in, Input a, bool with_weights,
                            MlpGradients& grads) {
  Tensor grad_x = rows_of(op, in, in.shape.features);
  dispatch_float(op, in.dtype, [&]<class T>(T) {
    MlpTask<T> task{};
    task.a = data_of(a), task.grad_x = data_of(grad_x);
    run(op, in, task, with_weights ? &grads : nullptr);
  });
  return grad_x;
}

static Outputs<2> mlp_seconds(const Op& op, const MlpInputs& in, Input u, Input b, Input a, bool with_weights,
                              MlpGradients& grads) {
  Tensor tangent = rows_of(op, in, in.outputs), grad_x = rows_of(op, in, in.shape.features);
  dispatch_float(op, in.dtype, [&]<class T>(T) {
    MlpTask<T> task{};
    task.direction = data_of(u), task.b = data_of(b);
    task.a = data_of(a);
    task.tangent = data_of(tangent), task.grad_x = data_of(grad_x);
    run(op, in, task, with_weights ? &grads : nullptr);
  });
  return {tangent, grad_x};
}

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CompositeExplicitAutograd, m) {
  m.impl("cpu_bf16", TORCH_BOX(&mdops::cpu_bf16));
}

MDOPS_ON_CPU(MlpOps)
