// The common parts of the pair style and the fix.
#pragma once

#include <mdops.h>
#include <mpi.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "atom.h"
#include "comm.h"
#include "error.h"
#include "force.h"
#include "lammps.h"
#include "neigh_list.h"
#include "update.h"
#include "utils.h"

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

// LAMMPS' units for 1 A, 1 eV and 1 eV/A, by its own constants, as in DeePMD-kit; 1 in units metal.
struct Units {
  double length, energy, force;

  explicit Units(LAMMPS_NS::LAMMPS* lmp)
      : length(lmp->force->angstrom), energy(lmp->force->boltz / 8.617343e-5), force(energy / length) {
    if (std::string(lmp->update->unit_style) == "lj")
      lmp->error->all(FLERR, std::string("mdops computes in eV and A, which units lj do not have: take units "
                                         "metal or real"));
  }
};

// The file to load for a model: for one of another format, the data for the C core that Python makes of it
// and keeps (mdops/lammps.py); the file itself where there are none. All processes call it together.
inline std::string core_file(LAMMPS_NS::LAMMPS* lmp, const std::string& path) {
  const std::string end = ".safetensors";
  if (path.size() > end.size() && path.compare(path.size() - end.size(), end.size(), end) == 0) return path;
  char found[4096] = "";
  const char* const python = std::getenv("MDOPS_PYTHON");
  if (lmp->comm->me == 0 && python) {
    const auto quoted = [](std::string word) {
      for (size_t k = 0; (k = word.find('\'', k)) != std::string::npos; k += 4) word.replace(k, 1, "'\\''");
      return "'" + word + "'";
    };
    std::FILE* const told = popen((quoted(python) + " -m mdops.lammps " + quoted(path)).c_str(), "r");
    if (told && !std::fgets(found, sizeof(found), told)) found[0] = '\0';
    if (told) pclose(told);
  }
  MPI_Bcast(found, sizeof(found), MPI_CHAR, 0, lmp->world);
  const std::string made = std::string(found).substr(0, std::string(found).find('\n'));
  int is_here = !made.empty() && access(made.c_str(), R_OK) == 0;
  MPI_Allreduce(MPI_IN_PLACE, &is_here, 1, MPI_INT, MPI_MIN, lmp->world);
  if (is_here && lmp->comm->me == 0)
    LAMMPS_NS::utils::logmesg(lmp, "mdops: the data of " + path + " for the C core are in " + made + "\n");
  return is_here ? made : path;
}

// Loads a model, from the data for the C core if there are some that serve.
inline int load(LAMMPS_NS::LAMMPS* lmp, const std::string& path, const mdops_options& options,
                mdops_model** model) {
  const std::string made = core_file(lmp, path);
  const int status = mdops_load(made.c_str(), &options, model);
  return status == MDOPS_OK || made == path ? status : mdops_load(path.c_str(), &options, model);
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

// The second names are those of DeePMD-kit's styles.
constexpr const char *kPairStyles[] = {"mdops", "deepmd", "deepspin"},
                     *kChargesStyles[] = {"mdops/dplr", "dplr"};
constexpr char kMesh[] = "pppm", kMeshOfDeepmd[] = "pppm/dplr";

}  // namespace mdops::lammps

namespace LAMMPS_NS {
class Compute;
class Fix;
class Pair;
}  // namespace LAMMPS_NS

// For LAMMPS to make the styles, in their own files.
LAMMPS_NS::Pair* make_mdops_pair(LAMMPS_NS::LAMMPS* lmp, bool is_deepmd);
LAMMPS_NS::Fix* make_mdops_charges(LAMMPS_NS::LAMMPS* lmp, int narg, char** arg);
LAMMPS_NS::Compute* make_mdops_dipole(LAMMPS_NS::LAMMPS* lmp, int narg, char** arg);
