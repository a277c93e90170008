// fix mdops/dplr (lammps.md): charges beyond the cutoff, as DeePMD-kit's DPLR has them. LAMMPS' own kspace
// sums them. Half of the charges are at atoms, the others at the centroids: additional atoms, each with a
// bond to the atom whose dipole gives its place.
//
// Before forces are computed the fix puts each centroid to x + mu(x), mu being the dipole of its atom. The
// kspace then gives a force F on it as on any charge, and afterwards
//
//   f_i += F_i + d/dx_i sum_j F_j . mu_j,   F = 0 on the centroids,
//
// as E(x, x + mu(x)) has it. LAMMPS' virial stretches the centroids as if they were atoms: -F (x) mu corrects
// this, and the virial of -sum_j F_j . mu_j is that of mu's change. The energies of each Gaussian in its own
// field, and of a background, which LAMMPS subtracts, are added again.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "atom.h"
#include "comm.h"
#include "domain.h"
#include "error.h"
#include "fix.h"
#include "force.h"
#include "kspace.h"
#include "lammps/common.h"
#include "modify.h"
#include "neigh_list.h"
#include "neighbor.h"
#include "pair.h"
#include "update.h"
#include "utils.h"

using namespace LAMMPS_NS;
using namespace mdops::lammps;

namespace {

constexpr double kSamePart = 1e-5;  // charges and widths that differ by less are equal

class FixCharges : public Fix {
 public:
  FixCharges(LAMMPS* lmp, int narg, char** arg) : Fix(lmp, narg, arg), units_(lmp) {
    energy_global_flag = energy_peratom_flag = thermo_energy = 1;
    virial_global_flag = thermo_virial = 1;
    scalar_flag = extscalar = global_freq = 1;
    comm_reverse = 3;
    read_words(narg, arg);
  }

  int setmask() override {
    return FixConst::PRE_EXCHANGE | FixConst::PRE_FORCE | FixConst::PRE_REVERSE | FixConst::POST_FORCE |
           FixConst::FINAL_INTEGRATE | FixConst::MIN_PRE_EXCHANGE | FixConst::MIN_PRE_FORCE |
           FixConst::MIN_PRE_REVERSE | FixConst::MIN_POST_FORCE;
  }

  void init() override {
    check_setting();
    find_kinds();
    check_kspace();
    warn_of_integrators();
    neighbor->add_request(this, kFullList);
    filled_ = false;
  }

  void init_list(int, NeighList* found) override { list_ = found; }

  // The centroids move to their atoms, and with them to their processes.
  void setup_pre_exchange() override {
    const int triclinic = domain->triclinic;
    if (triclinic) domain->x2lamda(atom->nlocal);
    domain->pbc();
    domain->reset_box();
    comm->setup();
    comm->exchange();
    comm->borders();
    if (triclinic) domain->lamda2x(atom->nlocal + atom->nghost);
    std::string problem;
    for (int c = 0; c < atom->nlocal; ++c) {
      if (!is_centroid(c)) continue;
      const int i = atom_of(c, problem);
      if (i < 0) continue;
      double near[3] = {atom->x[i][0], atom->x[i][1], atom->x[i][2]};
      domain->remap_near(near, atom->x[c]);  // keeps its image flags right
      for (int a = 0; a < 3; ++a) atom->x[c][a] = near[a], atom->v[c][a] = 0;
    }
    require_everywhere(problem);
  }

  void setup_pre_force(int vflag) override { pre_force(vflag); }
  void setup_pre_reverse(int eflag, int vflag) override { pre_reverse(eflag, vflag); }
  void setup(int vflag) override { post_force(vflag); }
  void min_setup(int vflag) override { post_force(vflag); }
  void min_pre_exchange() override { pre_exchange(); }
  void min_pre_force(int vflag) override { pre_force(vflag); }
  void min_pre_reverse(int eflag, int vflag) override { pre_reverse(eflag, vflag); }
  void min_post_force(int vflag) override { post_force(vflag); }

