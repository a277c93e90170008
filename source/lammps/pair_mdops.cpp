// pair_style mdops (lammps.md): models of the C core in LAMMPS. Its words are those of DeePMD-kit's style.
#include <mdops.h>
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "atom.h"
#include "comm.h"
#include "compute.h"
#include "error.h"
#include "fix.h"
#include "force.h"
#include "lammps/common.h"
#include "lammps/halo.h"
#include "lammps/masses.h"
#include "memory.h"
#include "modify.h"
#include "neigh_list.h"
#include "neighbor.h"
#include "pair.h"
#include "universe.h"
#include "update.h"
#include "utils.h"

using namespace LAMMPS_NS;
using namespace mdops::lammps;

namespace {

constexpr char kWords[] =
    "precision, overflow, device, out_file, out_freq, atomic, relative, relative_v, fparam, aparam, "
    "fparam_from_compute, fparam_from_fix, aparam_from_compute and charge_spin";

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

// Numbers in the memory that a model's device writes fastest.
class Numbers {
 public:
  explicit Numbers(mdops_model* model) : model_(model) {}
  ~Numbers() { release(); }
  Numbers(Numbers&& other) : model_(other.model_), data_(other.data_), size_(other.size_) {
    other.data_ = nullptr;
  }

  double* data() const { return data_; }

  // Its content is lost when it grows.
  int resize(size_t size) {
    if (size <= size_ && data_) return MDOPS_OK;
    release();
    data_ = nullptr, size_ = size + size / 8;  // as the number of ghosts goes up and down
    void* memory = nullptr;
    const int status = mdops_allocate(model_, static_cast<int64_t>(size_ * sizeof(double)), &memory);
    data_ = static_cast<double*>(memory);
    return status;
  }

 private:
  void release() { mdops_release(model_, data_); }

  mdops_model* model_;
  double* data_ = nullptr;
  size_t size_ = 0;
};

class PairMDOps : public Pair, public mdops::lammps::ShortRange {
 public:
  PairMDOps(LAMMPS* lmp, bool is_deepmd) : Pair(lmp), units_(lmp), is_deepmd_(is_deepmd) {
    restartinfo = 0;
    manybody_flag = one_coeff = 1;
    single_enable = 0;
    no_virial_fdotr_compute = 1;  // the model gives the virial
    centroidstressflag = CENTROID_AVAIL;
  }

  ~PairMDOps() override {
    if (!allocated) return;
    memory->destroy(setflag);
    memory->destroy(cutsq);
    memory->destroy(scale_);
  }

  // On errors, the old settings stay.
  void settings(int narg, char** arg) override {
    Settings given = read_settings(narg, arg);
    forces_.clear(), near_.reset();
    own_ = std::move(given);
    comm_forward = passes_messages() ? 2 : 0;
    comm_reverse = own_.count > 1 ? 3 * own_.count * parts() : 0;
    line_ = Line(), filled_ = warned_ = false;
    ewaldflag = pppmflag = lacks_charges();  // for LAMMPS' kspace
    // The elements were another model's: pair_coeff names them again.
    kinds_.clear();
    for (int i = 1; allocated && i <= atom->ntypes; ++i)
      for (int j = 1; j <= atom->ntypes; ++j) setflag[i][j] = 0;
  }

  void coeff(int narg, char** arg) override {
    const int ntypes = atom->ntypes;
    if (!own_.count)
      error->all(FLERR, "pair_coeff: pair_style mdops has no model, as its line was refused: give it again");
    const bool is_long = narg == 2 + ntypes || (is_deepmd_ && narg < 2 + ntypes);  // others are NULL there
    if ((!is_long && narg != 2) || std::strcmp(arg[0], "*") != 0 || std::strcmp(arg[1], "*") != 0)
      error->all(FLERR, "pair_coeff of mdops is: pair_coeff * * and the element of each of the " +
                            std::to_string(ntypes) + " atom types, or NULL");
    const mdops_info& info = own_.info;
    const bool in_order = narg == 2;  // the model's types. Centroids of charges come behind them, as in DPLR.
    if (in_order && ntypes > info.ntypes && !lacks_charges() && !is_deepmd_)
      error->all(FLERR, "pair_coeff * * without elements takes the model's types in their order: it has " +
                            std::to_string(info.ntypes) + ", and there are " + std::to_string(ntypes) +
                            " atom types: name the element of each, or NULL");
    std::vector<int> kinds(ntypes + 1, -1);
    std::string known;
    for (int t = 0; t < info.ntypes; ++t) known += (t ? ", " : "") + std::string(info.names[t]);
    for (int i = 1; i <= ntypes; ++i) {
      const bool is_named = i <= (in_order ? info.ntypes : narg - 2);
      const std::string name = !is_named ? "NULL" : in_order ? info.names[i - 1] : arg[1 + i];
      for (int t = 0; t < info.ntypes; ++t)
        if (name == info.names[t]) kinds[i] = t;
      if (kinds[i] < 0 && name != "NULL")
        error->all(FLERR, "pair_coeff: the model has no element " + name + ": it has " + known);
    }
    if (in_order && comm->me == 0)
      utils::logmesg(lmp, "pair_style mdops: pair_coeff names no elements: the atom types are " + known +
                              (ntypes > info.ntypes ? ", and others NULL\n" : "\n"));
    if (!allocated) {
      memory->create(setflag, ntypes + 1, ntypes + 1, "pair:setflag");
      memory->create(cutsq, ntypes + 1, ntypes + 1, "pair:cutsq");
      memory->create(scale_, ntypes + 1, ntypes + 1, "pair:scale");
      allocated = 1;
    }
    kinds_ = std::move(kinds);
    filled_ = false;
    std::fill_n(scale_[0], (ntypes + 1) * (ntypes + 1), 1.0);
    // Alone, it is set for all pairs: those of NULL have no energy. In pair_style hybrid they belong to other
    // styles.
    const bool is_alone = force->pair == this;
    for (int i = 1; i <= ntypes; ++i)
      for (int j = 1; j <= ntypes; ++j) setflag[i][j] = is_alone || (kinds_[i] >= 0 && kinds_[j] >= 0);
  }

