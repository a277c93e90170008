"""Programs that were compiled for an earlier or later version of the C core (core.md, "Versions")."""

import ctypes
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from core_library import (
    INVALID,
    CoreError,
    Info,
    Input,
    Model,
    Neighbors,
    Options,
    Output,
    check,
    given,
    library,
)
from test_core import REFERENCE, systems, written

from mdops.core import LIBRARY, get_include, link_flags
from mdops.core import library as core_path

STRUCTS = {"options": Options, "info": Info, "neighbors": Neighbors, "input": Input, "output": Output}
# The last field of each, and those that have come after it here, which the earlier version has not.
LAST = {
    "options": "charge_spin",
    "info": "virtual_scale",
    "neighbors": "exchange",
    "input": "spins",
    "output": "magnetic_forces",
}

PROGRAM = r"""
#include <mdops.h>
#include <stdio.h>
#include <string.h>

/* What follows a struct in memory stays as it is, and is not looked at. */
#define FOLLOWED(type, name) struct { type of; unsigned char behind[64]; } name; \
  memset(&name, 0, sizeof(name)); memset(name.behind, 0x5a, sizeof(name.behind)); name.of.struct_size = sizeof(name.of)

static int is_whole(const unsigned char *behind) {
  for (int k = 0; k < 64; ++k) if (behind[k] != 0x5a) return 0;
  return 1;
}

int main(int argc, char **argv) {
  FOLLOWED(mdops_options, options);
  FOLLOWED(mdops_info, info);
  FOLLOWED(mdops_neighbors, neighbors);
  FOLLOWED(mdops_input, input);
  FOLLOWED(mdops_output, output);
  options.of.precision = MDOPS_FLOAT64;
  const double positions[9] = {0, 0, 0, 1.5, 0.2, 0, 0.1, 1.4, 1.1};
  const int32_t types[3] = {0, 1, 1}, row[2][2] = {{1, 2}, {0, 2}}, counts[2] = {2, 2};
  const int32_t *rows[2] = {row[0], row[1]};
  double forces[9];
  mdops_model *model = NULL;
  mdops_list *list = NULL;
  input.of.atoms = 2, input.of.ghosts = 1, input.of.positions = positions;
  neighbors.of.atoms = 2, neighbors.of.ghosts = 1, neighbors.of.types = types;
  neighbors.of.counts = counts, neighbors.of.rows = rows;
  output.of.forces = forces;
  if (argc != 2 || mdops_load(argv[1], &options.of, &model) || mdops_describe(model, &info.of) ||
      mdops_list_fill(&neighbors.of, info.of.ntypes, &list)) return puts(mdops_message()), 1;
  input.of.list = list;
  if (mdops_compute(model, &input.of, &output.of)) return puts(mdops_message()), 1;
  printf("%zu %zu %zu %zu %zu\n", sizeof(options.of), sizeof(info.of), sizeof(neighbors.of), sizeof(input.of),
         sizeof(output.of));
  printf("%.17g %.17g %d %.17g\n", output.of.energy, forces[8], info.of.ntypes, info.of.cutoff);
  mdops_list_free(list);
  mdops_free(model);
  return is_whole(options.behind) && is_whole(info.behind) && is_whole(neighbors.behind) && is_whole(input.behind) &&
                 is_whole(output.behind) ? 0 : 2;
}
"""


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return written(REFERENCE / "base", tmp_path_factory.mktemp("base") / "base.safetensors")


