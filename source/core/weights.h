// The checked data of a model file for the kernels of sums over neighbours (formats.md).
#pragma once

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/safetensors.h"
#include "spline_potential/shape.h"

namespace mdops::core {

// Memory on whole cache lines.
template <class T>
class Lines {
 public:
  void resize(size_t size) {
    data_.reset(
        static_cast<T*>(std::aligned_alloc(64, std::max<size_t>(64, (size * sizeof(T) + 63) / 64 * 64))));
    if (!data_) throw std::bad_alloc();
    std::fill_n(data_.get(), size, T(0));
    size_ = size;
  }
  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  size_t size() const { return size_; }

 private:
  struct Free {
    void operator()(T* data) const { std::free(data); }
  };
  std::unique_ptr<T[], Free> data_;
  size_t size_ = 0;
};

inline std::unique_ptr<bool[]> bools(const std::vector<uint8_t>& flags) {
  std::unique_ptr<bool[]> result(new bool[flags.size()]);
  std::copy(flags.begin(), flags.end(), result.get());
  return result;
}

// Of a spline's knots; a file has it only if they are graded.
inline double grading_of(const Json& grid) {
  const Json* grading = grid.find("grading");
  return grading ? grading->as_number() : 0.0;
}

// A descriptor of sums. Its arrays' names begin with `prefix`.
template <class T>
struct DescriptorWeights {
  int ntypes = 0;
  bool mixed = false, gated = false;  // mixed: places are of all types together
  int64_t width = 0, axis = 0, basis = 0;
  double cutoff = 0, smooth = 0, protection = 0, s_max = 0, grading = 0, shortest = 0;
  std::vector<T> mean, std;
  std::unique_ptr<bool[]> pair_mask, zeroed;
  std::vector<int32_t> sel;
  Lines<T> tables;

  DescriptorWeights(const File& file, const Json& about, const std::string& prefix,
                    const std::string& precision, int64_t types);

  // Sets the descriptor's part of a kernel's arguments; `Args` are those of the CPU's or of a GPU's.
  void set(auto& args) const {
    args.mean = mean.data(), args.std = std.data(), args.tables = tables.data();
    args.places = {pair_mask.get(), zeroed.get(), sel.data(), nullptr, ntypes};
    args.ntypes = ntypes, args.gated = gated;
    args.cutoff = {static_cast<T>(cutoff), static_cast<T>(smooth), static_cast<T>(protection)};
    args.grid = spline_grid<T>(basis - 5, s_max, grading);
    args.table_width = static_cast<decltype(args.table_width)>(table_width(width));
  }
};

// Frame or atomic parameters, (p - average) * inverse.
struct Parameters {
  std::vector<double> average, inverse, own;  // own: the model's, used if none are given

  void read(const File& file, const std::string& prefix, const std::string& name);
  size_t size() const { return average.size(); }
  // Whether a caller must give them.
  bool needed() const { return size() && own.empty(); }
};

// Inputs of fitting nets for each atom besides its features.
template <class T>
struct ExtraInputs {
  Parameters fparam, aparam;
  std::vector<T> constants;  // of the model
  int64_t marks = 0;         // one for each type, 1 for the atom's own

  void read(const File& file, const Json& about, const std::string& prefix, int64_t ntypes);
  int64_t width() const {
    return marks + static_cast<int64_t>(fparam.size() + aparam.size() + constants.size());
  }
  // to (atoms, before + width()), with the first columns zero; `frame` null: the model's own.
  void fill(const double* frame, const double* atomic, const int32_t* types, int64_t atoms,
            std::vector<T>& to, int64_t before = 0) const;
};

// The fitting nets of one descriptor, one a type or one for all.
template <class T>
struct FittingNets {
  FittingShape shape{};
  int count = 0;
  std::vector<double> scale, shift;  // e = scale * net + shift: of each net, of each type

  // `of_columns`: the nets give a number for each column of T, in the last hidden layer, without an
  // activation function.
  FittingNets(const File& file, const Json& about, const std::string& prefix,
              const DescriptorWeights<T>& sums, int64_t extra, bool of_columns = false);
  // The layers of a net, the output layer last.
  std::vector<DenseLayer<T>> layers(int net) const;
  // Numbers of weight, bias and timestep of its layers.
  const std::vector<T>& numbers(int net, int layer, int part) const {
    return numbers_[(net * (shape.layers + 1) + layer) * 3 + part];
  }

 private:
  std::vector<std::vector<T>> numbers_;
};

}  // namespace mdops::core