  void init_style() override {
    units_ = Units(lmp);
    if (!force->newton_pair) error->all(FLERR, "pair_style mdops needs newton pair on");
    if (lacks_charges() && modify->get_fix_by_style("dplr").empty())
      error->all(FLERR,
                 "pair_style mdops: the model lacks the energy of charges beyond the cutoff (its modifier "
                 "dipole_charge), which fix mdops/dplr and a kspace_style add: define them (lammps.md)");
    if (takes_spins() && !atom->sp_flag)
      error->all(FLERR, std::string("pair_style mdops: the model has magnetic moments: atom_style is ") +
                            atom->atom_style + ", expected spin");
    if (takes_spins() && std::strcmp(update->unit_style, "metal") != 0)
      error->all(FLERR, std::string("pair_style mdops: moments are of LAMMPS' units metal: units are ") +
                            update->unit_style);
    find_sources();
    const bool moves = update->whichflag == 1;  // not a minimization
    if (takes_spins() && moves && !modify->get_fix_by_style("^nve/spin").empty())
      error->all(
          FLERR,
          "pair_style mdops: fix nve/spin turns moments by the fields of LAMMPS' own spin/* pair styles "
          "alone, and would leave out the model's: use fix nve, or min_style spin (lammps.md)");
    cutoff_ = units_.length * (own_.info.cutoff + 2 * farthest_virtual_atom());
    // A GPU finds the neighbours itself, and LAMMPS need not, unless some pairs do not count.
    const bool excludes =
        neighbor->nex_type || neighbor->nex_group || neighbor->nex_mol || neighbor->includegroup;
    const bool leaves_out = excludes || force->pair != this;
    if (own_.info.virtual_scale > 0 &&
        (excludes || (force->pair != this && !utils::strmatch(force->pair_style, "^hybrid/overlay"))))
      error->all(
          FLERR,
          "pair_style mdops: the model's moments are virtual atoms, and it finds the neighbours of these "
          "itself: neigh_modify exclude and include would have no effect, nor would pairs of other "
          "styles in pair_style hybrid (hybrid/overlay works)");
    takes_list_ = !on_gpu() || own_.in_python || leaves_out;
    if (takes_list_ && !own_.searches) neighbor->add_request(this, kFullList);
    filled_ = false;
    line_.step = -1;  // another run
    warn_of_masses();
  }

  // Elements in another order than the types can only be noticed by their masses.
  void warn_of_masses() const {
    if (comm->me || !atom->mass) return;
    for (int i = 1; i <= atom->ntypes; ++i)
      for (int j = 1; j <= atom->ntypes; ++j)
        if (atom->mass_setflag[i] && mdops::lammps::has_mass_of(atom->mass[i], element(i), element(j))) {
          error->warning(FLERR, "pair_style mdops: pair_coeff says that type " + std::to_string(i) + " is " +
                                    element(i) + ", and its mass of " + std::to_string(atom->mass[i]) +
                                    " is that of " + element(j) +
                                    ": are the elements in the order of the types?");
          return;
        }
  }

  double init_one(int i, int j) override {
    scale_[j][i] = scale_[i][j];  // fix adapt sets the upper half
    return cutoff_;
  }

  // LAMMPS' kspace asks for the cutoff of the charges' short-range energy. There is none: they are Gaussians.
  // Its fixes adapt and adapt/fep change the factor of the energy.
  void* extract(const char* name, int& dimension) override {
    dimension = std::strcmp(name, "scale") == 0 ? 2 : 0;
    if (dimension == 2) return scale_;
    reach_ = Units(lmp).length * own_.info.cutoff;
    return lacks_charges() && std::strcmp(name, "cut_coul") == 0 ? &reach_ : nullptr;
  }

  bool lacks_charges() const override { return own_.count && own_.info.lacks_charges; }
  std::string element(int type) const override {
    return kinds_.empty() || kinds_[type] < 0 ? "" : own_.info.names[kinds_[type]];
  }

