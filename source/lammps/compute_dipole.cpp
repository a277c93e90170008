// compute deeptensor/atom (lammps.md): the dipoles of atoms, of a model of dipoles. The name, and the order
// of the types, are DeePMD-kit's.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "atom.h"
#include "comm.h"
#include "compute.h"
#include "error.h"
#include "force.h"
#include "lammps/common.h"
#include "memory.h"
#include "neighbor.h"
#include "pair.h"
#include "update.h"

using namespace LAMMPS_NS;
using namespace mdops::lammps;

namespace {

class ComputeDipole : public Compute {
 public:
  ComputeDipole(LAMMPS* lmp, int narg, char** arg) : Compute(lmp, narg, arg), units_(lmp) {
    peratom_flag = timeflag = 1, size_peratom_cols = 3;
    if (narg != 4) error->all(FLERR, "compute deeptensor/atom takes the file of a model");
    mdops_options options = sized<mdops_options>();
    options.precision = MDOPS_FLOAT64, options.threads = comm->nthreads, options.part = MDOPS_DIPOLES;
    mdops_model* made = nullptr;
    const int status = load(lmp, arg[3], options, &made);
    model_.reset(made);
    require_everywhere(lmp,
                       status == MDOPS_OK ? "" : "compute deeptensor/atom: " + std::string(mdops_message()));
    mdops_describe(model_.get(), &info_);
    if (info_.fparam || info_.aparam)
      error->all(FLERR, "compute deeptensor/atom: the model takes parameters, for which there is no place");
  }

  ~ComputeDipole() override { memory->destroy(array_atom); }

  void init() override {
    if (!force->pair || force->pair->cutforce < units_.length * info_.cutoff)
      error->all(FLERR, "compute deeptensor/atom: the model reaches to " + std::to_string(info_.cutoff) +
                            " A, farther than the pair style");
    neighbor->add_request(this, kFullList);
  }

  void init_list(int, NeighList* found) override { list_ = found; }

  void compute_peratom() override {
    invoked_peratom = update->ntimestep;
    if (atom->nmax > size_) {
      memory->destroy(array_atom);
      size_ = atom->nmax;
      memory->create(array_atom, size_, 3, "deeptensor/atom:array");
    }
    const int all = atom->nlocal + atom->nghost;
    std::vector<int32_t> kinds(all);
    for (int i = 0; i < all; ++i) kinds[i] = atom->type[i] <= info_.ntypes ? atom->type[i] - 1 : -1;
    const ListOf found(*atom, list_, kinds);
    mdops_list* made = near_.release();
    int status = mdops_list_fill(&found.near, info_.ntypes, &made);
    near_.reset(made);
    std::vector<double> positions(3 * static_cast<size_t>(all) + 1),
        dipoles(3 * static_cast<size_t>(all) + 1);
    for (int i = 0; i < all; ++i)
      for (int a = 0; a < 3; ++a) positions[3 * static_cast<size_t>(i) + a] = atom->x[i][a] / units_.length;
    mdops_input input = sized<mdops_input>();
    input.atoms = atom->nlocal, input.ghosts = atom->nghost;
    input.positions = positions.data(), input.list = near_.get();
    mdops_output output = sized<mdops_output>();
    output.dipole = dipoles.data();
    if (status == MDOPS_OK) status = mdops_compute(model_.get(), &input, &output);
    require_everywhere(lmp,
                       status == MDOPS_OK ? "" : "compute deeptensor/atom: " + std::string(mdops_message()));
    for (int i = 0; i < atom->nlocal; ++i)
      for (int a = 0; a < 3; ++a)
        array_atom[i][a] =
            atom->mask[i] & groupbit ? units_.length * dipoles[3 * static_cast<size_t>(i) + a] : 0;
  }

  double memory_usage() override { return 3.0 * sizeof(double) * size_; }

 private:
  const Units units_;
  std::unique_ptr<mdops_model, FreeModel> model_;
  std::unique_ptr<mdops_list, FreeList> near_;
  mdops_info info_ = sized<mdops_info>();
  NeighList* list_ = nullptr;
  int size_ = 0;
};

}  // namespace

Compute* make_mdops_dipole(LAMMPS* lmp, int narg, char** arg) {
  return new ComputeDipole(lmp, narg, arg);
}
