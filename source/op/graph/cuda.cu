#include "common/cuda.h"
#include "graph/gpu_edges.h"
#include "graph/gpu_rows.h"
#include "graph/gpu_softmax.h"
#include "graph/ops.h"

namespace mdops {

namespace {

struct GraphOnGpu {
  static CudaOp make(const char* name, const char* argument, const Tensor& on) {
    return CudaOp(name, argument, on);
  }
  static Tensor placed(const Tensor& tensor) { return aligned(tensor); }

  template <class T>
  static int64_t bytes(const CudaOp& op, const EdgeListArgs<T>& args) {
    return size_of(gpu_graph::EdgeMemory<T>(op, args), args);
  }
  template <class T>
  static void run(const CudaOp& op, const EdgeListArgs<T>& args, void* memory) {
    gpu_graph::run_edge_list(op, args, divided(gpu_graph::EdgeMemory<T>(op, args), args, memory));
  }

  static int64_t bytes(const CudaOp&, const ReverseArgs&) { return 0; }
  static void run(const CudaOp& op, const ReverseArgs& args, void*) { gpu_graph::run_reverse(op, args); }

  static int64_t bytes(const CudaOp& op, const OrderArgs& args) {
    return size_of(gpu_graph::OrderMemory(op, args), args);
  }
  static void run(const CudaOp& op, const OrderArgs& args, void* memory) {
    gpu_graph::run_order(op, args, divided(gpu_graph::OrderMemory(op, args), args, memory));
  }

  static int64_t bytes(const CudaOp& op, const EdgeAngleArgs& args) {
    return size_of(gpu_graph::Scan(op, args.atoms), args.atoms);
  }
  static void run(const CudaOp& op, const EdgeAngleArgs& args, void* memory) {
    gpu_graph::run_angles(op, args, divided(gpu_graph::Scan(op, args.atoms), args.atoms, memory));
  }

  template <class T>
  static int64_t bytes(const CudaOp&, const GatherArgs<T>&) {
    return 0;
  }
  template <class T>
  static void run(const CudaOp& op, const GatherArgs<T>& args, void*) {
    gpu_graph_rows::run_gather(op, args);
  }

  template <class T>
  static int64_t bytes(const CudaOp&, const ScatterArgs<T>&) {
    return 0;
  }
  template <class T>
  static void run(const CudaOp& op, const ScatterArgs<T>& args, void*) {
    gpu_graph_rows::run_scatter(op, args);
  }

  template <class T>
  static int64_t bytes(const CudaOp&, const SoftmaxArgs<T>&) {
    return 0;
  }
  template <class T>
  static void run(const CudaOp& op, const SoftmaxArgs<T>& args, void*) {
    gpu_softmax::run_softmax(op, args);
  }

 private:
  // How many bytes a kernel's memory takes, and that memory in place.
  template <class Memory, class Sizes>
  static int64_t size_of(Memory memory, const Sizes& sizes) {
    Workspace measure(nullptr);
    memory.divide(measure, sizes);
    return measure.size();
  }
  template <class Memory, class Sizes>
  static Memory divided(Memory memory, const Sizes& sizes, void* at) {
    Workspace space(static_cast<char*>(at));
    memory.divide(space, sizes);
    return memory;
  }
};

}  // namespace

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  MDOPS_REGISTER_GRAPH_OPS(m, mdops::GraphOps<mdops::GraphOnGpu>);
}