  void compute(int eflag, int vflag) override {
    ev_init(eflag, vflag);
    const int all = atom->nlocal + atom->nghost;
    const bool deviates = wants_deviation();
    std::string problem;
    read_sources();
    if (is_old_anywhere(all)) problem = fill(all);
    if (takes_spins() && problem.empty()) problem = read_spins();
    // One number more: a process without atoms asks for virials, too, as all exchange rows for them.
    std::vector<double> energy(eflag_atom ? atom->nlocal : 0), virial(wants_atoms() ? 9 * all + 1 : 0);
    mdops_output output = sized<mdops_output>();
    if (passes_messages()) require_everywhere(problem);  // before the processes wait for each other
    used_ = deviates ? own_.count : 1;
    while (forces_.size() < used_) forces_.emplace_back(own_.models[forces_.size()].get());
    std::vector<double> virials;
    for (size_t m = 0; problem.empty() && m < used_; ++m) {
      if (forces_[m].resize(parts() * 3 * static_cast<size_t>(all)) != MDOPS_OK) problem = mdops_message();
      if (passes_messages()) require_everywhere(problem);
      if (!problem.empty()) break;
      mdops_output own = sized<mdops_output>();
      own.forces = forces_of(m, 0);
      if (takes_spins()) own.magnetic_forces = forces_of(m, 1);
      own.atom_energy = m == 0 && eflag_atom ? energy.data() : nullptr;
      own.atom_virial = m == 0 && wants_atoms() ? virial.data() : nullptr;
      problem = evaluate(m, own);
      if (passes_messages()) require_everywhere(problem);
      virials.insert(virials.end(), own.virial, own.virial + 9);
      if (m == 0) output = own;
    }
    double scale = 1;
    if (problem.empty()) problem = read_scale(scale);
    require_everywhere(problem);
    const double factor = scale * units_.energy, of_forces = scale * units_.force;
    warn(output.nearest);
    if (all) {
      const double* const from = forces_[0].data();
      double* const to = atom->f[0];
      for (size_t k = 0; k < 3 * static_cast<size_t>(all); ++k) to[k] += of_forces * from[k];
    }
    if (takes_spins()) add_magnetic_forces(scale);
    if (eflag_global) eng_vdwl += factor * output.energy;
    if (eflag_atom)
      for (int i = 0; i < atom->nlocal; ++i) eatom[i] += factor * energy[i];
    // LAMMPS' virials of atoms are xx yy zz xy xz yz yx zx zy of distance (x) force; ours are of force (x)
    // distance, and so is LAMMPS' virial of the box, whose tilts xy, xz and yz it moves.
    constexpr int kPlaces[9] = {0, 4, 8, 3, 6, 7, 1, 2, 5}, kOfBox[6] = {0, 4, 8, 1, 2, 5};
    if (vflag_global)
      for (int k = 0; k < 6; ++k) virial_of_pair(k) += factor * output.virial[kOfBox[k]];
    for (int i = 0; i < (wants_atoms() ? all : 0); ++i) {
      double* const w = virial.data() + 9 * static_cast<size_t>(i);
      for (int k = 0; k < 9; ++k) w[k] *= factor;
      for (int k = 0; vflag_atom && k < 6; ++k)
        vatom[i][k] += k < 3 ? w[kPlaces[k]] : 0.5 * (w[kPlaces[k]] + w[kPlaces[k + 3]]);
      for (int k = 0; cvflag_atom && k < 9; ++k) cvatom[i][k] += w[kPlaces[k]];
    }
    if (deviates) write_deviation(virials);
  }

  // The process that owns an atom, and its index there.
  int pack_forward_comm(int n, int* atoms, double* to, int, int*) override {
    for (int k = 0; k < n; ++k) *to++ = owners_[atoms[k]].first, *to++ = owners_[atoms[k]].second;
    return 2 * n;
  }

  void unpack_forward_comm(int n, int first, double* from) override {
    for (int k = 0; k < n; ++k, from += 2)
      owners_[first + k] = {static_cast<int>(from[0]), static_cast<int>(from[1])};
  }

  // Forces on ghosts, of all models, for the deviation.
  int pack_reverse_comm(int n, int first, double* to) override {
    double* const begin = to;
    for (int i = first; i < first + n; ++i)
      for (size_t m = 0; m < forces_.size(); ++m)
        for (int part = 0; part < parts(); ++part)
          to = std::copy_n(forces_of(m, part) + 3 * static_cast<size_t>(i), 3, to);
    return static_cast<int>(to - begin);
  }

  void unpack_reverse_comm(int n, int* atoms, double* from) override {
    for (int k = 0; k < n; ++k)
      for (size_t m = 0; m < forces_.size(); ++m)
        for (int part = 0; part < parts(); ++part)
          for (int a = 0; a < 3; ++a) forces_of(m, part)[3 * static_cast<size_t>(atoms[k]) + a] += *from++;
  }

 private:
  // The arguments of a pair_style line.
  struct Settings {
    std::vector<std::unique_ptr<mdops_model, FreeModel>> models;
    int count = 0;                          // of the models
    bool in_python = false;                 // any of them
    bool searches = true;                   // all, for the neighbours of their virtual atoms
    mdops_info info = sized<mdops_info>();  // of the first model, with the largest virtual_scale of all
    std::vector<double> fparam, aparam, charge_spin;
    std::string fparam_compute, fparam_fix, aparam_compute;  // the IDs of those that give the parameters
    int fix_index = 0;                      // the place in the fix' vector, from 1; 0: its scalar
    bigint every = 100;                     // steps between deviations; 0: none
    bool atomic = false;                    // deviations of atoms, too
    double relative = -1, relative_v = -1;  // added to what deviations are divided by; -1: they are absolute
    std::unique_ptr<std::FILE, CloseFile> file;  // of the deviation
  };

  // The last line in the deviation's file, where it begins, and its step.
  struct Line {
    bigint step = -1, builds = -1;  // builds: of neighbour lists
    long begin = -1;
    std::string text;
  };