  // Brings both to the same process.
  void pre_exchange() override {
    if (!holds()) find_pairs();  // a fix has just added or removed atoms
    for (const auto& [c, i] : pairs_)
      for (int a = 0; a < 3; ++a) atom->x[c][a] = atom->x[i][a], atom->v[c][a] = 0;
    for (const auto& [c, i] : pairs_) atom->image[c] = atom->image[i];
  }

  void pre_force(int) override {
    std::string problem;
    if (neighbor->ago == 0 || !holds()) problem = fill();
    require_everywhere(problem);
    dipoles_.assign(3 * atom->nlocal, 0.0);
    mdops_output output = sized<mdops_output>();
    output.dipole = dipoles_.data();
    require_everywhere(evaluate(nullptr, output));
    double longest = 0;
    for (const auto& [c, i] : pairs_) {
      const double* const mu = dipoles_.data() + 3 * static_cast<size_t>(i);
      for (int a = 0; a < 3; ++a) atom->x[c][a] = atom->x[i][a] + mu[a];
      atom->image[c] = atom->image[i];
      longest = std::max(longest, std::sqrt(mu[0] * mu[0] + mu[1] * mu[1] + mu[2] * mu[2]));
    }
    warn_of_reach(longest);
  }

  void pre_reverse(int eflag, int) override { eflag_ = eflag, led_ = false; }

  void post_force(int vflag) override {
    ev_init(eflag_, vflag);
    if (vflag_atom || cvflag_atom)
      error->all(FLERR,
                 "fix mdops/dplr: there are no virials of atoms with charges beyond the cutoff: "
                 "stress/atom and heat/flux are refused");
    const int local = atom->nlocal, all = local + atom->nghost;
    std::vector<double> field(3 * static_cast<size_t>(local), 0.0);
    forces_.assign(3 * static_cast<size_t>(all), 0.0);
    double moved[6] = {};
    for (const auto& [c, i] : pairs_) {
      double *const f = atom->f[c], *const to = atom->f[i];
      const double* const mu = dipoles_.data() + 3 * static_cast<size_t>(i);
      for (int k = 0; k < 6; ++k)
        moved[k] += 0.5 * (f[kRow[k]] * mu[kColumn[k]] + f[kColumn[k]] * mu[kRow[k]]);
      for (int a = 0; a < 3; ++a)
        field[3 * static_cast<size_t>(i) + a] = f[a] / units_.energy, to[a] += f[a], f[a] = 0;
    }
    mdops_output output = sized<mdops_output>();
    output.forces = forces_.data();
    require_everywhere(evaluate(field.data(), output));
    comm->reverse_comm(this);
    for (int i = 0; i < local; ++i)
      for (int a = 0; a < 3; ++a) atom->f[i][a] += units_.energy * forces_[3 * static_cast<size_t>(i) + a];
    for (int k = 0; vflag_global && k < 6; ++k)
      virial[k] += units_.energy * 0.5 *
                       (output.virial[3 * kRow[k] + kColumn[k]] + output.virial[3 * kColumn[k] + kRow[k]]) -
                   moved[k];
    for (int i = 0; eflag_atom && i < local; ++i) eatom[i] += own_energy(atom->q[i]);
    led_ = true;
  }

  void final_integrate() override { require_no_forces(); }

  int pack_reverse_comm(int n, int first, double* to) override {
    std::copy_n(forces_.data() + 3 * static_cast<size_t>(first), 3 * n, to);
    return 3 * n;
  }
  void unpack_reverse_comm(int n, int* atoms, double* from) override {
    for (int k = 0; k < n; ++k)
      for (int a = 0; a < 3; ++a) forces_[3 * static_cast<size_t>(atoms[k]) + a] += *from++;
  }

  // eV: what LAMMPS subtracts, but the model has.
  double compute_scalar() override {
    if (led_) require_no_forces();
    double mine = 0, sum = 0;
    for (int i = 0; i < atom->nlocal; ++i) mine += own_energy(atom->q[i]);
    MPI_Allreduce(&mine, &sum, 1, MPI_DOUBLE, MPI_SUM, world);
    return sum;
  }

