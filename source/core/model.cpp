#include "core/model.h"

#include <charconv>
#include <cstdlib>
#include <limits>
#include <new>
#include <system_error>

#include "core/list.h"
#include "core/safetensors.h"
#include "core/weights.h"

namespace mdops::core {

namespace {

[[noreturn]] void refuse(const std::string& why) {
  throw Error(MDOPS_INVALID, "input: " + why);
}

// -1 for the CPU.
int gpu_of(const char* device) {
  const std::string name = device ? device : "cpu";
  if (name == "cpu") return -1;
  if (name == "cuda") return 0;
  int index = -1;
  const char *const from = name.c_str() + 5, *const end = name.c_str() + name.size();
  if (name.rfind("cuda:", 0) == 0 && std::from_chars(from, end, index).ptr == end && index >= 0) return index;
  throw Error(MDOPS_INVALID, "device is " + name + ", expected cpu, cuda or cuda:N");
}

// The prefix of the names of arrays of a file's part.
std::string prefix_of(const File& file, int32_t part) {
  return part == MDOPS_DIPOLES && file.has("core.charges.description") ? "core.charges." : "core.";
}

void check_part(const Json& about, int32_t part) {
  const bool is_of_dipoles = about.find("dipoles"), lacks_charges = about.find("lacks_charges");
  if (part == MDOPS_DIPOLES && !is_of_dipoles)
    throw Error(MDOPS_UNSUPPORTED, lacks_charges ? "its model of dipoles has no part for this library"
                                                 : "it is no model of dipoles, and has no charges");
  if (part != MDOPS_DIPOLES && is_of_dipoles)
    throw Error(MDOPS_UNSUPPORTED, "it is a model of dipoles, and one of energies is asked for");
  if (part == MDOPS_WHOLE && lacks_charges)
    throw Error(MDOPS_UNSUPPORTED,
                "its modifier dipole_charge adds charges beyond the cutoff, which this library does not sum: "
                "MDOPS_SHORT_RANGE is the model without them, for programs that do");
}

}  // namespace

Model::Model(const Json& about, const Request& request)
    : extends_(request.extends), is_double_(request.precision == "float64") {
  for (const Json& name : about.at("elements").as_list()) names_.push_back(name.as_text());
  for (const std::string& name : names_) pointers_.push_back(name.c_str());
  const Json* const lacks = about.find("lacks_charges");
  lacks_charges_ = lacks && lacks->as_bool();
  if (const Json* const dipoles = about.find("dipoles"))
    for (const Json& has : dipoles->as_list()) has_dipole_.push_back(has.as_bool());
  if (has_dipoles() && has_dipole_.size() != names_.size()) damaged("its dipoles are not of its types");
  if (const Json* const magnetic = about.find("magnetic"))
    for (const Json& has : magnetic->as_list()) magnetic_.push_back(has.as_bool());
  if (const Json* const charges = about.find("charges")) {
    for (const Json& q : charges->at("atoms").as_list()) charges_.of_atoms.push_back(q.as_number());
    for (const Json& q : charges->at("dipoles").as_list()) charges_.of_dipoles.push_back(q.as_number());
    charges_.beta = charges->at("beta").as_number();
    if (charges_.of_atoms.size() != names_.size() || charges_.of_dipoles.size() != names_.size() ||
        !(charges_.beta > 0))
      damaged("its charges are not of its types, or have no width");
  }
}

void Model::takes(const Parameters& fparam, const Parameters& aparam) {
  takes(fparam.size(), aparam.size(), fparam.needed());
}

void Model::takes(size_t fparam, size_t aparam, bool needs_fparam) {
  fparam_ = fparam, aparam_ = aparam, needs_fparam_ = needs_fparam;
}

mdops_info Model::info() const {
  mdops_info info{};
  info.cutoff = cutoff_, info.shortest = shortest_;
  info.ntypes = ntypes();
  info.fparam = static_cast<int32_t>(fparam_), info.aparam = static_cast<int32_t>(aparam_);
  info.needs_fparam = needs_fparam_;
  info.precision = is_double_ ? MDOPS_FLOAT64 : MDOPS_FLOAT32;
  info.gpu = -1;
  info.names = pointers_.data();
  if (has_dipoles()) info.has_dipole = has_dipole_.data();
  if (!charges_.of_atoms.empty())
    info.charges = charges_.of_atoms.data(), info.dipole_charges = charges_.of_dipoles.data();
  info.beta = charges_.beta, info.lacks_charges = lacks_charges_;
  if (takes_spins()) info.magnetic = magnetic_.data();
  return info;
}

void* Model::allocate(int64_t bytes) const {
  if (bytes > std::numeric_limits<int64_t>::max() / 2) throw std::bad_alloc();
  void* const memory = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
  if (!memory) throw std::bad_alloc();
  return memory;
}

void Model::release(void* memory) const {
  std::free(memory);
}

void Model::check_atoms(const mdops_input& input) const {
  constexpr int64_t most = std::numeric_limits<int32_t>::max();
  if (input.atoms < 0 || input.ghosts < 0 || input.atoms > most || input.ghosts > most - input.atoms)
    refuse("atoms and ghosts are " + std::to_string(input.atoms) + " and " + std::to_string(input.ghosts));
  if (input.atoms + input.ghosts > 0 && !input.positions) refuse("positions is null");
}

void Model::check(const mdops_input& input) const {
  check_atoms(input);
  if (input.list) {
    if (input.list->ntypes != ntypes())
      refuse("the list was filled for " + std::to_string(input.list->ntypes) + " types, and the model has " +
             std::to_string(ntypes()));
    if (input.list->atoms != input.atoms || input.list->ghosts != input.ghosts)
      refuse("the list was filled for " + std::to_string(input.list->atoms) + " atoms and " +
             std::to_string(input.list->ghosts) + " ghosts, and there are " + std::to_string(input.atoms) +
             " and " + std::to_string(input.ghosts));
    input.list->check_for(input, cutoff_);
  } else {
    if (input.ghosts) refuse("there are ghosts, and no list");
    if (input.atoms > 0 && !input.types) refuse("types is null, and there is no list");
  }
  if (!fparam_ != !input.fparam && (input.fparam || needs_fparam_))
    refuse(fparam_ ? "fparam is null, and the model takes " + std::to_string(fparam_)
                   : "fparam is given, and the model takes none");
  if (input.atoms > 0 && !aparam_ != !input.aparam)
    refuse(aparam_ ? "aparam is null, and the model takes " + std::to_string(aparam_)
                   : "aparam is given, and the model takes none");
  if (input.atoms + input.ghosts > 0 && takes_spins() && !input.spins)
    refuse("spins is null, and the model has magnetic moments");
}

void Model::refuse_place(int64_t i, mdops_output& output) {
  output.atom = i;
  throw Error(MDOPS_NEIGHBORS, "another atom is at the same place as atom " + std::to_string(i));
}

void Model::refuse_close(int64_t i, double distance, double closest, mdops_output& output) {
  output.atom = i;
  throw Error(MDOPS_NEIGHBORS, "atom " + std::to_string(i) + " has a neighbour at " +
                                   std::to_string(distance) + " A, where the model's pair table has no " +
                                   "energies: it begins at " + std::to_string(closest) + " A");
}

void Model::check_places(int64_t i, const std::vector<Limit>& limits, const int32_t* within,
                         mdops_output& output) const {
  for (const Limit& limit : limits) {
    int64_t n = 0;
    for (int64_t k = 0; k < limit.count; ++k) n += within[limit.first + k];
    if (extends_ || n <= limit.places) continue;
    output.atom = i;
    throw Error(MDOPS_NEIGHBORS, "atom " + std::to_string(i) + " has " + std::to_string(n) + " neighbours" +
                                     (limit.t < 0 ? "" : " of type " + names_[limit.t]) +
                                     " within the cutoff, and the model's sel is " +
                                     std::to_string(limit.places) +
                                     ". DeePMD-kit would drop the farthest; overflow extend keeps all");
  }
}

std::unique_ptr<Model> Model::load(const std::string& path, const mdops_options& options) {
  const Request request{options.precision == MDOPS_FLOAT64 ? "float64" : "float32",
                        options.overflow == MDOPS_EXTEND, options.threads, gpu_of(options.device)};
  const char* const python = options.python ? options.python : std::getenv("MDOPS_PYTHON");
  if (python && *python && !File::names(path, "core.description"))
    return python_model(path, options, request, python);
  try {
    const File file(path);
    if (!file.has("core.description"))
      damaged(std::string("it has no part for this library: `mdops convert IN OUT.safetensors --core` writes "
                          "one, or says why there is none; ") +
              kOtherwise);
    if (options.charge_spin)
      throw Error(MDOPS_INVALID, "it has no embedding of charge and multiplicity (charge_spin)");
    const std::string prefix = prefix_of(file, options.part);
    const Array& text = file.array(prefix + "description");
    const Json about = Json::parse({reinterpret_cast<const char*>(text.data), text.bytes});
    const int64_t version = about.at("version").as_integer();
    if (version < 1 || version > 6)
      throw Error(MDOPS_UNSUPPORTED, "its part for this library is of another version than 1 to 6");
    check_part(about, options.part);
    if (!about.at("grids").find(request.precision))
      throw Error(MDOPS_UNSUPPORTED,
                  "it was made for the other precision: `mdops convert IN OUT.safetensors --core " +
                      request.precision + "` makes it for this one");
    if (request.gpu < 0)
      return about.find("members") ? combined_model(file, about, request)
                                   : cpu_model(file, about, request, prefix);
    if (about.find("dipoles"))
      throw Error(MDOPS_UNSUPPORTED, "models of dipoles compute on the CPU: device cpu");
    return gpu_model(file, about, request);
  } catch (const Error& error) {
    throw Error(error.status, path + ": " + error.what());
  } catch (const std::system_error&) {
    throw;
  } catch (const std::runtime_error& error) {  // of the checks that the ops have, too
    throw Error(MDOPS_FILE, path + ": " + error.what());
  }
}

#ifndef MDOPS_CORE_CUDA
std::unique_ptr<Model> gpu_model(const File&, const Json&, const Request&) {
  throw Error(MDOPS_UNSUPPORTED,
              "this libmdops_core was built without CUDA: it computes on the CPU; mdops built where nvcc is "
              "found (MDOPS_CUDA=ON) has one for GPUs");
}

int gpu_count() {
  return 0;
}
#endif

}  // namespace mdops::core
