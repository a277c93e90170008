#include <algorithm>

#include "common/cuda.h"
#include "common/gpu_divide.h"
#include "rowwise/gpu_add_norm.h"
#include "rowwise/gpu_normalize.h"
#include "rowwise/ops.h"

namespace mdops {

namespace {

constexpr int kThreads = 256;

// A thread a number.
template <class T, Activation kind>
__global__ void __launch_bounds__(kThreads) layer_output_kernel(LayerOutputArgs<T> args) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= args.rows * args.columns) return;
  const int64_t n = divided(at, args.columns).whole;
  if constexpr (kind == Activation::silut) {
    // The usual case, without the other half.
    if (args.z[at] < args.threshold)
      return layer_output<Activation::silu>(args, n * args.columns, n * args.inputs, at - n * args.columns);
  }
  layer_output<kind>(args, n * args.columns, n * args.inputs, at - n * args.columns);
}

template <class Curve>
__global__ void __launch_bounds__(kThreads) curve_kernel(Curve args) {
  const int64_t k = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (k < args.count) args.run(k);
}

template <class T, gpu_normalize::Pass pass>
void normalize_in_pass(const CudaOp& op, const NormalizeArgs<T>& args) {
  using namespace gpu_normalize;
  with_vector<T>(args.width, [&]<int size>() {
    op.launch(normalize_kernel<T, pass, size>, blocks_for(args.rows, kWarps), kWarps * kWarp, 0, args);
  });
}

void with_norm_width(const CudaOp& op, int64_t width, const auto& f) {
  using gpu_add_norm::kWidestNorm;
  if (width <= 4 * kWarp) return f.template operator()<4>();
  if (width <= kWidestNorm) return f.template operator()<kWidestNorm / kWarp>();
  fail(op, "argument `x` has ", width, " columns, expected at most ", kWidestNorm, " on a GPU");
}

}  // namespace

template <class T>
static void run_normalize(const CudaOp& op, const NormalizeArgs<T>& args) {
  using gpu_normalize::Pass;
  if (args.direction)
    normalize_in_pass<T, Pass::second>(op, args);
  else if (args.grad[0])
    normalize_in_pass<T, Pass::backward>(op, args);
  else
    normalize_in_pass<T, Pass::forward>(op, args);
}

// One at least, which writes zeros if there are no rows.
static int64_t norm_runs(const CudaOp& op, int64_t rows) {
  constexpr int each = 4;  // of a multiprocessor, at most
  return std::clamp<int64_t>(blocks_for(rows, gpu_add_norm::kWarps), 1, each * op.limits().multiprocessors);
}

template <class T>
static void run_add_norm(const CudaOp& op, const AddNormArgs<T>& args, const NormSums<T>& sums) {
  using namespace gpu_add_norm;
  const int64_t columns = args.sums * args.width, blocks = norm_runs(op, args.rows);
  bool is_done = false;
  if constexpr (std::is_same_v<T, float>) is_done = run_narrow_norm(op, blocks, args);
  if (!is_done)
    with_norm_width(op, args.width, [&]<int N>() {
      op.launch(add_norm_kernel<T, N>, blocks, gpu_add_norm::kThreads,
                kWarps * columns * static_cast<int64_t>(sizeof(T)), args);
    });
  op.launch(add_runs_kernel<T>, blocks_for(columns, kWarps), gpu_add_norm::kThreads, 0, args.partial, blocks,
            columns, args.width, sums.first, sums.second);
}

template <class T>
static void run_layer_output(const CudaOp& op, const LayerOutputArgs<T>& args) {
  with_activation(args.activation, [&]<Activation kind>() {
    op.launch_for(args.rows * args.columns, kThreads, layer_output_kernel<T, kind>, args);
  });
}

template <class Curve>
static void run_curve(const CudaOp& op, const Curve& args) {
  op.launch_for(args.count, kThreads, curve_kernel<Curve>, args);
}

}  // namespace mdops

MDOPS_ON_GPU(NormalizeOps, AddNormOps, LayerOutputOps, CurveOps)
