#include "core/gpu_list.h"

#include <algorithm>

#include "neighbor/gpu_rows.h"

namespace mdops::core {

namespace {

constexpr int kThreads = 256;

// Types of atoms that have an energy; -1 for the others.
__global__ void centers_kernel(const int32_t* types, int64_t centers, int64_t all, int32_t* to) {
  const int64_t i = gpu_cells::thread_index();
  if (i < all) to[i] = i < centers ? types[i] : -1;
}

}  // namespace

const GpuRows& rows_on_gpu(const mdops_list& list, int gpu, cudaStream_t stream) {
  const std::lock_guard<std::mutex> lock(list.guard);
  list.check_on(gpu);
  std::unique_ptr<RowsOnGpu>& on_gpu = list.on_gpu[gpu];
  if (!on_gpu) {
    std::unique_ptr<GpuRows> made = std::make_unique<GpuRows>();
    std::vector<int32_t> types = list.types;
    std::fill(types.begin() + list.atoms, types.end(), -1);
    const Rows& from = list.rows;
    made->width = from.width;
    made->neighbors.copy(from.neighbors.data(), list.atoms * from.width, stream);
    made->images.copy(from.images.data(), list.atoms * from.width, stream);
    const int64_t counts = list.atoms * list.ntypes, all = (list.atoms + list.ghosts) * list.ntypes;
    made->counts.resize(all);
    made->counts.copy(from.counts.data(), counts, stream);
    check_cuda(cudaMemsetAsync(made->counts.data() + counts, 0, 4 * (all - counts), stream));
    made->types.copy(types.data(), static_cast<int64_t>(types.size()), stream);
    check_cuda(cudaStreamSynchronize(stream));  // `types` goes
    on_gpu = std::move(made);
  }
  return static_cast<const GpuRows&>(*on_gpu);
}

void GpuSearch::run(const mdops_input& input, const double* positions, double cutoff, cudaStream_t stream,
                    GpuRows& rows) {
  const int64_t centers = input.atoms, all = input.atoms + input.ghosts;
  if (all > 1 << 29) throw Error(MDOPS_INVALID, "input: more than 2^29 atoms");
  const Gpu gpu("neighbours", gpu_, stream);
  const Box box(input);
  const int32_t* const types = types_.copy(input.types, all, stream);
  check_cuda(cudaMemsetAsync(systems_.resize(all), 0, 4 * all, stream));
  GpuAtoms atoms{};
  atoms.size = all, atoms.num_systems = 1, atoms.num_types = ntypes_, atoms.positions = positions;
  atoms.cell = cell_.copy(box.cell, 9, stream), atoms.pbc = periodic_.copy(box.periodic, 3, stream);
  atoms.batch = systems_.data(), atoms.types = types, atoms.cutoff = cutoff, atoms.centers = centers;
  SortedCells sorted(gpu, atoms);
  sorted.sort(cells_.resize(sorted.bytes()));
  // Before the waits below: other models read the list in streams of their own.
  gpu.launch_for(all, kThreads, centers_kernel, types, centers, all, rows.types.resize(all));
  Word* const longest = longest_.resize(1);
  int64_t *const needed = needed_.resize(2), *const told = needed_here_.resize(3);
  for (;;) {
    rows.counts.resize(all * ntypes_);
    gpu.clear(rows.counts.data(), 4 * all * ntypes_);
    gpu.clear(longest, sizeof(Word));
    const MatrixWriter writer{rows.width,
                              ntypes_,
                              rows.neighbors.resize(centers * rows.width),
                              rows.images.resize(centers * rows.width),
                              rows.counts.data(),
                              longest};
    gpu.launch(gpu_search::search<MatrixWriter>, blocks_for(all, gpu_search::kWarps),
               gpu_search::kWarps * kWarp, 0, atoms, sorted.cells(), writer);
    gpu.launch(write_needed, 1, 1, 0, longest, sorted.cells().status, needed);
    check_cuda(cudaMemcpyAsync(told, needed, 16, cudaMemcpyDeviceToHost, stream));
    check_cuda(cudaMemcpyAsync(told + 2, sorted.cells().status, 8, cudaMemcpyDeviceToHost, stream));
    check_cuda(cudaStreamSynchronize(stream));
    if (told[0] < 0) throw Error(MDOPS_INVALID, "input: " + refusal_of(static_cast<Word>(told[2])));
    if (told[0] <= rows.width) break;
    rows.width = told[0] + 4;  // which may suffice for later steps, too
  }
}

}  // namespace mdops::core