 private:
  static constexpr int kRow[6] = {0, 1, 2, 0, 0, 1}, kColumn[6] = {0, 1, 2, 1, 2, 2};  // xx yy zz xy xz yz

  void require_everywhere(const std::string& problem) { mdops::lammps::require_everywhere(lmp, problem); }
  [[noreturn]] void refuse(const std::string& why) { error->all(FLERR, "fix mdops/dplr: " + why); }

  // Forces from another fix on centroids after post_force would be lost.
  void require_no_forces() {
    for (const auto& [c, i] : pairs_)
      for (int a = 0; a < 3; ++a)
        if (atom->f[c][a] != 0)
          error->one(FLERR,
                     "fix mdops/dplr: a fix that is defined after it puts forces on the centroids, which do "
                     "not reach their atoms: define that one before");
  }

  // -- The fix's line

  void read_words(int narg, char** arg) {
    mdops_options options = sized<mdops_options>();
    options.precision = MDOPS_FLOAT64, options.threads = comm->nthreads, options.part = MDOPS_DIPOLES;
    std::string path;
    std::vector<int> associated;
    for (int k = 3; k < narg;) {
      const std::string word = arg[k++];
      const auto value = [&]() -> std::string {
        if (k >= narg) refuse(word + " has no value");
        return arg[k++];
      };
      if (word == "model") {
        path = value();
      } else if (word == "type_associate") {
        while (k < narg && is_whole(arg[k])) associated.push_back(number(word, arg[k++], atom->ntypes));
      } else if (word == "bond_type") {
        while (k < narg && is_whole(arg[k])) bonds_.push_back(number(word, arg[k++], atom->nbondtypes));
        if (bonds_.empty()) refuse("bond_type has no value");
      } else if (word == "overflow") {
        const std::string name = value();
        if (name != "error" && name != "extend") refuse("overflow is " + name + ", expected error or extend");
        options.overflow = name == "extend" ? MDOPS_EXTEND : MDOPS_REFUSE;
      } else if (word == "pair_deepmd_index") {
        value();  // the style whose model has charges is found without
      } else if (word == "efield") {
        refuse("a field is LAMMPS' own: write `fix ID all efield Ex Ey Ez` in a line before this fix");
      } else {
        refuse(word + " is none of the words model, type_associate, bond_type and overflow");
      }
    }
    if (path.empty()) refuse("the word model, and the file of the energies' model, are missing");
    if (associated.empty() || associated.size() % 2)
      refuse("type_associate has " + std::to_string(associated.size()) +
             " types, expected pairs: of atoms, and of their centroids");
    centroid_of_.assign(atom->ntypes + 1, 0), atom_of_.assign(atom->ntypes + 1, 0);
    for (size_t k = 0; k < associated.size(); k += 2) {
      const int real = associated[k], centroid = associated[k + 1];
      if (real == centroid || centroid_of_[real] || atom_of_[centroid] || atom_of_[real] ||
          centroid_of_[centroid])
        refuse("type_associate names a type twice");
      centroid_of_[real] = centroid, atom_of_[centroid] = real;
    }
    mdops_model* made = nullptr;
    const int status = load(lmp, path, options, &made);
    model_.reset(made);
    require_everywhere(status == MDOPS_OK ? "" : "fix mdops/dplr: " + std::string(mdops_message()));
    info_ = sized<mdops_info>();
    mdops_describe(model_.get(), &info_);
    if (!info_.charges)
      refuse(path + " is a model of dipoles alone: give the model of energies whose modifier names it");
    if (info_.fparam || info_.aparam)
      refuse("the model of dipoles takes frame or atomic parameters, for which there is no place");
  }

  static bool is_whole(const char* word) {
    return *word && std::all_of(word, word + std::strlen(word), [](char c) { return c >= '0' && c <= '9'; });
  }

  int number(const std::string& word, const char* text, int most) {
    const int found = std::strlen(text) < 9 ? std::atoi(text) : 0;
    if (found < 1 || found > most)
      refuse(word + " has " + text + ", expected types from 1 to " + std::to_string(most));
    return found;
  }

  // -- Checks before a run