  Settings read_settings(int narg, char** arg) {
    Settings given;
    mdops_options options = sized<mdops_options>();
    options.threads = comm->nthreads, options.part = MDOPS_SHORT_RANGE;
    std::vector<std::string> paths;
    std::string output = "model_devi.out", device = is_deepmd_ && mdops_gpu_count() ? "cuda" : "cpu";
    for (int k = 0; k < narg; ++k) {
      const std::string word = arg[k];
      const auto value = [&]() -> std::string {
        if (++k >= narg) error->all(FLERR, "pair_style mdops: " + word + " has no value");
        return arg[k];
      };
      const auto numbers = [&](std::vector<double>& to) {
        for (double x; k + 1 < narg && is_number(arg[k + 1], x); ++k) {
          if (!(std::abs(x) <= 1e30))
            error->all(FLERR, "pair_style mdops: " + word + " is " + arg[k + 1] +
                                  ", expected finite numbers up to 1e30");
          to.push_back(x);
        }
        if (to.empty()) error->all(FLERR, "pair_style mdops: " + word + " has no value");
      };
      if (word == "precision") {
        const std::string name = value();
        if (name != "float32" && name != "float64")
          error->all(FLERR, "pair_style mdops: precision is " + name + ", expected float32 or float64");
        options.precision = name == "float64" ? MDOPS_FLOAT64 : MDOPS_FLOAT32;
      } else if (word == "overflow") {
        const std::string name = value();
        if (name != "error" && name != "extend")
          error->all(FLERR, "pair_style mdops: overflow is " + name + ", expected error or extend");
        options.overflow = name == "extend" ? MDOPS_EXTEND : MDOPS_REFUSE;
      } else if (word == "device") {
        device = value();
        if (device != "cpu" && device.rfind("cuda", 0) != 0)
          error->all(FLERR, "pair_style mdops: device is " + device + ", expected cpu, cuda or cuda:N");
      } else if (word == "out_file") {
        output = value();
      } else if (word == "out_freq") {
        given.every = utils::bnumeric(FLERR, value(), false, lmp);
        if (given.every < 0) error->all(FLERR, "pair_style mdops: out_freq must be positive, or 0: never");
      } else if (word == "atomic") {
        given.atomic = true;
      } else if (word == "relative" || word == "relative_v") {
        double& level = word == "relative" ? given.relative : given.relative_v;
        level = utils::numeric(FLERR, value(), false, lmp);
        if (!(level >= 0)) error->all(FLERR, "pair_style mdops: " + word + " must not be negative");
      } else if (word == "fparam_from_compute") {
        given.fparam_compute = value();
      } else if (word == "fparam_from_fix") {
        given.fparam_fix = value();
        double index = 0;
        if (k + 1 < narg && is_number(arg[k + 1], index)) {
          given.fix_index = static_cast<int>(utils::bnumeric(FLERR, arg[++k], false, lmp));
          if (given.fix_index < 1)
            error->all(FLERR, "pair_style mdops: the index of fparam_from_fix is from 1");
        }
      } else if (word == "aparam_from_compute") {
        given.aparam_compute = value();
      } else if (word == "ttm" || word == "virtual_len" || word == "spin_norm") {
        error->all(FLERR, "pair_style mdops: " + word +
                              " is not served: electrons' temperatures are given by aparam_from_compute, and "
                              "a model has the virtual atoms of its moments in its file");
      } else if (word == "fparam") {
        numbers(given.fparam);
      } else if (word == "aparam") {
        numbers(given.aparam);
      } else if (word == "charge_spin") {
        numbers(given.charge_spin);
      } else {
        paths.push_back(word);
      }
    }
    // DeePMD-kit 0 has the interval and the file of the deviation behind the models, without words.
    if (const size_t n = paths.size();
        n > 2 && access(paths[n - 2].c_str(), R_OK) != 0 && is_whole(paths[n - 2])) {
      given.every = std::stoll(paths[n - 2]), output = paths[n - 1];
      paths.resize(n - 2);
    }
    if (paths.empty()) error->all(FLERR, "pair_style mdops needs the file of a model");
    if (device == "cuda") device = own_gpu();
    options.device = device.c_str();
    for (const std::string& path : paths)
      require(access(path.c_str(), R_OK) == 0,
              "pair_style mdops: " + path + ": it cannot be opened, and it is none of the words " + kWords);
    if (!given.charge_spin.empty()) options.charge_spin = given.charge_spin.data();
    require(given.charge_spin.empty() || given.charge_spin.size() == 2,
            "pair_style mdops: charge_spin has " + std::to_string(given.charge_spin.size()) +
                " numbers, expected a charge, -100 to 99, and a multiplicity");
    given.count = static_cast<int>(paths.size());
    for (const std::string& path : paths) add_model(path, paths[0], options, given);
    if (given.in_python && comm->me == 0)
      utils::logmesg(
          lmp,
          "pair_style mdops: a process of Python beside each of LAMMPS' evaluates a model that has no part "
          "for the C core: `mdops convert IN OUT.safetensors` says why, and with --core may make one\n");
    if (given.count > 1 && given.every) open(output, given);
    return given;
  }

  void add_model(const std::string& path, const std::string& first, const mdops_options& options,
                 Settings& given) {
    mdops_model* model = nullptr;
    const int status = load(lmp, path, options, &model);
    given.models.emplace_back(model);
    require(status == MDOPS_OK, mdops_message());
    mdops_info info = sized<mdops_info>();
    require(mdops_describe(model, &info) == MDOPS_OK, mdops_message());
    given.in_python |= info.in_python;
    given.searches &= info.virtual_scale > 0;
    check_parameters(path, info, given);
    if (given.models.size() == 1) {
      given.info = info;
      return;
    }
    bool same = info.ntypes == given.info.ntypes && info.cutoff == given.info.cutoff &&
                info.lacks_charges == given.info.lacks_charges &&
                info.passes_messages == given.info.passes_messages &&
                !info.magnetic == !given.info.magnetic && info.fparam == given.info.fparam &&
                info.aparam == given.info.aparam;
    for (int t = 0; same && t < info.ntypes; ++t) same = !std::strcmp(info.names[t], given.info.names[t]);
    given.info.virtual_scale = std::max(given.info.virtual_scale, info.virtual_scale);
    require(same,
            path + " has other elements, another cutoff, or other charges (modifier) or parameters, than " +
                first + ", or one of both passes messages, or has magnetic moments");
  }

  void check_parameters(const std::string& path, const mdops_info& info, const Settings& given) {
    const int frame = static_cast<int>(given.fparam.size()), atomic = static_cast<int>(given.aparam.size());
    const int from = !given.fparam_compute.empty() + !given.fparam_fix.empty(),
              each = !given.aparam_compute.empty();
    require(from + (frame > 0) < 2 && each + (atomic > 0) < 2,
            "pair_style mdops: parameters are given twice: by numbers, a compute or a fix");
    require(from ? info.fparam > 0 : frame == info.fparam || (!frame && !info.needs_fparam),
            path + " takes " + std::to_string(info.fparam) + " frame parameters (fparam)");
    require(each ? info.aparam > 0 : atomic == info.aparam,
            path + " takes " + std::to_string(info.aparam) + " atomic parameters (aparam)");
  }

