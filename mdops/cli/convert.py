"""Converts a model file: any that mdops reads, also of models that it cannot run, into .dp or .yaml for DeePMD-kit,
into .json, or into mdops' own .safetensors. Weights keep their bits; nothing in the file is run."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from mdops.errors import InputError

if TYPE_CHECKING:
    import numpy as np

HELP = "a model file in another format"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", type=Path, metavar="IN", help="a model file; its first bytes say what it is")
    parser.add_argument(
        "output", type=Path, metavar="OUT", help="the file to write: .dp, .yaml, .yml, .json or .safetensors"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace OUT if it is there")
    parser.add_argument(
        "--core",
        nargs="*",
        metavar="PRECISION",
        help="add what C programs and LAMMPS compute with (docs/core.md), in float32, float64, or both by default; "
        "OUT is .safetensors",
    )
    text = "of a model of many elements, those that --core is for; all by default"
    parser.add_argument("--elements", nargs="+", metavar="ELEMENT", help=text)


def run(args: argparse.Namespace) -> int:
    from mdops.io import describe, read_model, write_model
    from mdops.io.write import require_writable

    require_writable(args.output)
    if args.elements and args.core is None:
        raise InputError("--elements is of --core")
    if args.core is not None and args.output.suffix != ".safetensors":
        raise InputError(f"--core writes .safetensors, not {args.output.name}")
    if args.output.exists() and not args.overwrite:
        raise InputError(f"{args.output} is there already; --overwrite replaces it")
    file = read_model(args.input)
    write_model(args.output, file.model, file.source, None if args.core is None else _core(args))
    size = args.output.stat().st_size
    print(f"wrote {args.output} ({size:,} bytes): {describe(file.model)}, from {file.source['format']}")
    if file.source.get("compressed"):
        print("its tables of compression are left out: the nets that they were made from are there")
    return 0


def _core(args: argparse.Namespace) -> "dict[str, np.ndarray]":
    """What the C core needs."""
    from mdops.core.export import PRECISIONS, core_arrays
    from mdops.loading import load

    potential = load(args.input, dtype="float64", spline=False)
    return core_arrays(potential, args.core or tuple(PRECISIONS), args.elements)
