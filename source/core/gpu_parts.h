// The parts of a model of several on a GPU: each by its kernels, over one list.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/gpu_base.h"

namespace mdops::core {

// The results of a part, memory that the parts share: energies (all,) without weights, the rest with them.
struct PartAnswer {
  GpuArray<double> energy, forces, virial, atom_virial;
  GpuArray<char> memory;

  void resize(int64_t all, bool of_atoms) {
    energy.resize(all), forces.resize(3 * all), virial.resize(9);
    if (of_atoms) atom_virial.resize(9 * all);
  }
};

class GpuPart {
 public:
  virtual ~GpuPart() = default;
  // With weights of the atoms, or null.
  virtual void run(const GpuCall& call, const double* weight, bool of_atoms, PartAnswer& answer) = 0;
  // Checks the neighbours of `run`.
  virtual void ask(const GpuCall& call, double closest) = 0;
  // The checkers used by `ask`.
  virtual std::vector<const StepChecker*> checkers() const { return {&checker_}; }
  const Parameters* parameters[2] = {};  // of frames and atoms

 protected:
  explicit GpuPart(const GpuBase& of) : base_(of) {}

  const GpuBase& base_;
  StepChecker checker_;
};

// For a member of a model that is not a table.
std::unique_ptr<GpuPart> make_member(const GpuBase& of, const File& file, const Json& about,
                                     const std::string& prefix, const Request& request, int32_t ntypes);
// In float64, for a file with only one descriptor of sums.
std::unique_ptr<GpuPart> make_single_member(const GpuBase& of, const File& file, const Json& about,
                                            const Request& request, int32_t ntypes);

}  // namespace mdops::core