  // The deviation's file: one for each world, named like LAMMPS' logs.
  void open(std::string name, Settings& given) {
    if (universe->nworlds > 1) name += "." + std::to_string(universe->iworld);
    if (comm->me == 0) {
      const bool begins = !update->ntimestep;  // after a restart the file goes on
      given.file.reset(std::fopen(name.c_str(), begins ? "w" : "a"));
      std::string heading = "#       step";
      std::vector<std::string> of = {"v", "f"};
      if (given.info.magnetic) of = {"v", "fr", "fm"};
      for (const std::string& what : of)
        for (const char* const which : {"max", "min", "avg"}) {
          const std::string word = which + ("_devi_" + what);
          heading += std::string(19 - word.size(), ' ') + word;
        }
      if (given.atomic) heading += "      atm_devi_f(N)";
      std::FILE* const file = given.file.get();
      const bool has_lines = file && !begins && std::fseek(file, 0, SEEK_END) == 0 && std::ftell(file) > 0;
      if (file && !has_lines) std::fprintf(file, "%s\n", heading.c_str());
    }
    require(comm->me != 0 || given.file, "pair_style mdops: " + name + " cannot be written (out_file)");
    require(!given.atomic || atom->tag_enable, "pair_style mdops: atomic needs atoms with IDs");
  }

  static bool is_whole(const std::string& word) {
    return !word.empty() && word.size() < 18 && word.find_first_not_of("0123456789") == std::string::npos;
  }

  static bool is_number(const char* word, double& value) {
    char* end = nullptr;
    value = std::strtod(word, &end);
    return end != word && *end == '\0';
  }

  bool on_gpu() const { return own_.info.gpu >= 0; }
  bool passes_messages() const { return own_.info.passes_messages; }
  bool takes_spins() const { return own_.info.magnetic; }
  // The forces, and for moments the magnetic forces, both of all atoms.
  int parts() const { return takes_spins() ? 2 : 1; }
  double* forces_of(size_t m, int part) const {
    return forces_[m].data() + part * 3 * (static_cast<size_t>(atom->nlocal) + atom->nghost);
  }

  // The computes and the fix that give parameters must exist, and have as many numbers.
  void find_sources() {
    const int frame = own_.info.fparam, atomic = own_.info.aparam, index = own_.fix_index;
    const Compute* const of_frame = modify->get_compute_by_id(own_.fparam_compute);
    const Compute* const of_atoms = modify->get_compute_by_id(own_.aparam_compute);
    const Fix* const fix = modify->get_fix_by_id(own_.fparam_fix);
    const auto refuse = [&](const std::string& what) {
      error->all(FLERR, "pair_style mdops: there is no " + what);
    };
    if (!own_.fparam_compute.empty() &&
        !(of_frame && (frame == 1 ? of_frame->scalar_flag : of_frame->vector_flag)))
      refuse("compute " + own_.fparam_compute + " with a " + (frame == 1 ? "scalar" : "vector"));
    if (!own_.fparam_fix.empty() &&
        !(fix && (index ? fix->vector_flag && index - 1 + frame <= fix->size_vector : fix->scalar_flag)))
      refuse("fix " + own_.fparam_fix + " with a " + (index ? "vector of so many numbers" : "scalar"));
    const int columns = of_atoms && of_atoms->peratom_flag ? of_atoms->size_peratom_cols : -1;
    if (!own_.aparam_compute.empty() && !(atomic == 1 ? columns == 0 : columns >= atomic))
      refuse("compute " + own_.aparam_compute + " with as many numbers for each atom as the model's aparam");
  }

  // A compute, ready to run.
  Compute& source(const std::string& id) {
    Compute& from = *modify->get_compute_by_id(id);
    if (update->setupflag) from.setup();  // LAMMPS does that after the first forces
    return from;
  }

  void read_sources() {
    const int frame = own_.info.fparam, atomic = own_.info.aparam;
    if (!own_.fparam_compute.empty() && frame == 1) {
      own_.fparam.assign(1, source(own_.fparam_compute).compute_scalar());
    } else if (!own_.fparam_compute.empty()) {
      Compute& from = source(own_.fparam_compute);
      from.compute_vector();
      if (from.size_vector < frame)
        error->all(FLERR, "pair_style mdops: the vector of compute " + own_.fparam_compute + " has " +
                              std::to_string(from.size_vector) + " numbers, expected " +
                              std::to_string(frame));
      own_.fparam.assign(from.vector, from.vector + frame);
    }
    if (!own_.fparam_fix.empty()) {
      Fix& from = *modify->get_fix_by_id(own_.fparam_fix);
      own_.fparam.resize(frame);
      for (int k = 0; k < frame; ++k)
        own_.fparam[k] = own_.fix_index ? from.compute_vector(own_.fix_index - 1 + k) : from.compute_scalar();
    }
    aparam_.clear();
    for (int i = 0; !own_.aparam.empty() && i < atom->nlocal; ++i)
      aparam_.insert(aparam_.end(), own_.aparam.begin(), own_.aparam.end());
    if (own_.aparam_compute.empty()) return;
    Compute& from = source(own_.aparam_compute);
    from.compute_peratom();
    for (int i = 0; i < atom->nlocal; ++i) {
      const double* const row = atomic == 1 ? from.vector_atom + i : from.array_atom[i];
      aparam_.insert(aparam_.end(), row, row + atomic);
    }
  }

  // The largest distance of a virtual atom from its atom, A.
  double farthest_virtual_atom() const {
    double longest = 0;
    for (int i = 0; own_.info.virtual_scale > 0 && i < atom->nlocal; ++i)
      longest = std::max(longest, atom->sp[i][3]);
    MPI_Allreduce(MPI_IN_PLACE, &longest, 1, MPI_DOUBLE, MPI_MAX, world);
    return own_.info.virtual_scale * longest;
  }