  void check_setting() {
    if (units_.length != 1)
      refuse(std::string("units are ") + update->unit_style + ", expected metal or real");
    if (utils::strmatch(update->integrate_style, "^respa")) refuse("run_style respa does not call it");
    if (modify->get_fix_by_style("dplr").size() > 1) refuse("there is one already");
    if (!atom->q_flag || atom->molecular != Atom::MOLECULAR || !atom->nspecial)
      refuse("atoms have no charges, or no bonds: take atom_style full");
    if (atom->map_style == Atom::MAP_NONE)
      refuse("atoms are not found by their IDs: write atom_modify map yes");
    if (!force->newton_pair) refuse("newton pair is off");
  }

  // The pair style whose energies lack those of the charges; null: none.
  ShortRange* short_range() const {
    for (const char* const name : kPairStyles) {
      Pair* before = nullptr;
      for (int k = 1;; ++k) {
        Pair* const pair = force->pair_match(name, 1, k);
        if (!pair || pair == before) break;
        ShortRange* const found = dynamic_cast<ShortRange*>(pair);
        if (found && found->lacks_charges()) return found;
        before = pair;
      }
    }
    return nullptr;
  }

  // The dipole model's type of each atom type.
  void find_kinds() {
    const ShortRange* const pair = short_range();
    if (!pair)
      refuse("there is no pair_style mdops whose model has charges (a modifier): give both the same file");
    kinds_.assign(atom->ntypes + 1, -1);
    for (int t = 1; t <= atom->ntypes; ++t) {
      const std::string name = pair->element(t);
      for (int k = 0; k < info_.ntypes; ++k)
        if (name == info_.names[k]) kinds_[t] = k;
      const std::string about = "atom type " + std::to_string(t);
      if (!name.empty() && kinds_[t] < 0) refuse("the model of dipoles does not know " + name + ", " + about);
      if (!name.empty() && atom_of_[t])
        refuse(about + " is one of centroids, and pair_coeff calls it " + name + ", expected NULL");
      const bool has = kinds_[t] >= 0 && info_.has_dipole[kinds_[t]];
      if (has && !centroid_of_[t])
        refuse(about + ", " + name + ", has centroids in the model: name their type by type_associate");
      if (!has && centroid_of_[t])
        refuse(about + (name.empty() ? "" : ", " + name + ",") + " has no centroids in the model");
    }
    for (int t = 1; t <= atom->ntypes; ++t)
      for (int u = 1; u <= atom->ntypes; ++u)
        if (kinds_[t] >= 0 && kinds_[u] >= 0 &&
            !(force->pair->cutsq[t][u] >= info_.cutoff * info_.cutoff * (1 - 1e-12)))
          refuse("the model of dipoles reaches to " + std::to_string(info_.cutoff) +
                 " A, farther than the pair style");
  }

  void check_kspace() {
    const KSpace* const kspace = force->kspace;
    const std::string beta = std::to_string(info_.beta);
    if (!kspace)
      refuse(
          "there is no kspace_style, which sums the charges: write `kspace_style pppm 1e-5` and "
          "`kspace_modify gewald " +
          beta + "`");
    std::string style = force->kspace_style;
    for (const char* const end : {"/omp", "/gpu", "/intel", "/kk", "/cg", "/stagger"})
      if (const size_t at = style.find(end); at != std::string::npos) style.erase(at, std::strlen(end));
    const auto& styles = *force->kspace_map;
    const bool is_own = style == kMeshOfDeepmd && styles.at(kMeshOfDeepmd) == styles.at(kMesh);
    if (style != kMesh && style != "ewald" && !is_own)
      refuse(std::string("kspace_style is ") + force->kspace_style + ", expected pppm or ewald");
    if (!(std::abs(kspace->g_ewald - info_.beta) < kSamePart * info_.beta))
      refuse("the model's charges have the width ewald_beta " + beta + ", and LAMMPS' " +
             std::to_string(kspace->g_ewald) + ": write `kspace_modify gewald " + beta + "`");
    if (force->dielectric != 1) refuse("the dielectric constant is not 1");
    check_charges();
    double mine = 0;
    for (int i = 0; i < atom->nlocal; ++i) mine += atom->q[i];
    MPI_Allreduce(&mine, &total_, 1, MPI_DOUBLE, MPI_SUM, world);
  }

