"""Converts a model file that mdops reads, also of a model that it cannot run, into .dp or .yaml for DeePMD-kit, into
.json, or into mdops' own .safetensors. Weights keep their bits; no code in the file is run."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from mdops.cli.arguments import add_head, add_overwrite, require_absent
from mdops.errors import InputError, ModelFileError, UnsupportedModelError

if TYPE_CHECKING:
    import numpy as np

    from mdops.io import ModelFile
    from mdops.models.contract import Tree

HELP = "convert a model file to another format"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", type=Path, metavar="IN", help="a model file; its first bytes say what it is")
    parser.add_argument(
        "output", type=Path, metavar="OUT", help="the file to write: .dp, .yaml, .yml, .json or .safetensors"
    )
    add_overwrite(parser)
    parser.add_argument(
        "--core",
        nargs="*",
        metavar="PRECISION",
        help="precisions of the data for C programs and LAMMPS (core.md): float32, float64, both (no value) "
        "or none. By default a .safetensors OUT has the data if the C core supports the model; with "
        "--core it is an error if it does not",
    )
    add_head(parser)
    text = "the elements that C programs and LAMMPS may use, of a model of many; default: all"
    parser.add_argument("--elements", nargs="+", metavar="ELEMENT", help=text)
    text = "new names of types: OW=O HW=H gives the types of water the names that ASE knows"
    parser.add_argument("--rename", nargs="+", metavar="OLD=NEW", default=[], help=text)


def run(args: argparse.Namespace) -> int:
    from mdops.io import describe, read_model, write_model
    from mdops.io.write import require_writable

    require_writable(args.output)
    is_left_out = args.core == ["none"]
    if args.elements and is_left_out:
        raise InputError("--elements selects types of data that --core none leaves out")
    takes_core = args.output.suffix == ".safetensors"
    if not takes_core and not is_left_out and (args.core is not None or args.elements):
        raise InputError(f"--core and --elements apply to .safetensors only, not to {args.output.name}")
    require_absent(args.output, overwrite=args.overwrite)
    file = read_model(args.input, args.head)
    model = _renamed(file, args.rename) if args.rename else file.model
    arrays, why_not = _core(args, model) if takes_core and not is_left_out else ({}, "")
    write_model(args.output, model, file.source, arrays)
    size = args.output.stat().st_size
    print(f"wrote {args.output} ({size:,} bytes): {describe(model)}, from {file.source['format']}")
    if file.source.get("compressed"):
        print("its compression tables are left out; the nets from which they were made are kept")
    if why_not:
        print(f"it has no part for the C core (C programs need it, LAMMPS is faster with it): {why_not}")
    return 0


def _renamed(file: "ModelFile", words: list[str]) -> "Tree":
    """The file's model with other names of its types.

    Raises InputError for invalid names, and if the model's results depend on its names."""
    import torch

    from mdops.io.tree import with_type_names
    from mdops.models import model_of_tree

    pairs = [word.partition("=") for word in words]
    wrong = [word for word, (old, _, new) in zip(words, pairs, strict=True) if not old or not new]
    if wrong:
        raise InputError(f"--rename {wrong[0]}: expected OLD=NEW")
    names = {old: new for old, _, new in pairs}
    before = model_of_tree(file.model, torch.float64)
    unknown = [name for name in names if name not in before.type_map]
    if unknown:
        raise InputError(f"--rename {unknown[0]}: the model's types are {', '.join(before.type_map)}")
    after = [names.get(name, name) for name in before.type_map]
    twice = [name for name in after if after.count(name) > 1]
    if twice:
        raise InputError(f"--rename: two types of the model would be {twice[0]}")
    if file.source.get("modifier"):
        raise InputError(
            "--rename does not work for a model with charges (a modifier), because its dipole model has the "
            "same names"
        )
    model: Tree = with_type_names(file.model, names)
    numbers = dict(model_of_tree(model, torch.float64).named_buffers())
    if not all(torch.equal(value, numbers[name]) for name, value in before.named_buffers()):
        raise InputError("--rename: the model uses properties of its elements, which it finds by their names")
    return model


def _core(args: argparse.Namespace, model: "Tree") -> "tuple[dict[str, np.ndarray], str]":
    """The C core's part of the file; if there is none, the reason."""
    from mdops.core.export import PRECISIONS, core_arrays, core_arrays_unasked
    from mdops.loading import load
    from mdops.models import model_of_tree

    is_asked_for = args.core is not None or args.elements
    try:
        potential = load(args.input, head=args.head, dtype="float64", spline=False)
    except (UnsupportedModelError, ModelFileError) as error:  # also about the dipole model of a modifier
        if is_asked_for:
            raise
        return {}, str(error)
    if args.rename:
        potential.model = model_of_tree(model, potential.dtype).eval()
    if is_asked_for:
        return core_arrays(potential, args.core or tuple(PRECISIONS), args.elements), ""
    return core_arrays_unasked(potential)
