// The common parts of models on the CPU: threads, and neighbours from a search or a list.
#pragma once

#include <memory>
#include <vector>

#include "core/list.h"
#include "core/model.h"
#include "core/threads.h"
#include "spline_potential/cpu_loops.h"

namespace mdops::core {

// The atoms of a call: the first `centers` of `all` have energies.
struct Atoms {
  int64_t centers, all;
  const double *positions, *places, *cell;  // places: positions with a fourth column
  const int32_t *types, *systems;
  const Rows& rows;
  const double *fparam, *aparam, *field;

  // Sets them in a kernel's arguments.
  void set(auto& args, bool mixed) const {
    args.positions = places, args.cell = cell, args.batch = systems, args.types = types;
    args.neighbors = rows.neighbors.data(), args.images = rows.images.data();
    args.counts = rows.counts.data(), args.list_width = rows.width, args.atoms = all, args.systems = 1;
    args.places.padding = mixed ? systems : nullptr;  // padding of type 0, if needed
  }
};

class CpuBase : public Model {
 public:
  void set_threads(int threads) override {
    const std::lock_guard<std::mutex> lock(guard_);
    set_pool(threads, pool_);
  }

  mdops_info info() const override {
    const std::lock_guard<std::mutex> lock(guard_);
    mdops_info info = Model::info();
    info.threads = pool_->size();
    return info;
  }

  void search(const mdops_input& input, double skin, mdops_list& list) override {
    const std::lock_guard<std::mutex> lock(guard_);
    const UsePool threads(*pool_);
    check_atoms(input);
    list.search(input, cutoff_ + skin, ntypes());
  }

  void compute(const mdops_input& input, mdops_output& output) override {
    const std::lock_guard<std::mutex> lock(guard_);
    const UsePool threads(*pool_);
    output.atom = -1;
    check(input);
    const mdops_list* const list = input.list;
    if (list) list->check_on(-1);
    const int64_t all = input.atoms + input.ghosts;
    systems_.assign(all, 0);
    const Box box(input);
    if (!list) rows_.search(input, box, cutoff_, ntypes());
    const std::vector<double> places = four_columns(input.positions, all);
    const Atoms atoms{input.atoms,     all,
                      input.positions, places.data(),
                      box.cell,        list ? list->types.data() : input.types,
                      systems_.data(), list ? list->rows : rows_,
                      input.fparam,    input.aparam,
                      input.field};
    evaluate(atoms, output);
  }

 protected:
  CpuBase(const Json& about, const Request& request) : Model(about, request) {}

  virtual void evaluate(const Atoms& atoms, mdops_output& output) = 0;

 private:
  std::unique_ptr<Pool> pool_;
  // Of the last call: memory.
  Rows rows_;
  std::vector<int32_t> systems_;
};

}  // namespace mdops::core
