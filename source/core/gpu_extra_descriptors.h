// Descriptors whose features are further inputs of the nets, on a GPU: those of angles between neighbours,
// DPA-1 with layers of attention, and in float64 sums over neighbours.
#pragma once

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "core/extra_descriptor_weights.h"
#include "core/gpu_base.h"
#include "displacements/args.h"
#include "type_nets/gpu_loops.h"

namespace mdops::core {

// The neighbours of some atoms, from `first` on.
template <class T>
struct GpuBlock {
  int64_t first, atoms, width;
  const T* displacements;         // (atoms, width, 3), A
  const int32_t *counts, *types;  // (atoms, ntypes), (atoms,)
  int ntypes;
  const TypeRows* rows;  // of the nets; null: the atoms
  const int32_t* zeros;  // (atoms,)
};

// A descriptor. All arrays are in GPU memory.
template <class T>
class GpuExtraDescriptor {
 public:
  virtual ~GpuExtraDescriptor() = default;

  // Features (atoms, channels), numbers of neighbours (atoms, counts), and the distance of the nearest
  // (atoms,).
  virtual void forward(const Gpu& gpu, const GpuBlock<T>& block, T* features, int32_t* within,
                       T* nearest) = 0;
  // The gradients by the pair vectors (atoms, width, 3), for the last forward block.
  virtual void backward(const Gpu& gpu, const GpuBlock<T>& block, const T* grad, T* pairs) = 0;

  // Whether features and their gradients are those of the nets' rows, not of the atoms.
  virtual bool in_rows() const { return false; }
  // For how many atoms with this many neighbours memory suffices.
  virtual int64_t most_atoms(int64_t) const { return std::numeric_limits<int32_t>::max(); }

  double reach = 0;
  int64_t channels = 0, constant_count = 0;
  int counts = 0;
  std::vector<Limit> limits;  // of these counts
  GpuArray<T> constants;      // (ntypes, constant_count)

  int64_t width() const { return channels + constant_count; }

 protected:
  GpuExtraDescriptor() = default;
  GpuExtraDescriptor(const ExtraDescriptorWeights<T>& data, cudaStream_t stream);
};

template <class T>
std::unique_ptr<GpuExtraDescriptor<T>> gpu_angles(const AngleData<T>& data, cudaStream_t stream);
std::unique_ptr<GpuExtraDescriptor<float>> gpu_attention(const AttentionData<float>& data,
                                                         cudaStream_t stream);
// DescriptorWeights over neighbours in float64.
std::unique_ptr<GpuExtraDescriptor<double>> gpu_moments(const DescriptorWeights<double>& sums,
                                                        const FittingShape& shape, cudaStream_t stream);

// Forces (all, 3), virial (3, 3) and those of atoms (all, 3, 3), or null, to which a step adds.
struct PairTotals {
  double *forces, *virial, *of_atoms;
};

// All descriptors of a model. Their features are the first columns of the nets' further inputs.
template <class T>
class GpuExtraDescriptors {
 public:
  GpuExtraDescriptors(const GpuBase& of, const File& file, const Json& about, const std::string& prefix,
                      const Request& request, int32_t ntypes);

  // Inserts another after the first `after` of them.
  void insert(size_t after, std::unique_ptr<GpuExtraDescriptor<T>> other, bool extends);

  bool empty() const { return parts_.empty(); }
  int64_t width() const;
  // The longest cutoff.
  double reach() const { return parts_.empty() ? 0 : parts_[widest_]->other->reach; }

  // How many atoms to compute at once, in runs of one size: a small last one would take as long.
  int64_t begin(const GpuCall& call);
  // For `count` atoms from `first` on, or their rows of the nets: the columns of `extra` (count, columns);
  // and from its gradient forces and virials, for the last forward atoms.
  void forward(const GpuCall& call, int64_t first, int64_t count, const TypeRows* rows, int64_t columns,
               T* extra);
  void backward(const GpuCall& call, int64_t first, int64_t count, const TypeRows* rows, int64_t columns,
                const T* grad_extra, const PairTotals& to);

  // `decides`: whether these determine the nearest neighbour.
  void ask(const GpuCall& call, bool decides, double cutoff, double closest);
  void checkers(std::vector<const StepChecker*>& to) const;

 private:
  struct Part {
    std::unique_ptr<GpuExtraDescriptor<T>> other;
    StepChecker checker;
    GpuArray<int32_t> within;  // (centers, counts)
  };

  GpuBlock<T> block(const GpuCall& call, int64_t first, int64_t count, const TypeRows* rows) const;
  PairRows pair_rows(const GpuCall& call, int64_t first, int64_t count) const;

  const GpuBase& base_;
  const int32_t ntypes_;
  std::vector<std::unique_ptr<Part>> parts_;
  size_t widest_ = 0;

  // Of the last call: memory.
  GpuArray<T> nearest_, short_nearest_, displacements_, features_, pairs_, of_one_;
  GpuArray<double> forces_, virial_, of_atoms_;
  GpuArray<char> memory_;
};

}  // namespace mdops::core
