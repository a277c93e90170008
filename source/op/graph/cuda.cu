#include "common/cuda.h"
#include "graph/gpu_edges.h"
#include "graph/gpu_rows.h"
#include "graph/gpu_softmax.h"
#include "graph/ops.h"

namespace mdops {

// work(memory) with a kernel's memory in place.
template <class Memory, class Sizes, class Work>
static void with_graph_memory(const CudaOp& op, Memory memory, const Sizes& sizes, const Work& work) {
  Workspace measure(nullptr);
  Memory(memory).divide(measure, sizes);
  Tensor bytes = empty(op, {measure.size()}, ScalarType::Byte);
  Workspace space(static_cast<char*>(bytes.mutable_data_ptr()));
  memory.divide(space, sizes);
  work(memory);
}

template <class T>
static void run_graph(const CudaOp& op, const EdgeListArgs<T>& args) {
  with_graph_memory(op, gpu_graph::EdgeMemory<T>(op, args), args,
                    [&](const auto& memory) { gpu_graph::run_edge_list(op, args, memory); });
}

static void run_graph(const CudaOp& op, const OrderArgs& args) {
  with_graph_memory(op, gpu_graph::OrderMemory(op, args), args,
                    [&](const auto& memory) { gpu_graph::run_order(op, args, memory); });
}

static void run_graph(const CudaOp& op, const EdgeAngleArgs& args) {
  with_graph_memory(op, gpu_graph::Scan(op, args.atoms), args.atoms,
                    [&](const auto& scan) { gpu_graph::run_angles(op, args, scan); });
}

}  // namespace mdops

MDOPS_ON_GPU(GraphOps, EdgeListOps, EdgeRowOps, SegmentWeightOps, SegmentSoftmaxOps)