  // The moments, which LAMMPS has as directions and lengths; returns a reason if ghosts are missing.
  std::string read_spins() {
    const int all = atom->nlocal + atom->nghost;
    double longest = 0;
    spins_.assign(3 * static_cast<size_t>(all) + 1, 0.0);
    for (int i = 0; i < all; ++i) {
      longest = std::max(longest, atom->sp[i][3]);
      for (int a = 0; a < 3; ++a) spins_[3 * static_cast<size_t>(i) + a] = atom->sp[i][a] * atom->sp[i][3];
    }
    if (own_.info.cutoff + 2 * own_.info.virtual_scale * longest <= cutoff_) return "";
    return "pair_style mdops: a moment has grown to " + std::to_string(longest) +
           " since the run began, and LAMMPS sends no ghosts for the neighbours of its virtual atom: begin a "
           "new run (without pre no) after changes of moments";
  }

  // LAMMPS' `fm` is the field that turns a direction, rad/ps: -dE/d(direction) / hbar.
  void add_magnetic_forces(double factor) const {
    const double* const from = forces_of(0, 1);
    const double hbar = force->hplanck / (2 * M_PI);
    for (int i = 0; i < atom->nlocal + atom->nghost; ++i)
      for (int a = 0; a < 3; ++a)
        atom->fm[i][a] += factor * from[3 * static_cast<size_t>(i) + a] * atom->sp[i][3] / hbar;
  }

  // The factor of the energy, which is not one of pairs; returns a reason if pairs have different ones.
  std::string read_scale(double& factor) const {
    bool found = false, same = true;
    for (int i = 1; i <= atom->ntypes; ++i)
      for (int j = i; j <= atom->ntypes; ++j) {
        if (kinds_[i] < 0 || kinds_[j] < 0) continue;
        if (!found) factor = scale_[i][j];
        found = true, same = same && scale_[i][j] == factor;
      }
    return same ? "" : "pair_style mdops: its energy is not one of pairs: scale it for all types (scale * *)";
  }

