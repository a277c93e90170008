// The common parts of models on a GPU: its stream, neighbours from a search or a list, and copies to and from
// the GPU.
#pragma once

#include <memory>

#include "core/gpu_list.h"
#include "core/gpu_memory.h"
#include "core/gpu_step_check.h"
#include "core/model.h"
#include "core/threads.h"
#include "core/weights.h"
#include "spline_potential/gpu_args.h"

namespace mdops::core {

// work(), turning errors of kernel launches into errors of the device.
void on_device(const auto& work) {
  try {
    work();
  } catch (const Error&) {
    throw;
  } catch (const std::runtime_error& error) {
    throw Error(MDOPS_DEVICE, error.what());
  }
}

// The atoms of a call: the first `centers` of `all` have energies. All but the input is in GPU memory.
struct GpuCall {
  const mdops_input& input;
  int64_t centers, all;
  const double *positions, *cell;
  const int32_t *types, *systems;  // types: -1 for ghosts, too; systems: zeros
  const GpuRows& rows;
};

// Results in the GPU's memory: energies (centers,), forces (all, 3), virial (3, 3), those of atoms or null.
struct GpuAnswers {
  const double *energy, *forces, *virial, *atom_virial;
};

class GpuBase : public Model {
 public:
  // For copies.
  void set_threads(int threads) override;
  mdops_info info() const override;
  void* allocate(int64_t bytes) const override;
  void release(void* memory) const override;
  void search(const mdops_input& input, double skin, mdops_list& list) override;
  void compute(const mdops_input& input, mdops_output& output) override;

  // For the parts of a model.
  Gpu of(const char* name) const { return Gpu(name, index_, stream_.get()); }
  cudaStream_t stream() const { return stream_.get(); }
  template <class T>
  void fetch(const T* from, int64_t count, T* to) const {
    if (count) check_cuda(cudaMemcpyAsync(to, from, count * sizeof(T), cudaMemcpyDefault, stream()));
  }

  // Sets the call's part of a kernel's arguments.
  void set(const GpuCall& call, StepArgs& args) const;
  // The nets' inputs besides features; computed on the host, as few models have any.
  template <class T>
  const T* extra(const GpuCall& call, const ExtraInputs<T>& inputs, GpuArray<T>& to) const;

 protected:
  GpuBase(const Json& about, const Request& request);

  // Launches the kernels, asks checkers, and copies the results back by `bring`, which waits for the GPU;
  // then sets energy and nearest.
  virtual void evaluate(const GpuCall& call, mdops_output& output) = 0;
  void bring(const GpuCall& call, const GpuAnswers& answers, mdops_output& output);

  // Throws for the first atom with more neighbours than places.
  void refuse_first(const StepChecker& checker, int64_t atom, mdops_output& output) const;

  const int index_;

 private:
  struct DestroyStream {
    int gpu;
    void operator()(cudaStream_t stream) const {
      free_on(gpu, [&] { cudaStreamDestroy(stream); });
    }
  };
  const int32_t* zeros(int64_t all);

  std::unique_ptr<Pool> pool_;
  std::unique_ptr<CUstream_st, DestroyStream> stream_{nullptr, DestroyStream{index_}};
  // Of the last call: memory.
  GpuSearch search_;
  GpuRows rows_;
  GpuArray<double> positions_, cell_;
  GpuArray<int32_t> zeros_;
  int64_t zeros_size_ = 0;
  HostArray<double> virial_here_;
  Transfer<double> places_, back_[3];  // back: forces, energies and virials of atoms
};

// A descriptor of sums in the GPU's memory.
class GpuDescriptorWeights {
 public:
  // Copies it there, and sets the descriptor's part of a kernel's arguments.
  GpuDescriptorWeights(const DescriptorWeights<float>& sums, const FittingShape& shape, StepArgs& args,
                       cudaStream_t stream);

 private:
  GpuArray<float> mean_, std_, tables_;
  GpuArray<bool> pair_mask_, zeroed_;
  GpuArray<int32_t> sel_;
};

std::unique_ptr<Model> combined_gpu_model(const File& file, const Json& about, const Request& request);

}  // namespace mdops::core
