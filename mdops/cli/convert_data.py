"""Writes training data as one LMDB dataset in DeePMD-kit's layout, or as extended XYZ. It reads systems of DeePMD-kit,
LMDB datasets, folders of these, and files that ASE reads. LMDB needs the packages lmdb and msgpack."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mdops.cli.arguments import add_overwrite, add_type_map, require_absent
from mdops.errors import InputError

if TYPE_CHECKING:
    from mdops.data.dataset import Dataset

HELP = "convert training data to another format"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "input",
        nargs="+",
        metavar="SYSTEM",
        help="systems of DeePMD-kit, folders of them, and files that ASE reads",
    )
    add("output", type=Path, metavar="OUT", help="the file to write: .lmdb, .xyz or .extxyz")
    add_type_map(parser)
    add("--names", nargs="+", default=[], metavar="LABEL=NAME",
        help="names of energy, forces, virial, stress, fparam or aparam in files that ASE reads")  # fmt: skip
    add_overwrite(parser)


def run(args: argparse.Namespace) -> int:
    from mdops.cli.test import label_names
    from mdops.data.dataset import elements_of, load_dataset
    from mdops.data.lmdb_write import write_lmdb

    if args.output.suffix not in (".lmdb", ".xyz", ".extxyz"):
        raise InputError(f"{args.output}: its name must end in .lmdb, .xyz or .extxyz")
    require_absent(args.output, overwrite=args.overwrite, folder=args.output.suffix == ".lmdb")
    if any(
        Path(name).exists() and args.output.exists() and args.output.samefile(name) for name in args.input
    ):
        raise InputError(f"{args.output} is also the input: give another name")
    data = load_dataset(
        args.input, args.type_map or elements_of(args.input), names=label_names(args.names), labelled=False
    )
    if args.output.suffix == ".lmdb":
        partly = data.pbc.any(1) != data.pbc.all(1)
        if partly.any():
            raise InputError(
                f"{data.name(int(partly.argmax()))}: is periodic in only some directions, which LMDB cannot "
                "represent: write .extxyz"
            )
        write_lmdb(args.output, data)
    else:
        _write_xyz(args.output, data)
    print(
        f"wrote {args.output}: {len(data)} frames, {data.offsets[-1]:,} atoms of {', '.join(data.type_map)}, with "
        f"{', '.join(data.labels) or 'no labels'}"
    )
    return 0


def _write_xyz(path: Path, data: "Dataset") -> None:
    import io

    import ase.io
    import numpy as np
    from ase import Atoms
    from ase.calculators.singlepoint import SinglePointCalculator

    from mdops.files.atomic import replace_file

    buffer = io.StringIO()
    for frame in range(len(data)):
        own = data.atoms(frame)
        symbols = np.array(data.type_map)[data.types[own]]
        atoms = Atoms(symbols, positions=data.positions[own], cell=data.cell[frame], pbc=data.pbc[frame])
        found = {name: data.labels[name] for name in data.labels if data.present[name][frame]}
        results: dict[str, Any] = {}
        if "energy" in found:
            results["energy"] = float(found["energy"][frame])
        if "forces" in found:
            results["forces"] = found["forces"][own]
        if "virial" in found:
            atoms.info["virial"] = found["virial"][frame]
        if "atom_energy" in found:
            results["energies"] = found["atom_energy"][own]
        for name in found.keys() & ("atom_pref", "atom_ener_coeff"):
            atoms.arrays[name] = found[name][own]
        if "drdq" in found:
            atoms.arrays["drdq"] = found["drdq"][own].reshape(len(atoms), -1)
        if "fparam" in found:
            atoms.info["fparam"] = found["fparam"][frame]
        if "aparam" in found:
            atoms.arrays["aparam"] = found["aparam"][own]
        atoms.calc = SinglePointCalculator(atoms, **results)
        ase.io.write(buffer, atoms, format="extxyz")
    replace_file(path, buffer.getvalue().encode())
