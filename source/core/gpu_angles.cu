// Descriptors of angles between neighbours on a GPU.
#include "angle_moment/gpu_loops.h"
#include "core/gpu_extra_descriptors.h"

namespace mdops::core {

namespace {

template <class T>
class GpuAngles : public GpuExtraDescriptor<T> {
 public:
  GpuAngles(const AngleData<T>& data, cudaStream_t stream) : GpuExtraDescriptor<T>(data, stream) {
    const int64_t pairs = int64_t{data.ntypes} * data.ntypes;
    args_.std = std_.copy(data.std, stream);
    args_.pair_mask = pair_mask_.copy(data.pair_mask.get(), pairs, stream);
    args_.cutoff = data.cutoff, args_.grid = data.grid, args_.ntypes = data.ntypes;
    functions_ = data.functions(tables_.copy(data.tables, stream));
    this->counts = data.ntypes;
    add_limits(data.mixed, data.sel, 0, data.ntypes, this->limits);
    check_cuda(cudaStreamSynchronize(stream));  // `data` may go
  }

  void forward(const Gpu& gpu, const GpuBlock<T>& block, T* features, int32_t* within, T* nearest) override {
    const AngleArgs<T> args = args_of(block);
    void* const memory = memory_.resize(angle_features_bytes(gpu, args, functions_, block.atoms));
    run_angle_features(gpu, args, functions_, block.atoms, memory, features, within, nearest);
  }

  void backward(const Gpu& gpu, const GpuBlock<T>& block, const T* grad, T* pairs) override {
    const AngleArgs<T> args = args_of(block);
    void* const memory = memory_.resize(angle_gradients_bytes(gpu, args, functions_, block.atoms));
    run_angle_gradients(gpu, args, functions_, block.atoms, grad, memory, pairs);
  }

 private:
  AngleArgs<T> args_of(const GpuBlock<T>& block) const {
    AngleArgs<T> args = args_;
    args.displacements = block.displacements, args.counts = block.counts, args.types = block.types;
    args.width = block.width;
    return args;
  }

  AngleArgs<T> args_{};
  AngleTables<T> functions_{};
  GpuArray<T> std_, tables_;
  GpuArray<bool> pair_mask_;
  GpuArray<char> memory_;
};

}  // namespace

template <class T>
std::unique_ptr<GpuExtraDescriptor<T>> gpu_angles(const AngleData<T>& data, cudaStream_t stream) {
  return std::make_unique<GpuAngles<T>>(data, stream);
}

template std::unique_ptr<GpuExtraDescriptor<float>> gpu_angles(const AngleData<float>&, cudaStream_t);
template std::unique_ptr<GpuExtraDescriptor<double>> gpu_angles(const AngleData<double>&, cudaStream_t);

}  // namespace mdops::core
