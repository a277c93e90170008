// Descriptors whose features are further inputs of the nets, on the CPU: those of angles between neighbours,
// and DPA-1 with layers of attention.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/cpu_base.h"
#include "core/extra_descriptor_weights.h"
#include "hybrid_potential/cpu_loops.h"

namespace mdops::core {

// The neighbours of a few atoms, a row each, ordered by type, in the layout of descriptors' kernels.
template <class T>
struct Block {
  int64_t atoms = 0, width = 0;
  std::vector<T> displacements;                   // (atoms, width, 3), A
  std::vector<int32_t> neighbors, counts, types;  // (atoms, width), (atoms, ntypes), (atoms,)

  void fill(const Atoms& from, const int32_t* ids, int64_t count, int ntypes);
};

// A descriptor, for all threads.
template <class T>
class ExtraDescriptor {
 public:
  // A thread's part: the features of a block's atoms, the number of neighbours within the cutoff (atoms,
  // ntypes; only in the first column if types share places), and the distance of the nearest; and then the
  // gradients by the pair vectors from that by the features.
  class Worker {
   public:
    virtual ~Worker() = default;
    virtual void forward(const Block<T>& block, T* features, int32_t* within, T* nearest) = 0;
    virtual void backward(const Block<T>& block, const T* grad, T* pairs) = 0;
  };

  virtual ~ExtraDescriptor() = default;
  virtual std::unique_ptr<Worker> worker() const = 0;
  virtual const ExtraDescriptorWeights<T>& data() const = 0;
};

// The descriptor in a file.
template <class T>
std::unique_ptr<ExtraDescriptor<T>> make_extra_descriptor(const File& file, const Json& about,
                                                          const std::string& prefix,
                                                          const std::string& precision, int64_t types);

// All descriptors of a model, in a step.
template <class T>
class ExtraDescriptors : public ComputedInputs<T> {
 public:
  std::vector<std::unique_ptr<ExtraDescriptor<T>>> descriptors;

  bool empty() const { return descriptors.empty(); }
  int64_t width() const;
  // That with the longest cutoff.
  int widest() const;

  // For later calls: `extra` and its gradient have `columns` columns; the first are these descriptors'.
  void at(const Atoms& atoms, int64_t columns, T* extra, const T* grad_extra);
  std::vector<int32_t> within;  // (centers, descriptors, ntypes)
  std::vector<T> nearest;       // (centers,), of the widest

  void begin(int64_t threads) override;
  void forward(int64_t thread, const int32_t* ids, int64_t count) override;
  void backward(int64_t thread, const int32_t* ids, int64_t count, PotentialResults<T>& sums) override;

 private:
  struct Thread {
    std::vector<std::unique_ptr<typename ExtraDescriptor<T>::Worker>> workers;
    Block<T> block;
    std::vector<T> features, nearest, pairs;
    std::vector<int32_t> within;
  };

  const Atoms* atoms_ = nullptr;
  int ntypes_ = 0;
  int64_t columns_ = 0;
  T* extra_ = nullptr;
  const T* grad_extra_ = nullptr;
  std::vector<Thread> threads_;

 public:
  explicit ExtraDescriptors(int ntypes) : ntypes_(ntypes) {}
};

}  // namespace mdops::core
