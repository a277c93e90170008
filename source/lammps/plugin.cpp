// The plugin: pair_style mdops and fix mdops/dplr (lammps.md), also by their names in DeePMD-kit, compiled
// against the headers of the LAMMPS at hand (mdops/lammps.py).
#include <cstring>
#include <string>

#include "force.h"
#include "lammps/common.h"
#include "library.h"
#include "lmptype.h"

using namespace LAMMPS_NS;
using namespace mdops::lammps;

namespace {

// As LAMMPS' lammpsplugin.h has it, which is not always installed.
struct Plugin {
  const char *version, *style, *name, *info, *author;
  union {
    void* (*v1)(void* lmp);
    void* (*v2)(void* lmp, int narg, char** arg);
  } creator;
  void* handle;
};

template <bool is_deepmd>
void* make_pair(void* lmp) {
  return make_mdops_pair(static_cast<LAMMPS*>(lmp), is_deepmd);
}

void* make_charges(void* lmp, int narg, char** arg) {
  return make_mdops_charges(static_cast<LAMMPS*>(lmp), narg, arg);
}

void* make_dipole(void* lmp, int narg, char** arg) {
  return make_mdops_dipole(static_cast<LAMMPS*>(lmp), narg, arg);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void lammpsplugin_init(void* lmp, void* handle,
                                                                         void* enter) {
  Error* const error = static_cast<LAMMPS*>(lmp)->error;
  if (lammps_extract_setting(lmp, "tagint") != static_cast<int>(sizeof(tagint)))
    error->all(
        FLERR,
        std::string("the plugin of mdops was built for other sizes of integers than this LAMMPS has: set "
                    "MDOPS_LAMMPS_FLAGS=-DLAMMPS_BIGBIG or -DLAMMPS_SMALLBIG for `mdops lammps`"));
  if (std::strcmp(static_cast<LAMMPS*>(lmp)->version, MDOPS_LAMMPS_VERSION) != 0)
    error->all(FLERR, std::string("the plugin of mdops was built for LAMMPS " MDOPS_LAMMPS_VERSION
                                  ", and this is ") +
                          static_cast<LAMMPS*>(lmp)->version + ": `mdops lammps` builds it for this one");
  if (mdops_api_version() != MDOPS_API_VERSION)
    error->all(FLERR, std::string("the plugin of mdops was built for another libmdops_core"));
  const auto add = reinterpret_cast<void (*)(void*, void*)>(enter);
  Plugin plugin{};
  plugin.version = MDOPS_LAMMPS_VERSION;
  plugin.author = "the mdops developers";
  plugin.handle = handle;
  plugin.style = "pair", plugin.info = "pair style of mdops: Deep Potential models";
  for (const char* const name : kPairStyles) {
    plugin.name = name, plugin.creator.v1 = name == kPairStyles[0] ? make_pair<false> : make_pair<true>;
    add(&plugin, lmp);
  }
  plugin.style = "fix", plugin.info = "fix of mdops: charges beyond the cutoff of Deep Potential models";
  for (const char* const name : kChargesStyles) {
    plugin.name = name, plugin.creator.v2 = make_charges;
    add(&plugin, lmp);
  }
  plugin.style = "compute", plugin.name = "deeptensor/atom";
  plugin.info = "compute of mdops: dipoles of atoms", plugin.creator.v2 = make_dipole;
  add(&plugin, lmp);
  Force* const force = static_cast<LAMMPS*>(lmp)->force;
  const auto mesh = force->kspace_map->find(kMesh);
  if (mesh != force->kspace_map->end()) {
    plugin.style = "kspace", plugin.name = kMeshOfDeepmd, plugin.info = "LAMMPS' kspace style pppm";
    plugin.creator.v1 = reinterpret_cast<void* (*)(void*)>(mesh->second);
    add(&plugin, lmp);
  }
  if (reinterpret_cast<void* (*)(void*)>((*force->pair_map)[kPairStyles[1]]) != make_pair<true>)
    utils::logmesg(static_cast<LAMMPS*>(lmp),
                   "mdops: pair_style deepmd is that of another plugin, which was loaded before: write "
                   "pair_style mdops\n");
}
