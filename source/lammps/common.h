// The common parts of the pair style and the fix.
#pragma once

#include <mdops.h>
#include <mpi.h>

#include <cstdio>
#include <string>
#include <vector>

#include "atom.h"
#include "comm.h"
#include "error.h"
#include "lammps.h"
#include "neigh_list.h"

namespace mdops::lammps {

struct FreeModel {
  void operator()(mdops_model* model) const { mdops_free(model); }
};
struct FreeList {
  void operator()(mdops_list* list) const { mdops_list_free(list); }
};

// A struct of mdops.h, all zero but for its size.
template <class T>
T sized() {
  T made{};
  made.struct_size = sizeof(T);
  return made;
}

// NeighConst::REQ_FULL, whose header is not always installed.
constexpr int kFullList = 1;

// LAMMPS' list in the core's form, of atoms and ghosts with these model types. It refers to both. Without a
// list it has no neighbours.
struct ListOf {
  std::vector<int32_t> counts;
  std::vector<const int32_t*> rows;
  mdops_neighbors near = sized<mdops_neighbors>();

  ListOf(const LAMMPS_NS::Atom& atoms, const LAMMPS_NS::NeighList* list, const std::vector<int32_t>& types)
      : counts(atoms.nlocal, 0), rows(atoms.nlocal, nullptr) {
    for (int k = 0; list && k < list->inum; ++k) {
      const int i = list->ilist[k];
      counts[i] = list->numneigh[i], rows[i] = list->firstneigh[i];
    }
    near.atoms = atoms.nlocal, near.ghosts = atoms.nghost, near.mask = NEIGHMASK;
    near.types = types.data(), near.counts = counts.data(), near.rows = rows.data();
  }
  ListOf(const ListOf&) = delete;
};

// An error on every process, with the message of the first that has one. All processes call it together.
inline void require_everywhere(LAMMPS_NS::LAMMPS* lmp, const std::string& problem) {
  LAMMPS_NS::Comm* const comm = lmp->comm;
  int mine = problem.empty() ? comm->nprocs : comm->me, first = 0;
  MPI_Allreduce(&mine, &first, 1, MPI_INT, MPI_MIN, lmp->world);
  if (first == comm->nprocs) return;
  char text[2048] = "";
  if (comm->me == first) std::snprintf(text, sizeof(text), "%s", problem.c_str());
  MPI_Bcast(text, sizeof(text), MPI_CHAR, first, lmp->world);
  lmp->error->all(FLERR, std::string(text));
}

// What the fix asks of the pair style whose energies lack those of charges.
class ShortRange {
 public:
  virtual bool lacks_charges() const = 0;
  // The element of an atom type; "" if it has none, for NULL and before pair_coeff.
  virtual std::string element(int type) const = 0;

 protected:
  ~ShortRange() = default;
};

constexpr char kPairStyle[] = "mdops", kChargesStyle[] = "mdops/dplr";

}  // namespace mdops::lammps

namespace LAMMPS_NS {
class Fix;
class Pair;
}  // namespace LAMMPS_NS

// For LAMMPS to make the styles, in their own files.
LAMMPS_NS::Pair* make_mdops_pair(LAMMPS_NS::LAMMPS* lmp);
LAMMPS_NS::Fix* make_mdops_charges(LAMMPS_NS::LAMMPS* lmp, int narg, char** arg);