  // The data's charges must be the model's.
  void check_charges() {
    std::string problem;
    for (int i = 0; i < atom->nlocal && problem.empty(); ++i) {
      const int type = atom->type[i], real = is_centroid(i) ? atom_of_[type] : type;
      if (kinds_[real] < 0) continue;
      const double wanted = (is_centroid(i) ? info_.dipole_charges : info_.charges)[kinds_[real]];
      if (!(std::abs(atom->q[i] - wanted) < kSamePart * std::max(1.0, std::abs(wanted))))
        problem = "fix mdops/dplr: " + name_of(i) + " has the charge " + std::to_string(atom->q[i]) +
                  ", and the model has " + std::to_string(wanted) + " there: `set type " +
                  std::to_string(type) + " charge " + std::to_string(wanted) + "` sets it";
    }
    require_everywhere(problem);
  }

  void warn_of_integrators() {
    for (const Fix* const fix : modify->get_fix_list()) {
      if (!fix->time_integrate) continue;
      int mine = 0, any = 0;
      for (int i = 0; i < atom->nlocal; ++i) mine |= is_centroid(i) && (atom->mask[i] & fix->groupbit);
      MPI_Allreduce(&mine, &any, 1, MPI_INT, MPI_MAX, world);
      if (any && comm->me == 0)
        error->warning(FLERR, std::string("fix mdops/dplr: centroids are in the group of fix ") + fix->id +
                                  ", which counts them as atoms: give it a group of the others");
    }
  }

  // PPPM supports charges at most half of the skin outside of a process' part of the box.
  void warn_of_reach(double longest) {
    if (warned_ || !(longest > 0.5 * neighbor->skin)) return;
    warned_ = true;
    error->warning(FLERR, "fix mdops/dplr: centroids are up to " + std::to_string(longest) +
                              " A from their atoms: LAMMPS then builds its lists often, and its kspace may "
                              "say that atoms are out of range. `neighbor SKIN bin` with more than twice "
                              "that helps");
  }

  // -- Atoms and their centroids

  bool is_centroid(int i) const { return atom_of_[atom->type[i]] > 0; }
  std::string name_of(int i) const {
    return "atom " + std::to_string(static_cast<long long>(atom->tag[i])) + ", of type " +
           std::to_string(atom->type[i]) + ",";
  }

  // The atom here, or its image, to which a centroid is bonded; -1 and a reason.
  int atom_of(int c, std::string& problem) const {
    int found = -1, count = 0;
    for (int k = 0; k < atom->nspecial[c][0]; ++k) {
      const int i = atom->map(atom->special[c][k]);
      if (i >= 0 && atom->type[i] == atom_of_[atom->type[c]]) found = i, ++count;
    }
    if (count != 1)
      problem = "fix mdops/dplr: " + name_of(c) + " is a centroid with bonds to " + std::to_string(count) +
                " atoms of type " + std::to_string(atom_of_[atom->type[c]]) +
                " (type_associate), expected one within the range of communication";
    return count == 1 ? found : -1;
  }

  // Pairs all centroids with their atoms, each once; else returns a reason.
  std::string find_pairs() {
    std::string problem;
    std::vector<int> centroids(atom->nlocal, 0);
    pairs_.clear();
    for (int c = 0; c < atom->nlocal; ++c) {
      if (!is_centroid(c)) continue;
      const int i = atom_of(c, problem);
      if (i >= atom->nlocal)
        problem = "fix mdops/dplr: " + name_of(c) + " is not on the process of its atom: please report it";
      if (i < 0 || i >= atom->nlocal) return problem;
      pairs_.emplace_back(c, i), ++centroids[i];
    }
    for (int i = 0; i < atom->nlocal; ++i)
      if (centroid_of_[atom->type[i]] && centroids[i] != 1)
        return "fix mdops/dplr: " + name_of(i) + " has " + std::to_string(centroids[i]) +
               " centroids, expected one, to which it is bonded";
    return check_bonds();
  }