  // This process' GPU of the node: one each, or several processes on one.
  std::string own_gpu() {
    MPI_Comm node;
    int rank = 0, ranks = 1;
    MPI_Comm_split_type(world, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
    MPI_Comm_rank(node, &rank);
    MPI_Comm_size(node, &ranks);
    MPI_Comm_free(&node);
    const int count = mdops_gpu_count();
    if (comm->me == 0 && count)
      utils::logmesg(lmp, "pair_style mdops: " + std::to_string(ranks) + " processes on " +
                              std::to_string(std::min(count, ranks)) + " GPUs of the first node\n");
    return "cuda:" + std::to_string(count ? rank % count : 0);
  }

  bool wants_atoms() const { return vflag_atom || cvflag_atom; }
  double& virial_of_pair(int k) { return Pair::virial[k]; }

  void require_everywhere(const std::string& problem) { mdops::lammps::require_everywhere(lmp, problem); }
  void require(bool condition, const std::string& problem) { require_everywhere(condition ? "" : problem); }

  // Whether the neighbours are those of these atoms. Fixes that swap types change them between LAMMPS' lists.
  bool holds(int all) const {
    return filled_ && !is_late_ && all_ == all && centers_ == atom->nlocal &&
           std::equal(types_.begin(), types_.end(), atom->type);
  }

  // The same over all processes if they find their halos together.
  bool is_old_anywhere(int all) {
    int is_old = neighbor->ago == 0 || !holds(all);
    if (passes_messages()) MPI_Allreduce(MPI_IN_PLACE, &is_old, 1, MPI_INT, MPI_MAX, world);
    return is_old;
  }

  void find_halo(int all) {
    owners_.resize(all);
    for (int i = 0; i < atom->nlocal; ++i) owners_[i] = {comm->me, i};
    comm->forward_comm(this);
    halo_.find(world, atom->nlocal, {owners_.begin() + atom->nlocal, owners_.end()});
  }

  // Updates the neighbours; returns a reason if that fails.
  std::string fill(int all) {
    filled_ = false;
    if (passes_messages()) find_halo(all);
    const mdops_info& info = own_.info;
    if (comm->get_comm_cutoff() < cutoff_)
      return "pair_style mdops: the communication cutoff is " + std::to_string(comm->get_comm_cutoff()) +
             ", and the model's cutoff " + std::to_string(cutoff_) + " (in LAMMPS' units)";
    if (neighbor->exclude && !takes_list_)  // by a fix since init_style
      return "pair_style mdops: pairs are excluded from neighbour lists, and the GPU finds all neighbours: "
             "take "
             "device cpu";
    if (has_weighted_bonds())
      return "pair_style mdops: special_bonds leaves bonded neighbours out or weighs them, and the model "
             "needs "
             "all of them in full: write special_bonds lj/coul 1 1 1";
    types_.assign(atom->type, atom->type + all);
    std::vector<int32_t> kinds(all);
    for (int i = 0; i < all; ++i) kinds[i] = kinds_[types_[i]];
    mdops_list* made = near_.release();
    const int status = takes_list_ ? copy(kinds, &made) : search(kinds, &made);
    near_.reset(made);
    if (status != MDOPS_OK) return mdops_message();
    // LAMMPS measures displacements since its own lists: one searched later serves only once.
    is_late_ = !takes_list_ && neighbor->ago != 0;
    all_ = all, centers_ = atom->nlocal, filled_ = true;
    return "";
  }

  // Whether atoms of the model are bonded, as the second, third or fourth in a chain, with a weight other
  // than 1 in special_bonds. Those of weight 0 are not in LAMMPS' lists. Each process checks its own atoms.
  bool has_weighted_bonds() const {
    const double* const weights = force->special_lj;
    if (atom->molecular == Atom::ATOMIC ||
        std::all_of(weights + 1, weights + 4, [](double w) { return w == 1; }))
      return false;
    if (atom->molecular == Atom::TEMPLATE || !atom->nspecial) return atom->nbonds > 0;
    for (int i = 0; i < atom->nlocal; ++i) {
      if (kinds_[atom->type[i]] < 0) continue;
      for (int far = 1, k = 0; far < 4; ++far)
        for (; k < atom->nspecial[i][far - 1]; ++k) {
          const int j = weights[far] == 1 ? -1 : atom->map(atom->special[i][k]);
          if (j >= 0 && kinds_[atom->type[j]] >= 0) return true;
        }
    }
    return false;
  }

  // Copies LAMMPS' neighbours, or only the atoms for models that search for neighbours themselves.
  int copy(const std::vector<int32_t>& types, mdops_list** made) {
    mdops::lammps::ListOf found(*atom, own_.searches ? nullptr : list, types);
    mdops_exchange exchange = sized<mdops_exchange>();
    if (passes_messages()) {
      found.near.sources = halo_.sources().data();
      exchange.border = static_cast<int64_t>(halo_.border().size()), exchange.atoms = halo_.border().data();
      exchange.rows = halo_.rows();
      exchange.call = exchange_rows, exchange.context = this;
      if (halo_.processes() > 1) found.near.exchange = &exchange;
    }
    return mdops_list_fill(&found.near, own_.info.ntypes, made);
  }

  int search(const std::vector<int32_t>& types, mdops_list** made) {
    mdops_input input = sized<mdops_input>();
    input.atoms = atom->nlocal, input.ghosts = atom->nghost;
    input.types = types.data(), input.positions = positions();
    return mdops_list_search(own_.models[0].get(), &input, neighbor->skin / units_.length, made);
  }

  // In A.
  const double* positions() {
    const size_t size = 3 * (static_cast<size_t>(atom->nlocal) + atom->nghost);
    if (size && units_.length == 1) return atom->x[0];
    positions_.assign(size + 1, 0.0);
    for (size_t k = 0; k < size; ++k) positions_[k] = atom->x[0][k] / units_.length;
    return positions_.data();
  }

  std::string evaluate(size_t m, mdops_output& output) {
    mdops_input input = sized<mdops_input>();
    input.atoms = centers_, input.ghosts = all_ - centers_;
    input.positions = positions();
    input.list = near_.get();
    input.fparam = own_.fparam.empty() ? nullptr : own_.fparam.data();
    input.aparam = aparam_.empty() ? nullptr : aparam_.data();
    is_elsewhere_ = false;
    input.spins = takes_spins() ? spins_.data() : nullptr;
    if (mdops_compute(own_.models[m].get(), &input, &output) == MDOPS_OK || is_elsewhere_) return "";
    std::string why = mdops_message();
    if (output.atom >= 0 && atom->tag_enable)
      why += " (counted on process " + std::to_string(comm->me) + "; its atom ID is " +
             std::to_string(static_cast<long long>(atom->tag[output.atom])) + ")";
    return why;
  }

  // All processes run the layers together, and update ghosts between them. One that fails ends all, and says
  // why.
  static int exchange_rows(void* context, int32_t what, const double* from, double* to, int64_t width) {
    PairMDOps& self = *static_cast<PairMDOps*>(context);
    const int wide = static_cast<int>(width);
    int mine[4] = {what, -what, wide, -wide}, most[4];
    MPI_Allreduce(mine, most, 4, MPI_INT, MPI_MAX, self.world);
    self.is_elsewhere_ = most[0] == MDOPS_FAILED && what != MDOPS_FAILED;
    if (self.is_elsewhere_ || most[0] != -most[1] || most[2] != -most[3]) return 1;
    if (what == MDOPS_TO_GHOSTS) self.halo_.to_ghosts(from, to, width);
    if (what == MDOPS_FROM_GHOSTS) self.halo_.from_ghosts(from, to, width);
    return 0;
  }

  void warn(double nearest) {
    if (warned_ || !(nearest < own_.info.shortest)) return;
    warned_ = true;
    error->warning(FLERR, "pair_style mdops: atoms are nearer than " + std::to_string(own_.info.shortest) +
                              " A: the forces there are smooth but not the model's");
  }

  // Whether this evaluation needs the deviation. A step has one line, of its last structure. Fixes may try
  // others before its neighbour list is built, and a minimiser along its line. Later trials (finite
  // differences) do not count.
  bool wants_deviation() const {
    if (own_.count < 2 || !own_.every || update->ntimestep % own_.every != 0) return false;
    const bool minimizes = update->whichflag == 2;
    return minimizes || line_.step != update->ntimestep || line_.builds != neighbor->ncalls;
  }

  // The deviation of the models' forces (part 0) or magnetic forces (1) on each atom, in LAMMPS' units; 0 for
  // atoms that are none of the model.
  std::vector<double> deviations_of(int part) {
    std::vector<const double*> forces;
    std::vector<double> own(centers_);
    for (int m = 0; m < own_.count; ++m) forces.push_back(forces_of(m, part));
    mdops_deviation(forces.data(), own_.count, centers_, 3, own.data());
    for (int i = 0; i < centers_; ++i) {
      double mean[3] = {};
      for (const double* const f : forces)
        for (int a = 0; a < 3; ++a) mean[a] += f[3 * static_cast<size_t>(i) + a] / own_.count;
      own[i] *= units_.force;
      if (own_.relative >= 0) own[i] /= units_.force * std::hypot(mean[0], mean[1], mean[2]) + own_.relative;
      if (kinds_[atom->type[i]] < 0) own[i] = 0;
    }
    return own;
  }

  // The largest, smallest and mean of them, of atoms of the model; false without such atoms.
  bool spread(const std::vector<double>& own, double (&found)[3]) {
    double least = 1e300, most = 0, sum[2] = {0, 0};  // the sum over atoms of the model, and their number
    for (int i = 0; i < centers_; ++i) {
      if (kinds_[atom->type[i]] < 0) continue;
      least = std::min(least, own[i]), most = std::max(most, own[i]);
      sum[0] += own[i], sum[1] += 1;
    }
    MPI_Allreduce(MPI_IN_PLACE, &least, 1, MPI_DOUBLE, MPI_MIN, world);
    MPI_Allreduce(MPI_IN_PLACE, &most, 1, MPI_DOUBLE, MPI_MAX, world);
    MPI_Allreduce(MPI_IN_PLACE, sum, 2, MPI_DOUBLE, MPI_SUM, world);
    found[0] = most, found[1] = least, found[2] = sum[0] / sum[1];
    return sum[1] > 0;
  }

  // Those of all processes, in the order of the atoms' IDs.
  std::vector<double> in_order(const std::vector<double>& own) {
    tagint last = 0;
    for (int i = 0; i < centers_; ++i) last = std::max(last, atom->tag[i]);
    MPI_Allreduce(MPI_IN_PLACE, &last, 1, MPI_LMP_TAGINT, MPI_MAX, world);
    std::vector<double> all(last, 0.0);
    for (int i = 0; i < centers_; ++i) all[atom->tag[i] - 1] = own[i];
    MPI_Allreduce(MPI_IN_PLACE, all.data(), static_cast<int>(last), MPI_DOUBLE, MPI_SUM, world);
    return all;
  }

  // A line as DeePMD-kit writes it: of the virials' numbers, energies an atom, of the forces, and of the
  // magnetic forces, eV a unit of moments; and of the forces on each atom.
  void write_deviation(const std::vector<double>& virials) {
    const bool is_again = line_.step == update->ntimestep;
    line_.step = update->ntimestep, line_.builds = neighbor->ncalls;
    const int models = own_.count;
    comm->reverse_comm(this);
    std::vector<const double*> sums;
    std::vector<double> total(virials.size()), numbers(3, 0.0);
    MPI_Allreduce(virials.data(), total.data(), static_cast<int>(virials.size()), MPI_DOUBLE, MPI_SUM, world);
    for (double& x : total) x *= units_.energy / static_cast<double>(atom->natoms);
    for (int m = 0; m < models; ++m) sums.push_back(total.data() + 9 * m);
    double of_virial[9], squares = 0;
    mdops_deviation(sums.data(), models, 9, 1, of_virial);
    for (int k = 0; k < 9; ++k) {
      double mean = 0;
      for (const double* const w : sums) mean += w[k] / models;
      if (own_.relative_v >= 0) of_virial[k] /= std::abs(mean) + own_.relative_v;
      squares += of_virial[k] * of_virial[k] / 9;
    }
    numbers[0] = *std::max_element(of_virial, of_virial + 9);
    numbers[1] = *std::min_element(of_virial, of_virial + 9), numbers[2] = std::sqrt(squares);
    bool has_atoms = true;
    std::vector<double> of_atoms;
    for (int part = 0; part < parts(); ++part) {
      double found[3];
      const std::vector<double> own = deviations_of(part);
      has_atoms = spread(own, found);
      numbers.insert(numbers.end(), found, found + 3);
      if (own_.atomic && part == 0) of_atoms = in_order(own);
    }
    if (!own_.file || !has_atoms) return;
    numbers.insert(numbers.end(), of_atoms.begin(), of_atoms.end());
    char text[32];
    std::snprintf(text, sizeof(text), "%12lld", static_cast<long long>(update->ntimestep));
    std::string line = text;
    for (const double number : numbers) {
      std::snprintf(text, sizeof(text), " %18.6e", number);
      line += text;
    }
    put(line + "\n", is_again);
  }

  // Adds a line, or replaces that of the same step. A run that begins where the last one ended adds nothing.
  void put(const std::string& text, bool is_again) {
    std::FILE* const file = own_.file.get();
    bool is_written = true;
    if (is_again && line_.begin >= 0) {
      is_written = std::fseek(file, line_.begin, SEEK_SET) == 0 && ftruncate(fileno(file), line_.begin) == 0;
    } else {
      line_.begin = std::ftell(file);  // -1 for a pipe
      if (text == line_.text) return;
    }
    line_.text = text;
    is_written = is_written && std::fputs(text.c_str(), file) >= 0 && std::fflush(file) == 0;
    if (!is_written) error->one(FLERR, "pair_style mdops: the file of the model deviation cannot be written");
  }

  Units units_;
  const bool is_deepmd_;  // it stands for DeePMD-kit's style
  Settings own_;
  std::vector<double> positions_, aparam_;  // in A; of atoms
  double reach_ = 0;                        // of energies without charges
  std::vector<int> kinds_;                  // for each of LAMMPS' types the model's, or -1
  double** scale_ = nullptr;                // the factor of the energy, for each pair of types
  bool takes_list_ = true;                  // LAMMPS' neighbours, not the model's own search
  // The neighbours, and what they are of.
  std::unique_ptr<mdops_list, FreeList> near_;
  std::vector<int> types_;
  bool filled_ = false, is_late_ = false;
  int all_ = 0, centers_ = 0;
  std::vector<Numbers> forces_;              // of each model, all parts; freed before it
  std::vector<double> spins_;                // of all atoms
  double cutoff_ = 0;                        // LAMMPS' units, how far neighbours and virtual atoms may be
  size_t used_ = 0;                          // of them, in this step
  std::vector<std::pair<int, int>> owners_;  // of atoms and ghosts, while the halo is found
  Halo halo_;
  bool is_elsewhere_ = false;  // another process failed in this step
  bool warned_ = false;
  Line line_;
};

}  // namespace

Pair* make_mdops_pair(LAMMPS* lmp, bool is_deepmd) {
  return new PairMDOps(lmp, is_deepmd);
}
