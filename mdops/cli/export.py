"""Writes a model as a PyTorch program for energies, forces and virials of any number of atoms: an AOTInductor package,
compiled for this machine, which runs without mdops' Python code (compile.md), or with --program a file for
torch.export.load. To run, it needs the library of the ops; the command prints the path."""

import argparse
import tempfile
import warnings
from pathlib import Path

from mdops.cli.arguments import add_head, add_overwrite, require_absent, require_other

HELP = "compile a model to a PyTorch program"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", type=Path, metavar="MODEL", help="a model file")
    add("output", type=Path, metavar="OUT", help="the package to write, .pt2")
    add("--program", action="store_true", help="write the exported program, not compiled")
    text = "the program makes the neighbour list, with room for K neighbours per atom; default: it is given a list"
    add("--capacity", type=int, metavar="K", help=text)
    text = "how many neighbours of an atom may form angles, if the model has angles; default: the model's sel"
    add("--angle-capacity", type=int, metavar="A", help=text)
    add("--atom-virial", action="store_true", help="return atomic virials, too")
    add("--dtype", default="float32", choices=["float32", "float64"], help="precision of the computation")
    add("--device", default="cpu", help="cpu or cuda: where it will run")
    text = "if there are more neighbours than the model's sel: results are NaN, or keep all neighbours"
    add("--overflow", default="error", choices=["error", "extend"], help=text)
    add_overwrite(parser)
    add_head(parser)


def run(args: argparse.Namespace) -> int:
    import torch

    from mdops._library import library_path
    from mdops.errors import InputError
    from mdops.files.atomic import replace_file
    from mdops.loading import load
    from mdops.tracing import exporting

    if args.output.suffix != ".pt2":
        raise InputError(f"{args.output}: the name of a program ends with .pt2")
    require_absent(args.output, overwrite=args.overwrite)
    require_other(args.output, "OUT", [args.model])
    model = load(args.model, head=args.head, dtype=args.dtype, device=args.device, overflow=args.overflow)
    program = model.export(
        capacity=args.capacity, angle_capacity=args.angle_capacity, atom_virial=args.atom_virial
    )
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder, args.output.name)
        with warnings.catch_warnings():  # PyTorch warns about its own code and about empty tensors
            warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)
            warnings.filterwarnings("ignore", "No complete tensor")
            if args.program:
                torch.export.save(program, written)
            else:
                from torch._inductor import aoti_compile_and_package

                aoti_compile_and_package(program, package_path=str(written))
        replace_file(args.output, written.read_bytes())
    inputs = ", ".join(map(str, program.graph_signature.user_inputs))
    libraries = " and ".join(
        str(library_path(name))
        for name in ("libmdops.so", "libmdops_cuda.so")
        if name == "libmdops.so" or torch.device(args.device).type == "cuda"
    )
    with exporting():
        way = model.explain()
    print(f"wrote {args.output}, a program of {inputs}\n{way}\nto run it, first load {libraries}")
    return 0