def numbers_of_a_program(folder: Path, header: str, model: Path) -> list[list[float]]:
    folder.mkdir()
    (folder / "mdops.h").write_text(header)
    (folder / "program.c").write_text(PROGRAM)
    build = [
        "gcc",
        "-std=c99",
        "-Wall",
        "-Wextra",
        "-Werror",
        f"-I{folder}",
        folder / "program.c",
        *link_flags(),
    ]
    subprocess.run([*map(str, build), "-o", str(folder / "program")], check=True)
    done = subprocess.run([folder / "program", model], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return [[float(x) for x in line.split()] for line in done.stdout.splitlines()]


def test_programs_of_an_earlier_and_a_later_version(base, tmp_path):
    """Their structs end sooner, or have fields that this library does not know."""
    header = Path(get_include(), "mdops.h").read_text()
    found = {"now": numbers_of_a_program(tmp_path / "now", header, base)}
    shorter = longer = header
    for struct, field in LAST.items():
        body = rf"(struct mdops_{struct} {{.*?)(\n  [^\n]*\b{field};[^\n]*)(.*?\n}})"
        shorter, cut = re.subn(body, r"\1\3", shorter, flags=re.DOTALL)
        longer, grown = re.subn(body, r"\1\2\n  double later[3];\3", longer, flags=re.DOTALL)
        assert cut == grown == 1, struct
    found["before"] = numbers_of_a_program(tmp_path / "before", shorter, base)
    found["after"] = numbers_of_a_program(tmp_path / "after", longer, base)
    sizes = np.array([found[name][0] for name in ("before", "now", "after")])
    assert (np.diff(sizes, axis=0) > 0).all()
    assert sizes[1].tolist() == [ctypes.sizeof(struct) for struct in STRUCTS.values()]
    assert found["before"][1] == found["now"][1] == found["after"][1]


def test_what_a_later_version_sets_is_refused(base):
    """A field that this library does not know might matter."""

    Later = type("Later", (Input,), {"_fields_": [("later", ctypes.c_double)]})
    case = next(systems(REFERENCE / "base"))[0]
    model = Model(base)
    positions, types = (np.ascontiguousarray(case[name]) for name in ("positions", "types"))
    plain = given([types.astype(np.int32), positions, None, None, None, None], len(types), 0)
    later = Later()
    ctypes.memmove(ctypes.byref(later, 8), ctypes.byref(plain, 8), ctypes.sizeof(Input) - 8)
    output = Output()
    compute = library().mdops_compute
    check(compute(model.handle, ctypes.byref(later), ctypes.byref(output)))
    assert output.energy == model.compute(positions, types)["energy"]
    later.later = 1.0
    with pytest.raises(
        CoreError, match="mdops_input: what is set behind its first 96 bytes is of a later version"
    ):
        check(compute(model.handle, ctypes.byref(later), ctypes.byref(output)))


@pytest.mark.parametrize("size", [0, 8, 5000, 2**63])
def test_sizes_that_are_none_are_refused(base, size):
    """As of a program that sets none, or for a library without them."""
    model, lib = Model(base), library()
    structs = {name: kind() for name, kind in STRUCTS.items()}
    given, handle = {name: ctypes.byref(struct) for name, struct in structs.items()}, ctypes.c_void_p()
    calls = {
        "options": lambda: lib.mdops_load(str(base).encode(), given["options"], ctypes.byref(handle)),
        "info": lambda: lib.mdops_describe(model.handle, given["info"]),
        "neighbors": lambda: lib.mdops_list_fill(given["neighbors"], 2, ctypes.byref(handle)),
        "input": lambda: lib.mdops_compute(model.handle, given["input"], given["output"]),
        "output": lambda: lib.mdops_compute(model.handle, given["input"], given["output"]),
    }
    for name, call in calls.items():
        check(lib.mdops_compute(model.handle, given["input"], given["output"]))  # of no atoms
        structs[name].struct_size = size
        with pytest.raises(
            CoreError, match=rf"mdops_{name}: struct_size is {size}, expected sizeof"
        ) as caught:
            check(call())
        assert caught.value.status == INVALID and not handle.value
        structs[name].struct_size = ctypes.sizeof(structs[name])


def test_the_fortran_module_has_the_sizes():
    text = Path(get_include(), "mdops.f90").read_text()
    for name, struct in STRUCTS.items():
        body = re.search(rf"type, bind\(c\) :: mdops_{name}\n(.*?)end type", text, re.DOTALL)[1]
        assert int(re.search(r"struct_size = (\d+)", body)[1]) == ctypes.sizeof(struct), name


def test_the_librarys_name_has_the_version():
    """So that no program begins with a library of another one."""
    version = library().mdops_api_version()
    assert core_path().name == LIBRARY == f"libmdops_core.so.{version}"
    told = subprocess.run(["readelf", "-d", core_path()], capture_output=True, text=True, check=True).stdout
    assert f"soname: [{LIBRARY}]" in told
