// A model of a file, ready to compute.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/json.h"
#include "core/limits.h"
#include "core/mdops.h"

namespace mdops::core {

class File;
struct Parameters;

// The options of a model's caller.
struct Request {
  std::string precision;  // "float32" or "float64"
  bool extends;           // whether more neighbours than places all count
  int threads, gpu;       // gpu: -1 for the CPU
};

// Gaussian charges of a file's model, at atoms and at the ends of their dipoles, e, by type; empty: none.
struct Charges {
  std::vector<double> of_atoms, of_dipoles;
  double beta = 0;
};

// Calls wait for each other. Functions throw Error, or what the kernels' checks throw.
class Model {
 public:
  virtual ~Model() = default;

  static std::unique_ptr<Model> load(const std::string& path, const mdops_options& options);
  virtual void compute(const mdops_input& input, mdops_output& output) = 0;
  // Fills the list with the neighbours within cutoff and skin.
  virtual void search(const mdops_input& input, double skin, mdops_list& list) = 0;
  virtual void set_threads(int threads) = 0;
  virtual mdops_info info() const;
  bool has_dipoles() const { return !has_dipole_.empty(); }
  bool takes_spins() const { return !magnetic_.empty(); }
  // Host memory for data to and from the device.
  virtual void* allocate(int64_t bytes) const;
  virtual void release(void* memory) const;

 protected:
  Model(const Json& about, const Request& request);

  int32_t ntypes() const { return static_cast<int32_t>(names_.size()); }
  // Sets the parameters that it takes.
  void takes(const Parameters& fparam, const Parameters& aparam);
  void takes(size_t fparam, size_t aparam, bool needs_fparam);
  // Refuses sizes and null pointers that do not match.
  void check(const mdops_input& input) const;
  // The same for a search.
  void check_atoms(const mdops_input& input) const;
  // Refuses atom i if more neighbours than places are `within` the cutoff, unless told otherwise.
  void check_places(int64_t i, const std::vector<Limit>& limits, const int32_t* within,
                    mdops_output& output) const;
  [[noreturn]] static void refuse_place(int64_t i, mdops_output& output);
  // The same for a neighbour at a distance, A, at which a table has no energies.
  [[noreturn]] static void refuse_close(int64_t i, double distance, double closest, mdops_output& output);

  const bool extends_, is_double_;
  mutable std::mutex guard_;
  double cutoff_ = 0, shortest_ = 0;
  std::vector<int32_t> has_dipole_;  // of each type; empty for models of energies

 private:
  std::vector<std::string> names_;
  std::vector<const char*> pointers_;  // to their texts
  std::vector<int32_t> magnetic_;      // of each type; empty for models without moments
  size_t fparam_ = 0, aparam_ = 0;
  bool needs_fparam_ = false, lacks_charges_ = false;
  Charges charges_;
};

// The input's cell and which of its directions are periodic.
struct Box {
  double cell[9] = {};
  bool periodic[3] = {};

  explicit Box(const mdops_input& input) {
    for (int k = 0; input.cell && k < 9; ++k) cell[k] = input.cell[k];
    for (int a = 0; a < 3; ++a) periodic[a] = input.cell && (!input.periodic || input.periodic[a]);
  }
};

// One descriptor of sums on the CPU, by the fused step; its arrays' names begin with `prefix`.
std::unique_ptr<Model> cpu_model(const File& file, const Json& about, const Request& request,
                                 const std::string& prefix);

// Several descriptors, several models, and pair tables.
std::unique_ptr<Model> combined_model(const File& file, const Json& about, const Request& request);

// A model that a process of this Python evaluates.
std::unique_ptr<Model> python_model(const std::string& path, const mdops_options& options,
                                    const Request& request, const std::string& python);

// One descriptor of sums on a GPU, if this library was built for GPUs.
std::unique_ptr<Model> gpu_model(const File& file, const Json& about, const Request& request);
int gpu_count();

}  // namespace mdops::core