  std::string check_bonds() const {
    for (int i = 0; !bonds_.empty() && i < atom->nlocal; ++i)
      for (int k = 0; k < atom->num_bond[i]; ++k) {
        const int j = atom->map(atom->bond_atom[i][k]), type = std::abs(atom->bond_type[i][k]);
        const bool binds = j >= 0 && (is_centroid(i) || is_centroid(j));
        if (binds && std::find(bonds_.begin(), bonds_.end(), type) == bonds_.end())
          return "fix mdops/dplr: " + name_of(i) + " and its centroid have a bond of type " +
                 std::to_string(type) + ", which is none of bond_type";
      }
    return "";
  }

  // -- The model

  bool holds() const {
    return filled_ && centers_ == atom->nlocal && all_ == atom->nlocal + atom->nghost &&
           std::equal(types_.begin(), types_.end(), atom->type);
  }

  // Updates pairs and neighbours; returns a reason if that fails.
  std::string fill() {
    filled_ = false;
    if (comm->get_comm_cutoff() < info_.cutoff)
      return "fix mdops/dplr: the communication cutoff is less than the dipole model's";
    const std::string problem = find_pairs();
    if (!problem.empty()) return problem;
    centers_ = atom->nlocal, all_ = atom->nlocal + atom->nghost;
    types_.assign(atom->type, atom->type + all_);
    std::vector<int32_t> kinds(all_);
    for (int i = 0; i < all_; ++i) kinds[i] = kinds_[types_[i]];
    const mdops::lammps::ListOf found(*atom, list_, kinds);
    mdops_list* made = near_.release();
    const int status = mdops_list_fill(&found.near, info_.ntypes, &made);
    near_.reset(made);
    if (status != MDOPS_OK) return mdops_message();
    filled_ = true;
    return "";
  }

  std::string evaluate(const double* field, mdops_output& output) {
    static const double nowhere[3] = {};
    mdops_input input = sized<mdops_input>();
    input.atoms = centers_, input.ghosts = all_ - centers_;
    input.positions = all_ ? atom->x[0] : nowhere;
    input.list = near_.get(), input.field = field;
    if (mdops_compute(model_.get(), &input, &output) == MDOPS_OK) return "";
    std::string why = "fix mdops/dplr: " + std::string(mdops_message());
    if (output.atom >= 0)
      why += " (on process " + std::to_string(comm->me) + "; " + name_of(static_cast<int>(output.atom)) +
             " is it)";
    return why;
  }

  // eV, of a charge in its own field and in the background of all.
  double own_energy(double q) const {
    const double g = info_.beta, pi = 3.14159265358979323846;
    const double volume = domain->xprd * domain->yprd * domain->zprd * force->kspace->slab_volfactor;
    return force->qqrd2e * q * (g * q / std::sqrt(pi) + 0.5 * pi * total_ / (g * g * volume));
  }

  Units units_;
  std::unique_ptr<mdops_model, FreeModel> model_;
  std::unique_ptr<mdops_list, FreeList> near_;
  mdops_info info_{};
  std::vector<int> centroid_of_, atom_of_;  // for each atom type the other one of type_associate; 0: none
  std::vector<int> bonds_;                  // types of bonds to centroids; empty: any
  std::vector<int> kinds_;                  // for each atom type the model's, or -1
  NeighList* list_ = nullptr;
  // The state of the neighbours; and each centroid with its atom.
  bool filled_ = false, warned_ = false;
  bool led_ = false;  // whether the centroids' forces have moved to their atoms
  int centers_ = 0, all_ = 0, eflag_ = 0;
  std::vector<int> types_;
  std::vector<std::pair<int, int>> pairs_;
  std::vector<double> dipoles_, forces_;
  double total_ = 0;  // e, the total charge
};

}  // namespace

Fix* make_mdops_charges(LAMMPS* lmp, int narg, char** arg) {
  return new FixCharges(lmp, narg, arg);
}
